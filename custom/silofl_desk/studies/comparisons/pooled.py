"""The centralised upper bound of a comparison: a model trained on all sites' data, which only a simulation can pool."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console

from silofl.base.csv_text import decode_csv
from silofl.base.errors import ConfigError
from silofl.federation.results import Results
from silofl.study.sections import CLASS_MEANS
from silofl.training.metrics import mean_of_known
from silofl.training.site_score import SiteScore
from silofl_desk.report.sentences import POOLED_SITE
from silofl_desk.studies.comparisons.compared_runs import ComparedRun, ComparisonPlan, check_all_data, make_seeded_runs
from silofl_desk.studies.comparisons.comparison import CENTRALISED
from silofl_desk.studies.comparisons.pooled_folder import group_by_site, pool_sites
from silofl_desk.studies.runs.simulation import Simulation, settle_job

WARNING = (
    "CENTRALISED: this pools the patients' data of all sites in one place, {folder}. It is possible in a simulation "
    "alone; in a federation no image leaves its site."
)


def plan_centralised_runs(asked: ComparisonPlan, out: Path, console: Console) -> list[ComparedRun]:
    """Pool the sites' data under ``out`` with a printed warning, and return a run on them for each seed.

    Raises:
        ConfigError: The first job is wrong, or an earlier run in ``out`` is another.
        DataError: The sites' data cannot be pooled.
    """
    job = asked.jobs[0]
    study, simulation = settle_job(job, Simulation(asked.data, is_in_process=asked.is_in_process), asked.changes)
    if study.metric in CLASS_MEANS:
        raise ConfigError(
            f"{study.metric} has no value of a single case, which --pooled needs. Set another metric, as accuracy."
        )
    console.print(WARNING.format(folder=out / "pooled"), style="bold red", markup=False)
    data = pool_sites(Path(str(simulation.data)), simulation.sites, study, out / "pooled")
    # One simulated site holds all data, so that the number of sites that the study waits for would never come; and with
    # one site FedAvg is plain training, beside which a baseline comparison would train the same model again.
    alone = study.federation.model_dump(exclude={"sites"}) | {"min_sites": 1}
    changes = {"algorithm": {"name": "fedavg"}, "federation": alone, "baseline_comparison": False}
    wanted = Simulation(
        str(data),
        (POOLED_SITE,),
        is_in_process=asked.is_in_process,
        cache=asked.cache,
        skip_unreadable=asked.skip_unreadable,
    )
    # What is set of the federation for every row is in `alone`, and would take back its one site.
    further_changes = {}
    for key, value in asked.changes.items():
        if key.partition(".")[0] not in ("federation", "baseline_comparison"):
            further_changes[key] = value
    pattern = ComparedRun(CENTRALISED, 0, out, job, wanted, changes)
    runs = make_seeded_runs(replace(asked, changes=further_changes), out, pattern)
    check_all_data(runs)
    return runs


def regroup_by_site(run: Path, results: Results) -> Results:
    """Return the result of a run on pooled data, with its test cases grouped by the site that they come from.

    Raises:
        ConfigError: The simulated site's scores are not there, or broken.
    """
    scores = _read_scores(run / "sites" / POOLED_SITE / str(results.run) / "scores.csv", run)
    sites = {}
    for site, values in group_by_site(scores).items():
        sites[site] = SiteScore(value=float(np.mean(values)), num_cases=len(values), num_excluded=0)
    return replace(
        results,
        sites=sites,
        mean=mean_of_known(score.value for score in sites.values()),
        pooled=mean_of_known(scores.values()),
    )


def _read_scores(path: Path, run: Path) -> dict[str, float]:
    """Return the value of each test case, named ``site/case``, of a run on pooled data."""
    try:
        return {case: float(value) for case, value in decode_csv(path.read_bytes().decode())[1:]}
    except (OSError, ValueError):
        raise ConfigError(f"{path} does not hold the value of each test case. Remove {run} and run it anew.") from None
