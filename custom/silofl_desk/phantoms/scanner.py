"""Simulated scanners, which turn a map of tissues into stored grey values.

Contrast, shading, sharpness, noise and the units of the file differ between scanners, so that the same abdomen looks
clearly different at another hospital. The noise is Rician, as in magnitude MRI (H. Gudbjartsson and S. Patz, The Rician
distribution of noisy MRI data, Magnetic Resonance in Medicine 34, 1995).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from silofl_desk.phantoms.anatomy import Tissue, TissueMap
from silofl_desk.phantoms.grid import Field, Grid, blur, smooth_noise

SIGNAL = {
    Tissue.AIR: 0.0,
    Tissue.SKIN: 0.46,
    Tissue.FAT: 0.84,
    Tissue.MUSCLE: 0.27,
    Tissue.BONE: 0.12,
    Tissue.MARROW: 0.52,
    Tissue.FLUID: 0.95,
    Tissue.WALL: 0.38,
    Tissue.CONTENT: 0.66,
    Tissue.GAS: 0.0,
    Tissue.VESSEL: 0.20,
    Tissue.SPLEEN: 0.60,
    Tissue.CORTEX: 0.56,
    Tissue.MEDULLA: 0.70,
    Tissue.LIVER: 0.42,
    Tissue.LIVER_VESSEL: 0.54,
    Tissue.LESION: 0.78,
}
# As in a T1-weighted scan: fluids and lesions are dark, the liver is brighter than the spleen.
SIGNAL_T1 = SIGNAL | {
    Tissue.FAT: 0.95,
    Tissue.MUSCLE: 0.40,
    Tissue.FLUID: 0.14,
    Tissue.CONTENT: 0.30,
    Tissue.VESSEL: 0.24,
    Tissue.SPLEEN: 0.44,
    Tissue.CORTEX: 0.50,
    Tissue.MEDULLA: 0.36,
    Tissue.LIVER: 0.60,
    Tissue.LIVER_VESSEL: 0.34,
    Tissue.LESION: 0.40,
}


@dataclass(frozen=True)
class Scanner:
    """One hospital's machine and protocol.

    Attributes:
        matrix: voxels along x and y.
        spacing_mm: voxel size along x, y and z.
        noise: standard deviation of the noise, as a share of the full signal.
        blur_mm: standard deviation of the in-plane point spread.
        bias: share of the signal lost across the field of view through uneven coils, 0 to 1.
        bias_degrees: direction in which the signal rises, 0 to the patient's left, 90 to the back.
        gain: stored units of the full signal.
        offset: stored units of no signal.
        gamma: exponent on the signal in [0, 1]: above 1 darkens the mid-greys.
        is_reversed: whether bright tissues are dark and dark ones bright; air, gas and bone stay dark.
        signal: each tissue's share of the full signal.
    """

    matrix: tuple[int, int]
    spacing_mm: tuple[float, float, float]
    noise: float
    blur_mm: float
    bias: float
    bias_degrees: float
    gain: float
    offset: float = 0.0
    gamma: float = 1.0
    is_reversed: bool = False
    signal: Mapping[Tissue, float] = field(default_factory=lambda: SIGNAL)

    def grid(self, num_slices: int) -> Grid:
        """Return the voxels of a scan with this many axial slices."""
        return Grid((*self.matrix, num_slices), self.spacing_mm)


def scan(rng: np.random.Generator, tissue: TissueMap, scanner: Scanner) -> NDArray[np.int16]:
    """Image a tissue map: stored = offset + gain |blur(shading signal^gamma) + complex noise|.

    Args:
        rng: the patient's own generator.
        tissue: one `Tissue` a voxel, shape (X, Y, Z) with (X, Y) the scanner's matrix.

    Returns:
        Stored grey values, same shape.
    """
    grid = scanner.grid(tissue.shape[2])
    signal = _contrast(rng, tissue, scanner)
    signal = signal * (1 + 0.06 * smooth_noise(rng, grid, 3.0) + 0.05 * smooth_noise(rng, grid, 16.0))
    signal = blur(np.clip(signal, 0, 1) ** scanner.gamma * _shading(rng, grid, scanner), grid, scanner.blur_mm)
    real, imaginary = (scanner.noise * rng.standard_normal(grid.shape, dtype=np.float32) for _ in range(2))
    # Noise of both channels makes the magnitude Rician, as in MRI: air is never 0.
    magnitude = np.hypot(signal + real, imaginary)
    return np.asarray(np.round(scanner.offset + scanner.gain * magnitude), np.int16)


def _contrast(rng: np.random.Generator, tissue: TissueMap, scanner: Scanner) -> Field:
    """Look up every voxel's signal, with each tissue a little different in each patient."""
    signal = np.array([scanner.signal[member] for member in Tissue], dtype=np.float32)
    # Air, gas and bone give no signal in any contrast, and stay dark when the others are reversed.
    has_signal = signal > scanner.signal[Tissue.BONE]
    if scanner.is_reversed:
        signal[has_signal] = 1.05 - signal[has_signal]
    signal *= rng.normal(1, 0.045, signal.shape)
    return signal[tissue]


def _shading(rng: np.random.Generator, grid: Grid, scanner: Scanner) -> Field:
    x, y, _ = grid.points_mm() / (0.5 * grid.shape[0] * grid.spacing_mm[0])
    angle = np.deg2rad(scanner.bias_degrees + rng.uniform(-15, 15))
    ramp = np.clip(0.5 + 0.5 * (np.cos(angle) * x + np.sin(angle) * y), 0, 1)
    return np.asarray(1 - scanner.bias * (1 - ramp))
