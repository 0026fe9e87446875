from pathlib import Path

import numpy as np
import pytest

from silofl_desk.report.left_out_site import unseen_section, unseen_sentence
from silofl_desk.report.run_records import RunRecords, read_run
from silofl_desk.report.super_model_page import (
    MAX_IMAGES,
    choice_table,
    choices_sentence,
    describe_right,
    feature_image,
    is_ensemble,
    model_meanings,
    model_table,
    principal_components,
    project_to_plane,
    selector_counts,
    super_model_sections,
    threshold_sentence,
)
from silofl_hospital.report.canvas import LINE_COLOURS
from silofl_hospital.report.page import Heading, Picture, Table, Text
from tests.report.conftest import shown_colours


@pytest.fixture
def map_of(results):
    """Draw the map of a run's sites with their features, or with None."""

    def draw(**features):
        found = results(sites=dict.fromkeys(features, 0.5))
        known = {site: one for site, one in features.items() if one}
        return feature_image(RunRecords(Path("run"), found, [], {}, {}, features=known))

    return draw


def test_principal_components_keep_the_distances_of_points_in_a_plane():
    points = np.array([[0.0, 0, 0], [3, 4, 0], [6, 0, 0]])
    found = principal_components(points)
    # 3-4-5 triangles
    assert np.linalg.norm(found[1] - found[0]) == pytest.approx(5)
    assert np.linalg.norm(found[2] - found[0]) == pytest.approx(6)


@pytest.mark.parametrize("shape", [(1, 4), (3, 1), (2, 2)])
def test_components_that_do_not_exist_are_zero(shape):
    assert principal_components(np.arange(np.prod(shape)).reshape(shape)).shape == (shape[0], 2)


@pytest.mark.parametrize(
    ("count", "method"), [(15, "PCA"), (16, "t-SNE (perplexity 5, seed 0)"), (100, "t-SNE (perplexity 30, seed 0)")]
)
def test_the_method_follows_the_number_of_images(count, method):
    points, found = project_to_plane(np.random.default_rng(0).normal(size=(count, 4)).astype(np.float32))
    assert (points.shape, found) == ((count, 2), method)


def test_the_same_features_give_the_same_map_and_equal_ones_have_no_neighbours_to_find():
    features = np.random.default_rng(0).normal(size=(20, 4))
    np.testing.assert_array_equal(project_to_plane(features)[0], project_to_plane(features)[0])
    assert project_to_plane(np.ones((20, 4), np.float32))[1] == "PCA"


def test_sites_far_apart_are_far_apart_on_the_map(map_of, features):
    rows = map_of(east=features("east"), west=features("west")).plot.rows
    east, west = (np.array([point for owner, *point in rows if owner == site]) for site in ("east", "west"))
    gap = np.linalg.norm(east.mean(axis=0) - west.mean(axis=0))
    assert gap > 2 * max(east.std(), west.std())


def test_of_very_many_images_every_few_are_shown(map_of, features, monkeypatch):
    monkeypatch.setattr("silofl_desk.report.super_model_page.project_to_plane", lambda values: (values[:, :2], "none"))
    image = map_of(east=features("east", count=MAX_IMAGES + 2))
    assert "one in 2 of the validation and test images" in image.caption
    assert len(image.plot.rows) == MAX_IMAGES // 2 + 1


def test_each_site_has_the_colour_of_its_curves(map_of, features):
    png = map_of(east=features("east"), north=None, west=features("west")).png
    # north has no features, and stands in the legend as it does beside the curves
    assert shown_colours(png, LINE_COLOURS[:4]) == [True, True, True, False]


@pytest.mark.usefixtures("undrawn")
def test_the_map_says_how_it_was_made_and_what_may_draw_it(finished_super):
    image = feature_image(read_run(finished_super()))
    assert image.alt.startswith("Map of 14 images of the sites east, west, by PCA.")
    assert "only a simulation" in image.caption


def test_a_run_without_selector_has_nothing_to_say_of_one(finished):
    run = read_run(finished())
    assert feature_image(run) is None and super_model_sections(run) == [] and unseen_section(None, "fedsm") is None


def told(sentence, results):
    return sentence(results, results.super_model)


def headings_of(section):
    return [block.text for block in section.blocks if isinstance(block, Heading)]


def tables_of(section):
    return [block.content for block in section.blocks if isinstance(block, Table)]


@pytest.mark.usefixtures("undrawn")
def test_a_run_with_a_selector_has_tables_and_its_map(finished_super):
    models, selector = super_model_sections(read_run(finished_super()))
    assert tables_of(models)[0].rows[-1][0] == "mean over sites"
    notes = [str(block.text) for block in selector.blocks if isinstance(block, Text)]
    assert any("Right answers are on the diagonal: 5 of 5." in note for note in notes)
    (image,) = (block.image for block in selector.blocks if isinstance(block, Picture))
    assert "PCA" in image.caption


@pytest.fixture
def selector_section(run, super_results):
    """Return the section of the selector of a run that holds a result alone."""

    def make(**changes):
        return super_model_sections(read_run(run().json("results.json", super_results(**changes)).path))[1]

    return make


def test_a_real_federations_run_has_no_map(selector_section):
    assert headings_of(selector_section()) == ["Which site it chose for the test cases", "Which model it chooses"]


def test_a_result_with_nothing_but_its_models_is_shown(selector_section):
    nothing = {"outputs": ["east"], "cases": {"east": {}}, "slices": {}}
    (only,) = selector_section(selector=nothing, choices={}, by_threshold=[], threshold=None).blocks
    assert only.text.startswith("No threshold is used")


def test_each_site_has_its_own_personal_value_and_one_seed_marks_no_best(super_results):
    table = model_table(super_results())
    assert table.columns == ("site", "global", "personal", "super", "ensemble")
    assert table.rows == (
        ("east", "0.400", "0.600", "0.500", "0.550"),
        ("west", "0.700", "0.750", "0.750", "0.650"),
        # the means of the two rows above
        ("mean over sites", "0.550", "0.675", "0.625", "0.600"),
    )
    assert not table.best_cells
    untested = super_results(sites={"east": 0.5, "west": 0.75, "south": None})
    *_, south, mean = model_table(untested).rows
    assert south == ("south", *"----") and mean[:2] == ("mean over 2 of 3 sites", "0.550")


def test_the_selectors_right_answers_are_counts_on_the_diagonal(super_results):
    found = super_results()
    outputs, slices = found.super_model.outputs, {site: one.selector.slices for site, one in found.tests.items()}
    counts = selector_counts(outputs, slices)
    assert list(counts.columns) == [row.name for row in counts.rows] == ["east", "west"]
    # three of east's four, the other for west
    shown = [(row.end, [(cell.text, cell.share) for cell in row.cells]) for row in counts.rows]
    assert shown == [("3 of 4", [("3", 0.75), ("1", 0.25)]), ("10 of 10", [("0", 0), ("10", 1)])]
    assert describe_right(outputs, slices) == "13 of 14"
    # A selector of best models has no right answers.
    best = selector_counts(("global", "east", "west"), {"east": {"global": 2}})
    assert best.end == "" and [row.end for row in best.rows] == [""]
    assert selector_counts(("east",), {}) is selector_counts(("east",), {"east": {}}) is None


def test_choices_are_counted_by_site_and_model(super_results):
    table = choice_table({site: one.choices for site, one in super_results().tests.items()})
    assert table.columns == ("test cases of", "global", "east", "west", "cases")
    assert table.rows == (("east", "0", "1", "0", "1"), ("west", "2", "0", "4", "6"), ("all sites", "2", "1", "4", "7"))
    assert choice_table({}) is None


def test_an_ensemble_says_that_the_super_model_is_one_and_has_no_threshold(super_results, finished_super):
    recipe = {"weighs_models": True}
    averaged = super_results(recipe=recipe)
    assert is_ensemble(averaged) and not is_ensemble(super_results())
    assert [name for name, _ in model_meanings(averaged)] == ["global", "personal", "super", "ensemble"]
    assert "both columns are equal" in dict(model_meanings(averaged))["super"]
    assert "here the ensemble answers" in told(choices_sentence, averaged)
    assert told(threshold_sentence, averaged) == "No threshold is used: the ensemble answers."
    for name, changes, has_threshold in (("choice", {}, True), ("ensemble", {"recipe": recipe}, False)):
        section = super_model_sections(read_run(finished_super(name, **changes)))[1]
        words = [str(block.text) for block in section.blocks if isinstance(block, Text)]
        words += [column for table in tables_of(section) for column in table.columns]
        assert any("gamma" in one for one in words) == has_threshold


FIXED = {"threshold": "fixed"}
TUNED = "tuned on the sites' validation cases: each site sent only its sums by threshold"


@pytest.mark.parametrize(
    ("changes", "beginning", "reason"),
    [
        ({}, "The threshold gamma is 0.9: a site's model answers where", TUNED),
        ({"threshold": 1.0}, "The threshold gamma is 1: no score is above it, so that the global model is", TUNED),
        ({"threshold": 1.0, "validation": {}}, "The threshold gamma is 1", "No site had validation cases"),
        ({"recipe": FIXED}, "The threshold gamma is 0.9", "The study fixed it."),
        ({"threshold": None}, "No threshold is used", "No threshold is used"),
    ],
)
def test_a_threshold_says_what_it_does_and_where_it_is_from(super_results, changes, beginning, reason):
    found = super_results(**changes)
    sentence = told(threshold_sentence, found)
    assert sentence.startswith(beginning) and reason in sentence
    assert found.super_model.threshold is not None or told(choices_sentence, found).endswith("its model answered.")


def test_a_left_out_site_is_told_in_a_sentence(unseen, unseen_plain):
    assert unseen_sentence(unseen(num_cases=1)) == (
        "Site coast took no part in the training. There the super model reaches dice 0.600 over 1 case, "
        "with the threshold gamma = 0.9 that the training sites found. Cases by the model that was chosen for them: "
        "global 3, north 1."
    )
    assert unseen_sentence(unseen_plain(value=None)).endswith("reaches dice - over 4 cases.")
    # Without a value nothing is set beside the own models.
    first = unseen_section(unseen_plain(value=None, own={"east": None}), "fedavg").blocks[0]
    assert first.text.startswith("Site coast took no part")
