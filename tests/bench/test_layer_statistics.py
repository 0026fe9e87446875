import json
import shutil
from types import SimpleNamespace

import landscape
import numpy as np
import pytest
from layer_statistics import correlations, layer_pairs, main

from silofl.base.errors import ConfigError

from ..conftest import SMALL_UNET
from ..studies.conftest import JOB

SMALL = ["--set", f"model={json.dumps(SMALL_UNET)}", "--set", "data.transforms=[{Resize: {spatial_size: [32, 32]}}]"]
SMALL += ["--set", "baseline_comparison=false"]


def pair(running, of_inputs):
    return np.array(running, np.float32), np.array(of_inputs, np.float32)


def test_a_correlation_is_one_up_minus_one_down_and_none_of_one_value():
    layers = [pair([1, 2, 3], [2, 4, 6]), pair([1, 2], [2, 1]), pair([0, 0], [1, 2])]
    found = correlations({"north": {"mean": layers, "variance": layers[:1]}})
    assert found["north"]["mean"] == [pytest.approx(1), pytest.approx(-1), None]


@pytest.mark.timeout(120)
def test_every_batchnorm_layer_of_each_sites_model_is_measured_and_no_image_of_a_named_folder_is_decoded_again(
    silofl, script, phantoms, tmp_path, monkeypatch
):
    data = shutil.copytree(phantoms, tmp_path / "data", ignore=shutil.ignore_patterns(".silofl*"))
    options = [
        "--data",
        data,
        "--out",
        "run",
        "--in-process",
        "--rounds",
        1,
        "--set",
        "algorithm={name: fedbn}",
        *SMALL,
    ]
    assert silofl("simulate", JOB, *options, "--cache", "cache")[0] == 0
    (tmp_path / "cache").rename(tmp_path / "moved")
    monkeypatch.setattr("silofl.data.preparation.read_images", lambda *a: pytest.fail("an image was decoded"))
    code, out, _ = script(main, "run", "--json", "--cache", "moved")
    found = json.loads((tmp_path / "run" / "layer_statistics.json").read_text())
    assert code == 0 and json.loads(out) == found and list(found) == ["north", "south"]
    # the network has 2 layers of BatchNorm
    assert {len(layers) for kinds in found.values() for layers in kinds.values()} == {2}
    assert all(-1 <= value <= 1 for kinds in found.values() for layers in kinds.values() for value in layers)
    assert (tmp_path / "run" / "layer_statistics.png").is_file()
    assert script(landscape.main, "run", "--cache", "moved", "--images", 1, "--steps", 1, "--scales", 1)[0] == 0
    assert not (tmp_path / "cache").exists() and not (data / ".silofl-cache").exists()


def test_a_network_without_batchnorm_is_refused(make_study):
    with pytest.raises(ConfigError, match="must have BatchNorm, not normalization group"):
        layer_pairs(SimpleNamespace(study=make_study(model={"normalization": "group"})), {})
