import numpy as np
import pytest
import torch
from torch import nn

from ..parts.conftest import assert_same_course, make_study, windows_to_choose_by  # noqa: F401


def network(v, prefix, *index):
    """Return the small network of the reference numbers with the weights that they give it."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    model.load_state_dict({key: torch.tensor(v[f"{prefix}/{key}"][index]) for key in model.state_dict()})
    return model


def assert_is(model, v, prefix, *index):
    """Compare a network with the reference numbers."""
    for key, value in model.state_dict().items():
        np.testing.assert_allclose(value.numpy(), v[f"{prefix}/{key}"][index], rtol=1e-6, atol=1e-12)


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


@pytest.fixture
def casting():
    """A model that notes in what precision each of its passes ran."""
    return Casting()
