import json

import numpy as np
import pytest

from silofl.analyses.layer_statistics import correlations, statistics_image, statistics_table

from ..studies.conftest import JOB
from .test_cross_test import SMALL


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
def test_every_batchnorm_layer_of_each_sites_model_is_measured(silofl, phantoms, tmp_path):
    options = ["--data", phantoms, "--out", "run", "--alone", "--rounds", 1, "--set", "algorithm={name: fedbn}", *SMALL]
    assert silofl("simulate", JOB, *options)[0] == 0
    code, out, _ = silofl("layer-statistics", "run", "--json")
    found = json.loads((tmp_path / "run" / "layer_statistics.json").read_text())
    assert code == 0 and json.loads(out) == found and list(found) == ["north", "south"]
    # the U-Net has 18 layers of BatchNorm
    assert {len(layers) for kinds in found.values() for layers in kinds.values()} == {18}
    assert all(-1 <= value <= 1 for kinds in found.values() for layers in kinds.values() for value in layers)
    assert (tmp_path / "run" / "layer_statistics.png").is_file()


@pytest.mark.timeout(120)
def test_a_network_without_batchnorm_is_refused(silofl, phantoms):
    options = ["--data", phantoms, "--out", "run", "--alone", "--rounds", 1, "--set", "model.normalization=group"]
    assert silofl("simulate", JOB, *options, *SMALL)[0] == 0
    code, _, error = silofl("layer-statistics", "run")
    assert code == 2 and "must have BatchNorm, not normalization group" in error
