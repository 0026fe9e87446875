"""Studies in 3D from whole volumes in two contrasts, each of its own size, spacing and direction."""

import json

import nibabel as nib
import numpy as np
import pytest
import yaml

from silofl.base.settings import parse
from silofl.command_line.cli import main
from silofl.inference import SuperModel
from silofl.setup.site import Site
from silofl.study import Study
from silofl_desk.studies.runs.in_process import run_in_process
from tests.conftest import count_cases
from tests.end_to_end.conftest import JOBS

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("decoded_here", "undrawn")]

SITES = ("east", "north", "west")
PARTS = {"training": 2, "validation": 1, "test": 2}
# Turned by 20 degrees around the third axis, and by 30 around the first.
OBLIQUE = np.array([[0.94, -0.342, 0], [0.296, 0.814, -0.5], [0.171, 0.47, 0.866]])


def grid(site, spacing=(1.0, 1.0, 1.5)):
    directions = {"east": np.eye(3), "north": OBLIQUE, "west": np.eye(3)[[2, 0, 1]] * (-1, 1, 1)}
    affine = np.eye(4)
    affine[:3, :3] = directions[site] * spacing
    affine[:3, 3] = (10, -20, 30)
    return affine


def write_volume(path, array, affine):
    nib.save(nib.Nifti1Image(array, affine), path)


def draw(rng, size):
    """Return two contrasts and the label map of a box, bright in one contrast and dark in the other."""
    truth = np.zeros(size, np.uint8)
    start = [int(rng.integers(2, side - 9)) for side in size]
    truth[tuple(slice(a, a + 7) for a in start)] = 1
    noise = rng.normal(100, 8, (2, *size))
    return [(noise[0] + 90 * truth).astype(np.int16), (noise[1] - 60 * truth).astype(np.int16)], truth


@pytest.fixture(scope="session")
def hospitals(tmp_path_factory):
    root = tmp_path_factory.mktemp("volumes")
    for seed, site in enumerate(SITES):
        rng, folder = np.random.default_rng(seed), root / site
        folder.mkdir()
        content = {"task": "segmentation", "labels": {"1": "box"}, "channel_names": ["T1", "T2"]}
        for part, count in PARTS.items():
            content[part] = []
            for number in range(count):
                size = tuple(int(side) for side in rng.integers(14, 25, 3))
                images, truth = draw(rng, size)
                name = f"{part}{number}"
                files = [f"{name}_{contrast}.nii.gz" for contrast in ("T1", "T2")]
                for file, array in (*zip(files, images, strict=True), (f"{name}_mask.nii.gz", truth)):
                    write_volume(folder / file, array, grid(site))
                content[part].append({"image": files, "label": f"{name}_mask.nii.gz", "patient": name, "case": name})
        (folder / "dataset.json").write_text(json.dumps(content))
    return root


def settings_of(job="fedavg_phantoms", algorithm=None, **changes):
    """Return the values of a small study in 3D."""
    values = yaml.safe_load((JOBS / job / "app" / "config" / "study.yaml").read_text())
    values["data"] = {
        "dimensions": 3,
        "patches": {"size": [16, 16, 16], "per_volume": 2},
        "channels": 2,
        "channel_names": ["T1", "T2"],
        "intensity": "percentiles",
        "volume_transforms": [{"Orientation": {"axcodes": "RAS"}}],
        "augment": [{"RandFlip": {"prob": 0.5, "spatial_axis": 0}}],
    }
    values["model"] = {"name": "unet", "features": [4, 4, 4, 4, 4, 4], "normalization": "batch"}
    values["training"]["batch_size"] = 2
    return (
        values
        | {"labels": {1: "box"}, "rounds": 2, "baseline_comparison": False}
        | changes
        | {"algorithm": algorithm or values["algorithm"]}
    )


@pytest.fixture
def run(hospitals, tmp_path):
    """Carry out a study in this process; returns its results and the sites' folders."""

    def start(**changes):
        study = parse(Study, settings_of(**changes), "study.yaml")
        site = Site(
            data=f"{hospitals}/{{site}}",
            state_dir=f"{tmp_path}/run/sites/{{site}}",
            cache_dir=f"{hospitals}/.cache",
            has_progress=False,
            min_patients=0,
        )
        run_in_process(study, tmp_path / "run", SITES, site, None)
        return json.loads((tmp_path / "run" / "results.json").read_text()), tmp_path / "run"

    return start


OWN = ("harmofl", "adafed")


@pytest.mark.parametrize("name", OWN)
def test_an_algorithm_trains_volumes(run, name):
    training = {"optimizer": "sgd", "momentum": 0.0, "learning_rate": 0.01, "batch_size": 2, "local_epochs": 2}
    results, _ = run(algorithm={"name": name}, training=training)
    assert results["status"] == "COMPLETE", results["reasons"]
    assert {*results["sites"]} == {*SITES}
    assert count_cases(results) == dict.fromkeys(SITES, 2)


@pytest.fixture(scope="module")
def super_model(hospitals, tmp_path_factory):
    """A super model of volumes, trained and reported by the command line."""
    folder = tmp_path_factory.mktemp("super")
    job = folder / "job"
    (job / "app" / "config").mkdir(parents=True)
    for file in (JOBS / "fedsm_phantoms").rglob("*.json"):
        (job / file.relative_to(JOBS / "fedsm_phantoms")).write_bytes(file.read_bytes())
    values = settings_of("fedsm_phantoms", rounds=3, name="boxes")
    values["training"] |= {"local_epochs": 4, "learning_rate": 0.02}
    (job / "app" / "config" / "study.yaml").write_text(yaml.safe_dump(values))
    command = ["simulate", str(job), "--data", str(hospitals), "--out", str(folder / "run"), "--in-process"]
    assert main(command) == 0
    return folder / "run"


@pytest.mark.parametrize("site", SITES)
def test_a_label_map_lies_on_the_inputs_own_grid(super_model, tmp_path, capsys, site):
    rng, affine = np.random.default_rng(9), grid(site, (0.8, 1.0, 2.0))
    images, truth = draw(rng, (22, 17, 26))
    for contrast, array in zip(("T1", "T2"), images, strict=True):
        write_volume(tmp_path / f"case_{contrast}.nii.gz", array, affine)
    case = ",".join(f"{contrast}={tmp_path}/case_{contrast}.nii.gz" for contrast in ("T1", "T2"))
    assert main(["predict", str(super_model / "supermodel"), case, "--out", str(tmp_path / "out")]) == 0
    (path,) = (tmp_path / "out").rglob("*_labels.nii.gz")
    found = nib.load(path)
    np.testing.assert_allclose(found.affine, affine, atol=1e-4)
    said = np.asarray(found.dataobj)
    assert said.shape == truth.shape
    # Where it was learnt at all the box is found where it lies, which another order of the axes would not give.
    assert 2 * (said & truth).sum() / (said.sum() + truth.sum()) > 0.5


def test_a_volume_of_any_size_is_answered(super_model):
    model = SuperModel.load(super_model / "supermodel")
    rng = np.random.default_rng(0)
    for size in ((9, 40, 16), (16, 16, 16)):
        found = model.predict(rng.random((1, 2, *size), dtype=np.float32))
        assert found.label_map.shape == (1, *size)
