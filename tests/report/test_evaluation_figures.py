from types import SimpleNamespace

import pytest

from silofl_hospital.report.evaluation_figures import roc_image

SCORES = {"auroc": 0.75, "recall": 0.5, "specificity": 1.0}


@pytest.mark.parametrize(("names", "point"), [(["auroc", "recall"], []), ([*SCORES], [[0.0, 0.5]])])
def test_a_roc_shows_the_models_threshold(names, point):
    scores = {name: SimpleNamespace(value=SCORES[name]) for name in names}
    image = roc_image({"nodule": ([0, 0, 1], [0, 0.5, 1])}, {"nodule": scores})
    (axes,) = image.plot.draw(5).axes
    assert [
        [*map(float, (*one.get_xdata(), *one.get_ydata()))] for one in axes.lines if one.get_marker() == "o"
    ] == point
    assert ("A point is the model's own threshold." in image.caption) == bool(point)
