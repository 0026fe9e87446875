"""``silofl demo``: simulated hospitals, several algorithms on the same split, one table and one report."""

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from silofl.algorithms.gain import count_verdicts
from silofl.bundled_jobs import JOBS
from silofl.data.phantoms import SITES, UNSEEN_SITE, make_phantoms
from silofl.errors import ConfigError, ExitCode
from silofl.federation.results import Results
from silofl.inference.command import Options, predict_inputs
from silofl.inference.directory import FOLDER
from silofl.options import make_console, read_changes
from silofl.report.comparison import print_comparison
from silofl.report.pages import write_comparison
from silofl.report.run_records import read_run
from silofl.report.tables import MISSING, TextTable, format_number, print_lines, print_table
from silofl.studies import simulate
from silofl.studies.simulation import Simulation, changed_study
from silofl.training.joined import CHOSEN, LOCAL
from silofl.training.metrics import mean_of_known

# Run -> its job and the changes to the job's study.
RUNS: dict[str, tuple[str, dict[str, object]]] = {
    "fedavg_phantoms": ("fedavg_phantoms", {}),
    "fedbn_phantoms": ("fedavg_phantoms", {"name": "fedbn_phantoms", "algorithm": {"name": "fedbn"}}),
    "harmofl_phantoms": ("harmofl_phantoms", {}),
    "adafed_phantoms": ("adafed_phantoms", {}),
    "fedsm_phantoms": ("fedsm_phantoms", {}),
}
SUPER_JOB = "fedsm_phantoms"
# The jobs' own 24 rounds of 96 x 96 pixels take twice as long.
SMALL: dict[str, object] = {"rounds": 20, "data.transforms": [{"Resize": {"spatial_size": [64, 64]}}]}
OVERVIEW = (
    "Columns of sites: the algorithm's own model on the site's test data; local: the model that the site trained alone "
    "beside it. Kept: mean over sites of what each chose on its validation data. Unseen: the run's super model, or the "
    "mean of its sites' models, at a hospital that never trained. Verdicts: kept against local at each site."
)


def run(options: argparse.Namespace) -> int:
    """Run the demonstration."""
    return run_demo(options.out, read_changes(options), make_console(options))


def run_demo(out: Path, changes: dict[str, object], console: Console) -> int:
    """Make the phantoms, run each job on them, print one table and write one report; finished runs are reused.

    Args:
        out: Folder of the phantoms, the runs and ``report.html``.
        changes: Keys of the studies to change: rounds, seed; the phantoms have the same seed.
        console: Where everything is shown.

    Returns:
        The first exit code that is not 0, or 0.

    Raises:
        ConfigError: The folder is a file, or a job or a change is wrong; before anything was written.
    """
    started, data = time.monotonic(), out / "phantoms"
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out must be a folder, not {out}, which is a file; name another")
    for job, own in RUNS.values():
        changed_study(JOBS / job, SMALL | own | changes)
    console.print(
        f"SiloFL demonstration: {len(SITES)} simulated hospitals ({', '.join(SITES)}) train one another's models; "
        f"{UNSEEN_SITE} is made too, and never trains.\n"
    )
    console.print(
        f"1. Making phantom scans in {data}: each hospital has its own scanner, {SITES[2]} a reversed contrast"
    )
    make_phantoms(data, changes.get("seed", 0))
    runs = []
    for step, (name, (job, own)) in enumerate(RUNS.items(), start=2):
        run = out / name
        console.print(f"\n{step}. Training {name}: the images stay in their hospital's folder, only updates travel")
        code = _train(JOBS / job, data, run, SMALL | own | changes, console)
        if code:
            return code
        runs.append(run)
    report = write_comparison(runs, out / "report.html")
    console.print()
    records = [read_run(run) for run in runs]
    print_comparison(records, console)
    code = _predict_unseen(out, data, len(RUNS) + 2, console)
    console.print("\nIn one table:")
    unseen = {run.results.study: run.unseen.value for run in records if run.unseen}
    print_table(overview({run.results.study: run.results for run in records}, unseen), console)
    print_lines([OVERVIEW], console)
    console.print(f"\nReport with pictures: {report}")
    console.print(f"The demonstration took {(time.monotonic() - started) / 60:.1f} minutes.")
    return code


def overview(runs: Mapping[str, Results], unseen: Mapping[str, float | None]) -> TextTable:
    """Return methods by sites, local training first, with the unseen hospital and the verdicts.

    Args:
        runs: Name of a run -> its result.
        unseen: Name of a run -> the value of its super model at a hospital that never trained.
    """
    sites = list(dict.fromkeys(site for results in runs.values() for site in results.sites))
    rows = []
    for network in dict.fromkeys(results.normalization for results in runs.values()):
        # The local model depends on the network and on no algorithm.
        joining = next((one.joining for one in runs.values() if one.normalization == network and one.joining), None)
        if joining:
            values = {site: one.test.get(LOCAL) for site, one in joining.items()}
            rows.append((f"local ({network})", *_value_cells(values, sites), *("-",) * 3))
    for name, results in runs.items():
        kept = {site: one.test.get(CHOSEN) for site, one in (results.joining or {}).items()}
        told = ", ".join(count_verdicts(one.verdict for one in (results.joining or {}).values())) or MISSING
        last = (format_number(mean_of_known(kept.values())), format_number(unseen.get(name)), told)
        rows.append((name, *_value_cells(results.sites, sites), *last))
    columns = ("model", "mean", *sites, "kept", "unseen", "verdicts")
    return TextTable(columns, tuple(rows))


def _predict_unseen(out: Path, data: Path, number: int, console: Console) -> int:
    """Predict a new patient of the hospital that never trained, as a clinic would."""
    scan = min((data / UNSEEN_SITE / "images").iterdir())
    model, target = out / SUPER_JOB / FOLDER, out / "prediction"
    console.print(f"\n{number}. Predicting {scan} of {UNSEEN_SITE}, which no model has seen, with {model}:")
    code, _ = predict_inputs(model, [scan], target, Options(has_picture=True), console)
    console.print(f"   label map, picture and prediction.json are in {target}")
    return code


def _train(job: Path, data: Path, run: Path, changes: dict[str, object], console: Console) -> int:
    if simulate.is_finished(run):
        console.print(f"   already finished: {run}; delete it to train again")
        return ExitCode.COMPLETE
    if (run / "run.json").is_file():
        return simulate.resume(run, console)
    return simulate.start_simulation(job, run, Simulation(str(data), SITES, left_out=UNSEEN_SITE), changes, console)


def _value_cells(values: Mapping[str, float | None], sites: Sequence[str]) -> list[str]:
    return [format_number(mean_of_known(values.values())), *(format_number(values.get(site)) for site in sites)]
