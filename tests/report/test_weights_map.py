import io

import numpy as np
import pytest
from PIL import Image

from silofl.report.folder import SiteWeights
from silofl.report.weights_map import draw_weights, history_sentence, moved, weights_image


@pytest.fixture
def weights():
    """Build one computation for the sites a, b and c; of a row given as two numbers, the own weight is 0.5."""

    def build(*rows, sites=("a", "b", "c"), **changes):
        size = len(sites)
        matrix = np.array(rows) if rows else np.full((size, size), 1 / size)
        values = {"round": 3, "source": "running", "layers": "all", "self_weight": 0.5, "without": {}}
        values |= {"sites": list(sites), "distances": np.ones((size, size)) - np.eye(size), "weights": matrix}
        return SiteWeights(**(values | changes))

    return build


BEFORE = ([0.5, 0.3, 0.2], [0.3, 0.5, 0.2], [0.25, 0.25, 0.5])


def test_moved_is_the_mean_share_of_a_row_that_went_elsewhere(weights):
    after = ([0.5, 0.2, 0.3], [0.3, 0.5, 0.2], [0.5, 0.0, 0.5])
    # 0.1, 0 and 0.25 of the rows' weight
    assert moved(weights(*BEFORE), weights(*after)) == pytest.approx(0.35 / 3)
    assert moved(weights(*BEFORE), weights(*BEFORE)) == 0


def test_a_new_site_takes_its_weight_from_the_others(weights):
    before, after = weights([0.5, 0.5], [0.5, 0.5], sites=("a", "b")), weights(*BEFORE)
    # to c: 0.2 of a's row, 0.2 of b's
    assert moved(before, after) == pytest.approx(0.2)
    assert moved(weights(sites=("x",)), after) is None


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
    distances = np.array([[0, np.nan, 1], [np.nan] * 3, [1, np.nan, 0]])
    shown = weights(*BEFORE, distances=distances, without={"b": "too few examples"})
    assert "Hatched: a site that shares no statistics" in weights_image(shown).caption
    assert draw_weights(shown) != draw_weights(weights(*BEFORE))


@pytest.mark.parametrize("count", [1, 10, 11, 20])
def test_any_number_of_sites_has_a_picture(weights, count):
    image = weights_image(weights(sites=[f"site-{i}" for i in range(count)]))
    assert Image.open(io.BytesIO(image.png)).size[0] > 1000 and f"{count} sites" in image.alt
