import torch
from nvflare.app_opt.pt.fedproxloss import PTFedProxLoss
from torch import nn

from silofl.algorithms.fedprox import proximal_step
from silofl.core.steps import plain_step

MSE = nn.functional.mse_loss


def linear(seed=0):
    torch.manual_seed(seed)
    return nn.Linear(3, 1)


def batch(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(5, 3, generator=generator), torch.rand(5, 1, generator=generator)


def test_the_first_step_is_the_plain_one():
    left, right = linear(), linear()
    proximal_step(10.0)(left, torch.optim.SGD(left.parameters(), 0.1), MSE, batch(1))
    plain_step(right, torch.optim.SGD(right.parameters(), 0.1), MSE, batch(1))
    torch.testing.assert_close(left.weight, right.weight)


def test_later_steps_follow_nvflares_proximal_loss():
    ours, theirs, received = linear(), linear(), linear()
    step = proximal_step(0.3)
    proximal = PTFedProxLoss(mu=0.3)
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in (ours, theirs)]
    for seed in (1, 2, 3):
        step(ours, optimizers[0], MSE, batch(seed))
        plain_step(theirs, optimizers[1], lambda o, t: MSE(o, t) + proximal(theirs, received), batch(seed))
    torch.testing.assert_close(ours.weight, theirs.weight)
    torch.testing.assert_close(ours.bias, theirs.bias)
