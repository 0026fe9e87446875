import numpy as np
import pytest

from silofl.algorithms.adafed import distances
from silofl.algorithms.advice import (
    FAR,
    KINDS,
    LARGEST_RATIO,
    Advice,
    Portrait,
    Ratio,
    Sketch,
    answers,
    build_algorithm,
    distances_between,
    explain_answers,
    merge_portraits,
    site_ratios,
)
from silofl.algorithms.presets import find_recipe
from silofl.errors import ConfigError

NEAR = dict.fromkeys(KINDS, 1.0)


def portrait(count=1, amplitude=1.0, mean=0.0, variance=1.0, labels=(0.5, 0.5)):
    features = [(np.array([mean]), np.array([variance]))]
    return Portrait(count, np.full((1, 2, 2), amplitude), features, np.array(labels))


def ratio(*splits):
    return Ratio(float(np.median(splits)), splits, np.zeros((2, 2)))


# --- portraits


def test_a_merged_portrait_is_that_of_all_images():
    rng = np.random.default_rng(0)
    groups = [rng.normal(place, 1, (count, 3)) for place, count in ((0, 4), (5, 10))]
    portraits = [
        Portrait(len(g), g.mean(axis=0), [(g.mean(axis=0), g.var(axis=0))], np.abs(g).mean(axis=0)) for g in groups
    ]
    found, together = merge_portraits(portraits), np.concatenate(groups)
    assert found.count == 14
    np.testing.assert_allclose(found.amplitude, together.mean(axis=0))
    np.testing.assert_allclose(found.features[0], (together.mean(axis=0), together.var(axis=0)))
    np.testing.assert_allclose(found.labels, np.abs(together).mean(axis=0))


def test_one_portrait_merged_is_itself():
    one = portrait(3, amplitude=2.0, mean=4.0, variance=9.0, labels=(0.25, 0.75))
    found = merge_portraits([one])
    assert found.count == 3 and found.features[0][1] == pytest.approx(9.0)
    np.testing.assert_allclose(found.labels, one.labels)


# --- distances


def test_a_scanner_twice_as_bright_is_the_logarithm_of_two_away():
    distance = distances_between([portrait(amplitude=3.0), portrait(amplitude=6.0)])["amplitude"]
    np.testing.assert_allclose(distance, np.log(2) * (1 - np.eye(2)), rtol=1e-6)


def test_features_are_adafeds_distance():
    portraits = [portrait(mean=0.0, variance=1.0), portrait(mean=3.0, variance=25.0)]
    # sqrt(3^2 + (5 - 1)^2) = 5
    np.testing.assert_allclose(distances_between(portraits)["features"], [[0, 5], [5, 0]])
    np.testing.assert_allclose(distances_between(portraits)["features"], distances([p.features for p in portraits]))


def test_sites_without_a_common_label_are_one_away():
    distance = distances_between([portrait(labels=(1, 0)), portrait(labels=(0, 1)), portrait(labels=(0.5, 0.5))])[
        "labels"
    ]
    # Hellinger: sqrt(((1 - sqrt(0.5))^2 + 0.5) / 2)
    half = np.sqrt(((1 - np.sqrt(0.5)) ** 2 + 0.5) / 2)
    np.testing.assert_allclose(distance, [[0, 1, half], [1, 0, half], [half, half, 0]], atol=1e-12)


def test_an_image_without_contrast_has_a_distance():
    assert np.isfinite(distances_between([portrait(amplitude=0.0), portrait(amplitude=1.0)])["amplitude"]).all()


# --- ratios


def sketched(place, *within, unit="patient", groups=8):
    """Return the sketch of a site whose features are at a place."""
    return Sketch(portrait(mean=place), dict.fromkeys(KINDS, np.array(within, float)), 3, unit, groups)


def test_a_ratio_is_the_distance_between_halves_of_two_sites_over_that_within():
    # Halves at -1 and 1 about 0, and at -1 and 1 about 3 in another direction: their squares are 9 + 1 + 1 on average.
    found = site_ratios([sketched(0.0, 2.0), sketched(3.0, 2.0)])["features"]
    assert found.value == pytest.approx(np.sqrt(11) / 2) and found.splits == (found.value,)
    np.testing.assert_allclose(found.pairs, found.value * (1 - np.eye(2)))


def test_it_is_the_root_mean_square_over_the_pairs_of_halves():
    rng = np.random.default_rng(0)
    halves = rng.normal(0, 1, (3, 2, 1)) + np.array([[[0.0]], [[2.0]], [[7.0]]])
    sites = [sketched(one.mean(), abs(one[0] - one[1]).item()) for one in halves]
    squares = (halves[:, :, None, None] - halves[None, None]) ** 2
    between = np.sqrt(squares.mean(axis=(1, 3))[..., 0])
    unit = np.mean([abs(one[0] - one[1]).item() for one in halves])
    expected = between[~np.eye(3, dtype=bool)] / unit
    found = site_ratios(sites)["features"]
    np.testing.assert_allclose(found.pairs[~np.eye(3, dtype=bool)], expected)
    assert found.value == pytest.approx(expected.mean())


def test_a_ratio_is_the_median_of_the_cuts_with_their_range():
    within = np.array([1.0, 1.0, 0.1])
    found = site_ratios([sketched(0.0, *within), sketched(4.0, *within)])["features"]
    expected = np.sqrt(16 + within**2 / 2) / within
    np.testing.assert_allclose(found.splits, expected)
    assert found.value == pytest.approx(expected[0])
    # Of three sorted values the 95th percentile lies nine tenths of the way to the third.
    np.testing.assert_allclose(found.range, (expected[0], expected[0] + 0.9 * (expected[2] - expected[0])))


@pytest.mark.parametrize("num_sites", [2, 5])
def test_sites_that_differ_in_nothing_have_a_ratio_of_one(num_sites):
    rng, values = np.random.default_rng(0), []
    for _ in range(300):
        # Of many features, as amplitudes and networks have: the mean distance within is then the root mean square.
        halves = rng.normal(0, 1, (num_sites, 2, 64))
        sites = []
        for one in halves:
            features = [(one.mean(axis=0), np.ones(64))]
            within = dict.fromkeys(KINDS, np.array([np.linalg.norm(one[0] - one[1])]))
            sites.append(Sketch(Portrait(1, np.ones((1, 2, 2)), features, np.ones(2) / 2), within, 2, "patient", 2))
        values.append(site_ratios(sites)["features"].value)
    assert np.mean(values) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(("place", "expected"), [(1.0, LARGEST_RATIO), (0.0, 0.0)])
def test_halves_that_are_all_equal_bound_the_ratio(place, expected):
    assert site_ratios([sketched(0.0, 0.0), sketched(place, 0.0)])["features"].value == expected


@pytest.mark.parametrize("count", [0, 1])
def test_one_site_alone_cannot_be_compared(count):
    with pytest.raises(ConfigError, match=f"at least 2 sites must be there to be compared, not {count}"):
        site_ratios([sketched(0.0, 1.0)] * count)


# --- advice


@pytest.mark.parametrize(
    ("far", "expected"),
    [
        ((), ("none", "nothing", "shared")),
        (("features",), ("none", "batchnorm", "adafed")),
        (("amplitude", "features"), ("none", "batchnorm", "adafed")),
        (("amplitude",), ("none", "everything", "shared")),
        (("amplitude", "labels"), ("none", "everything", "shared")),
        (("labels", "features"), ("none", "batchnorm", "adafed")),
        (("amplitude", "features", "labels"), ("none", "batchnorm", "adafed")),
    ],
)
def test_each_answer_follows_what_the_sites_differ_in(far, expected):
    ratios = NEAR | {kind: max(FAR.values()) + 0.1 for kind in far}
    assert tuple(answers(ratios, has_batchnorm=True).values()) == expected


@pytest.mark.parametrize(("features", "home"), [(2.0, "everything"), (2.5, "batchnorm")])
def test_images_that_differ_in_place_more_than_in_look_stay_apart(features, home):
    # 3 is above 1.3 times 2, and not above 1.3 times 2.5
    found = answers({"amplitude": 3.0, "features": features, "labels": 1.0}, has_batchnorm=True)
    assert found["stays_home"] == home


def test_a_ratio_at_its_threshold_is_not_above_it():
    assert answers(FAR, has_batchnorm=True) == {"input": "none", "stays_home": "nothing", "mixing": "shared"}


def test_a_network_without_batchnorm_keeps_none_at_home_and_is_personalised_by_softpull():
    found = answers({kind: 100.0 for kind in KINDS}, has_batchnorm=False)
    assert found == {"input": "harmofl", "stays_home": "nothing", "mixing": "softpull"}
    near = answers({kind: 1.0 for kind in KINDS}, has_batchnorm=False)
    assert near == {"input": "none", "stays_home": "nothing", "mixing": "shared"}


def test_an_answer_is_as_sure_as_many_cuts_would_give_it():
    ratios = {"amplitude": ratio(1.0, 1.0, 1.0, 9.0), "features": ratio(9, 9, 9, 9), "labels": ratio(1, 1, 9, 9.5)}
    found = {one.question: one for one in explain_answers(ratios, {"east": 10, "west": 4}, has_batchnorm=True)}
    assert found["input"].answer == "none" and found["input"].sureness == 1
    assert found["stays_home"].answer == "batchnorm" and found["stays_home"].sureness == 1
    assert found["mixing"].answer == "adafed" and found["mixing"].sureness == 1
    without = {one.question: one for one in explain_answers(ratios, {"east": 10, "west": 4}, has_batchnorm=False)}
    # three of four amplitudes are near; the median of the labels' 1, 1, 9 and 9.5 is 5
    assert (without["input"].answer, without["input"].sureness) == ("none", 0.75)
    assert (without["mixing"].answer, without["mixing"].sureness) == ("softpull", 0.5)
    assert "1.0 times (1.0 to 7.8) as far apart" in found["input"].reason
    assert "Sites have 4 (west) to 10 (east) training cases." in found["mixing"].reason
    alike = {one.question: one for one in explain_answers(ratios, {"east": 8, "west": 8}, has_batchnorm=True)}
    assert "Each site has 8 training cases." in alike["mixing"].reason


def test_a_sentence_counts_the_cuts_that_agree_and_never_rounds_them_up():
    # One of 300 cuts speaks against it: 99.67 %, which is not 100 %.
    ratios = {kind: ratio(*[1.0] * 299, 9.0) for kind in KINDS}
    choices = tuple(explain_answers(ratios, {"east": 10, "west": 4}, has_batchnorm=True))
    first = Advice(ratios, choices, {}, {"east": 10, "west": 4}).sentences()[0]
    assert first.startswith("input: none (by 300 of 300 random cuts of the sites' cases into halves). ")
    second = Advice(ratios, choices, {}, {"east": 10, "west": 4}).sentences()[1]
    assert second.startswith("stays_home: nothing (by 299 of 300 random cuts of the sites' cases into halves). ")
    assert "sure" not in first + second


@pytest.mark.parametrize(("features", "is_said"), [((9, 9), True), ((1, 1), False)])
def test_only_where_batchnorm_stays_at_home_is_its_effect_a_reason(features, is_said):
    ratios = {"amplitude": ratio(1, 1), "features": ratio(*features), "labels": ratio(1, 1)}
    found = {one.question: one.reason for one in explain_answers(ratios, {"east": 10, "west": 4}, has_batchnorm=True)}
    assert ("takes the look of the images out" in found["input"]) is is_said
    assert ("listen to each other more" in found["mixing"]) is is_said


@pytest.mark.parametrize("has_batchnorm", [True, False])
@pytest.mark.parametrize("far", [(), ("amplitude",), ("features",), ("labels",), tuple(KINDS)])
def test_every_advice_is_an_algorithm_that_a_study_may_have(far, has_batchnorm):
    ratios = {kind: ratio(100.0 if kind in far else 1.0) for kind in KINDS}
    algorithm = build_algorithm(explain_answers(ratios, {"east": 1, "west": 1}, has_batchnorm))
    recipe = find_recipe(algorithm.pop("name"), "recommended", algorithm)
    assert (recipe.input is not None) == (far == tuple(KINDS) and not has_batchnorm)
    is_apart = far == ("amplitude",)
    assert (recipe.mixing is not None) == (bool(far) and not is_apart if has_batchnorm else "labels" in far)
    expected = "everything" if far == ("amplitude",) else "batchnorm" if has_batchnorm and far else "nothing"
    assert recipe.stays_home == expected
