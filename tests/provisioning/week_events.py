"""The events of the scripted week: each does one thing to the network, checks what follows, and says what it saw."""

import hashlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import silofl
from provisioning.workspace import PROJECT
from silofl.base.files import read_json, write_json
from silofl.federation.egress_log import FILE as EGRESS
from silofl.federation.ledger import Round
from silofl.federation.results import read_results
from silofl.setup.software import digest_package
from silofl_desk.phantoms.phantoms import make_phantoms
from tests.provisioning.week_stage import Followed, Stage, require_that, wait_until
from tests.proxy import run_proxy

HOSPITALS, NEW = ("east", "north", "south"), "west"
# Enough for the 5 training patients below which no amplitude leaves a hospital.
PATIENTS = dict.fromkeys((*HOSPITALS, NEW), 10)
LONG = "week_long"
SECOND_LEAD = "second@study.example.org"
# Of the two studies beside each other; the second one is aborted in its midst, and an abort takes seconds.
ROUNDS = {"week_first": 8, "week_second": 40}
OTHER_RELEASE = "9.9.0"
# One that works together with the present one.
NEXT_RELEASE = f"{silofl.__version__.rpartition('.')[0]}.99"


@dataclass(frozen=True)
class Event:
    """One event.

    Attributes:
        what: What happens, as a sentence.
        carry_out: Does it and checks what follows; returns what was seen.
    """

    what: str
    carry_out: Callable[[Stage], str]


def provision_network(stage: Stage) -> str:
    """Make, check and start the network; every hospital checks itself."""
    make_phantoms(stage.data, patients=PATIENTS)
    where = ("--host", "localhost", "--port", stage.port, "--data-root", stage.data)
    stage.provisioning("make-kits", PROJECT, stage.workspace, *where)
    stage.provisioning("check-kits", stage.workspace)
    connected = stage.open_network()
    require_that(connected == {*HOSPITALS}, f"all hospitals must be connected, not {sorted(connected)}")
    # Rounds enough for all that happens; a hospital may miss any number of them.
    federation = {"federation.min_sites": 2, "federation.max_missed_rounds": 5000}
    job = stage.write_job("fedavg_phantoms", LONG, rounds=5000, **federation)
    for name in HOSPITALS:
        stage.check_site(name, job)
    return f"check-kits: all is right; site check: {', '.join(HOSPITALS)} may join; all are connected"


def run_two_studies(stage: Stage) -> str:
    """Run two studies at the same time."""
    templates = {"week_first": "harmofl_phantoms", "week_second": "fedavg_phantoms"}
    jobs = {
        name: stage.write_job(template, name, rounds=ROUNDS[name], baseline_comparison=False)
        for name, template in templates.items()
    }
    followed = {name: stage.begin(name, job) for name, job in jobs.items()}
    for one in followed.values():
        one.finish()
    for name, one in followed.items():
        check_complete(one, ROUNDS[name])
    times = [(one.ledger[0].started_at, one.ledger[-1].started_at) for one in followed.values()]
    require_that(
        max(first for first, _ in times) < min(last for _, last in times), "both studies must run at the same time"
    )
    rounds = " and ".join(map(str, ROUNDS.values()))
    return f"both are COMPLETE after {rounds} rounds, with answers of all three in each; they ran at the same time"


def restart_server(stage: Stage) -> str:
    """Restart the server while the first study runs once more, and go on by hand."""
    run = begin_again(stage, "week_first")
    run.stop()
    stage.network.kill("server")
    finished = list(run.ledger)
    stage.network.start(stage.network.server)
    return f"killed after {finish_as_first(stage, 'week_first', finished)}"


def abort_second_study(stage: Stage) -> str:
    """Abort the second study, which runs once more, and go on by hand."""
    run = begin_again(stage, "week_second")
    run.abort()
    return f"aborted after {finish_as_first(stage, 'week_second', list(run.ledger))}"


def restart_hospital(stage: Stage) -> str:
    """Restart a hospital while the long study runs."""
    run = stage.begin(LONG, stage.out / "jobs" / LONG)
    run.wait_for_rounds(2)
    finished = len(run.ledger)
    stage.restart("north")
    found = run.wait_for("north answers", lambda one: "north" in one.answered)
    missed = [one.round for one in run.ledger[finished:] if sorted(one.answered) != [*HOSPITALS]]
    require_that(not missed, f"all three must answer in each round after the restart, not without one in {missed}")
    return f"killed after round {finished}; round {found.round} of the same job has it, and none went on without it"


def add_new_hospital(stage: Stage) -> str:
    """Make a kit for one more hospital while the long study runs; it checks itself and is started."""
    run, job = stage.followed[LONG], stage.out / "jobs" / LONG
    stage.provisioning("add-hospital", stage.workspace, NEW, f"{NEW}_hospital", "--data-root", stage.data)
    stage.check_site(NEW, job)
    stage.start(NEW)
    found = run.wait_for("the study runs", lambda one: len(one.answered) >= 2)
    require_that(NEW not in found.asked, f"{NEW} must wait for a continuation, not be asked in round {found.round}")
    return f"site check: {NEW} may join; it is connected; round {found.round} of the running job does not ask it yet"


def abort_and_continue(stage: Stage) -> str:
    """Abort the long study and go on with it, which takes in who is new."""
    run = stage.followed[LONG]
    run.abort()
    finished = len(run.ledger)
    run = stage.go_on(LONG)
    found = wait_for_all(run)
    require_that(found.round > finished, f"round {found.round} must come after round {finished}, the last one before")
    return f"aborted after round {finished}; continued, {NEW} answers with the others in round {found.round}"


def let_second_lead_come_and_go(stage: Stage) -> str:
    """Make a kit for a second lead, who runs a study and leaves with a copy of the kit, while the long study runs."""
    stage.provisioning("add-person", stage.workspace, SECOND_LEAD, "study", "lead")
    kit, copy, results = stage.kit(SECOND_LEAD).folder, stage.out / "copied-kit", stage.out / "results"
    job = stage.write_job(
        "fedavg_phantoms", "week_third", rounds=2, baseline_comparison=False, **{"federation.sites": len(PATIENTS)}
    )
    stage.silofl("run", job, "--kit", kit, "--out", results / "week_third")
    (run,) = (results / "week_third").rglob("results.json")
    status = read_results(run.parent).status
    require_that(status == "COMPLETE", f"the study of the second lead must be COMPLETE, not {status}")
    shutil.copytree(kit, copy)
    stage.provisioning("remove-kit", stage.workspace, SECOND_LEAD)
    stage.silofl("run", job, "--kit", copy, "--out", results / "refused", code=2)
    found = wait_for_all(stage.followed[LONG])
    return f"COMPLETE after 2 rounds; a copy of the removed kit runs nothing; all answer in round {found.round}"


def pause_hospital(stage: Stage) -> str:
    """Have a hospital pause the study for some rounds, without a restart."""
    run = stage.followed[LONG]
    stage.change_site("east", paused=[LONG])
    first = run.wait_for("east is paused", lambda one: "paused" in one.failed.get("east", ""))
    run.wait_for("east is still paused", lambda one: "paused" in one.failed.get("east", ""))
    stage.change_site("east", paused=[])
    back = run.wait_for("east answers", lambda one: "east" in one.answered)
    missed = [one.round for one in run.ledger[first.round - 1 : back.round] if "east" in one.failed]
    return f"rounds {missed[0]} to {missed[-1]} without east: {first.failed['east']}; round {back.round} with it again"


def put_hospital_behind_proxy(stage: Stage) -> str:
    """Have a hospital go through an HTTP proxy, from now on."""
    port, heads = stage.keep(run_proxy())
    stage.change_site("south", proxy=f"http://localhost:{port}")
    stage.restart("south")
    found = stage.followed[LONG].wait_for("south answers", lambda one: "south" in one.answered)
    to_server = f"CONNECT localhost:{stage.port} "
    require_that(
        bool(heads) and all(head.startswith(to_server) for head in heads),
        "the proxy must have led south to the server, and nowhere else",
    )
    return f"{len(heads)} connections through the proxy, all to the server; south answers in round {found.round}"


def renew_hospital_certificate(stage: Stage) -> str:
    """Renew a hospital's certificate; it restarts with it."""
    stage.followed[LONG].abort()
    before = stage.kit("south").certificate
    stage.provisioning("renew-kit", stage.workspace, "south")
    stage.restart("south")
    after = stage.kit("south").certificate
    require_that(after.serial_number != before.serial_number, "the renewed certificate of south must be another")
    return f"the server has registered south with the new certificate, valid to {after.not_valid_after_utc:%Y-%m-%d}"


def break_three_hospitals(stage: Stage) -> str:
    """Have one hospital change its package, one install another release, and one break its policy."""
    changed, other = (
        copy_changed_package(stage, "changed", silofl.__version__),
        copy_changed_package(stage, "other", OTHER_RELEASE),
    )
    stage.restart("east", PYTHONPATH=str(changed))
    stage.restart("north", PYTHONPATH=str(other))
    privacy = stage.kit(NEW).folder / "local" / "privacy.json"
    write_json(privacy, remove_egress_filters(read_json(privacy)))
    failed = stage.check_site(NEW, stage.out / "jobs" / LONG, "--skip", "training", may_join=False)
    require_that("egress" in failed, f"site check of {NEW} must name egress, not {sorted(failed)}")
    stage.restart(NEW)
    run = stage.go_on(LONG)
    found = run.wait_for("east and south answer", lambda one: sorted(one.answered) == ["east", "south"])
    note = next(
        (note for one in run.ledger for note in one.notes if note.startswith("site 'east' runs other software")), ""
    )
    require_that(digest_package(changed / "silofl")[:12] in note, "a note must name the changed package of east")
    require_that(
        f"not {silofl.__version__}" in found.failed.get("north", ""), "the ledger must say why north takes no part"
    )
    # What is wrong with its settings a hospital says in its own log alone.
    require_that("settings have a fault" in found.failed.get(NEW, ""), f"the ledger must say why {NEW} takes no part")
    said = (stage.out / "logs" / f"{NEW}.txt").read_text(encoding="utf-8", errors="replace")
    require_that("local/privacy.json must have" in said, f"the log of {NEW} must name what is wrong with its settings")
    return (
        f"site check of {NEW}: {failed['egress']}; the study goes on with east and, with its new certificate, south; "
        f"round {found.round} without north: {found.failed['north']}; without {NEW}: {found.failed[NEW]}; note: {note}"
    )


def forget_one_patient(stage: Stage) -> str:
    """Forget one patient at a hospital; the record of what left it stays whole."""
    stage.followed[LONG].abort()
    data, state = stage.data / "south", stage.data / ".silofl"
    content = read_json(data / "dataset.json")
    patient = content["test"][0]["patient"]
    for case in content["test"]:
        if case["patient"] == patient:
            (data / case["image"]).unlink()
            (data / case["label"]).unlink()
    write_json(data / "dataset.json", content | {"test": [one for one in content["test"] if one["patient"] != patient]})
    (record,) = (state / LONG / "south").glob(f"*/{EGRESS}")
    last = stage.silofl("site", "egress-check", record).split("hash ")[1].split()[0]
    named = find_patient_files(state, patient)
    config = stage.kit("south").folder / "local" / "site.yaml"
    stage.silofl("site", "forget", "--patient", patient, "--site-config", config, "--site", "south", "--yes")
    stage.silofl("site", "egress-check", record, "--noted", last)
    left = find_patient_files(state, patient)
    require_that(
        bool(named) and not left, f"files must name the patient before ({len(named)}) and none afterwards ({len(left)})"
    )
    return f"{len(named)} files of south named the patient, none does now; site egress-check: whole before and after"


def restore_server(stage: Stage) -> str:
    """Lose the server's disk, with its kit and all runs, after a nightly backup; restore it."""
    backup, places = stage.out / "backup", (stage.kit("server").folder, stage.data / ".silofl" / "server")
    for number, place in enumerate(places):
        shutil.copytree(place, backup / str(number))
    stage.network.kill("server")
    for number, place in enumerate(places):
        shutil.rmtree(place)
        shutil.copytree(backup / str(number), place)
    stage.network.start(stage.network.server)
    expected = {"east", "south"}
    wait_until("east and south to connect", lambda: stage.network.connected() >= expected)
    return f"{', '.join(sorted(expected))} are connected to the restored server"


def mend_hospitals(stage: Stage) -> str:
    """Mend policy and packages; the study goes on with all."""
    privacy = stage.kit(NEW).folder / "local" / "privacy.json"
    shutil.copyfile(stage.kit("east").folder / "local" / "privacy.json", privacy)
    stage.check_site(NEW, stage.out / "jobs" / LONG, "--skip", "training")
    for name in ("east", "north", NEW):
        stage.restart(name)
    run = stage.go_on(LONG)
    found = wait_for_all(run)
    run.abort()
    return f"site check: {NEW} may join; all four answer in round {found.round}"


def upgrade_and_finish(stage: Stage) -> str:
    """Upgrade the server and one hospital, go on, upgrade the others, and go on to the end."""
    upgraded = copy_changed_package(stage, "next", NEXT_RELEASE)
    stage.network.kill("server")
    stage.network.start(stage.network.server, PYTHONPATH=str(upgraded))
    stage.restart("east", PYTHONPATH=str(upgraded))
    wait_until("all four to connect", lambda: stage.network.connected() == {*PATIENTS})
    finished = len(stage.followed[LONG].ledger)
    run = stage.go_on(LONG)
    found = wait_for_all(run)
    run.abort()
    others = [name for name in PATIENTS if name != "east"]
    finished_since = len(run.ledger)
    said = [note for one in run.ledger[finished:] for note in one.notes if "other software" in note]
    require_that(
        len(said) == len(others) and all(f"'{name}'" in note for name, note in zip(others, sorted(said), strict=True)),
        f"one note must name each of {', '.join(others)}, not {said}",
    )
    for name in others:
        stage.restart(name, PYTHONPATH=str(upgraded))
    # Enough for silofl watch to see the job while it runs.
    rounds = len(run.ledger) + 20
    run = stage.go_on(LONG, "--set", f"rounds={rounds}")
    wait_for_all(run)
    run.finish()
    again = [note for one in run.ledger[finished_since:] for note in one.notes if "other software" in note]
    require_that(not again, f"nobody must run other software any more, not {again}")
    check_status(run)
    return (
        f"round {found.round} with server and east at {NEXT_RELEASE} and the others at {silofl.__version__}, each of "
        f"them named in a note; then all at {NEXT_RELEASE}: COMPLETE after {rounds} rounds"
    )


EVENTS = (
    Event("Monday: a server and three hospitals are provisioned, checked and started", provision_network),
    Event("Monday: two studies run at the same time", run_two_studies),
    Event("Tuesday: the server is killed and started again while a study runs; its lead goes on", restart_server),
    Event("Tuesday: the lead aborts the other study and goes on", abort_second_study),
    Event("Tuesday: hospital north is killed and started again while the long study runs", restart_hospital),
    Event("Wednesday: hospital west gets a kit and starts while the study runs", add_new_hospital),
    Event("Wednesday: the lead aborts the study and goes on with west", abort_and_continue),
    Event("Wednesday: a second lead gets a kit, runs a study, and leaves", let_second_lead_come_and_go),
    Event("Thursday: hospital east pauses the study for some rounds", pause_hospital),
    Event("Thursday: hospital south goes through a proxy from now on", put_hospital_behind_proxy),
    Event("Thursday: the certificate of south is renewed", renew_hospital_certificate),
    Event(
        "Friday: east changes its package, north installs another release, west breaks its policy",
        break_three_hospitals,
    ),
    Event("Saturday: hospital south forgets a patient", forget_one_patient),
    Event("Saturday: the server's disk is lost, and restored from its backup", restore_server),
    Event("Sunday: all is mended, and the study goes on with all", mend_hospitals),
    Event("Sunday: server and hospitals are upgraded, one after the other, and the study ends", upgrade_and_finish),
)


def begin_again(stage: Stage, name: str) -> Followed:
    """Submit a study of the first day once more, and wait for two of its rounds."""
    run = stage.begin(f"{name}_again", stage.out / "jobs" / name)
    run.wait_for_rounds(2)
    return run


def finish_as_first(stage: Stage, name: str, finished: Sequence[Round]) -> str:
    """Go on with what `begin_again` began, and check that it ends with the models of the run that nothing stopped.

    Args:
        stage: The network.
        name: Of the study.
        finished: The rounds that had finished before it was stopped.

    Returns:
        What was seen."""
    run = stage.go_on(f"{name}_again")
    run.finish()
    check_complete(run, ROUNDS[name])
    again = [one.started_at for one in run.ledger][: len(finished)]
    require_that(
        again == [one.started_at for one in finished],
        f"none of the {len(finished)} finished rounds must be carried out again",
    )
    whole, continued = (hash_model_files(stage.out / "results" / one) for one in (name, f"{name}_again"))
    require_that(whole == continued != {}, "every model must be bit by bit that of the run that nothing stopped")
    same = f"all {len(whole)} model files are bit by bit those of the first run"
    return f"round {len(finished)} of {ROUNDS[name]}; continued, COMPLETE; {same}"


def wait_for_all(run: Followed) -> Round:
    """Wait for a round in which all four hospitals answer; the errors of `Followed.wait_for`."""
    return run.wait_for("all four answer", lambda one: sorted(one.answered) == sorted(PATIENTS))


def check_status(run: Followed) -> None:
    """Check that a run is COMPLETE."""
    results = read_results(run.out)
    is_complete = results is not None and results.status == "COMPLETE"
    require_that(is_complete, f"{run.out.name} must be COMPLETE; see {run.log}")


def check_complete(run: Followed, rounds: int) -> None:
    """Check that a run is COMPLETE, with answers of all three hospitals in each of its rounds."""
    check_status(run)
    numbers = [one.round for one in run.ledger if sorted(one.answered) == [*HOSPITALS]]
    require_that(
        numbers == [*range(1, rounds + 1)], f"all must answer in each of the {rounds} rounds, not in {numbers}"
    )


def hash_model_files(run: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of weights in a run's folder."""
    files = [path for name in ("model", "supermodel") for path in sorted((run / name).rglob("*.pt"))]
    return {str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def copy_changed_package(stage: Stage, name: str, version: str) -> Path:
    """Copy the package with one more line and a version; returns the folder that holds it."""
    folder = stage.out / "packages" / name
    source = Path(silofl.__file__).parent
    shutil.copytree(source, folder / "silofl", ignore=shutil.ignore_patterns("__pycache__"))
    file = folder / "silofl" / "__init__.py"
    text = file.read_text(encoding="utf-8").replace(f'"{silofl.__version__}"', f'"{version}"')
    file.write_text(f"{text}# A line that nobody has reviewed.\n", encoding="utf-8")
    return folder


def remove_egress_filters(privacy: dict[str, object]) -> dict[str, object]:
    """Return a site's privacy.json without the filters of its answers."""
    return privacy | {"scopes": [scope | {"task_result_filters": []} for scope in privacy["scopes"]]}


def find_patient_files(state: Path, patient: str) -> list[Path]:
    """Return the files of a hospital's states that name a patient."""
    files = [path for path in state.glob("*/south/**/*") if path.is_file()]
    return [path for path in files if patient.encode() in path.read_bytes()]
