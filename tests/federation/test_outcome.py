import json
from dataclasses import replace

import pytest

from silofl.algorithms.feddyn import SiteDynamic
from silofl.base.schema import dump_record, read_record
from silofl.federation.outcome import finished_results, unscored_results
from silofl.federation.results import Results
from silofl.parts.load import describe_kept
from silofl.training.site_score import SiteScore

SCORE = {"value": 0.5, "num_cases": 1, "num_excluded": 0}


def failing(wrong, when, reason):
    """Return a change by which a site cannot do one of its tasks."""
    return lambda task, site, answer: answer.failed(reason) if (task, site) == (when, wrong) else answer


def test_missed_round_or_test_makes_the_run_incomplete(play):
    game = play(rounds=2)
    game.round(change=failing("north", "train", "no GPU"))
    tests = game.finish(change=failing("west", "test", "an unexpected MemoryError"))
    values = finished_results(game.server, tests)
    assert values.status == "INCOMPLETE" and values.values["west"] is None
    assert {*values.reasons} == {
        "site north missed rounds [1] (no GPU); the study allows 0",
        "site west did not test the model (an unexpected MemoryError)",
    }


def best_first(task, site, answer):
    """Let each round that is validated be worse than the one before, and round 1 by far the best."""
    metrics = answer.meta.get("metrics", {})
    if metrics.get("validation"):
        number = answer.meta["round"] - (task == "train")
        metrics["validation"] = SCORE | {"value": 0.9 if number == 1 else 0.1 / number}
    return answer


@pytest.mark.parametrize("name", ["local", "adafed"])
def test_late_site_validates_no_untrained_part(play, name):
    game = play(rounds=3, name=name, federation={"max_missed_rounds": 1})
    game.round(absent=("east",), change=best_first)
    game.round(change=best_first)
    # It began from the shared model with a head or BatchNorm of the seed's.
    assert "validation" not in game.answers["train"]["east"].meta["metrics"]
    found = finished_results(game.server, game.finish(change=best_first))
    # Its first validation, of round 2, begins the choice anew.
    assert found.best_round == (None if name == "local" else 2) and found.status == "COMPLETE"


@pytest.mark.parametrize("name", ["fedper"])
def test_late_site_without_validation_tests_no_random_model(play, name):
    game = play(rounds=3, name=name, federation={"max_missed_rounds": 1})
    data = game.sites["east"].data
    game.sites["east"].__dict__["data"] = replace(data, validation=data.validation.select_rows([]))
    game.round(absent=("east",), change=best_first)
    found = finished_results(game.server, game.finish(change=best_first))
    assert found.best_round == 1 and found.sites.keys() == {"east", "north", "west"}
    assert found.status == "INCOMPLETE" and found.values["east"] is None
    assert found.reasons == (
        "site east did not test the model (site 'east' has kept no model of a round up to 1, and the server has none "
        "of the part that never leaves it)",
    )
    assert not (game.folder("east") / "supermodel").exists()


def test_test_patients_are_counted_and_null_where_unknown(play):
    game = play(rounds=1)
    # two test cases at each site, of two patients
    west = game.sites["west"].data
    game.sites["west"].data = replace(west, test=replace(west.test, patients=("p", None)))
    east = game.sites["east"].data
    game.sites["east"].data = replace(east, test=replace(east.test, patients=("p", "p")))
    found = finished_results(game.server, game.finish())
    assert {site: one.num_patients for site, one in found.tests.items()} == {"east": 1, "north": 2, "west": None}
    assert read_record(Results, json.loads(json.dumps(dump_record(found))), "results.json") == found


def test_areas_of_different_classes_are_pooled_by_class(play):
    game = play(rounds=1)
    game.rounds(1)
    own = {"east": {"0": 0.9, "1": 0.8}, "north": {"0": 0.9, "1": 0.8}, "west": {"0": 0.9, "1": 0.8, "2": 0.6}}

    def test_areas(own):
        scores = {}
        for site, areas in own.items():
            tables = {"labels": areas, "label_cases": dict.fromkeys(areas, 10), "areas": areas, "mean_over": "areas"}
            value = sum(areas.values()) / len(areas)
            scores[site] = SiteScore(value=value, num_cases=10 * len(areas), num_excluded=0, **tables)
        return finished_results(game.server, replace(tests, scores=scores))

    tests = game.finish()
    found = test_areas(own)
    # As skilled in each class: the sites' values are 0.85, 0.85 and 0.767.
    assert (found.mean, found.spread) == (None, None) and found.pooled == pytest.approx((0.9 + 0.8 + 0.6) / 3)
    same = test_areas(own | {"west": {"0": 0.7, "1": 0.8}})
    assert same.mean == pytest.approx((0.85 + 0.85 + 0.75) / 3) and same.pooled == pytest.approx(same.mean)


def test_run_without_numbers_describes_its_study(make_study):
    failed, unknown = unscored_results(make_study(seed=7), "FAILED", ["no disk"]), unscored_results("x", "UNFINISHED")
    assert (failed.status, failed.reasons, failed.seed, failed.sites) == ("FAILED", ("no disk",), 7, {})
    assert (unknown.study, unknown.seed, unknown.is_finished) == ("x", None, False)


def test_part_silent_on_what_it_keeps_is_named(make_study, monkeypatch):
    monkeypatch.delattr(SiteDynamic, "list_client_state")
    assert describe_kept(make_study(name="feddyn")) == ["what 'dynamic' keeps there"]
