from dataclasses import replace

import numpy as np
import pytest

from silofl_desk.phantoms.anatomy import Tissue
from silofl_desk.phantoms.scanner import Scanner, scan

IDEAL = Scanner((32, 32), (5.0, 5.0, 8.0), noise=1e-6, blur_mm=0.1, bias=0.0, bias_degrees=0, gain=1000)


def scan_of(kind, scanner, seed=0):
    return scan(np.random.default_rng(seed), np.full((32, 32, 2), kind, dtype=np.uint8), scanner)


@pytest.mark.parametrize(("is_reversed", "brighter", "darker"), [(False, "FAT", "MUSCLE"), (True, "MUSCLE", "FAT")])
def test_a_reversed_scanner_leaves_air_dark(is_reversed, brighter, darker):
    scanner = replace(IDEAL, is_reversed=is_reversed)
    assert scan_of(Tissue[brighter], scanner).mean() > 2 * scan_of(Tissue[darker], scanner).mean()
    assert scan_of(Tissue.AIR, scanner).max() == 0


def test_uneven_coils_darken_the_side_away_from_the_bias_direction():
    to_the_back = scan_of(Tissue.LIVER, replace(IDEAL, bias=0.5, bias_degrees=90)).mean(axis=(0, 2))
    assert to_the_back[-4:].mean() > 1.5 * to_the_back[:4].mean()


def test_noise_in_air_is_rician():
    image = scan_of(Tissue.AIR, replace(IDEAL, noise=0.1))
    # Without signal the magnitude of complex noise is Rayleigh: mean sigma sqrt(pi / 2) = 0.1 * 1000 * 1.2533 = 125.3
    assert image.mean() == pytest.approx(125.3, rel=0.05)
    assert image.min() >= 0
