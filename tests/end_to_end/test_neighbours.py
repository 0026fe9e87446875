import json

import nibabel
import numpy as np
import pytest
import torch

from .conftest import carried_out

pytestmark = pytest.mark.usefixtures("decoded_here", "undrawn")


def test_a_run_with_neighbours_trains_and_its_super_model_predicts_a_scan(tmp_path, phantoms, small_job):
    run, out = tmp_path / "run", tmp_path / "out"
    settings = ["--set", "data.neighbours=1", "--rounds", 1]
    carried_out("simulate", small_job, "--data", phantoms, "--out", run, "--alone", *settings)
    results = json.loads((run / "results.json").read_text())
    assert results["status"] == "COMPLETE" and set(results["sites"]) == {"north", "south"}
    weights = torch.load(run / "model" / "last.pt", weights_only=True)
    # The U-Net's first convolution, of 8 features, sees three slices of one channel.
    assert next(value.shape for value in weights.values() if value.ndim == 4) == (8, 3, 3, 3)

    (folder,) = (run / "sites" / "north").glob("*/supermodel")
    assert json.loads((folder / "model.json").read_text())["image_shape"] == [3, 32, 32]
    pictures = np.load(folder.with_name("pictures.npz"))
    assert pictures["images"].shape == pictures["normalized"].shape == (4, 1, 32, 32)

    scan = min((phantoms / "north" / "images").iterdir())
    carried_out("predict", folder, scan, "-o", out)
    (record,) = json.loads((out / "prediction.json").read_text())
    assert nibabel.load(out / record["label_map"]).shape == nibabel.load(scan).shape
