"""The voxel grid of a simulated volume, and smooth random fields on it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Field = NDArray[np.float32]


@dataclass(frozen=True)
class Grid:
    """A box of voxels around the middle of the body: x to the patient's left, y to the back, z to the head."""

    shape: tuple[int, int, int]
    spacing_mm: tuple[float, float, float]

    @property
    def affine(self) -> NDArray[np.float64]:
        """Map voxel indices to millimetres in NIfTI's world, where x runs to the right and y to the front."""
        steps = np.array(self.spacing_mm) * (-1, -1, 1)
        affine = np.diag([*steps, 1.0])
        affine[:3, 3] = -steps * (np.array(self.shape) - 1) / 2
        return affine

    def axes_mm(self) -> list[Field]:
        """Return the voxels' positions along x, y and z from the middle of the box, in mm."""
        sizes = zip(self.shape, self.spacing_mm, strict=True)
        return [((np.arange(n) - (n - 1) / 2) * step).astype(np.float32) for n, step in sizes]

    def points_mm(self) -> Field:
        """Return the position of every voxel from the middle of the box, in mm, shape (3, X, Y, Z)."""
        return np.stack(np.meshgrid(*self.axes_mm(), indexing="ij"))


def blur(volume: Field, grid: Grid, sigma_mm: float) -> Field:
    """Smooth every slice with a Gaussian whose weights are renormalised at the border, so that nothing darkens there.

    Args:
        volume: values of shape (X, Y, Z).
        grid: the grid that the values lie on.
        sigma_mm: standard deviation of the Gaussian, in mm.

    Returns:
        The smoothed values, shape (X, Y, Z).
    """
    axes = grid.axes_mm()[:2]
    weights = [_gaussian_weights(axis, axis, sigma_mm) for axis in axes]
    rows, columns = (w / w.sum(axis=1, keepdims=True) for w in weights)
    return np.asarray(np.einsum("ai,bj,ijk->abk", rows, columns, volume, optimize=True), np.float32)


def smooth_noise(rng: np.random.Generator, grid: Grid, sigma_mm: float) -> Field:
    """Draw a random field: Gaussian bumps of random height on knots sigma_mm apart, scaled to mean 0 and deviation 1.

    Args:
        rng: the source of the heights.
        grid: where the field is wanted.
        sigma_mm: standard deviation of one bump, in mm.

    Returns:
        The field, shape (X, Y, Z).
    """
    axes = grid.axes_mm()
    knots = [np.arange(axis[0] - 2 * sigma_mm, axis[-1] + 3 * sigma_mm, sigma_mm) for axis in axes]
    # Knots reach two deviations beyond the box, so that its border is no smoother than its middle.
    field = rng.standard_normal([len(k) for k in knots])
    for axis, along in zip(axes, knots, strict=True):
        field = np.tensordot(field, _gaussian_weights(axis, along, sigma_mm), axes=(0, 1))
    return np.asarray((field - field.mean()) / field.std(), np.float32)


def _gaussian_weights(positions: Field, centres: Field, sigma: float) -> NDArray[np.float64]:
    # Double precision hides the order of the sums, so that the number of BLAS threads does not change a file.
    return np.exp(-0.5 * (np.subtract.outer(positions, centres).astype(np.float64) / sigma) ** 2)
