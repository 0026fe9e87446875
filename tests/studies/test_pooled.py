import pytest

from silofl.errors import ConfigError
from silofl.settings import parse
from silofl.studies.pooled import by_their_sites, read_scores
from silofl.study import Study
from silofl.training.pictures import write_scores

from .conftest import write_result

SCORES = {"north/a": 0.5, "north/b": 0.75, "south/series/c": 1.0}


@pytest.fixture
def result(tmp_path):
    values = {"name": "x", "task": "segmentation", "labels": {1: "a"}, "rounds": 3, "algorithm": {"name": "fedavg"}}
    return write_result(tmp_path, parse(Study, values, "study.yaml"), sites={"pooled": 0.9})


def test_values_of_a_pool_become_those_of_the_sites(result):
    found = by_their_sites(result, SCORES)
    assert found.sites == {"north": 0.625, "south": 1.0}
    # the mean of the sites, and of the cases
    assert (found.mean, found.pooled) == (0.8125, 0.75)
    assert found.tested.cases == {"north": 2, "south": 1}
    assert (found.status, found.rounds) == ("COMPLETE", 3)


def test_a_pool_in_which_no_case_counts_has_no_values(result):
    found = by_their_sites(result, {})
    assert (found.sites, found.mean, found.pooled) == ({}, None, None)


def test_scores_are_read_as_the_simulated_site_wrote_them(tmp_path, result):
    write_scores(tmp_path / "sites" / "pooled" / "run-1" / "scores.csv", SCORES)
    assert read_scores(tmp_path, result) == SCORES


@pytest.mark.parametrize("text", [None, "case,value\na,much\n", "name\na\n"])
def test_scores_that_are_missing_or_broken_are_refused(tmp_path, result, text):
    path = tmp_path / "sites" / "pooled" / "run-1" / "scores.csv"
    path.parent.mkdir(parents=True)
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match="must hold the value of each test case"):
        read_scores(tmp_path, result)
