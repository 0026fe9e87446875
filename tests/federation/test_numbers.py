import pytest

from silofl.base.errors import AggregationError
from silofl.data.data_profile import DataProfile, Range, VoxelSizes
from silofl.federation.numbers import (
    check_image_shape,
    check_modality,
    check_names,
    check_numbers,
    describe_unlike_data,
    find_long_updates,
    find_outlying_ranges,
)
from silofl.parts.answer import Metrics, Numbers
from silofl.parts.task import TRAIN, Exchange
from silofl.training.site_score import SelectorCounts, SiteScore, SuperScore

TASK = Exchange(TRAIN, 2)
ROUND_TEST = {"value": 0.5, "num_cases": 2, "num_excluded": 0}
NUMBERS = {"round": 2, "num_examples": 5, "steps": 3, "metrics": {"loss": 0.5}}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"round": 1}, "site 'west' answered for round 1 in round 2"),
        ({"steps": None}, "the answer of site 'west' lacks its steps"),
        ({"num_examples": 7}, "at most 6 training examples, as in its first round, not 7; start the study anew"),
        # batches of 2, one epoch: 3 at most
        ({"steps": 4}, "site 'west' claims 4 steps; with 5 examples it can take at most 3"),
        (
            {"metrics": {"loss": 0.5, "round_test": ROUND_TEST}},
            "site 'west' sent a test score of a round, for which",
        ),
        ({"num_patients": 6}, "site 'west' must have at most as many patients in training as examples, 5, not 6"),
    ],
)
def test_numbers_beyond_what_was_asked_or_is_possible_are_refused(make_study, changes, sentence):
    check_numbers("west", TASK, Numbers(**NUMBERS), make_study(), 6)
    with pytest.raises(AggregationError) as caught:
        check_numbers("west", TASK, Numbers(**NUMBERS | changes), make_study(), 6)
    assert sentence in str(caught.value)


def test_first_rounds_examples_bound_the_patients(make_study):
    task = Exchange("statistics", 2, is_needed=False)
    # What is not needed needs the round alone.
    check_numbers("west", task, Numbers(round=2), make_study(), 6)
    check_numbers("west", task, Numbers(round=2, num_patients=6), make_study(), 6)
    check_numbers("west", task, Numbers(round=2, num_patients=10**7), make_study(), None)
    with pytest.raises(AggregationError, match="site 'west' must have at most as many patients .* 6, not 7"):
        check_numbers("west", task, Numbers(round=2, num_patients=7), make_study(), 6)


def test_findings_and_areas_are_those_of_the_study(make_study):
    findings = {"task": "multilabel", "labels": {0: "effusion", 1: "nodule"}}
    study = make_study().model_copy(update=findings)

    def tested(labels, areas):
        score = SiteScore(value=0.5, num_cases=1, num_excluded=0, labels=labels, areas=areas)
        return Metrics[SiteScore](test=score)

    check_names("west", tested({"0": 0.5, "no effusion": 1.0, "no nodule": 1.0}, {"1": 0.5}), study, ())
    for labels, areas, name in (({"no mass": 1.0}, {}, "no mass"), ({}, {"no nodule": 1.0}, "no nodule")):
        with pytest.raises(AggregationError, match=f"sent numbers of '{name}', which is no label"):
            check_names("west", tested(labels, areas), study, ())


def test_only_the_test_of_a_super_model_has_choices(make_study):
    score = {"value": 0.5, "num_cases": 1, "num_excluded": 0, "models": {"model": 0.5}, "choices": {"global": 1}}
    test = SuperScore(**score, selector=SelectorCounts({}))
    check_names("west", Metrics[SuperScore](test=test), make_study(), ())
    with pytest.raises(AggregationError, match="sent numbers of 'global'"):
        check_names("west", Metrics[SiteScore](test=SiteScore(**score)), make_study(), ("model",))


@pytest.mark.parametrize(
    ("lengths", "refused"),
    [
        # The median of the others is 2.
        ({"a": 1.0, "b": 3.0, "c": 200.0}, ""),
        ({"a": 1.0, "b": 3.0, "c": 201.0}, "c"),
        # One mad site makes no other look too long, and hides none.
        ({"a": 1.0, "b": 3.0, "c": 1e30}, "c"),
        ({"a": 1.0, "b": 3.0, "c": 1.0, "d": 1e4, "e": 1e30}, "de"),
        # Two are not compared, and a median of nothing bounds nobody.
        ({"a": 1.0, "b": 1e30}, ""),
        ({"a": 0.0, "b": 0.0, "c": 1.0}, ""),
    ],
)
def test_hundredfold_update_is_refused_and_no_other(lengths, refused):
    found = find_long_updates(lengths, most=100, min_sites=3)
    assert found.keys() == set(refused)
    sentence = "long by step, more than 100 times the others' median"
    remedy = "look for a fault there, or raise federation.max_update_ratio"
    assert all(
        f"update of site '{site}'" in said and sentence in said and remedy in said for site, said in found.items()
    )


def test_images_of_other_channels_or_axes_are_refused(make_study):
    study = make_study()
    between = study.model_copy(update={"data": study.data.model_copy(update={"neighbours": 1})})
    check_image_shape("west", None, study)
    # With its neighbours' a slice has three channels.
    check_image_shape("west", (3, 8, 8), between)
    for wanted, shape, sentence in (
        (study, (3, 8, 8), "images of 1 channels and 2 axes, not of 3 and 2"),
        (study, (1, 8, 8, 8), "images of 1 channels and 2 axes, not of 1 and 3"),
        (between, (1, 8, 8), "images of 3 channels and 2 axes, not of 1 and 2"),
    ):
        with pytest.raises(AggregationError, match=f"site 'west' must have {sentence}"):
            check_image_shape("west", shape, wanted)


def with_means(**means):
    return {site: DataProfile(intensities=(Range("mean", low, high),)) for site, (low, high) in means.items()}


def test_images_of_another_modality_than_the_study_states_are_refused(make_study):
    study = make_study()
    stated = study.model_copy(update={"data": study.data.model_copy(update={"modality": "MR"})})
    check_modality("west", DataProfile(modalities=("MR",)), stated)
    check_modality("west", DataProfile(modalities=("CT",)), study)
    with pytest.raises(AggregationError, match="site 'west' must have MR images, as data.modality says, not CT"):
        check_modality("west", DataProfile(modalities=("CT", "MR")), stated)


def test_far_ranges_are_left_out():
    # The others take 0.2 to 0.6 together, room for 0.2 - 1.2 to 0.6 + 1.2.
    assert find_outlying_ranges(with_means(east=(0.2, 0.4), north=(0.4, 0.6), west=(-1.0, 1.79)), 3) == {}
    (said,) = find_outlying_ranges(with_means(east=(0.2, 0.4), north=(0.4, 0.6), west=(0.3, 1.81)), 3).values()
    assert "west: its images' mean, 0.3 to 1.81, is far from all others' 0.2 to 0.6" in said


def test_endless_range_is_left_out_but_not_of_two():
    assert find_outlying_ranges(with_means(a=(0, 1), b=(5, 6), c=(-1e300, 1e300)), 3).keys() == {"c"}
    assert find_outlying_ranges(with_means(a=(0, 1), c=(-1e300, 1e300)), 3) == {}
    assert find_outlying_ranges(with_means(a=(0, 1), c=(-1e300, 1e300)) | {"b": DataProfile()}, 3) == {}


def test_voxels_of_twelvefold_size_are_left_out():
    """A super model doubts voxels of half to twice the sites': by a range without end it would doubt none."""
    # Of the others the shortest sides are 0.5 to 0.9 mm, the longest 0.6 to 5: 0.5 / 12 to 0.9 * 12 and 0.6 / 12 to 60.
    sizes = {"east": ((0.5, 0.5, 5.0), (0.9, 0.9, 5.0)), "north": ((0.6,) * 3, (0.6,) * 3)}
    sizes["west"] = ((0.05,) * 3, (10.8,) * 3)
    taken = {site: DataProfile(voxels=VoxelSizes(*sides)) for site, sides in sizes.items()}
    assert find_outlying_ranges(taken, 3) == {}
    wide = taken | {"west": DataProfile(voxels=VoxelSizes((0.001,) * 3, (1000.0,) * 3))}
    (sentence,) = find_outlying_ranges(wide, 3).values()
    assert "west: its images' voxels, 0.001 x 0.001 x 0.001 to 1000 x 1000 x 1000 mm, are far from" in sentence
    assert "all others' 0.5 x 0.5 x 0.6 to 0.9 x 0.9 x 5 mm" in sentence
    # Of two nobody knows which is odd.
    assert find_outlying_ranges({site: wide[site] for site in ("north", "west")}, 3) == {}


@pytest.mark.parametrize(
    ("shares", "named"),
    [
        ({"north": 0.12, "south": 0.88}, ["south"]),
        ({"north": 0.12, "east": 0.2, "south": 0.88}, ["south"]),
        # Large organs, and sites that are alike.
        ({"north": 0.5, "south": 0.6}, []),
        ({"north": 0.88, "south": 0.9}, []),
        ({"north": 0.4, "south": 0.88}, []),
        ({"north": None, "south": 0.88}, []),
    ],
)
def test_masks_that_may_be_inverted_are_told(shares, named):
    found = describe_unlike_data({site: DataProfile(labelled=share) for site, share in shares.items()})
    assert [sentence.partition(":")[0] for sentence in found] == named
    assert all("labels lie on 88% of its pixels, and on at most" in sentence for sentence in found)


def test_units_of_pet_that_differ_between_sites_are_told():
    profiles = {"north": DataProfile(units=("BQML",)), "south": DataProfile(units=("GML",)), "east": DataProfile()}
    (sentence,) = describe_unlike_data(profiles)
    assert sentence.startswith("PET counts in BQML at north, GML at south, and nothing converts it; bring")
    assert describe_unlike_data({"north": profiles["north"], "east": DataProfile()}) == []
