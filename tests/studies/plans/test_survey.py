"""The survey at the desk: one table, sentences, JSON, and sites by their folders."""

import json
import shutil

import numpy as np
from PIL import Image

NAMES = ("grey", "orange", "pink")


def write_hospital(folder, patients):
    """Write pictures of tissue."""
    folder.mkdir(parents=True)
    records = []
    for number in range(patients):
        Image.fromarray(np.full((16, 16, 3), 90 + number, np.uint8)).save(folder / f"{number}.png")
        Image.fromarray(np.ones((16, 16), np.uint8)).save(folder / f"m{number}.png")
        records.append({"image": f"{number}.png", "label": f"m{number}.png", "patient": f"p{number}"})
    content = {"task": "segmentation", "labels": {"1": "tissue"}, "training": records}
    (folder / "dataset.json").write_text(json.dumps(content))


def test_a_folder_of_sites_is_surveyed_like_its_sites_one_by_one(silofl, tmp_path):
    for name in NAMES:
        write_hospital(tmp_path / "data" / name, 6)
    code, out, error = silofl("survey", tmp_path / "data")
    assert code == 0, error
    words = " ".join(out.split())
    assert "All can supply: tissue." in words and "6, 6 tissue 6 no names 16 x 16 -" in words
    code, single, _ = silofl("survey", *(tmp_path / "data" / name for name in NAMES), "--json")
    found = json.loads(single)
    assert code == 0 and found["sites"].keys() == {*NAMES} and all(line in out for line in found["sentences"])
    assert found["sites"]["pink"]["labels"] == {"tissue": 6} and found["sites"]["pink"]["least"] == 0


def test_two_sites_of_one_name_and_a_folder_without_sites_are_refused(silofl, tmp_path):
    write_hospital(tmp_path / "a" / "north", 1)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    code, _, error = silofl("survey", tmp_path / "a", tmp_path / "b")
    assert code == 2 and "Two sites are named 'north'" in error
    (tmp_path / "empty").mkdir()
    code, _, error = silofl("survey", tmp_path / "empty")
    assert code == 2 and "holds no dataset.json, nor folders with one" in error
