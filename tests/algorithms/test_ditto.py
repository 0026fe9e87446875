import copy

import pytest
import torch
from torch import nn

from silofl.algorithms.ditto import Pull
from silofl.core.steps import plain_step

from .conftest import assert_is, average, batch_of, network

MSE = nn.functional.mse_loss


def test_a_whole_run_follows_the_reference(vectors):
    v = vectors("baselines/ditto")
    eta, answer = float(v["hyper_eta"]), Pull(strength=float(v["hyper_lam"]))
    shared, own = network(v, "init"), [network(v, "init") for _ in v["n"]]
    for r in range(len(v["x"])):
        trained = {}
        for i, personal in enumerate(own):
            site = copy.deepcopy(shared)
            pair = answer.begin(site, personal, {})
            optimizers = [torch.optim.SGD(model.parameters(), eta) for model in (site, personal)]
            for k in range(v["x"].shape[2]):
                batch = batch_of(v, r, i, k)
                # The shared model moves first: x of the pull stays where it was received.
                pair.shared(plain_step)(site, optimizers[0], MSE, batch)
                expected = MSE(personal(batch[0]), batch[1]).item()
                loss = pair.personal(personal, optimizers[1], MSE, batch)
                assert loss.item() == pytest.approx(expected, rel=1e-12)
                assert_is(site, v, "site", r, i, k)
                assert_is(personal, v, "personal", r, i, k)
            assert pair.kept() == {}
            trained[i] = site.state_dict()
        shared.load_state_dict(average(trained, v["p"], trained[0]))
        assert_is(shared, v, "global", r)
