import pytest
import torch
from torch import nn


class Casting(nn.Module):
    """A layer that runs under autocast unless it is switched off, as a study's models do in bfloat16."""

    def __init__(self):
        super().__init__()
        self.layer, self.is_autocast, self.dtypes = nn.Linear(3, 1), True, []

    def forward(self, inputs):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.is_autocast):
            output = self.layer(inputs)
        self.dtypes.append(output.dtype)
        return output.float()


@pytest.fixture
def casting():
    """A model that notes in what precision each of its passes ran."""
    return Casting()
