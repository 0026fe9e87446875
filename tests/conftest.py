from pathlib import Path

import numpy as np
import pytest
import torch

SHARED = Path(__file__).resolve().parents[2] / "shared"

# What a site computes with by default; more threads only get in each other's way on a busy machine.
torch.set_num_threads(1)


@pytest.fixture
def vectors():
    """Reference numbers of one room, computed in float64 from the papers' formulas."""

    def load(name):
        path = SHARED / "vectors" / f"{name}.npz"
        if not path.is_file():
            pytest.skip(f"no reference numbers at {path.name}")
        return np.load(path)

    return load


@pytest.fixture
def real_data():
    """Folder of one real data set."""

    def find(name):
        path = SHARED / "data" / name
        if not path.is_dir():
            pytest.skip(f"no real data {name}")
        return path

    return find
