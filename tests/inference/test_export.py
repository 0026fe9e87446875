import json
import re
import runpy
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace
from types import SimpleNamespace

import nibabel
import numpy as np
import pytest
import torch

from silofl.base.errors import ConfigError
from silofl.base.settings import parse
from silofl.cli import main
from silofl.core.operating_point import MOST_PROBABLE
from silofl.data.manifest import PARTS
from silofl.inference import SuperModel
from silofl.inference.directory import read_fingerprint, write_model_folder
from silofl.inference.readme import bundle_readme
from silofl.study import STORED, Study
from silofl.study.sections import CardSettings, DoNotUseSettings
from silofl_desk.inference.export import _channel_names, _metadata, _refuse_commands, export_bundle
from silofl_hospital.inference.opened import open_model

from ..conftest import SMALL_UNET

pytestmark = pytest.mark.long

# What follows the README's code.
SAVE = "torch.save({'case': case, 'probabilities': probabilities}, sys.argv[1])\n"


@pytest.fixture
def super_model(request, tmp_path, make_contents, make_study):
    """Write a super model with a decision bias; a test may ask for other settings of its data."""
    data = {
        "neighbours": 0,
        "volume_transforms": [{"Orientation": {"axcodes": "LPS"}}],
        "transforms": [{"Resize": {"spatial_size": [32, 32]}}],
    }
    data |= getattr(request, "param", {})
    shape = (2 * data["neighbours"] + 1, 32, 32)
    contents = make_contents(scores=None, study=make_study(data=data), shape=shape, bias=0.7)
    write_model_folder(tmp_path / "supermodel", contents)
    return tmp_path / "supermodel"


def quietly(function, *arguments, **options):
    """Call a function of torch or MONAI, whose warnings are none of ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*arguments, **options)


@pytest.fixture(scope="module")
def exported():
    """The bundle of each super model that was exported, which takes seconds."""
    return {}


@pytest.fixture
def bundle(super_model, tmp_path, tmp_path_factory, exported):
    key = read_fingerprint(super_model)
    if key not in exported:
        exported[key] = export_bundle(super_model, tmp_path_factory.mktemp("exported") / "bundle")
    return shutil.copytree(exported[key], tmp_path / "bundle")


@pytest.fixture
def monai_bundle(bundle, monkeypatch):
    """Run a command of MONAI's bundles on the exported one."""
    import monai.bundle

    monkeypatch.chdir(bundle)
    return lambda command, **options: quietly(getattr(monai.bundle, command), **options)


def test_a_bundle_is_whole_and_nothing_else_is_left(bundle, super_model):
    assert sorted(path.name for path in bundle.parent.iterdir()) == ["bundle", "supermodel"]
    files = {str(path.relative_to(bundle)) for path in bundle.rglob("*") if path.is_file()}
    assert files == {
        "configs/inference.json",
        "configs/metadata.json",
        "configs/study.yaml",
        "docs/README.md",
        "models/model.ts",
    }
    metadata = json.loads((bundle / "configs" / "metadata.json").read_text())
    assert metadata["super_model"]["fingerprint"] == read_fingerprint(super_model)
    assert metadata["super_model"]["members"] == ["global", "north", "south"]
    assert metadata["network_data_format"]["outputs"]["pred"]["channel_def"] == {
        "0": "background",
        "1": "organ",
        "2": "lesion",
    }


RAN = "$__import__('pathlib').Path('ran').touch()"


@pytest.fixture
def write_named(tmp_path, make_contents):
    """Write a super model with a label that no study may have, of an older version or of nobody's good will."""

    def write(name, task="segmentation"):
        values = {"name": "small", "task": task, "rounds": 1, "algorithm": {"name": "fedsm"}}
        values |= {"labels": {1: name, 2: "a"}, "model": SMALL_UNET}
        if task == "classification":
            values |= {"labels": {0: name, 1: "a"}, "metric": "accuracy", "model": {"name": "lenet5"}}
            values |= {"training": {"loss": "cross_entropy"}}
        study = parse(Study, values, "study.yaml", STORED)
        write_model_folder(tmp_path / "supermodel", make_contents("mean", study=study))
        return tmp_path / "supermodel"

    return write


@pytest.mark.parametrize(
    ("name", "task"),
    [(RAN, "classification"), *((name, "segmentation") for name in (RAN, "@ran", "% fat", "_target_", "fat @# 2"))],
)
def test_a_name_that_monai_would_run_is_in_no_bundle(tmp_path, write_named, name, task):
    folder = write_named(name, task)
    with pytest.raises(ConfigError, match="a bundle must hold no name that MONAI takes for a command, not .*; predict"):
        export_bundle(folder, tmp_path / "bundle")
    assert [path.name for path in tmp_path.iterdir()] == ["supermodel"]


# What is refused above is MONAI's own affair here.
@pytest.mark.slow
def test_monai_would_run_such_a_name(tmp_path, write_named, monkeypatch):
    from monai.bundle import ConfigParser

    monkeypatch.setattr("silofl_desk.inference.export._refuse_command", lambda text: None)
    bundle = export_bundle(write_named(RAN), tmp_path / "bundle")
    monkeypatch.chdir(tmp_path)
    parser = ConfigParser()
    parser.read_meta(bundle / "configs" / "metadata.json")
    parser.read_config(bundle / "configs" / "predict.json")
    quietly(parser.get_parsed_content, "_meta_::network_data_format")
    assert (tmp_path / "ran").exists()


def test_nothing_in_a_bundle_is_a_command_but_what_silofl_has_written_itself():
    own = {"device": "$torch.device('cpu')", "network_def": {"_target_": "torch.jit.load", "f": "@a"}, "run": ["$1"]}
    _refuse_commands(own | {"labels": {"1": "5 $ and 3 %"}}, own)
    for other in (
        {"device": "$1"},
        {"network_def": {"f": "@a", "_mode_": "callable"}},
        {"run": ["$1", "$2"]},
        {"labels": {"_target_": 0.5}},
        {"labels": [["%a"]]},
    ):
        with pytest.raises(ConfigError, match="a bundle must hold no name that MONAI takes for a command"):
            _refuse_commands(own | other, own)


@pytest.mark.slow
@pytest.mark.parametrize("super_model", [{"neighbours": 2}], indirect=True)
def test_a_bundle_says_which_channel_is_of_which_neighbour(bundle):
    format = json.loads((bundle / "configs" / "metadata.json").read_text())["network_data_format"]["inputs"]["image"]
    names = [f"channel 0 of slice {name}" for name in ("z-2", "z-1", "z", "z+1", "z+2")]
    assert format["num_channels"] == 5 and list(format["channel_def"].values()) == names
    text = " ".join((bundle / "docs" / "README.md").read_text().split())
    assert "An image holds 5 slices of its volume as channels: 2 before the slice, the slice itself and 2 after" in text


@pytest.mark.parametrize(
    ("normalised", "sentence"),
    [("none", "zeros stand for one that is missing"), ("harmofl", "T1=FILE,T2=FILE`; none may be missing.")],
)
def test_a_bundle_names_its_contrasts(make_study, normalised, sentence):
    data = {"channels": 2, "channel_names": ["T1", "T2"], "neighbours": 1}
    study = make_study(data=data, input=normalised)
    names = [f"{name} of slice {place}" for place in ("z-1", "z", "z+1") for name in ("T1", "T2")]
    assert _channel_names(study.data) == names
    about = {"rule": "only", "sites": (), "facts": {}, "home_statistics": ""}
    contents = SimpleNamespace(study=study, image_shape=(6, 32, 32), calling=MOST_PROBABLE, **about)
    assert sentence in " ".join(bundle_readme(contents, ["global"]).split())


def test_the_bundles_script_says_what_the_super_model_says(bundle, super_model):
    case = np.random.default_rng(0).random((3, 1, 32, 32), dtype=np.float32)
    script = quietly(torch.jit.load, bundle / "models" / "model.ts")
    wanted = SuperModel.load(super_model, "cpu").answer(case).probabilities
    np.testing.assert_allclose(script(torch.from_numpy(case)).numpy(), wanted, atol=1e-5)


# By "dtype" MONAI alone cannot scale.
BY_TYPE = {"intensity": "dtype"}
STACKED = pytest.param(BY_TYPE | {"neighbours": 1}, marks=pytest.mark.slow)


@pytest.mark.parametrize("super_model", [BY_TYPE, STACKED], indirect=True)
def test_monai_runs_the_bundle_to_the_label_map_that_predict_writes(
    monai_bundle, super_model, write_volume, tmp_path, capsys
):
    voxels = np.random.default_rng(0).integers(0, 256, (40, 36, 5), np.uint8)
    scan = write_volume(array=voxels)
    monai_bundle(
        "run",
        config_file="configs/predict.json",
        bundle_root=".",
        image=str(scan),
        output=str(tmp_path / "out"),
        device="$torch.device('cpu')",
    )
    image = nibabel.load(tmp_path / "out" / "scan_labels.nii.gz")
    wanted = SuperModel.load(super_model, "cpu").predict(scan)
    np.testing.assert_array_equal(np.asanyarray(image.dataobj), wanted.label_map)
    np.testing.assert_allclose(image.affine, wanted.affine, rtol=1e-6)
    assert "scan_labels.nii.gz" in capsys.readouterr().out


FILES = {"meta_file": "configs/metadata.json", "config_file": "configs/inference.json", "bundle_root": "."}


@pytest.mark.parametrize("super_model", [{}, pytest.param({"neighbours": 1}, marks=pytest.mark.slow)], indirect=True)
def test_monai_finds_the_network_as_the_metadata_say(monai_bundle):
    options = FILES | {"net_id": "network_def", "device": "cpu"}
    monai_bundle("verify_net_in_out", **options)
    with pytest.raises(ValueError, match="output channel number"):
        monai_bundle("verify_net_in_out", **options, **{"_meta_#network_data_format#outputs#pred#num_channels": 7})


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
def test_the_metadata_have_the_models_version_and_licence_and_what_monai_requires(
    make_contents, make_study, card, version, licence
):
    study = make_study().model_copy(update={"card": card})
    found = _metadata(replace(make_contents("only"), study=study), "f" * 64)
    assert (found["version"], found["license"], [*found["changelog"]]) == (version, licence, [version])
    assert {*REQUIRED} <= found.keys() and all(isinstance(found[key], str) for key in REQUIRED[:5])
    formats = found["network_data_format"]
    for tensor in (formats["inputs"]["image"], formats["outputs"]["pred"]):
        assert all(isinstance(tensor[key], kind) for key, kind in OF_TENSORS.items())


def test_a_bundle_is_evaluated_on_labelled_cases(bundle, tmp_path):
    rng, cases = np.random.default_rng(0), []
    for number in range(3):
        for kind, voxels in (("i", rng.integers(0, 900, (32, 32, 3))), ("m", rng.integers(0, 3, (32, 32, 3)))):
            image = nibabel.Nifti1Image(voxels.astype(np.int16), np.diag([1.0, 1.0, 2.0, 1.0]))
            (tmp_path / "clinic").mkdir(exist_ok=True)
            nibabel.save(image, tmp_path / "clinic" / f"{kind}{number}.nii.gz")
        cases.append({"image": f"i{number}.nii.gz", "label": f"m{number}.nii.gz", "patient": f"p{number}"})
    content = {"task": "segmentation", "labels": {"1": "organ", "2": "lesion"}, "test": cases}
    (tmp_path / "clinic" / "dataset.json").write_text(json.dumps(content))
    assert main(["evaluate", str(bundle), str(tmp_path / "clinic"), "--out", str(tmp_path / "numbers")]) == 0
    assert json.loads((tmp_path / "numbers" / "evaluation.json").read_text())["num_cases"] == 3


def test_monais_command_line_runs_the_bundle(monai_bundle, write_volume, tmp_path, monkeypatch):
    pytest.importorskip("fire")
    options = ["--config_file", "configs/inference.json", "--bundle_root", "."]
    files = ["--image", str(write_volume()), "--output", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", ["monai.bundle", "run", *options, *files])
    quietly(runpy.run_module, "monai.bundle", run_name="__main__")
    assert (tmp_path / "out" / "scan_labels.nii.gz").is_file()


@pytest.fixture
def volume_model(tmp_path, make_contents, make_volume_study):
    # What a selector chooses is the test of its program.
    write_model_folder(tmp_path / "volumes", make_contents("mean", study=make_volume_study(), shape=(1, 32, 32, 16)))
    return tmp_path / "volumes"


def test_volumes_have_a_bundle_that_monai_runs_and_readme_code_that_needs_no_silofl(
    volume_model, write_volume, tmp_path, monkeypatch
):
    import monai.bundle

    bundle = export_bundle(volume_model, tmp_path / "bundle")
    assert [path.name for path in (bundle / "models").iterdir()] == ["model.ts"]
    super_model, scan = SuperModel.load(volume_model, "cpu"), write_volume(shape=(45, 36, 20))
    monkeypatch.chdir(bundle)
    options = {"config_file": "configs/inference.json", "bundle_root": ".", "device": "$torch.device('cpu')"}
    quietly(monai.bundle.run, "run", image=str(scan), output=str(tmp_path / "out"), **options)
    quietly(monai.bundle.verify_net_in_out, "network_def", **FILES, device="cpu")
    label_map = np.asanyarray(nibabel.load(tmp_path / "out" / "scan_labels.nii.gz").dataobj)
    np.testing.assert_array_equal(label_map, super_model.predict(scan).label_map)
    (code,) = re.findall("```python\n(.*?)```", (bundle / "docs" / "README.md").read_text(), re.DOTALL)
    # A program of its own, in which SiloFL is not to be found.
    (tmp_path / "own.py").write_text(f"import sys\nsys.modules['silofl'] = None\n{code}\n{SAVE}")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    subprocess.run([sys.executable, str(tmp_path / "own.py"), str(tmp_path / "own.pt")], check=True, timeout=300)
    found = torch.load(tmp_path / "own.pt")
    wanted = super_model.answer(found["case"].numpy()).probabilities
    np.testing.assert_allclose(found["probabilities"].detach().numpy(), wanted, atol=1e-5)


# Of a case below the threshold, which has more to warn of; what another is answered is the test of the script's.
@pytest.mark.parametrize("scores", [(0.3, 0.7), pytest.param((0.05, 0.95), marks=pytest.mark.slow)])
def test_a_bundle_warns_and_forbids_as_the_super_model_does(tmp_path, make_contents, make_study, scores):
    study = make_study().model_copy(update={"do_not_use": DoNotUseSettings(on_fallback=True, label_below=0.5)})
    score = {"value": 0.4, "labels": {"1": 0.8, "2": 0.05}}
    counts = dict.fromkeys(PARTS, {"patients": 1, "cases": 1, "examples": 3})
    facts = {"validation": {"north": score, "south": score}, "data": {"north": counts | {"digest": "abc"}}}
    contents = replace(make_contents(scores=scores, threshold=0.9, study=study), facts=facts)
    write_model_folder(tmp_path / "super", contents)
    export_bundle(tmp_path / "super", tmp_path / "bundle")
    wanted, found = (open_model(tmp_path / name, torch.device("cpu"))[0] for name in ("super", "bundle"))
    images = np.random.default_rng(0).random((3, 1, 32, 32), dtype=np.float32)
    answers = [model.answer(images) for model in (wanted, found)]
    assert {(answer.model, answer.is_fallback) for answer in answers} == {
        ("global", True) if scores[1] < 0.9 else ("south", False)
    }
    for say in (SuperModel.list_warnings, SuperModel.list_reasons_against_use):
        assert say(found, answers[1], []) == say(wanted, answers[0], [])
    assert found.quality == wanted.quality
    # By which `evaluate` knows a data set that was learnt.
    assert found.contents.facts["data"] == {"north": {"digest": "abc"}}


@pytest.mark.parametrize(("normalization", "is_warned"), [("batch", False), ("batch_stateless", True)])
def test_the_command_exports_and_warns_of_a_network_whose_answer_depends_on_others(
    tmp_path, make_contents, make_study, capsys, normalization, is_warned
):
    contents = make_contents("only", study=make_study(model={"normalization": normalization}))
    write_model_folder(tmp_path / "supermodel", contents)
    assert main(["export", str(tmp_path / "supermodel"), "-o", str(tmp_path / "there")]) == 0
    said = capsys.readouterr()
    assert ("model.normalization batch_stateless" in said.err) == is_warned and "there" in said.out
    assert (tmp_path / "there" / "models" / "model.ts").is_file()


def test_the_command_refuses_a_place_that_is_taken_and_what_is_no_super_model(bundle, super_model, tmp_path, capsys):
    assert main(["export", str(super_model), "-o", str(bundle)]) == 2
    assert "bundle must be a new folder" in capsys.readouterr().err
    assert main(["export", str(tmp_path), "-o", str(tmp_path / "other")]) == 2
    assert not (tmp_path / "other").exists()
