import numpy as np
import pytest
import torch
from torch import nn

from silofl.models import build_plain_model

from ..conftest import Play
from ..parts.conftest import assert_same_course, lose_state, make_study, windows_to_choose_by  # noqa: F401

KEYS = ("0.weight", "0.bias", "2.weight", "2.bias")
COUNTS = {"east": 5, "north": 4, "west": 3}
SGD = {"optimizer": "sgd", "momentum": 0.0, "batch_size": 2, "learning_rate": 0.05}


def network(v, prefix, *index):
    """Return the small network of the reference numbers with the weights that they give it."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    model.load_state_dict({key: torch.tensor(v[f"{prefix}/{key}"][index]) for key in model.state_dict()})
    return model


def assert_is(model, v, prefix, *index):
    """Compare a network with the reference numbers."""
    for key, value in model.state_dict().items():
        np.testing.assert_allclose(value.numpy(), v[f"{prefix}/{key}"][index], rtol=1e-6)


def batch_of(v, *index):
    """Return a batch of the reference numbers."""
    return torch.tensor(v["x"][index]), torch.tensor(v["y"][index])


def average(states, weights, start):
    """Return the weighted mean of sites' states, by site; whole numbers are those of the start."""
    total = sum(weights[site] for site in states)
    return {
        name: sum(weights[site] / total * state[name] for site, state in states.items())
        if value.is_floating_point()
        else value
        for name, value in start.items()
    }


def assert_plain_rounds(game, train, absent="north"):
    """Check three rounds, the second without a site, against sites that train by plain code; returns the last model."""
    counts = {site: len(one.data.training) for site, one in game.sites.items()}
    x = start = build_plain_model(game.study, game.study.seed).state_dict()
    for number, missing in ((1, ()), (2, (absent,)), (3, ())):
        record = game.round(absent=missing)
        assert record.answered == [site for site in counts if site not in missing]
        x = average({site: train(site, number, x) for site in record.answered}, counts, x)
        found = game.models(record.answered[0])
        assert found.keys() == {f"model/{name}" for name, value in x.items() if value.is_floating_point()}
        assert_same_course(found, x, start)
    return x


class Casting(nn.Module):
    """A layer that runs under autocast unless it is switched off, as a study's models do in bfloat16."""

    def __init__(self):
        super().__init__()
        self.make_layer, self.is_autocast, self.dtypes = nn.Linear(3, 1), True, []

    def forward(self, inputs):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.is_autocast):
            output = self.make_layer(inputs)
        self.dtypes.append(output.dtype)
        return output.float()


@pytest.fixture(scope="module")
def finished(make_study, site_data, tmp_path_factory):  # noqa: F811
    """Finish a run once for all tests of a file, which only read it; it has the sites' tests."""
    games = {}

    def finish(min_patients=0, **options):
        if (key := str((min_patients, options))) not in games:
            study, folder = make_study(**options), tmp_path_factory.mktemp("run")
            game = games[key] = Play(study, site_data, folder, tuple(COUNTS), min_patients=min_patients)
            game.tests = game.finish()
        return games[key]

    return finish


@pytest.fixture
def casting():
    """A model that notes in what precision each of its passes ran."""
    return Casting()
