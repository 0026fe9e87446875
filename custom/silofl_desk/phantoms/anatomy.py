"""Simulated abdomens with a liver-like organ and lesions: the tissue in every voxel of a patient.

Organs are ellipsoids in a space that a smooth random field has bent, painted one over the other from the skin inwards,
so that outlines are irregular and change smoothly from slice to slice. The result is no anatomy to learn from, but near
enough to a scan to train a segmentation on.
"""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from silofl_desk.phantoms.grid import Field, Grid, smooth_noise

TissueMap = NDArray[np.uint8]
Mask = NDArray[np.bool_]


class Tissue(IntEnum):
    """The tissue of a voxel; SKIN is also the septa in fat, WALL and CONTENT are those of stomach and bowel."""

    AIR = 0
    SKIN = 1
    FAT = 2
    MUSCLE = 3
    BONE = 4
    MARROW = 5
    FLUID = 6
    WALL = 7
    CONTENT = 8
    GAS = 9
    VESSEL = 10
    SPLEEN = 11
    CORTEX = 12
    MEDULLA = 13
    LIVER = 14
    LIVER_VESSEL = 15
    LESION = 16


ORGAN_LABEL = 1
LESION_LABEL = 2


def draw_anatomy(rng: np.random.Generator, grid: Grid) -> TissueMap:
    """Draw one patient: size, position, rotation and the shape of every organ are random.

    Args:
        rng: the patient's own generator.
        grid: where the voxels lie.

    Returns:
        One `Tissue` a voxel, shape (X, Y, Z).
    """
    tissue = np.full(grid.shape, Tissue.AIR, dtype=np.uint8)
    points = _patient_space(rng, grid)
    # The order is fixed twice over: later organs cover earlier ones, and all draw from the one generator.
    inside = _paint_body(tissue, rng, grid, points)
    points[:2] += 2.2 * np.stack([smooth_noise(rng, grid, 12) for _ in range(2)])
    _paint_bowel(tissue, rng, grid, points, inside)
    _paint_liver(tissue, rng, grid, points, inside)
    _paint_stomach_and_spleen(tissue, rng, grid, points, inside)
    _paint_kidneys(tissue, rng, grid, points)
    _paint_spine(tissue, rng, points)
    _paint_lesions(tissue, rng, grid)
    return tissue


def label_tissue(tissue: TissueMap) -> NDArray[np.uint8]:
    """Return the label map of a tissue map: 0 background, 1 organ with its vessels, 2 lesion; same shape."""
    labels = np.zeros_like(tissue)
    labels[np.isin(tissue, (Tissue.LIVER, Tissue.LIVER_VESSEL))] = ORGAN_LABEL
    labels[tissue == Tissue.LESION] = LESION_LABEL
    return labels


def _patient_space(rng: np.random.Generator, grid: Grid) -> Field:
    """Return where every voxel lies in the reference body, in mm: scaled, turned, shifted and bent."""
    points = grid.points_mm() - np.array([*rng.uniform(-5, 5, 2), 0], dtype=np.float32).reshape(3, 1, 1, 1)
    angle = np.deg2rad(rng.uniform(-5, 5))
    x, y, z = points / np.float32(rng.uniform(0.93, 1.06))
    turned = np.stack([np.cos(angle) * x - np.sin(angle) * y, np.sin(angle) * x + np.cos(angle) * y, z])
    bend = np.stack([smooth_noise(rng, grid, 36) for _ in range(3)])
    return np.asarray(turned + 4.5 * bend, np.float32)


def _ellipsoid(
    points: Field, centre: tuple[float, ...], radii: tuple[float, ...], power: float = 2.0, tilt: float = 0.0
) -> Field:
    """Return the distance to an ellipsoid in mm, measured along the ray from its centre: negative inside.

    Args:
        points: positions in mm, shape (3, X, Y, Z).
        centre: x, y, z in mm.
        radii: half-axes along x, y, z in mm.
        power: 2 for an ellipsoid, more for a boxier shape.
        tilt: turn in the axial plane, degrees.

    Returns:
        Distances in mm, shape (X, Y, Z).
    """
    dx, dy, dz = (points[axis] - np.float32(centre[axis]) for axis in range(3))
    cos = np.float32(np.cos(np.deg2rad(tilt)))
    sin = np.float32(np.sin(np.deg2rad(tilt)))
    along = (cos * dx + sin * dy, cos * dy - sin * dx, dz)
    scaled = sum(np.abs(d / np.float32(r)) ** np.float32(power) for d, r in zip(along, radii, strict=True))
    # The small term keeps the centre, whose level is 0, from a division by 0.
    level = scaled ** np.float32(1 / power) + np.float32(1e-4)
    return np.asarray(np.sqrt(dx**2 + dy**2 + dz**2) * (1 - 1 / level))


def _paint_body(tissue: TissueMap, rng: np.random.Generator, grid: Grid, points: Field) -> Field:
    """Paint skin, fat, the muscle wall and ribs; return the distance to the wall's inner side, negative inside."""
    x, y, z = points
    outer = _ellipsoid(points, (0, 0, 0), (122, 86, 1e5), power=2.4)
    outer += 7 * np.exp(-((x / 16) ** 2)) * (y > 0)
    sides = np.abs(x) / (np.abs(x) + np.abs(y) + 1)
    fat = rng.uniform(7, 20) * (0.65 + 0.5 * sides + 0.25 * (y > 40)) + 1.5 * smooth_noise(rng, grid, 25)
    tissue[outer < fat + 3] = Tissue.SKIN
    tissue[outer < fat] = Tissue.FAT
    septa = np.abs(smooth_noise(rng, grid, 8)) + 0.3 * np.abs(smooth_noise(rng, grid, 14))
    tissue[(outer < fat) & (septa < 0.2)] = Tissue.SKIN
    tissue[outer < 0] = Tissue.MUSCLE
    thickness = 12 + 1.2 * smooth_noise(rng, grid, 18)
    tissue[(np.abs(outer + 6.5) < 1.8) & (smooth_noise(rng, grid, 15) > 0.3)] = Tissue.FAT
    along = np.arctan2(y / 86, x / 122) + rng.uniform(0, 1)
    rib = np.cos(13 * along + z / 9) - 0.55
    rib = np.where((y > -45) & (np.abs(outer + 5.5) < 4.6), rib, -1)
    tissue[rib > 0] = Tissue.BONE
    tissue[rib > 0.2] = Tissue.MARROW
    # What is left inside the wall is fat, in which the organs lie.
    inside = outer + thickness
    tissue[inside < 0] = Tissue.FAT
    return inside


def _paint_bowel(tissue: TissueMap, rng: np.random.Generator, grid: Grid, points: Field, inside: Field) -> None:
    _, y, z = points
    loops = smooth_noise(rng, grid, 9) - 0.012 * z
    # The bowel lies in front of the spine, a little off the wall.
    room = (inside < -4) & (y < 12)
    tissue[room & (loops > 0.15)] = Tissue.WALL
    tissue[room & (loops > 0.55)] = Tissue.CONTENT
    tissue[room & (loops > 1.3) & (y < -20)] = Tissue.GAS
    # Where two smooth fields are both near 0 runs a thin line in space: it bends and branches as vessels do.
    branches = np.abs(smooth_noise(rng, grid, 7)) + np.abs(smooth_noise(rng, grid, 12))
    tissue[(inside < -4) & (tissue == Tissue.FAT) & (branches < 0.3)] = Tissue.VESSEL


def _paint_liver(tissue: TissueMap, rng: np.random.Generator, grid: Grid, points: Field, inside: Field) -> None:
    # Random numbers are drawn in this order: another one would change every file of a seed.
    lift = rng.uniform(-12, 12)
    reach = rng.uniform(0.85, 1.12)
    right = _ellipsoid(points, (-64, -5, 8 + lift), (60 * reach, 70, 68), power=2.3, tilt=rng.uniform(-8, 8))
    left = _ellipsoid(points, (-8, -40, 24 + lift), (64 * reach, 32, 40), tilt=rng.uniform(-18, 4))
    liver = np.minimum(right, left) + 3.5 * smooth_noise(rng, grid, 14)
    tissue[(liver < 0) & (inside < -1.5)] = Tissue.LIVER
    veins = np.abs(smooth_noise(rng, grid, 13)) + 0.5 * np.abs(smooth_noise(rng, grid, 20))
    tissue[(veins < 0.26) & (liver < -6) & (inside < -8)] = Tissue.LIVER_VESSEL
    if rng.random() < 0.7:
        bladder = _ellipsoid(points, (-38, -36, -22 + lift), (13, 19, 20), tilt=rng.uniform(-40, 40))
        tissue[(bladder < 0) & (inside < -2)] = Tissue.FLUID


def _paint_stomach_and_spleen(
    tissue: TissueMap, rng: np.random.Generator, grid: Grid, points: Field, inside: Field
) -> None:
    lift = rng.uniform(-10, 15)
    spleen = _ellipsoid(points, (92, 22, 8 + lift), (26, 42, 42), tilt=rng.uniform(10, 30))
    tissue[(spleen < 0) & (inside < -2)] = Tissue.SPLEEN
    width = rng.uniform(18, 32)
    depth = rng.uniform(30, 48)
    stomach = _ellipsoid(points, (52, -24, 14 + lift), (width, depth, 45), power=2.4, tilt=rng.uniform(-65, -5))
    stomach += 4 * smooth_noise(rng, grid, 11)
    room = inside < -2
    tissue[room & (stomach < 0)] = Tissue.WALL
    # The wall is what stays between the outline and the lumen.
    lumen = room & (stomach < -4.5 - 1.5 * smooth_noise(rng, grid, 6))
    tissue[lumen] = Tissue.CONTENT
    tissue[lumen & (smooth_noise(rng, grid, 8) > 0.9)] = Tissue.WALL
    tissue[lumen & (points[1] < rng.uniform(-62, -38))] = Tissue.GAS


def _paint_kidneys(tissue: TissueMap, rng: np.random.Generator, grid: Grid, points: Field) -> None:
    # One field for both kidneys: their medulla is as irregular on the left as on the right.
    pyramids = 3 * smooth_noise(rng, grid, 5)
    for side in (-1, 1):
        x = side * rng.uniform(50, 60)
        y = rng.uniform(34, 42)
        z = rng.uniform(-35, -15)
        tilt = side * rng.uniform(15, 45)
        kidney = _ellipsoid(points, (x, y, z), (rng.uniform(18, 23), rng.uniform(24, 30), 48), tilt=tilt)
        tissue[kidney < 4] = Tissue.FAT
        tissue[kidney < 0] = Tissue.CORTEX
        tissue[kidney + pyramids < -7] = Tissue.MEDULLA
        sinus = _ellipsoid(points, (x - side * 12, y - 6, z), (15, 9, 26), tilt=tilt) + pyramids
        tissue[sinus < 0] = Tissue.FAT
        tissue[sinus < -5] = Tissue.FLUID


def _paint_spine(tissue: TissueMap, rng: np.random.Generator, points: Field) -> None:
    for side in (-1, 1):
        tissue[_ellipsoid(points, (side * 26, 64, 0), (22, 15, 1e5), power=2.5, tilt=side * 12) < 0] = Tissue.MUSCLE
        tissue[_ellipsoid(points, (side * 29, 40, -60), (12, 14, 60)) < 0] = Tissue.MUSCLE
    body = _ellipsoid(points, (0, 36, 0), (22, 17, 1e5), power=2.3)
    tissue[body < 0] = Tissue.BONE
    tissue[body < -2.5] = Tissue.MARROW
    for side in (-1, 1):
        tissue[_ellipsoid(points, (side * 18, 58, 0), (20, 5, 1e5), tilt=side * 25) < 0] = Tissue.BONE
    tissue[_ellipsoid(points, (0, 72, 0), (5, 14, 1e5)) < 0] = Tissue.BONE
    tissue[_ellipsoid(points, (0, 57, 0), (11, 8, 1e5)) < 0] = Tissue.FLUID
    tissue[_ellipsoid(points, (0, 57, 0), (6, 5, 1e5)) < 0] = Tissue.MUSCLE
    tissue[_ellipsoid(points, (rng.uniform(4, 12), 8, 0), (9, 9, 1e5)) < 0] = Tissue.VESSEL
    tissue[_ellipsoid(points, (rng.uniform(-22, -16), 8, 0), (12, 8, 1e5)) < 0] = Tissue.VESSEL


def _paint_lesions(tissue: TissueMap, rng: np.random.Generator, grid: Grid) -> None:
    """Paint 0 to 3 irregular lesions, each at least a voxel inside the organ's outline."""
    organ = _erode(np.isin(tissue, (Tissue.LIVER, Tissue.LIVER_VESSEL)))
    seats = np.argwhere(_erode(_erode(organ)))
    count = rng.choice(4, p=(0.05, 0.3, 0.4, 0.25))
    points = grid.points_mm()
    for seat in rng.permutation(seats)[:count]:
        radius = rng.uniform(15, 28)
        blob = _ellipsoid(
            points, tuple(points[:, *seat]), tuple(radius * rng.uniform(0.75, 1.25, 3)), tilt=rng.uniform(0, 180)
        )
        blob += 0.25 * radius * smooth_noise(rng, grid, 0.5 * radius)
        tissue[(blob < 0) & organ] = Tissue.LESION


def _erode(mask: Mask) -> Mask:
    """Take the outermost voxels off a mask, slice by slice."""
    # np.roll wraps around at the border of a slice, which no organ touches.
    shifted = [np.roll(mask, step, axis) for axis, step in ((0, -1), (0, 1), (1, -1), (1, 1))]
    return np.asarray(np.logical_and.reduce([mask, *shifted]))
