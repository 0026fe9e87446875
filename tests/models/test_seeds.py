import pytest
import torch

from silofl.models.seeds import seed_torch


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1, 2**63 - 1])
def test_the_numbers_are_those_of_torchs_own_seed(seed):
    torch.manual_seed(seed)
    wanted = torch.rand(5), torch.randperm(9)
    seed_torch(seed)
    assert torch.equal(torch.rand(5), wanted[0]) and torch.equal(torch.randperm(9), wanted[1])
