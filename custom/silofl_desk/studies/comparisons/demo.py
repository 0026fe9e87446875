"""``silofl demo``: simulated hospitals, several algorithms on the same split, one table and one report."""

import argparse
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

from rich.console import Console

from silofl.base.bundled_jobs import JOBS
from silofl.base.errors import ExitCode
from silofl.base.files import make_folder, open_own, read_json
from silofl.base.options import PlainConsole, make_console
from silofl.core.gain import BETTER
from silofl.inference.directory import FOLDER
from silofl_desk.options import read_changes
from silofl_desk.phantoms.phantoms import SITES, UNLIKE_SIZES, UNSEEN_SITE, make_phantoms
from silofl_desk.report.run_records import RunRecords, read_run
from silofl_desk.studies.comparisons.compared_runs import ComparedRun
from silofl_desk.studies.comparisons.comparison_page import print_comparison, write_rows
from silofl_desk.studies.comparisons.hospitals import conclude, hospital_table, unseen_tables
from silofl_desk.studies.comparisons.side_by_side import LOGS, run_side_by_side
from silofl_desk.studies.runs.processes import enable_interrupts
from silofl_desk.studies.runs.progress import announce
from silofl_desk.studies.runs.simulation import Simulation, changed_study, check_no_file
from silofl_hospital.inference.command import Options, predict_inputs
from silofl_hospital.report.tables import print_table

# Method -> the normalisation of its network. AdaFed compares hospitals by BatchNorm; the others share InstanceNorm, as
# averaged BatchNorm fails where hospitals look different. What begins first leaves its local models to the others;
# FedSM takes longest.
METHODS = {"fedsm": "instance", "adafed": "batch", "fedavg": "instance", "harmofl": "instance"}
PROCESSES = 2
SUPER_RUN = "fedsm_phantoms"
# The images have fewer pixels than the jobs' own, the network is smaller and the batches are larger: the jobs take
# several times as long. In return the learning rate is higher. Every training goes on until it is done.
SMALL: dict[str, Any] = {
    "rounds": 100,
    "federation.patience": 10,
    "data.transforms": [{"Resize": {"spatial_size": [32, 32]}}],
    "training.learning_rate": 0.01,
    "training.batch_size": 16,
}
NETWORK = {"channels": [16, 32, 64], "strides": [2, 2]}
# So many shared rounds precede AdaFed's comparison of the hospitals.
SHARED = 10
WIDTH = 100
START = (
    f"Simulated hospitals: {', '.join(SITES)}. Each has its own scanner, and only models leave it. {SITES[0]} has many "
    f"patients, {SITES[3]} few. The contrast at {SITES[2]} is reversed: one model cannot serve it and the others. "
    f"{UNSEEN_SITE} takes no part."
)
NEXT = """Next, your own images: MY_IMAGES holds a folder per hospital, each with images/ and masks/ in it.
  silofl import folders MY_IMAGES my-data --labels tumour
  silofl new-study my-data my-study
  silofl simulate my-study --data my-data --out my-run"""


def run(options: argparse.Namespace) -> int:
    """Run the demonstration."""
    return run_demo(options.out, read_changes(options), make_console(options))


def run_demo(out: Path, changes: dict[str, Any], console: Console) -> int:
    """Make the phantoms, run each method on them, print one table and write one report; finished runs are reused.

    Args:
        out: Folder of the phantoms, the runs, ``report.html`` and ``logs``, which have the details.
        changes: Keys of the studies to change: rounds, seed; the phantoms have the same seed.

    Returns:
        The highest exit code of the runs and the prediction; 130 interrupted.

    Raises:
        ConfigError: The folder is a file, or a job or a change is wrong; before anything was written.
    """
    check_no_file(out, "--out")
    # Every study is checked before the first one trains.
    for method in METHODS:
        changed_study(*_choose_study(method, changes))
    make_folder(out / LOGS)
    enable_interrupts()
    try:
        with _open_log(out / LOGS / "demo.txt") as log:
            return _tell_story(out, changes, console, log)
    except KeyboardInterrupt:
        console.print("\ninterrupted; to go on, give the same command again: what has finished is kept")
        return ExitCode.INTERRUPTED


def _tell_story(out: Path, changes: dict[str, Any], console: Console, log: Console) -> int:
    started = time.monotonic()
    data = out / "phantoms"
    _print_wrapped([START], console)
    with announce(f"making their scans in {data}", console):
        make_phantoms(data, changes.get("seed", 0), kind=UNLIKE_SIZES)
    # In one process each: as many as there are sites would take several times the memory and the time.
    simulation = Simulation(str(data), SITES, left_out=UNSEEN_SITE, is_in_process=True)
    planned = []
    for method in METHODS:
        job, study_changes = _choose_study(method, changes)
        planned.append(ComparedRun(method, 0, out / job.name, job, simulation, study_changes))
    if failures := run_side_by_side(planned, out, PROCESSES, console):
        _print_wrapped([f"{path.name} has no result: {why}" for path, why in failures.items()], console)
        return ExitCode.FAILED
    runs = {run.name: read_run(run.path) for run in planned}
    rows = {method: [run] for method, run in runs.items()}
    print_comparison(rows, log)
    with announce("writing the report", console):
        report = write_rows(rows, out / "report.html")
    code = _predict_unseen(out, data, console, log)
    elsewhere, *at_home = conclude(rows)
    console.print()
    _print_wrapped([elsewhere, *conclude_sizes(runs, count_training_patients(data))], console)
    for unseen_table in unseen_tables(rows):
        print_table(unseen_table, console)
    console.print()
    _print_wrapped(at_home, console)
    table = hospital_table(rows)
    if table:
        print_table(table, console)
    minutes = (time.monotonic() - started) / 60
    console.print(f"\nAfter {minutes:.1f} minutes: pictures are in {report}, details in {out / LOGS}")
    console.print(NEXT)
    return max(code, *(ExitCode[run.results.status] for run in runs.values()))


def _choose_study(method: str, changes: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    """Return the bundled job of a method, and what the demonstration changes in its study."""
    model = {"network": "monai.networks.nets.UNet", "arguments": NETWORK, "normalization": METHODS[method]}
    study_changes = SMALL | {"model": model} | changes
    if method == "adafed":
        study_changes["algorithm.statistics.rounds"] = max(1, min(SHARED, int(study_changes["rounds"]) // 2))
    return JOBS / f"{method}_phantoms", study_changes


def count_training_patients(data: Path) -> dict[str, int]:
    """Return site -> its training patients, the most first."""
    counts = {site: len(read_json(data / site / "dataset.json")["training"]) for site in SITES}
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def conclude_sizes(runs: Mapping[str, RunRecords], patients: Mapping[str, int]) -> list[str]:
    """Say what the runs give the smallest hospital and each larger one; those with most patients come first."""
    *larger, smallest = patients
    sentences = []
    for site in (smallest, *larger):
        verdicts = []
        differences = {}
        for method, run in runs.items():
            joined = (run.results.joining or {}).get(site)
            if joined:
                verdicts.append(joined.verdict)
                # A method without test cases in common with the local model has a verdict alone.
                if joined.difference is not None:
                    differences[method] = joined.difference
        if not differences:
            continue
        worst = min(differences, key=differences.__getitem__)
        best = max(differences, key=differences.__getitem__)
        name = f"{site}, the smallest" if site == smallest else site
        sentences.append(
            f"{name} ({patients[site]} training patients): federated minus local {differences[worst]:+.3f} ({worst}) "
            f"to {differences[best]:+.3f} ({best}); better for its patients with {verdicts.count(BETTER)} of "
            f"{len(verdicts)} methods."
        )
    return sentences


@contextmanager
def _open_log(path: Path) -> Iterator[Console]:
    """Yield a console that writes to the end of a file, as do all who write to standard error meanwhile."""
    with open_own(path, "a") as stream, redirect_stderr(stream):
        yield PlainConsole(file=stream, highlight=False, markup=False, soft_wrap=True)


def _print_wrapped(sentences: Sequence[str], console: Console) -> None:
    for sentence in sentences:
        # A path is never broken: it is to be copied.
        console.print(textwrap.fill(sentence, WIDTH, break_long_words=False, break_on_hyphens=False))


def _predict_unseen(out: Path, data: Path, console: Console, log: Console) -> int:
    """Predict a new patient of the hospital that never trained, as a clinic would."""
    scan = min((data / UNSEEN_SITE / "images").iterdir())
    target = out / "prediction"
    with announce(f"segmenting {scan.name} of {UNSEEN_SITE} with fedsm's models into {target}", console):
        code, _ = predict_inputs(out / SUPER_RUN / FOLDER, [scan], target, Options(has_picture=True), log)
    return code
