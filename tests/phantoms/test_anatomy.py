import numpy as np
import pytest

from silofl_desk.phantoms.anatomy import Tissue, draw_anatomy, label_tissue
from silofl_desk.phantoms.grid import Grid

GRID = Grid((64, 64, 6), (5.0, 5.0, 8.0))


@pytest.fixture(scope="module")
def patients():
    return [draw_anatomy(np.random.default_rng(seed), GRID) for seed in range(12)]


def test_a_lesion_touches_only_organ_or_lesion(patients):
    labels = np.stack([label_tissue(tissue) for tissue in patients])
    lesion = labels == 2
    assert lesion.any()
    for axis in (1, 2):
        for step in (-1, 1):
            assert (np.roll(labels, step, axis)[lesion] > 0).all()


def test_the_organ_lies_right_and_the_spleen_left(patients):
    for tissue in patients:
        to_the_left = GRID.points_mm()[0]
        assert to_the_left[label_tissue(tissue) > 0].mean() < 0 < to_the_left[tissue == Tissue.SPLEEN].mean()
