import io

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from silofl.report.canvas import LINE_COLOURS, PAGE, encode_png
from silofl.report.rounds import WeightsPlot, history_sentence, mean_moved_share, weights_image
from silofl.report.run_records import SiteWeights, read_run
from silofl.report.super_model_page import (
    MAX_IMAGES,
    FeatureMap,
    FeaturePlot,
    feature_image,
    principal_components,
    project_to_plane,
)
from silofl.schema import read_record
from silofl.studies.partition import TEST, TRAINING, partition_image, partition_table, print_partition, write_partition


def has_colour(png, colour):
    wanted = tuple(bytes.fromhex(colour[1:]))
    return wanted in {pixel for _, pixel in Image.open(io.BytesIO(png)).convert("RGB").getcolors(2**20)}


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


def test_equal_features_have_no_neighbours_to_find():
    assert project_to_plane(np.ones((20, 4), np.float32))[1] == "PCA"


def test_the_same_features_give_the_same_map():
    features = np.random.default_rng(0).normal(size=(20, 4))
    np.testing.assert_array_equal(project_to_plane(features)[0], project_to_plane(features)[0])


def test_sites_far_apart_are_far_apart_on_the_map(features):
    shown = FeatureMap.of({"east": features("east"), "west": features("west")})
    east, west = (shown.points[shown.owners == site] for site in ("east", "west"))
    gap = np.linalg.norm(east.mean(axis=0) - west.mean(axis=0))
    assert gap > 2 * max(east.std(), west.std())


def test_images_that_are_taken_for_another_sites_are_known(features):
    shown = FeatureMap.of({"east": features("east", num_wrong=2), "west": features("west")})
    assert shown.is_wrong.sum() == 2 and set(shown.owners[shown.is_wrong]) == {"east"}


def test_a_selector_of_best_models_takes_no_image_for_another_sites(features):
    found = FeatureMap.of({"east": features("east", num_wrong=2, outputs=("global", "east"))})
    assert not found.is_wrong.any()


def test_of_very_many_images_every_few_are_shown(features, monkeypatch):
    monkeypatch.setattr("silofl.report.super_model_page.project_to_plane", lambda values: (values[:, :2], "none"))
    shown = FeatureMap.of({"east": features("east", count=MAX_IMAGES + 2)})
    assert shown.step == 2 and len(shown.points) == len(shown.owners) == len(shown.is_wrong) == MAX_IMAGES // 2 + 1


def test_each_site_has_the_colour_of_its_curves(features):
    shown = FeatureMap.of({"east": features("east"), "west": features("west", num_wrong=1)})
    png = encode_png(FeaturePlot(shown, ["east", "north", "west"]).draw(PAGE))
    # north has no features, and stands in the legend as it does beside the curves
    assert all(has_colour(png, colour) for colour in LINE_COLOURS[:3]) and not has_colour(png, LINE_COLOURS[3])


@pytest.fixture
def weights():
    """Build one computation for the sites a, b and c; of a row given as two numbers, the own weight is 0.5."""

    def build(*rows, sites=("a", "b", "c"), **changes):
        size = len(sites)
        matrix = np.array(rows) if rows else np.full((size, size), 1 / size)
        values = {"round": 3, "source": "running", "layers": "all", "self_weight": 0.5, "without": {}}
        distances = (np.ones((size, size)) - np.eye(size)).tolist()
        values |= {"sites": list(sites), "distances": distances, "weights": matrix.tolist()}
        return read_record(SiteWeights, values | changes, "weights.json")

    return build


BEFORE = ([0.5, 0.3, 0.2], [0.3, 0.5, 0.2], [0.25, 0.25, 0.5])


def test_moved_is_the_mean_share_of_a_row_that_went_elsewhere(weights):
    after = ([0.5, 0.2, 0.3], [0.3, 0.5, 0.2], [0.5, 0.0, 0.5])
    # 0.1, 0 and 0.25 of the rows' weight
    assert mean_moved_share(weights(*BEFORE), weights(*after)) == pytest.approx(0.35 / 3)
    assert mean_moved_share(weights(*BEFORE), weights(*BEFORE)) == 0


def test_a_new_site_takes_its_weight_from_the_others(weights):
    before, after = weights([0.5, 0.5], [0.5, 0.5], sites=("a", "b")), weights(*BEFORE)
    # to c: 0.2 of a's row, 0.2 of b's
    assert mean_moved_share(before, after) == pytest.approx(0.2)
    assert mean_moved_share(weights(sites=("x",)), after) is None


def test_the_history_tells_when_and_how_far_the_weights_moved(weights):
    assert history_sentence([weights(round=0)]) == "The weights were computed once, before the first round."
    assert history_sentence([weights(round=3)]) == "The weights were computed once, after round 3."
    after = ([0.5, 0.2, 0.3], [0.2, 0.5, 0.3], [0.15, 0.35, 0.5])
    text = history_sentence([weights(*BEFORE), weights(*BEFORE, round=6), weights(*after, round=9)])
    assert text.startswith("The weights were computed 3 times, after rounds 3, 6, 9; the last is shown.")
    assert "moved, on average, 0.0 %, 10.0 % of its weight" in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "running statistics of the BatchNorm layers"),
        ({"source": "pretrained"}, "inputs of the BatchNorm layers in a pretrained model"),
        ({"source": "pretrained", "layers": "last"}, "inputs of the last layer in a pretrained model"),
    ],
)
def test_the_caption_says_what_sites_are_compared_by(weights, changes, words):
    caption = weights_image(weights(*BEFORE, **changes)).caption
    assert words in caption and "lambda = 0.5" in caption and "Hatched" not in caption


def test_a_site_that_shares_nothing_is_hatched_and_said(weights):
    distances = [[0, None, 1], [None] * 3, [1, None, 0]]
    shown = weights(*BEFORE, distances=distances, without={"b": "too few examples"})
    assert "Hatched: a site that shares no statistics" in weights_image(shown).caption
    patches = [patch for axes in WeightsPlot(shown).draw(PAGE).axes for patch in axes.patches]
    # the distances of b to a, b and c and of a and c to b
    assert sum(patch.get_hatch() is not None for patch in patches) == 5
    assert ("a", "b", 0.3, None) in WeightsPlot(shown).data().rows


@pytest.mark.parametrize("count", [1, 10, 11, 20])
def test_any_number_of_sites_has_a_picture(weights, count):
    image = weights_image(weights(sites=[f"site-{i}" for i in range(count)]))
    assert Image.open(io.BytesIO(image.png)).size[0] > 1000 and f"{count} sites" in image.alt


COUNTS = {
    "east": {"training": {"heart": 8, "liver": 2}, "validation": {"heart": 1}, "test": {"heart": 4, "spleen": 3}},
    "west": {"training": {"liver": 5}, "test": {}},
}


def pixels_of(image, colour):
    """Count the pixels of a colour, given as #rrggbb."""
    wanted, colours = (
        tuple(bytes.fromhex(colour[1:])),
        Image.open(io.BytesIO(image.png)).convert("RGB").getcolors(2**20),
    )
    return dict((pixel, count) for count, pixel in colours).get(wanted, 0)


def test_a_row_counts_training_examples_by_class_and_all_examples_by_part():
    table = partition_table(COUNTS)
    assert table.columns == ("site", "heart", "liver", "spleen", "training", "validation", "test")
    assert table.rows == (
        # 8 + 2; 1; 4 + 3
        ("east", "8", "2", "0", "10", "1", "7"),
        ("west", "0", "5", "0", "5", "0", "0"),
        ("all sites", "8", "7", "0", "15", "1", "7"),
    )
    assert table.num_summary == 1


def test_training_examples_are_dots_and_test_examples_rings():
    image = partition_image(COUNTS)
    assert pixels_of(image, TRAINING) and pixels_of(image, TEST)
    assert image.alt == "Dot plot of the examples of 3 classes at 2 sites; the largest dot is 8."


def test_the_area_of_a_dot_grows_with_the_number_of_examples():
    # the legend shows 1000 of 1000 either way: what is left is the dot of the second site
    counts = [{"a": {"training": {"x": 1000}}, "b": {"training": {"x": n}}} for n in (0, 250, 500)]
    none, quarter, half = (pixels_of(partition_image(one), TRAINING) for one in counts)
    assert half - none == pytest.approx(2 * (quarter - none), rel=0.15)


def test_the_picture_grows_with_the_sites_and_classes():
    many = {f"site-{i}": {"training": {f"class {j}": i + j for j in range(14)}} for i in range(20)}
    (width, height), (small, low) = (Image.open(io.BytesIO(partition_image(one).png)).size for one in (many, COUNTS))
    assert width > 2 * small and height > 2 * low


def test_empty_sites_have_a_plot_without_dots():
    assert partition_image({"east": {"training": {"heart": 0}}}).alt.endswith("the largest dot is 0.")


def test_plot_and_table_are_written_side_by_side(tmp_path):
    picture, table = write_partition(tmp_path, COUNTS)
    assert (picture.name, table.name) == ("partition.png", "partition.md")
    assert Image.open(picture).format == "PNG"
    text = table.read_text()
    assert "| west | 0 | 5 | 0 | 5 | 0 | 0 |" in text and "](partition.png)" in text


def test_the_printed_table_says_what_it_counts():
    stream = io.StringIO()
    print_partition(COUNTS, Console(file=stream, width=40))
    assert "all sites" in stream.getvalue() and "A class's column counts training examples" in stream.getvalue()


def test_the_map_says_how_it_was_made_and_what_may_draw_it(finished_super):
    image = feature_image(read_run(finished_super()))
    assert image.alt.startswith("Map of 14 images of the sites east, west, by PCA. 2 of them are taken for another")
    assert "only a simulation" in image.caption


def test_a_run_without_features_has_no_map(finished):
    assert feature_image(read_run(finished())) is None
