import json
import shutil

import landscape
import numpy as np
import pytest
from layer_statistics import correlations, main, statistics_image, statistics_table

from ..studies.conftest import JOB
from ..studies.test_cross_test import SMALL


def pair(running, of_inputs):
    return np.array(running, np.float32), np.array(of_inputs, np.float32)


def test_a_correlation_is_one_up_minus_one_down_and_none_of_one_value():
    layers = [pair([1, 2, 3], [2, 4, 6]), pair([1, 2], [2, 1]), pair([0, 0], [1, 2])]
    found = correlations({"north": {"mean": layers, "variance": layers[:1]}})
    assert found["north"]["mean"] == [pytest.approx(1), pytest.approx(-1), None]
    table = statistics_table({"north": {"mean": layers, "variance": layers[:1]}})
    # the median of 1 and -1, and the lowest
    assert table.rows == (("north", "3", "0.000", "-1.000", "1.000", "1.000"),)
    assert statistics_image({"north": {"mean": layers, "variance": layers[:1]}}).png.startswith(b"\x89PNG")


@pytest.mark.timeout(120)
def test_every_batchnorm_layer_of_each_sites_model_is_measured(silofl, script, phantoms, tmp_path):
    options = ["--data", phantoms, "--out", "run", "--alone", "--rounds", 1, "--set", "algorithm={name: fedbn}", *SMALL]
    assert silofl("simulate", JOB, *options)[0] == 0
    code, out, _ = script(main, "run", "--json")
    found = json.loads((tmp_path / "run" / "layer_statistics.json").read_text())
    assert code == 0 and json.loads(out) == found and list(found) == ["north", "south"]
    # the U-Net has 18 layers of BatchNorm
    assert {len(layers) for kinds in found.values() for layers in kinds.values()} == {18}
    assert all(-1 <= value <= 1 for kinds in found.values() for layers in kinds.values() for value in layers)
    assert (tmp_path / "run" / "layer_statistics.png").is_file()


@pytest.mark.timeout(120)
def test_a_network_without_batchnorm_is_refused(silofl, script, phantoms):
    options = ["--data", phantoms, "--out", "run", "--alone", "--rounds", 1, "--set", "model.normalization=group"]
    assert silofl("simulate", JOB, *options, *SMALL)[0] == 0
    code, _, error = script(main, "run")
    assert code == 2 and "must have BatchNorm, not normalization group" in error


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("measure", "options"), [(main, []), (landscape.main, ["--images", 1, "--steps", 1])])
def test_images_that_a_named_folder_holds_are_not_decoded_again(
    silofl, script, phantoms, tmp_path, monkeypatch, measure, options
):
    data = shutil.copytree(phantoms, tmp_path / "data", ignore=shutil.ignore_patterns(".silofl*"))
    wanted = ["--data", data, "--out", "run", "--alone", "--rounds", 1, "--cache", "cache"]
    assert silofl("simulate", JOB, *wanted, *SMALL)[0] == 0
    (tmp_path / "cache").rename(tmp_path / "moved")
    monkeypatch.setattr("silofl.data.preparation.read_source", lambda *a: pytest.fail("an image was decoded"))
    assert script(measure, "run", "--cache", "moved", *options)[0] == 0
    assert not (tmp_path / "cache").exists() and not (data / ".silofl-cache").exists()
