import json

import numpy as np
import pytest

from silofl.federation.alone import run_alone
from silofl.federation.run_folder import RunFolder
from silofl.files import load_tensors
from silofl.site import Site


@pytest.fixture
def alone(tmp_path, site_data, make_study):
    """Run a study in one process; returns the run's folder."""

    def run(folder="run", sites=("east", "north", "west"), on_round=lambda: None, min_sites=1, **options):
        path, study = tmp_path / folder, make_study(**options)
        settings = Site(data=f"{site_data}/{{site}}", state_dir=f"{path}/sites/{{site}}", has_progress=False)
        federation = study.federation.model_copy(update={"min_sites": min_sites})
        run_alone(study.model_copy(update={"federation": federation}), path, sites, settings, None, on_round)
        return path

    return run


@pytest.mark.parametrize("name", ["fedavg", "adafed"])
def test_a_run_alone_is_what_its_rounds_come_to(alone, play, name):
    path = alone(name=name, rounds=2)
    game = play(name=name, rounds=2, min_examples=20).all_rounds()
    ledger = json.loads((path / "ledger.json").read_text())
    assert [record["weights"] for record in ledger] == [record.weights for record in game.server.ledger]
    models = load_tensors(path / "checkpoint.pt")["models"]
    for site, arrays in game.server.models.items():
        for key, array in arrays.items():
            np.testing.assert_array_equal(models[site][key].numpy(), array)
    assert json.loads((path / "results.json").read_text())["status"] == "COMPLETE"


def test_a_run_with_a_selector_ends_with_a_super_model(alone):
    path = alone(name="fedsm", rounds=1, model={"normalization": "instance"})
    assert {"global", "selector"} <= {file.stem for file in (path / "supermodel" / "weights").iterdir()}


def test_an_interrupted_run_goes_on_to_the_same_weights(alone, make_study):
    asked = []

    def interrupt():
        asked.append(1)
        if len(asked) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        alone("cut", name="fedbn", rounds=3, on_round=interrupt)
    runs = [alone("cut", name="fedbn", rounds=3), alone("whole", name="fedbn", rounds=3)]
    cut, whole = (RunFolder(path, make_study(name="fedbn", rounds=3)).load() for path in runs)
    for key, array in whole.models["east"].items():
        np.testing.assert_array_equal(cut.models["east"][key], array)


def test_a_run_with_too_few_answers_fails_with_the_reasons(alone):
    path = alone(sites=("east", "nowhere"), min_sites=2)
    results = json.loads((path / "results.json").read_text())
    assert results["status"] == "FAILED"
    assert "not 1: nowhere: the site's data have a fault" in results["reasons"][0]
