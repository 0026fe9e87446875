import json
import re
import subprocess
import sys
import warnings
from dataclasses import replace

import nibabel
import numpy as np
import pytest
import torch

from silofl.base.errors import ConfigError
from silofl.base.settings import parse
from silofl.command_line.cli import main
from silofl.inference import SuperModel
from silofl.inference.directory import read_fingerprint, write_model_folder
from silofl.study import STORED, Study
from silofl.study.sections import CardSettings
from silofl_desk.inference.export import _metadata, export_bundle

from ..conftest import SMALL_UNET

pytestmark = pytest.mark.long

# What follows the README's code.
SAVE = "torch.save({'case': case, 'probabilities': probabilities}, sys.argv[1])\n"


def quietly(function, *arguments, **options):
    """Call a function of torch or MONAI, whose warnings are none of ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*arguments, **options)


RAN = "$__import__('pathlib').Path('ran').touch()"


@pytest.fixture
def write_named(tmp_path, make_contents):
    """Write a super model with a label that no study may have, of an older version or of nobody's good will."""

    def write(name):
        values = {"name": "small", "task": "segmentation", "rounds": 1, "algorithm": {"name": "fedsm"}}
        values |= {"labels": {1: name, 2: "a"}, "model": SMALL_UNET}
        study = parse(Study, values, "study.yaml", STORED)
        write_model_folder(tmp_path / "supermodel", make_contents("mean", study=study))
        return tmp_path / "supermodel"

    return write


@pytest.mark.parametrize("name", [RAN, "@ran", "% fat", "_target_", "fat @# 2"])
def test_a_name_that_monai_would_run_is_in_no_bundle(tmp_path, write_named, name):
    folder = write_named(name)
    with pytest.raises(ConfigError, match="MONAI would take .* for a command; predict"):
        export_bundle(folder, tmp_path / "bundle")
    assert [path.name for path in tmp_path.iterdir()] == ["supermodel"]


# Of MONAI's schema of 2024-07-25: what it requires of the metadata, and of a tensor.
REQUIRED = ("schema", "version", "monai_version", "pytorch_version", "numpy_version", "required_packages_version")
REQUIRED += ("task", "description", "authors", "copyright", "network_data_format")
OF_TENSORS = {"type": str, "format": str, "num_channels": int, "spatial_shape": list, "dtype": str, "value_range": list}


@pytest.mark.parametrize(
    ("card", "version", "licence"),
    [
        (CardSettings(version="1.2.0", licence="CC-BY-4.0"), "1.2.0", "CC-BY-4.0"),
        (None, f"0+{'f' * 12}", "not stated: ask the authors"),
    ],
)
def test_the_metadata_have_version_licence_and_what_monai_requires(make_contents, make_study, card, version, licence):
    study = make_study().model_copy(update={"card": card})
    metadata = _metadata(replace(make_contents("only"), study=study), "f" * 64)
    assert (metadata["version"], metadata["license"], [*metadata["changelog"]]) == (version, licence, [version])
    assert {*REQUIRED} <= metadata.keys() and all(isinstance(metadata[key], str) for key in REQUIRED[:5])
    formats = metadata["network_data_format"]
    for tensor in (formats["inputs"]["image"], formats["outputs"]["pred"]):
        assert all(isinstance(tensor[key], kind) for key, kind in OF_TENSORS.items())


@pytest.mark.parametrize("neighbours", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_monai_and_the_readmes_code_run_a_bundle_of_volumes(
    make_contents, make_study, write_volume, tmp_path, monkeypatch, capsys, neighbours
):
    import monai.bundle

    # What a selector chooses is the test of its program.
    study, shape = make_study(data={"dimensions": 3, "patches": {"size": [32, 32, 16]}}), (1, 32, 32, 16)
    if neighbours:
        data = {"neighbours": 1, "transforms": [{"Resize": {"spatial_size": [32, 32]}}]}
        study, shape = make_study(data=data), (3, 32, 32)
    write_model_folder(tmp_path / "model", make_contents("mean", study=study, shape=shape))
    bundle = tmp_path / "bundle"
    assert main(["export", str(tmp_path / "model"), "-o", str(bundle)]) == 0
    assert {path.relative_to(bundle).as_posix() for path in bundle.rglob("*.*")} == {
        "configs/inference.json",
        "configs/metadata.json",
        "configs/study.yaml",
        "docs/README.md",
        "models/model.ts",
    }
    metadata = json.loads((bundle / "configs" / "metadata.json").read_text())
    assert metadata["super_model"]["fingerprint"] == read_fingerprint(tmp_path / "model")
    super_model, scan = SuperModel.load(tmp_path / "model", "cpu"), write_volume(shape=(45, 36, 20))
    monkeypatch.chdir(bundle)
    options = {"config_file": "configs/inference.json", "bundle_root": "."}
    answer = {"image": str(scan), "output": str(tmp_path / "out"), "device": "$torch.device('cpu')"}
    quietly(monai.bundle.run, "run", **options, **answer)
    label_map = np.asanyarray(nibabel.load(tmp_path / "out" / "scan_labels.nii.gz").dataobj)
    np.testing.assert_array_equal(label_map, super_model.predict(scan).label_map)
    options |= {"meta_file": "configs/metadata.json", "net_id": "network_def", "device": "cpu"}
    quietly(monai.bundle.verify_net_in_out, **options)
    wrong = {"_meta_#network_data_format#outputs#pred#num_channels": 7}
    with pytest.raises(ValueError, match="output channel number"):
        quietly(monai.bundle.verify_net_in_out, **options, **wrong)
    (code,) = re.findall("```python\n(.*?)```", (bundle / "docs" / "README.md").read_text(), re.DOTALL)
    # A program of its own, in which SiloFL is not to be found.
    (tmp_path / "own.py").write_text(f"import sys\nsys.modules['silofl'] = None\n{code}\n{SAVE}")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    subprocess.run([sys.executable, str(tmp_path / "own.py"), str(tmp_path / "own.pt")], check=True, timeout=300)
    answered = torch.load(tmp_path / "own.pt")
    wanted = super_model.answer(answered["case"].numpy()).probabilities
    np.testing.assert_allclose(answered["probabilities"].detach().numpy(), wanted, atol=1e-5)
    # A bundle is not written over another.
    capsys.readouterr()
    assert main(["export", str(tmp_path / "model"), "-o", str(bundle)]) == 2
    assert "bundle already exists" in capsys.readouterr().err
