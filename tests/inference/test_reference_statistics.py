import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from silofl.base.errors import ConfigError
from silofl.core.spread import Spread, pool_spreads
from silofl.inference import SuperModel
from silofl.inference.prediction import CaseAnswer
from silofl.inference.reference_statistics import (
    FeatureSpread,
    ReferenceStatistics,
    bound_reference_statistics,
    compare_answer,
    log_odds,
    measure_distance,
    pack_reference_statistics,
    unpack_reference_statistics,
)

CPU = torch.device("cpu")

FEATURES = FeatureSpread((0.0, 0.0), (1.0, 1.0), Spread(0.0, 0.25))
NORTH = ReferenceStatistics(
    roots_ml={"organ": Spread(7.4, 0.3), "lesion": Spread(2.7, 1.5)},
    score=Spread(log_odds(0.99), 0.5),
    features={"global": FEATURES},
    codes={"body part": ("ABDOMEN", "LIVER")},
)
SIZES = {"organ": 410.0, "lesion": 8.0}


@pytest.fixture
def compared(make_study):
    """Compare an answer by what of it differs from a usual one's."""

    def compare(reference_statistics=None, sizes=SIZES, codes=None, scores=None, features=(1.0, -1.0), study=None):
        study = study or make_study()
        answer = CaseAnswer(
            "global",
            {"global": 1.0},
            {"north": 0.99, "south": 0.01} if scores is None else scores,
            False,
            np.full((1, 3, 8, 8), 1 / 3, np.float32),
            {"global": np.array(features)},
        )
        return compare_answer(
            {"north": NORTH} if reference_statistics is None else reference_statistics,
            answer,
            sizes,
            study,
            codes or {},
        )

    return compare


def test_a_usual_answer_raises_no_doubt_and_everything_was_checked(compared):
    comparison = compared(codes={"body part": "LIVER"})
    assert comparison.sentences == () and comparison.unchecked == ()


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"sizes": SIZES | {"organ": 3885.0}}, "the size of organ is unusual: 3885 ml where 274 ml to 573 ml is usual"),
        ({"sizes": SIZES | {"organ": 0.0}}, "the size of organ is unusual: 0.0 ml where"),
        ({"scores": {"north": 0.6, "south": 0.4}}, "the selector's score is unusual: 0.6 where 0.961 or more is usual"),
        ({"features": (4.0, 4.0)}, "the look of the image to the network is unusual: a distance of 3.9 where up to"),
        ({"codes": {"body part": "BRAIN"}}, "another body part than training's files: BRAIN, theirs ABDOMEN or LIVER"),
    ],
)
def test_each_check_says_the_value_and_what_is_usual(compared, options, wanted):
    (sentence,) = compared(**options).sentences
    assert wanted in sentence and ("see that" in sentence or "look at" in sentence)


def test_the_distance_to_the_mean_is_counted_in_deviations(compared):
    spread = pool_spreads([NORTH.roots_ml["organ"]])
    size = (spread.mean + 1.5 * spread.deviation) ** 3
    assert compared(sizes=SIZES | {"organ": size}).deviations["the size of organ"] == pytest.approx(1.5)


def test_what_no_hospital_has_measured_is_named_as_unchecked(compared):
    assert compared(reference_statistics={}, codes={"body part": "BRAIN"}).unchecked == (
        "the selector's score",
        "the look of the image to the network",
        "the size of the answer",
        "the stated body part",
    )
    # Without voxels' sizes there are no millilitres to compare.
    assert compared(sizes=None).unchecked == ("the size of the answer",)
    # Without a selector there is no score to check.
    assert compared(reference_statistics={}, scores={}).unchecked[0] == "the look of the image to the network"


def test_score_and_features_are_compared_with_measured_hospitals_only(compared):
    low = {"north": 0.6, "south": 0.4}
    assert compared(scores=low).sentences
    comparison = compared({"north": NORTH, "south": NORTH}, scores=low)
    assert comparison.sentences == () and comparison.unchecked == ()
    comparison = compared({"north": NORTH, "south": replace(NORTH, features=None)}, features=(4.0, 4.0))
    assert comparison.sentences == () and comparison.unchecked == ("the look of the image to the network",)


def test_the_distance_is_mahalanobis_without_covariances():
    # (4 / 2 + 1 / 1) / 2 with the floor of 0.05 * 1.5 on the variances
    wanted = math.log((4 / (2 + 0.075) + 1 / (1 + 0.075)) / 2)
    assert measure_distance(np.array([2.0, 1.0]), [0.0, 0.0], [2.0, 1.0]) == pytest.approx(wanted)
    assert math.isfinite(measure_distance(np.zeros(2), np.zeros(2), np.zeros(2)))
    spread = FeatureSpread.of(np.array([[0.0], [1.0], [5.0]]))
    # 4, 1 and 9 from the mean, squared, by 7 with its floor
    assert spread == FeatureSpread((2.0,), (7.0,), Spread.of([math.log(square / 7.35) for square in (4, 1, 9)]))


def test_what_is_usual_comes_back_from_plain_values():
    reference_statistics = unpack_reference_statistics(
        pack_reference_statistics({"north": NORTH, "south": ReferenceStatistics()})
    )
    assert reference_statistics["north"] == NORTH and reference_statistics["south"] == ReferenceStatistics(features={})
    with pytest.raises(ConfigError, match="features must be numbers"):
        packed = pack_reference_statistics({"north": NORTH})
        packed["north"]["features"]["global"]["mean"] = "a b"
        unpack_reference_statistics(packed)
    with pytest.raises(ConfigError, match="unlike numbers of means and variances"):
        FeatureSpread((0.0,), (1.0, 1.0), Spread(0, 1))


@pytest.fixture
def known(make_contents, make_study):
    """Build a super model of one model, by how much its features' usual mean is beside a case's; returns that too."""

    def make(beside):
        # Of the smallest network nobody has said where its features are.
        contents = make_contents("only", study=make_study(model={"name": "unet", "features": [4] * 6}))
        images = np.random.default_rng(0).random((3, 1, 32, 32), dtype=np.float32)
        features = SuperModel(contents, CPU).answer(images).features["global"]
        spread = FeatureSpread(tuple((features + beside).tolist()), (1.0,) * len(features), Spread(0.0, 0.3))
        return replace(
            contents, reference_statistics={"north": ReferenceStatistics(features={"global": spread})}
        ), images

    return make


@pytest.mark.parametrize("beside", [1.0, 9.0])
def test_an_unusual_look_is_warned_of_and_changes_nothing(known, beside):
    contents, images = known(beside)
    prediction = SuperModel(contents, CPU).predict(images)
    unusual = [sentence for sentence in prediction.warnings if "the look of the image" in sentence]
    assert len(unusual) == (beside == 9) and prediction.unchecked == ("the size of the answer",)
    plain = SuperModel(replace(contents, reference_statistics={}), CPU).predict(images)
    np.testing.assert_array_equal(prediction.label_map, plain.label_map)
    assert {*prediction.warnings} - {*unusual} == {*plain.warnings}


def spread_by(**deviations):
    """Return hospitals with livers of 400 ml, whose cube roots spread by so much."""
    return {
        site: ReferenceStatistics(roots_ml={"organ": Spread(0.5, deviation, 9)})
        for site, deviation in deviations.items()
    }


def test_deviations_count_up_to_three_times_the_others_median():
    bounded = bound_reference_statistics(spread_by(east=0.1, north=0.1, west=1e6), 3)
    assert [reference_statistics.roots_ml["organ"].deviation for reference_statistics in bounded.values()] == [
        0.1,
        0.1,
        pytest.approx(0.3),
    ]
    honest = spread_by(east=0.1, north=0.2, west=0.3)
    assert bound_reference_statistics(honest, 3) == honest
    # Of two nobody knows which is odd.
    two = spread_by(east=0.1, west=1e6)
    assert bound_reference_statistics(two, 3) == two


def test_one_hospitals_reference_values_do_not_switch_the_warnings_off(compared):
    wide = {"organ": Spread(7.4, 1e6), "lesion": Spread(2.7, 1e6)}
    liar = ReferenceStatistics(
        roots_ml=wide, features={"global": FeatureSpread((0.0, 0.0), (1e12, 1e12), Spread(0.0, 1e6))}
    )
    reference_statistics = {"east": NORTH, "north": NORTH, "west": liar}
    huge = {"sizes": {"organ": 5000.0, "lesion": 8.0}, "scores": {}, "features": (50.0, -50.0)}
    assert compared(reference_statistics, **huge).sentences == ()
    sentences = compared(bound_reference_statistics(reference_statistics, 3), **huge).sentences
    look, size = (sentence.split(" is unusual")[0] for sentence in sentences)
    assert (look, size) == ("the look of the image to the network", "the size of organ")
