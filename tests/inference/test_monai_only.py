"""What a bundle answers in a process in which SiloFL cannot be imported, beside what `silofl predict` answers."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import nibabel
import numpy as np
import pytest
import yaml

from silofl.base.errors import ConfigError
from silofl.base.settings import parse
from silofl.data.data_profile import DataProfile
from silofl.inference import SuperModel
from silofl.inference.directory import write_model_folder
from silofl.study import STORED, Study
from silofl.study.sections import DoNotUseSettings
from silofl_desk.inference.export import export_bundle
from silofl_desk.inference.monai_only import find_obstacle
from silofl_desk.phantoms.phantoms import SLICED, VOLUMES, make_phantoms
from tests.conftest import list_records

from ..conftest import JOBS, SMALL_UNET

# As `python -m monai.bundle run --config_file configs/inference.json --image ... --output ...`, one case after another.
ALONE = """
import json, sys, warnings
warnings.simplefilter("ignore")
sys.modules["silofl"] = None
import monai.bundle
for case in json.load(open(sys.argv[1])):
    case |= {"bundle_root": ".", "device": "$torch.device('cpu')"}
    monai.bundle.run("run", config_file="configs/inference.json", **case)
"""
# Voxels of a case with two labels that are equally probable but for rounding, which a script does in another order.
MOST_ROUNDED = 1


def assert_same_answers(model, bundle, cases, out):
    """Compare each voxel of cases; each is a list of files, one a contrast where the model has several."""
    orders = out.with_suffix(".json")
    images = [str(files[0]) if len(files) == 1 else [*map(str, files)] for files in cases]
    orders.write_text(json.dumps([{"image": image, "output": str(out)} for image in images]))
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "-c", ALONE, str(orders)]
    done = subprocess.run(command, cwd=bundle, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    names = model.contents.study.data.channel_names
    for files in cases:
        wanted = model.predict(files[0] if len(files) == 1 else dict(zip(names, files, strict=True)))
        answer = nibabel.load(out / files[0].name.replace(".nii.gz", "_labels.nii.gz"))
        assert answer.get_data_dtype() == np.uint8
        assert np.asanyarray(answer.dataobj).shape == wanted.label_map.shape
        assert (np.asanyarray(answer.dataobj) != wanted.label_map).sum() <= MOST_ROUNDED
        np.testing.assert_allclose(answer.affine, wanted.affine, atol=1e-5)
        assert len(np.unique(wanted.label_map)) > 1


@pytest.fixture
def exported(tmp_path, make_contents):
    """Export a super model of a study; return it and its bundle."""

    def export(study, shape):
        write_model_folder(tmp_path / "model", make_contents(scores=None, study=study, shape=shape, bias=0.3))
        return SuperModel.load(tmp_path / "model", "cpu"), export_bundle(tmp_path / "model", tmp_path / "bundle")

    return export


@pytest.mark.long
@pytest.mark.parametrize(
    ("job", "kind", "shape"), [("fedsm_phantoms", SLICED, (1, 96, 96)), ("fedsm_volumes", VOLUMES, (2, 32, 32, 16))]
)
def test_monai_alone_labels_ten_phantoms_as_predict_does(exported, tmp_path, job, kind, shape):
    values = yaml.safe_load((JOBS / job / "app" / "config" / "study.yaml").read_text())
    model, bundle = exported(parse(Study, values | {"model": SMALL_UNET}, "study.yaml"), shape)
    site = make_phantoms(tmp_path / "data", seed=7, patients={"north": 10}, kind=kind) / "north"
    content = json.loads((site / "dataset.json").read_text())
    records = list_records(content)
    images = [[image] if isinstance(image := record["image"], str) else image for record in records]
    cases = [[site / file for file in files] for files in images if len(files) == shape[0]]
    assert len(cases) == 10
    assert_same_answers(model, bundle, cases, tmp_path / "out")


@pytest.mark.long
@pytest.mark.parametrize(
    ("data", "shape", "labels"),
    [
        (
            {
                "channels": 2,
                "channel_names": ["T1", "T2"],
                "neighbours": 1,
                "volume_transforms": [{"Orientation": {"axcodes": "RAS"}}, {"Spacing": {"pixdim": [0.9, 0.9, 2.5]}}],
                "transforms": [{"ResizeWithPadOrCrop": {"spatial_size": [32, 32]}}],
            },
            (6, 32, 32),
            {1: "organ", 2: "lesion"},
        ),
        (
            {
                "intensity": "zscore",
                "background": {"below": 100},
                "transforms": [{"CenterSpatialCrop": {"roi_size": [32, 32]}}],
            },
            (1, 32, 32),
            {1: "organ"},
        ),
        ({"intensity": "raw", "dimensions": 3, "patches": {"size": [32, 32, 16]}}, (1, 32, 32, 16), {1: "organ"}),
    ],
    ids=["neighbours_of_contrasts", "crop", "windows"],
)
def test_monai_alone_prepares_otherwise_and_oblique_scans_too(exported, make_study, tmp_path, data, shape, labels):
    model, bundle = exported(make_study(data=data, labels=labels), shape)
    rng, cases = np.random.default_rng(0), []
    oblique = np.array([[0.1, 0.7, 0, 3], [-0.8, 0.05, 0.1, 4], [0, 0.1, 1.2, -7], [0, 0, 0, 1]])
    for number, affine in enumerate((oblique, np.diag([-0.7, 0.8, -1.3, 1]))):
        size, files = rng.integers(33, 50, 3), []
        for contrast in range(data.get("channels", 1)):
            files.append(tmp_path / f"scan{number}_{contrast}.nii.gz")
            voxels = rng.integers(0, 900, size).astype((np.int16, np.float32)[number])
            nibabel.save(nibabel.Nifti1Image(voxels, affine), files[-1])
        cases.append(files)
    assert_same_answers(model, bundle, cases, tmp_path / "out")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"intensity": "dtype"}, "divided by the range of the file's type"),
        ({"background": {"nan": 0}}, "NaN becomes a value"),
        ({"channels": 2, "channel_names": ["T1", "T2"], "resample": True}, "contrasts are resampled"),
        ({"channels": 3}, "several channels have no names"),
        ({"transforms": [{"NormalizeIntensity": {}}]}, "slices are scaled one by one"),
        ({"transforms": [{"ScaleIntensityRange": {"a_min": 0, "a_max": 1, "b_min": 0, "b_max": 2}}]}, None),
        ({"volume_transforms": [{"Spacing": {"pixdim": [1, 1, 1], "align_corners": True}}]}, "has align_corners"),
        ({}, None),
    ],
)
def test_what_monai_alone_cannot_prepare_is_known(make_contents, make_study, data, reason):
    shape = (make_study(data=data).data.in_channels, 32, 32)
    obstacle = find_obstacle(make_contents("only", study=make_study(data=data), shape=shape))
    assert obstacle is None if reason is None else reason in obstacle


def test_monai_alone_answers_no_classes_pictures_or_forbidden_cases(make_contents, make_study):
    assert "is no label map" in find_obstacle(make_contents("only", study=make_study("classification")))
    forbidding = make_study().model_copy(update={"do_not_use": DoNotUseSettings(on_fallback=True)})
    assert "do_not_use" in find_obstacle(make_contents("only", study=forbidding))
    of_pictures = replace(make_contents("only"), data_profile=DataProfile(("pictures",)))
    assert "learnt from pictures" in find_obstacle(of_pictures)


@pytest.mark.long
def test_a_bundle_without_its_own_way_says_so(exported, make_study):
    _, bundle = exported(make_study(data={"intensity": "dtype"}), (1, 32, 32))
    assert not (bundle / "configs" / "inference.json").exists()
    text = (bundle / "docs" / "README.md").read_text()
    assert "So there is no `configs/inference.json`" in text and "monai.bundle" not in text


def test_an_option_that_monai_would_run_is_in_no_bundle(make_contents, tmp_path):
    resize = [{"Resize": {"spatial_size": [32, 32], "mode": "$print(1)"}}]
    values = {"name": "small", "task": "segmentation", "rounds": 1, "algorithm": {"name": "fedsm"}}
    values |= {"labels": {1: "a"}, "model": SMALL_UNET, "data": {"intensity": "percentiles", "transforms": resize}}
    write_model_folder(tmp_path / "model", make_contents("only", study=parse(Study, values, "study.yaml", STORED)))
    with pytest.raises(ConfigError, match="MONAI would take .* for a command"):
        export_bundle(tmp_path / "model", tmp_path / "bundle")
