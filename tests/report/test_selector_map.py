import io

import numpy as np
import pytest
from PIL import Image

from silofl.report.canvas import LINE_COLOURS
from silofl.report.selector_map import MAX_IMAGES, FeatureMap, draw_map, plane, principal_components


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
    points, found = plane(np.random.default_rng(0).normal(size=(count, 4)).astype(np.float32))
    assert (points.shape, found) == ((count, 2), method)


def test_equal_features_have_no_neighbours_to_find():
    assert plane(np.ones((20, 4), np.float32))[1] == "PCA"


def test_the_same_features_give_the_same_map():
    features = np.random.default_rng(0).normal(size=(20, 4))
    np.testing.assert_array_equal(plane(features)[0], plane(features)[0])


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
    monkeypatch.setattr("silofl.report.selector_map.plane", lambda values: (values[:, :2], "none"))
    shown = FeatureMap.of({"east": features("east", count=MAX_IMAGES + 2)})
    assert shown.step == 2 and len(shown.points) == len(shown.owners) == len(shown.is_wrong) == MAX_IMAGES // 2 + 1


def test_each_site_has_the_colour_of_its_curves(features):
    shown = FeatureMap.of({"east": features("east"), "west": features("west", num_wrong=1)})
    png = draw_map(shown, ["east", "north", "west"])
    # north has no features, and stands in the legend as it does beside the curves
    assert all(has_colour(png, colour) for colour in LINE_COLOURS[:3]) and not has_colour(png, LINE_COLOURS[3])
