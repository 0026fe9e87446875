import numpy as np
import pytest
import torch
from torch import nn

from silofl.algorithms.fednova import NormalizedSteps, factors, norm
from silofl.algorithms.fedprox import proximal_step
from silofl.core.presets import find_recipe
from silofl.errors import AggregationError, ConfigError
from silofl.study_sections import TrainingSettings

KEYS = ("0.weight", "0.bias", "2.weight", "2.bias")
VARIANTS = {
    "sgd": {},
    "momentum": {"momentum": 0.9},
    "prox": {"mu": 0.5},
    "prox_momentum": {"momentum": 0.9, "mu": 0.5},
    "nesterov": {"momentum": 0.9, "nesterov": True},
}


def test_the_norm_is_how_far_steps_reach_along_a_gradient_of_one():
    assert norm(3) == 3
    # 1, 1 + 0.5, 1 + 0.5 + 0.25
    assert norm(3, momentum=0.5) == 4.25
    # 1, then 1 - 0.5 * 1, then 1 - 0.5 * 1.5
    assert norm(3, proximal=0.5) == 1.75
    # 1 + 0.5 * 1, then 1 + 0.5 * 1.5
    assert norm(2, momentum=0.5, nesterov=True) == 3.25


def test_norms_are_those_of_the_reference_table(vectors):
    v = vectors("baselines/fednova")
    found = [norm(int(steps), momentum, pull, bool(nesterov)) for steps, momentum, pull, nesterov in v["table"]]
    np.testing.assert_allclose(found, v["table_a"], rtol=1e-6)
    sums = [v[f"table_coefficients_{row}"].sum() for row in range(len(found))]
    np.testing.assert_allclose(found, sums, rtol=1e-6)


def test_the_closed_forms_of_the_paper_are_special_cases():
    rho, pull, steps = 0.9, 0.05, 7
    np.testing.assert_allclose(norm(steps, momentum=rho), (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho))
    np.testing.assert_allclose(norm(steps, proximal=pull), (1 - (1 - pull) ** steps) / pull)


def test_equal_norms_give_the_shares_and_others_shorten_who_steps_more():
    np.testing.assert_allclose(factors([0.25, 0.75], [3, 3]), [0.25, 0.75])
    # tau_eff = 0.5 * 2 + 0.5 * 6 = 4
    np.testing.assert_allclose(factors([0.5, 0.5], [2, 6]), [1, 1 / 3])
    np.testing.assert_allclose(factors([0.5, 0.5], [2, 6], tau_eff=6), [1.5, 0.5])


def test_steps_that_turn_back_to_where_they_began_are_refused():
    # 1, then 1 - 2 * 1: back at the start
    with pytest.raises(AggregationError, match=r"must have a norm above 0, not 0; lower training.learning_rate"):
        factors([0.5, 0.5], [norm(2, proximal=2), 1])


def network(arrays):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    model.load_state_dict({key: torch.tensor(array) for key, array in arrays.items()})
    return model


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_whole_run_follows_the_reference(vectors, variant):
    v, chosen = vectors("baselines/fednova"), VARIANTS[variant]
    eta, mu, rho, nesterov = (
        float(v["hyper_eta"]),
        chosen.get("mu", 0.0),
        chosen.get("momentum", 0.0),
        "nesterov" in chosen,
    )
    x = {key: v[f"init/{key}"] for key in KEYS}
    for r in range(len(v["x"])):
        differences, norms = [], []
        for i in range(len(v["n"])):
            site = network(x)
            optimizer = torch.optim.SGD(site.parameters(), eta, momentum=rho, nesterov=nesterov)
            step = proximal_step(mu)
            for k in range(int(v["steps"][r, i])):
                batch = torch.tensor(v["x"][r, i, k]), torch.tensor(v["y"][r, i, k])
                step(site, optimizer, nn.functional.mse_loss, batch)
                for key, p in site.named_parameters():
                    np.testing.assert_allclose(p.detach().numpy(), v[f"{variant}.site/{key}"][r, i, k], rtol=1e-6)
            differences.append({key: p.detach().numpy() - x[key] for key, p in site.named_parameters()})
            norms.append(norm(int(v["steps"][r, i]), rho, eta * mu, nesterov))
        weights = factors(v["p"], norms)
        np.testing.assert_allclose(norms, v[f"{variant}.a"][r], rtol=1e-6)
        np.testing.assert_allclose(weights, v[f"{variant}.weights"][r], rtol=1e-6)
        x = {key: x[key] + sum(w * d[key] for w, d in zip(weights, differences, strict=True)) for key in KEYS}
        for key in KEYS:
            np.testing.assert_allclose(x[key], v[f"{variant}.global/{key}"][r], rtol=1e-6)


def test_adam_is_refused():
    with pytest.raises(ConfigError, match="training.optimizer must be sgd with normalised steps, not 'adam'"):
        NormalizedSteps().check_training(TrainingSettings())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mixing": "softpull"}, "one model of all sites where steps are normalised; choose mixing: shared"),
        ({"stays_home": "everything"}, "one model of all sites"),
        ({"extra_rounds": 2}, "extra_rounds must be 0 where steps are normalised, for all sites at once, not 2"),
        ({"parts": ["fedopt", "fednova"]}, "parts must begin with normalised steps, .* not with server_optimizer"),
    ],
)
def test_what_does_not_go_together_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        find_recipe("fednova", "paper", changes)


def test_a_server_optimiser_may_follow():
    assert [part.section for part in find_recipe("fednova", "paper", {"parts": ["fednova", "fedopt"]}).parts] == [
        "normalized_steps",
        "server_optimizer",
    ]
