import numpy as np
import pytest

from silofl.algorithms.adafed import distances
from silofl.algorithms.advice import site_ratios
from silofl.algorithms.advice.comparison import (
    KINDS,
    LARGEST_RATIO,
    QUESTIONS,
    Portrait,
    Ratio,
    Sketch,
    advise,
    answer_question,
    distances_between,
    merge_portraits,
)
from silofl.errors import ConfigError


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


def test_a_scanner_twice_as_bright_is_the_logarithm_of_two_away():
    distance = distances_between([portrait(amplitude=3.0), portrait(amplitude=6.0)])["amplitude"]
    np.testing.assert_allclose(distance, np.log(2) * (1 - np.eye(2)), rtol=1e-6)


def test_features_are_adafeds_distance():
    portraits = [portrait(mean=0.0, variance=1.0), portrait(mean=3.0, variance=25.0)]
    # sqrt(3^2 + (5 - 1)^2) = 5
    np.testing.assert_allclose(distances_between(portraits)["features"], [[0, 5], [5, 0]])
    np.testing.assert_allclose(distances_between(portraits)["features"], distances([p.features for p in portraits]))


def test_sites_without_a_common_label_are_one_away():
    portraits = [portrait(labels=(1, 0)), portrait(labels=(0, 1)), portrait(labels=(0.5, 0.5))]
    distance = np.linalg.norm(distances_between(portraits)["labels"], axis=-1)
    # Hellinger: sqrt(((1 - sqrt(0.5))^2 + 0.5) / 2)
    half = np.sqrt(((1 - np.sqrt(0.5)) ** 2 + 0.5) / 2)
    np.testing.assert_allclose(distance, [[0, 1, half], [1, 0, half], [half, half, 0]], atol=1e-12)


def test_an_image_without_contrast_has_a_distance():
    assert np.isfinite(distances_between([portrait(amplitude=0.0), portrait(amplitude=1.0)])["amplitude"]).all()


# --- ratios


def sketched(place, *within, unit="patient", groups=8):
    """Return the sketch of a site whose features are at a place."""
    return Sketch(portrait(mean=place), spread_labels(within), 3, unit, groups)


def spread_labels(within):
    """Return the distance within a site in each cut, which its first label alone has, by each kind."""
    return dict.fromkeys(KINDS, np.array(within, float)) | {"labels": np.outer(within, (1, 0))}


def labelled(shares, annotated=None, within=0.1):
    """Return the sketch of a site with shares of labels, in each of which halves are as far apart."""
    spread = {"labels": np.full((1, len(shares)), within)}
    return Sketch(portrait(labels=shares), spread_labels([within]) | spread, 3, "patient", 8, annotated)


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
            within = spread_labels([np.linalg.norm(one[0] - one[1])])
            sites.append(Sketch(Portrait(1, np.ones((1, 2, 2)), features, np.ones(2) / 2), within, 2, "patient", 2))
        values.append(site_ratios(sites)["features"].value)
    assert np.mean(values) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(("place", "expected"), [(1.0, LARGEST_RATIO), (0.0, 0.0)])
def test_halves_that_are_all_equal_bound_the_ratio(place, expected):
    assert site_ratios([sketched(0.0, 0.0), sketched(place, 0.0)])["features"].value == expected


def test_labels_are_compared_that_all_sites_annotate():
    # Label 1 lies in 0.16 of the pixels at both; what the second has of label 2 is background in its label maps.
    whole, part = labelled((0.75, 0.16, 0.09)), labelled((0.84, 0.16, 0.0), (1,))
    found = advise({"north": whole, "south": part})
    # Halves are 0.1 apart: the root of (0.1^2 + 0.1^2) / 4 over 0.1.
    assert found.ratios["labels"].value == pytest.approx(np.sqrt(0.5))
    assert found.notes == ("the sites annotate different labels; those are compared that all annotate: 1",)
    # Where all annotate the same label, background counts too.
    alike = advise({"north": labelled((0.84, 0.16, 0.0), (1,)), "south": part})
    assert alike.ratios["labels"].value == pytest.approx(np.sqrt(0.5)) and alike.notes == ()


def test_sites_without_a_label_that_all_annotate_have_no_answer_on_labels():
    found = advise({"north": labelled((0.8, 0.2, 0.0), (1,)), "south": labelled((0.9, 0.0, 0.1), (2,))})
    assert (found.ratios.keys(), found.findings.keys()) == ({"amplitude", "features"}, {"amplitude"})
    assert found.notes == ("the sites annotate different labels; those are compared that all annotate: none",)


@pytest.mark.parametrize("count", [0, 1])
def test_one_site_alone_cannot_be_compared(count):
    with pytest.raises(ConfigError, match=f"at least 2 sites must be there to be compared, not {count}"):
        site_ratios([sketched(0.0, 1.0)] * count)


# --- questions


@pytest.mark.parametrize("kind", QUESTIONS)
def test_only_a_ratio_above_the_threshold_is_a_yes(kind):
    threshold = QUESTIONS[kind][1]
    assert not answer_question(kind, ratio(threshold)).is_yes
    assert answer_question(kind, ratio(threshold + 0.01)).is_yes


def test_halvings_that_agree_with_the_answer_are_counted():
    # the median of 1, 1, 9 and 9.5 is 5: yes, as two of four say
    found = answer_question("labels", ratio(1, 1, 9, 9.5))
    assert (found.is_yes, found.agreeing, found.halvings) == (True, 2, 4)
    # three of four are near
    found = answer_question("amplitude", ratio(1, 1, 1, 9))
    assert (found.is_yes, found.agreeing, found.halvings) == (False, 3, 4)
    assert "No, in 3 of 4 halvings" in found.sentence()
    # the 5th and the 95th percentile of 1, 1, 1 and 9: 0.15 and 2.85 steps from the first, 1 + 0.85 * 8
    assert "1.0 times (1.0 to 7.8) as far apart" in found.reason
