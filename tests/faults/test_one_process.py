"""A run in one process is killed in each phase, and goes on to the very weights of one that nothing happened to."""

import shutil
import signal
from pathlib import Path

import pytest
import yaml

from .conftest import ROUNDS, check_end, ledger, silofl, undisturbed
from .started import Fault

pytestmark = pytest.mark.faults

SITE, SERVER, FOLDER = (
    f"silofl.federation.{name}" for name in ("site:SiteRounds", "server:ServerRounds", "run_folder")
)
HALF = "silofl.parts.half_round:HalfRound"
STATE, CHECKPOINT = "round_0002.pt", "checkpoint.next.pt"
# Three sites: calls 1 to 3 are of the first round.
PHASES = {
    "reading data": Fault("silofl_desk.studies.runs.simulated_sites:load_site_data", 2, "after"),
    "before the first round": Fault(f"{SERVER}.start", 1, "after"),
    "first task": Fault(f"{SITE}.answer", 1),
    "training, first round": Fault("silofl.training.loop:_Progress.learn", 3),
    "training, second round": Fault("silofl.training.loop:_Progress.learn", 9, "after"),
    "a site's state unwritten": Fault("silofl.federation.state:SiteState.save", 5),
    "a site's state written": Fault("silofl.federation.state:SiteState.save", 5, "after"),
    "a site's answer kept": Fault(f"{HALF}.keep_answer", 5, "after"),
    "sending, first site": Fault(f"{SITE}.answer", 4, "after"),
    "sending, last site": Fault(f"{SITE}.answer", 6, "after"),
    "aggregating": Fault("silofl.parts.model:mix", 2),
    "aggregated": Fault(f"{SERVER}.close", 2, "after"),
    "a site's state half written": Fault("os:replace", file=STATE),
    "checkpointing, half written": Fault("os:replace", 3, file=CHECKPOINT),
    "checkpointing, first round": Fault(f"{FOLDER}:save_state", 1, "after"),
    "checkpointing, before the file": Fault(f"{FOLDER}:RunFolder.save", 2),
    "checkpointing, between the renames": Fault("pathlib:Path.replace", 2, "after"),
    "checkpointing, before the ledger": Fault(f"{FOLDER}:RunFolder._write_ledger", 2),
    "checkpointing, before the metrics": Fault(f"{FOLDER}:RunFolder._write_metrics", 3),
    "checkpointing, before the last ledger": Fault(f"{FOLDER}:RunFolder._write_ledger", ROUNDS + 1),
    "between rounds": Fault(f"{FOLDER}:RunFolder.save", 2, "after"),
    "validating": Fault(f"{SITE}.answer", 3 * ROUNDS + 2),
    "testing, first site": Fault(f"{SITE}.answer", 3 * ROUNDS + 4),
    "testing, last site": Fault(f"{SITE}.answer", 3 * ROUNDS + 6, "after"),
    "saving models": Fault(f"{FOLDER}:save_models", 1, "after"),
    "before the result": Fault(f"{FOLDER}:finished_results"),
    "reporting": Fault("silofl_desk.studies.runs.simulate:write_report"),
}

# Phase -> the file that is half written then.
HALF_WRITTEN = {"a site's state half written": STATE, "checkpointing, half written": CHECKPOINT}


def go_on(run, job, data):
    """Resume a run as its command says, or start it again where it had not begun."""
    is_begun = (run / "run.json").is_file()
    code, said = silofl(
        *(("resume", run) if is_begun else ("simulate", job, "--data", data, "--out", run, "--in-process"))
    )
    assert code == 0, said


@pytest.mark.parametrize("phase", PHASES)
def test_a_run_killed_in_a_phase_goes_on_to_the_same_weights(tmp_path, whole, job, site_data, phase):
    run = tmp_path / "run"
    code, said = silofl("simulate", job, "--data", site_data, "--out", run, "--in-process", fault=PHASES[phase])
    assert code == -signal.SIGKILL, said
    half = [HALF_WRITTEN[phase]] if phase in HALF_WRITTEN else []
    # Between the file's name and .tmp stands the number of the process.
    assert [path.name[1:].removesuffix(".tmp").rpartition(".")[0] for path in run.rglob(".*.tmp")] == half
    before = ledger(run)
    go_on(run, job, site_data)
    check_end(run, whole, before)


def test_a_run_killed_within_its_long_first_round_goes_on_from_the_step_that_was_saved(tmp_path, job, site_data):
    job, run = Path(shutil.copytree(job, tmp_path / "job")), tmp_path / "run"
    path = job / "app" / "config" / "study.yaml"
    study = yaml.safe_load(path.read_text())
    # Some 10 s at each site; a step is saved after 5 s.
    study["training"]["local_epochs"] = 300
    path.write_text(yaml.safe_dump(study | {"rounds": 2}))
    whole = undisturbed(tmp_path / "whole", job, site_data)
    fault = Fault(f"{HALF}.save", 1, "after")
    code, said = silofl("simulate", job, "--data", site_data, "--out", run, "--in-process", fault=fault)
    assert code == -signal.SIGKILL, said
    (half,) = run.rglob("half_round.pt")
    assert half.stat().st_mode & 0o777 == 0o600
    # Once more, when it goes on from there.
    fault = Fault("silofl.training.loop:Training.load_state_dict", 1, "after")
    assert silofl("resume", run, fault=fault)[0] == -signal.SIGKILL
    go_on(run, job, site_data)
    check_end(run, whole)
    assert not [*run.rglob("half_round.pt"), *run.rglob("answer.pt")]
