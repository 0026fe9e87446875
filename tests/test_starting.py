"""Commands that compute no network begin without torch, which takes seconds before a first word."""

import numpy as np
import pytest
from PIL import Image

from .starting import run_without_torch


@pytest.fixture
def images(tmp_path):
    """Write pictures and masks of two sites."""
    for site in ("east", "west"):
        for folder in ("images", "masks"):
            (tmp_path / "images" / site / folder).mkdir(parents=True)
        for number in range(5):
            pixels = np.random.default_rng(number).integers(0, 255, (32, 32, 3), dtype=np.uint8)
            pixels[0, 0] = (len(site), ord(site[0]), number)
            Image.fromarray(pixels).save(tmp_path / "images" / site / "images" / f"{number}.png")
            mask = np.eye(32, dtype=np.uint8)
            Image.fromarray(mask).save(tmp_path / "images" / site / "masks" / f"{number}.png")
    return tmp_path


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_load_no_torch(option, tmp_path):
    code, said = run_without_torch(option, folder=tmp_path)
    assert code == 0, said


def test_a_study_is_written_from_own_images_without_torch(images):
    for words in (
        ("import", "folders", "images", "data", "--labels", "lesion"),
        ("survey", "data"),
        ("new-study", "data", "study"),
    ):
        code, said = run_without_torch(*words, folder=images)
        assert code == 0, said
    assert (images / "study" / "app" / "config" / "study.yaml").is_file()
