"""Home statistics in a run: each site's own, taken anew before each validation and test, and never sent."""

import numpy as np
import pytest
import torch

from silofl.base.errors import ConfigError
from silofl.inference import SuperModel
from silofl.models.normalization import list_home_layers

from .conftest import SITES

HOME = {"normalization": "batch_home"}
ALGORITHMS = {
    "one model": {"name": "fedavg"},
    "batchnorm at home": {"name": "fedbn"},
    "the authors' HarmoFL": {"name": "harmofl", "preset": "reference"},
}


@pytest.fixture(params=ALGORITHMS)
def finished(play, request):
    game = play(rounds=2, baseline_comparison=True, model=HOME, **ALGORITHMS[request.param])
    game.tests = game.finish()
    return game


def statistics(model):
    (network,) = (model.network(name) for name in model.contents.models)
    layers = list_home_layers(network)
    return {f"{number}/{kind}": getattr(layer, kind) for number, layer in enumerate(layers) for kind in KINDS}


KINDS = ("running_mean", "running_var", "num_batches_tracked")


def test_kept_models_have_the_sites_own_statistics(finished):
    for site in SITES:
        data = finished.sites[site].data.training
        for folder in ("supermodel", "chosen"):
            model = SuperModel.load(finished.folder(site) / folder, "cpu")
            kept = statistics(model)
            assert all(int(kept[name]) for name in kept if name.endswith(KINDS[2]))
            before = {name: value.clone() for name, value in kept.items()}
            model.fix_home_statistics(data.images)
            for name, value in statistics(model).items():
                torch.testing.assert_close(before[name], value)


def test_no_statistics_leave_a_site(finished):
    sent = {name for answer in finished.answers["train"].values() for name in answer.arrays}
    assert any(name.startswith("model/") for name in sent)
    assert not [name for name in sent if name.endswith(KINDS)]
    assert not [name for name in finished.models("east") if name.endswith(KINDS)]


def test_the_servers_model_has_no_statistics_and_answers_nothing(play):
    game = play(rounds=1, model=HOME)
    game.finish()
    contents = game.server.parts["model"].outcome(game.server, {}).make_contents()
    assert "answers nothing before silofl home-statistics" in contents.home_statistics
    with pytest.raises(ConfigError, match="Model 'global' has no home statistics"):
        SuperModel(contents, torch.device("cpu")).predict(np.zeros((1, 1, 32, 32), np.float32))
