"""How probabilities are read: chosen on validation alone, kept with each model, and the median in the super model."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from silofl.base.settings import parse
from silofl.core.operating_point import MOST_PROBABLE, OperatingPoint, choose_operating_point
from silofl.federation.outcome import finished_results
from silofl.federation.run_folder import RunFolder
from silofl.inference import SuperModel
from silofl.inference.directory import read_model_folder
from silofl.parts.operating_points import find_own_operating_points, pool_operating_points
from silofl.study import Study
from silofl.training.metrics import group_positions
from silofl.training.site_score import OperatingPointScore, SiteScore

from ..conftest import WINDOWS

SITES = ("ann", "bob", "eva")
POINT = {"operating_point": {"specificity": 0.8}}


def make(algorithm="fedavg", **settings):
    training = {"loss": "cross_entropy", "batch_size": 4}
    given = (
        WINDOWS
        | {"rounds": 2, "training": training, "algorithm": {"name": algorithm}, "baseline_comparison": False}
        | settings
    )
    return parse(Study, given, "study.yaml")


def said_of(read, temperature=1.5, threshold=0.4):
    scores = {"0": 0.5, "1": 0.5}
    found = OperatingPointScore(temperature, {"1": threshold} if threshold else {}, 9, 0.2, 0.1, {"1": 0.8}, {"1": 0.9})
    return SiteScore(value=0.5, num_cases=4, num_excluded=0, labels=scores, operating_point=found if read else None)


def test_a_site_chooses_on_validation_and_scores_the_test(play, windows_to_choose_by):
    game = play(SITES, study=make(**POINT), data=windows_to_choose_by)
    scores = game.finish().scores
    for site in SITES:
        model, data = SuperModel.load(game.folder(site) / "supermodel", "cpu"), game.sites[site].data
        chances, is_true = {}, {}
        for kind in ("validation", "test"):
            part = getattr(data, kind)
            (name,) = model.contents.models
            rows = group_positions(part.cases).values()
            said = model.probabilities(name, np.asarray(part.images))
            chances[kind] = np.stack([said[one].mean(axis=0) for one in rows])
            is_true[kind] = np.eye(2, dtype=bool)[[part.targets[one[0]] for one in rows]]
        units = [f"{record.recording}" for record in data.manifest.validation]
        wanted = choose_operating_point(chances["validation"], is_true["validation"], units, [1], specificity=0.8)
        operating_point, found = model.contents.operating_point, scores[site].operating_point
        assert operating_point.temperature == pytest.approx(wanted.temperature)
        assert operating_point.thresholds == pytest.approx(wanted.thresholds)
        # They leave with three digits.
        assert found.temperature == pytest.approx(wanted.temperature, rel=5e-3)
        assert found.thresholds["1"] == pytest.approx(wanted.thresholds[1], rel=5e-3)
        called = chances["test"][:, 1] >= wanted.thresholds[1]
        truth = is_true["test"][:, 1]
        assert found.sensitivity["1"] == pytest.approx(called[truth].mean())
        assert found.specificity["1"] == pytest.approx(1 - called[~truth].mean())


def test_the_test_decides_nothing(play, windows_to_choose_by):
    operating_points_by_site = []
    for name, flip in (("as it is", False), ("flipped", True)):
        game = play(SITES, study=make(**POINT), data=windows_to_choose_by, folder=name)
        for site in game.sites.values() if flip else ():
            data = site.data
            # frozen
            object.__setattr__(data, "test", replace(data.test, targets=1 - np.asarray(data.test.targets)))
        game.finish()
        operating_points_by_site.append(
            {one: read_model_folder(game.folder(one) / "supermodel").operating_point for one in SITES}
        )
    assert operating_points_by_site[0] == operating_points_by_site[1] and any(
        one != MOST_PROBABLE for one in operating_points_by_site[0].values()
    )


def test_the_super_model_has_the_median(play, windows_to_choose_by, tmp_path):
    game = play(SITES, study=make(**POINT), data=windows_to_choose_by)
    tests = game.finish()
    RunFolder(tmp_path / "run", game.study).finish(game.server, tests)
    operating_point = read_model_folder(tmp_path / "run" / "supermodel").operating_point
    known = [tests.scores[site].operating_point for site in SITES]
    assert operating_point.temperature == np.median([one.temperature for one in known])
    assert operating_point.thresholds[1] == np.median([one.thresholds["1"] for one in known])
    found = finished_results(game.server, tests).operating_points_by_site
    assert found["ann"] == replace(
        known[0],
        thresholds={"fast": known[0].thresholds["1"]},
        sensitivity={"fast": known[0].sensitivity["1"]},
        specificity={"fast": known[0].specificity["1"]},
    )


@pytest.mark.parametrize(("rule", "own"), [("selector", {"north": OperatingPoint(1.5, {1: 0.4})}), ("only", {})])
def test_only_a_site_with_a_model_and_every_threshold_has_its_own(rule, own):
    pooled = OperatingPoint(2.0, {1: 0.5})
    contents = SimpleNamespace(rule=rule, models={"global", "north", "south"}, operating_point=pooled)
    scores = {"north": said_of(True, 1.5, 0.4), "south": said_of(True, 2.5, None), "west": said_of(True)}
    assert find_own_operating_points(scores, contents) == own


@pytest.mark.parametrize("algorithm", ["softpull", "local"])
def test_readings_of_personal_models_are_not_joined(play, windows_to_choose_by, tmp_path, algorithm):
    game = play(SITES, study=make(algorithm), data=windows_to_choose_by)
    tests = game.finish()
    RunFolder(tmp_path / "run", game.study).finish(game.server, tests)
    if (tmp_path / "run" / "supermodel").exists():
        operating_point = read_model_folder(tmp_path / "run" / "supermodel").operating_point
        assert (operating_point.temperature, operating_point.thresholds) == (1, {})


def test_sites_without_a_reading_leave_the_median_to_the_others():
    study = make(**POINT)
    scores = [said_of(True, 1.5, 0.4), said_of(True, 2.5, None), said_of(False), said_of(True, 3.0, 0.6)]
    # temperatures 1.5, 2.5, 3; thresholds 0.4 and 0.6
    found = pool_operating_points(scores, study)
    assert (found.temperature, found.thresholds) == (2.5, {1: pytest.approx(0.5)})
    assert pool_operating_points([said_of(False)], study) == MOST_PROBABLE


def test_a_reading_of_a_segmentation_is_not_taken(make_study):
    assert pool_operating_points([said_of(True)], make_study()) == MOST_PROBABLE
