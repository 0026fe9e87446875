import numpy as np
import pytest

from silofl.inference.prediction import measure_volumes_ml


def test_a_volume_is_its_voxels_times_their_size():
    label_map = np.zeros((4, 4, 2), np.uint8)
    label_map[:2, :2] = 1  # 8 voxels of 0.5 x 2 x 5 mm = 5 mm3 = 0.005 ml
    volumes = measure_volumes_ml(label_map, np.diag([-0.5, 2, 5, 1]), {1: "organ", 2: "lesion"})
    assert volumes == pytest.approx({"organ": 0.04, "lesion": 0})
    assert measure_volumes_ml(np.ones((4, 4), np.uint8), None, {1: "organ"}) is None
