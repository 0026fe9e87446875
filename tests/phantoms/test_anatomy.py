import numpy as np
import pytest

from silofl_desk.phantoms.anatomy import Tissue, draw_anatomy, label_tissue
from silofl_desk.phantoms.grid import Grid

GRID = Grid((64, 64, 6), (5.0, 5.0, 8.0))


@pytest.fixture(scope="module")
def patients():
    return [draw_anatomy(np.random.default_rng(seed), GRID) for seed in range(12)]


def test_labels_are_organ_for_liver_and_its_vessels_and_lesion_for_lesions():
    tissue = np.array([Tissue.AIR, Tissue.SPLEEN, Tissue.LIVER, Tissue.LIVER_VESSEL, Tissue.LESION], dtype=np.uint8)
    np.testing.assert_array_equal(label_tissue(tissue), [0, 0, 1, 1, 2])


def test_a_lesion_touches_only_the_organ_or_a_lesion_within_its_slice(patients):
    labels = np.stack([label_tissue(tissue) for tissue in patients])
    lesion = labels == 2
    assert lesion.any()
    for axis in (1, 2):
        for step in (-1, 1):
            assert (np.roll(labels, step, axis)[lesion] > 0).all()


def test_patients_differ_in_size_and_in_the_organs_size(patients):
    bodies = [int((tissue != Tissue.AIR).sum()) for tissue in patients]
    organs = [int((label_tissue(tissue) > 0).sum()) for tissue in patients]
    assert len(set(bodies)) == len(set(organs)) == len(patients)
    assert max(organs) > 1.2 * min(organs)


def test_the_organ_lies_on_the_patients_right_and_the_spleen_on_the_left(patients):
    for tissue in patients:
        to_the_left = GRID.points_mm()[0]
        assert to_the_left[label_tissue(tissue) > 0].mean() < 0 < to_the_left[tissue == Tissue.SPLEEN].mean()


def test_the_organs_outline_changes_smoothly_from_slice_to_slice(patients):
    for tissue in patients:
        organ = label_tissue(tissue) > 0
        shared = (organ[..., 1:] & organ[..., :-1]).sum()
        assert 2 * shared / (organ[..., 1:].sum() + organ[..., :-1].sum()) > 0.75


def test_the_body_does_not_reach_the_border_of_the_image(patients):
    for tissue in patients:
        assert (tissue[[0, -1]] == Tissue.AIR).all()
        assert (tissue[:, [0, -1]] == Tissue.AIR).all()
