import numpy as np
import pytest

from silofl_desk.phantoms.grid import Grid, blur

GRID = Grid((16, 20, 5), (3.0, 2.0, 6.0))


def test_positions_are_measured_from_the_middle_of_the_box():
    x, y, z = GRID.points_mm()
    # 16 voxels 3 mm apart span (16 - 1) * 3 = 45 mm: from -22.5 to 22.5; 20 and 5 voxels: 38 and 24 mm
    assert (x.min(), x.max(), y.min(), y.max(), z.min(), z.max()) == (-22.5, 22.5, -19, 19, -12, 12)


def test_affine_leads_to_the_right_front_head_world():
    index = np.array([3, 4, 1])
    x, y, z = GRID.points_mm()[:, *index]
    np.testing.assert_allclose(GRID.affine @ [*index, 1], [-x, -y, z, 1])


def test_blur_spreads_one_voxel_as_a_gaussian_within_its_slice():
    point = np.zeros(GRID.shape, np.float32)
    point[8, 10, 2] = 1
    spread = blur(point, GRID, 2.0)
    # 3 mm to the side is 1.5 sigma, 2 mm is 1 sigma: exp(-1.5^2 / 2) and exp(-1 / 2)
    assert spread[9, 10, 2] / spread[8, 10, 2] == pytest.approx(np.exp(-1.125), rel=1e-3)
    assert spread[8, 11, 2] / spread[8, 10, 2] == pytest.approx(np.exp(-0.5), rel=1e-3)
    assert not spread[:, :, [0, 1, 3, 4]].any()
