import pytest
from rich.console import Console

from silofl.base.errors import ConfigError
from silofl.base.settings import parse
from silofl.command_line.cli import COMMANDS, CommandParser
from silofl.study import Study
from silofl.training.case_pictures import write_scores
from silofl_desk.studies.comparisons import side_by_side
from silofl_desk.studies.comparisons.compared_runs import ComparisonPlan
from silofl_desk.studies.comparisons.pooled import plan_centralised_runs, regroup_by_site
from silofl_desk.studies.runs.simulation import settle_job

from ..conftest import JOB, write_result

SCORES = {"north/a": 0.5, "north/b": 0.75, "south/series/c": 1.0}


@pytest.fixture
def result(tmp_path):
    values = {"name": "x", "task": "segmentation", "labels": {1: "a"}, "rounds": 3, "algorithm": {"name": "fedavg"}}
    return write_result(tmp_path, parse(Study, values, "study.yaml"), sites={"pooled": 0.9})


@pytest.fixture
def regroup(tmp_path):
    """Group a result by site, by the scores that the simulated site wrote."""

    def do(result, scores):
        write_scores(tmp_path / "sites" / "pooled" / "run-1" / "scores.csv", scores)
        return regroup_by_site(tmp_path, result)

    return do


def test_values_of_a_pool_become_those_of_the_sites(result, regroup):
    found = regroup(result, SCORES)
    assert found.values == {"north": 0.625, "south": 1.0}
    # the mean of the sites, and of the cases
    assert (found.mean, found.pooled) == (0.8125, 0.75)
    assert {site: one.num_cases for site, one in found.tests.items()} == {"north": 2, "south": 1}
    assert (found.status, found.rounds) == ("COMPLETE", 3)
    # In which no case counts.
    found = regroup(result, {})
    assert (found.sites, found.mean, found.pooled) == ({}, None, None)


@pytest.mark.parametrize("text", [None, "case,value\na,much\n", "name\na\n"])
def test_scores_that_are_missing_or_broken_are_refused(tmp_path, result, text):
    path = tmp_path / "sites" / "pooled" / "run-1" / "scores.csv"
    path.parent.mkdir(parents=True)
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match="does not hold the value of each test case"):
        regroup_by_site(tmp_path, result)


def test_a_metric_of_no_single_case_that_is_set_for_every_row_is_refused(windows, write_windows_job, tmp_path):
    job, changes = write_windows_job("adafed_activity", {"name": "fedavg"}), {"metric": "balanced_accuracy"}
    with pytest.raises(ConfigError, match="balanced_accuracy has no value of a single case, which --pooled needs"):
        plan_centralised_runs(ComparisonPlan((job,), changes=changes, data=str(windows)), tmp_path / "out", Console())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("key", ["federation.min_sites", "federation"])
def test_what_every_row_asks_of_a_federation_leaves_the_pool_one_site_that_compares_with_nobody(
    phantoms, tmp_path, key
):
    changes = {key: 2 if key == "federation.min_sites" else {"min_sites": 2}, "rounds": 7, "baseline_comparison": True}
    asked = ComparisonPlan((JOB,), changes=changes, seeds=(0,), data=str(phantoms), is_pooled=True, is_in_process=True)
    (run,) = plan_centralised_runs(asked, tmp_path, Console())
    study, simulation = settle_job(run.job, run.wanted, run.changes)
    assert (simulation.sites, study.federation.min_sites, study.rounds) == (("pooled",), 1, 7)
    assert not study.compares_with_baseline
    # It can be run in a process of its own.
    parser = CommandParser(prog="simulate", fill=COMMANDS["simulate"].add_arguments)
    _, _, _, _, *arguments = side_by_side.build_command(run)
    options = parser.parse_args(arguments)
    assert (options.in_process, options.sites) == (True, ["pooled"])
