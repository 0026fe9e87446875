"""Names that files bring, of images, cases and sites, lead nowhere but into the folder that a command was given."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from silofl.base.errors import ExitCode
from silofl.command_line.cli import main
from silofl_desk.phantoms.phantoms import UNSEEN_SITE, make_phantoms

from .conftest import SMALL_UNET

JOB = Path(__file__).resolve().parents[1] / "jobs" / "fedsm_phantoms"
# As they come from a browser, from a shell, and from nobody's good will.
ODD = ("..precious", "%2e%2e%2fprecious", "~", "$HOME", "-o", "a..", "a b", "*")
# Names do not depend on the network's size, all the time does.
SMALL = ("--set", f"model={json.dumps(SMALL_UNET)}", "--set", "data.transforms=[{Resize: {spatial_size: [32, 32]}}]")
CASES = ("../../precious", "/precious", "..", ".", "{case}", "$HOME/precious")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with something precious wherever a wrong path would lead, from whose ``work`` commands are given."""
    for folder in (tmp_path, tmp_path / "home", tmp_path / "work"):
        folder.mkdir(exist_ok=True)
        for name in ("precious", "precious_labels.png", "precious_labels.nii.gz", "out_labels.nii.gz", "precious.npz"):
            (folder / name).write_text("precious")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


@pytest.fixture
def give(place):
    """Give commands that may change nothing outside of the folder ``out`` but the caches of data and of matplotlib."""

    def look():
        places = {"out", ".silofl-cache", ".cache", ".config"}
        paths = [path for path in place.rglob("*") if not places & {*path.relative_to(place).parts}]
        return {path: path.read_bytes() if path.is_file() else None for path in paths}

    def give_one(*words):
        before = look()
        code = main([str(word) for word in words])
        assert code == ExitCode.COMPLETE and look() == before, words

    return give_one


PATTERNS = ["--image-pattern", "images/{case}.png", "--mask-pattern", "masks/{case}.png"]


@pytest.mark.parametrize("options", [[], PATTERNS])
def test_an_import_writes_into_its_target_alone(give, place, options):
    folder, target = place / "source" / "north", place / "out" / "data"
    for kind, most in (("images", 255), ("masks", 2)):
        (folder / kind).mkdir(parents=True)
        for seed, name in enumerate(ODD):
            pixels = np.random.default_rng(seed).integers(0, most, (8, 8), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / kind / f"{name}.png")
    give("import", "folders", folder.parent, target, *options)
    assert len(list((target / "north" / "images").rglob("*.png"))) == len(ODD) - 1


@pytest.mark.long
@pytest.mark.usefixtures("undrawn")
def test_a_study_of_odd_names_writes_into_its_folders_alone(give, place):
    """Simulated, reported, compared, exported, and its answers to files of such names, one command after the other."""
    data = make_phantoms(place / "data", seed=7, patients={"north": 6, "south": 6, UNSEEN_SITE: 6})
    for site in ("north", "south"):
        rename_cases(data / site)
    out, how = place / "out", ["--data", data, "--rounds", "1", "--in-process", *SMALL]
    give("simulate", JOB, *how, "--out", out / "run")
    scores = "".join(path.read_text() for path in (out / "run" / "sites").rglob("scores.csv"))
    assert all(case in scores for case in CASES[:2])
    give("report", out / "run")
    alone = ["--methods", "local", "--seeds", "0", "--set", "baseline_comparison=false"]
    give("compare", JOB, *alone, *how, "--out", out / "compared")
    # One network, for a trace takes seconds for each.
    give("export", next((out / "compared").glob("runs/local-seed0/sites/north/*/supermodel")), "-o", out / "bundle")
    image = next((data / "north" / "images").iterdir())
    inputs = [Path(shutil.copy(image, out / f"{name}.nii.gz")) for name in ODD]
    give("predict", out / "run" / "supermodel", *inputs, "--picture", "-o", out / "answers")
    assert len(list((out / "answers").glob("*_labels.nii.gz"))) == len(ODD)


def rename_cases(site):
    """Give a site's cases odd names, and their files too."""
    content = json.loads((site / "dataset.json").read_text())
    parts = ("test", "validation", "training")
    for number, record in enumerate(record for part in parts for record in content[part]):
        name = f"images/{ODD[number % len(ODD)]}{number}.nii.gz"
        (site / record["image"]).rename(site / name)
        record |= {"image": name, "case": CASES[number] if number < len(CASES) else f"../{number}"}
    (site / "dataset.json").write_text(json.dumps(content))
