"""Public data sets' layouts in 3D, small and made up, from the import to a prediction and an exported script."""

import json

import numpy as np
import pytest
import torch

from silofl.inference import SuperModel
from tests.end_to_end.conftest import JOBS, carried_out, find_super_model, predicted
from tests.end_to_end.test_volumes import draw, grid, write_volume
from tests.recipes.made_sets import BRATS_CONTRASTS, write_brats_case
from tests.recipes.run_recipes import run_recipe

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("decoded_here", "undrawn")]


def trained(data, job, folder, *settings):
    """Write a study for imported data, train it for a round in this process, and return its super model's folder."""
    own, run = folder / "own", folder / "run"
    carried_out("new-study", data, own, "--from", JOBS / job)
    small = ["data.patches={size: [16, 16, 16], per_volume: 2}", "training.local_epochs=1", "guard=false", *settings]
    changes = [text for one in small for text in ("--set", one)]
    carried_out("simulate", own, "--data", data, "--out", run, "--alone", "--rounds", 1, *changes)
    return find_super_model(run)


def assert_exported(models, folder, tolerance=1e-5):
    """Export a super model: its script says of a volume what the super model does, as the bundle's README has it."""
    carried_out("export", models, "--out", folder / "bundle")
    model = SuperModel.load(models, "cpu")
    volume = np.random.default_rng(0).random((1, model.contents.image_shape[0], 21, 24, 17), dtype=np.float32)
    found = torch.jit.load(folder / "bundle" / "models" / "model.ts")(torch.from_numpy(volume))
    np.testing.assert_allclose(found.detach().numpy(), model.answer(volume).probabilities, atol=tolerance)


@pytest.fixture
def brats(tmp_path):
    """Two sites of six cases each as BraTS of 2021 has them."""
    for first, site in ((0, "north"), (6, "south")):
        for number in range(first, first + 6):
            write_brats_case(tmp_path / "source" / site / f"BraTS2021_{number:05}", size=(22, 20, 18))
    return tmp_path / "source"


def test_brats_becomes_a_super_model_in_3d_that_predicts(brats, tmp_path):
    run_recipe("brats", brats, tmp_path / "data")
    regions = "regions={whole tumour: [1, 2, 3], tumour core: [1, 3]}"
    network = "network: monai.networks.nets.UNet, arguments: {channels: [4, 4], strides: [2]}, normalization: instance"
    models = trained(tmp_path / "data", "fedsm_volumes", tmp_path, f"model={{{network}}}", regions)
    assert SuperModel.load(models).contents.study.labels == {1: "necrotic core", 2: "oedema", 3: "enhancing tumour"}
    case = next(path for path in (brats / "north").iterdir())
    names = SuperModel.load(models).contents.study.data.channel_names
    scan = dict(zip(names, [case / f"{case.name}_{name}.nii.gz" for name in BRATS_CONTRASTS["_"]], strict=True))
    predicted(models, scan, next(iter(scan.values())), tmp_path / "out")


@pytest.fixture
def nnunet_sets(tmp_path):
    """Two data sets of six cases in nnU-Net's layout, in their own spacings."""
    root = tmp_path / "raw"
    for seed, site in enumerate(("east", "north")):
        rng, folder = np.random.default_rng(20 + seed), root / f"Dataset00{seed}_{site}"
        for kind in ("imagesTr", "labelsTr"):
            (folder / kind).mkdir(parents=True)
        for number in range(6):
            images, truth = draw(rng, tuple(int(side) for side in rng.integers(16, 25, 3)))
            for channel, image in enumerate(images):
                write_volume(folder / "imagesTr" / f"box_{number:03}_{channel:04}.nii.gz", image, grid(site))
            write_volume(folder / "labelsTr" / f"box_{number:03}.nii.gz", truth, grid(site))
        description = {"channel_names": {"0": "T1", "1": "T2"}, "labels": {"background": 0, "box": 1}}
        description |= {"numTraining": 6, "file_ending": ".nii.gz"}
        (folder / "dataset.json").write_text(json.dumps(description))
    return root


def test_nnunets_sets_train_a_deeply_supervised_dynunet_in_3d_that_predicts_and_is_exported(nnunet_sets, tmp_path):
    carried_out("import", "folders", nnunet_sets, tmp_path / "data", "--layout", "nnunet")
    arguments = "kernel_size: [3, 3, 3], strides: [1, 2, 2], upsample_kernel_size: [2, 2], filters: [4, 8, 8]"
    network = "network: monai.networks.nets.DynUNet, normalization: instance"
    model = f"model={{{network}, arguments: {{{arguments}, deep_supervision: true, deep_supr_num: 1}}}}"
    models = trained(tmp_path / "data", "harmofl_volumes", tmp_path, model)
    case = next((tmp_path / "data").rglob("box_000_0000.nii.gz"))
    scan = {f"T{n + 1}": str(case).replace("_0000", f"_000{n}") for n in range(2)}
    predicted(models, scan, case, tmp_path / "out")
    assert_exported(models, tmp_path)
