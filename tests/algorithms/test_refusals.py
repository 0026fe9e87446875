"""What each algorithm refuses of a study: answers that do not go together, and training that its formulas do not have.

What FedDyn refuses stands in its own file, which is the example of docs/new-algorithm.md.
"""

import pytest

from silofl.base.errors import ConfigError

from ..conftest import UNET

PLAIN = {"optimizer": "sgd", "momentum": 0.0}
MOMENTUM = {"optimizer": "sgd", "momentum": 0.9}
COMPARED = {"source": "pretrained"}
WEIGHTS = {"normalization": "batch", "weights": "w.pt", "weights_sha256": "0" * 64}
CONTROL = {"scaffold": {"has_momentum": True}}


def layers_of(normalization, **statistics):
    return {"model": {"normalization": normalization}, "statistics": statistics}


def selected(labels, **more):
    return {"selector": {"labels": labels}, "extra_rounds": 2, **more}


def choose(**super_model):
    return {"super_model": super_model}


REFUSED = {
    "adafed": [
        ({"statistics": {"layers": "last"}}, "layers does nothing without statistics.source: pretrained"),
        ({"statistics": {"source": "pretrained", "rounds": 2}}, "does nothing without statistics.source: running"),
        (
            {"statistics": COMPARED, "input": "harmofl"},
            "input changes them; leave input out, or choose statistics.source: running",
        ),
        ({"statistics": COMPARED, "model": WEIGHTS}, "model.weights has no effect .*statistics.source: running"),
        (layers_of("batch_stateless"), "model.normalization must be batch .*, not batch_stateless; choose"),
        (layers_of("batch_home"), "model.normalization must be batch .*, not batch_home; choose"),
        (layers_of("instance", source="pretrained"), "model.normalization must be batch .*, not instance; choose"),
        ({"stays": "nothing"}, "stays must be batchnorm with running statistics"),
        ({"stays": "everything"}, "with stays: everything nothing travels"),
    ],
    "apfl": [
        ({"parts": ["ditto", "apfl"]}, "parts must hold one algorithm with a personal model"),
        ({"training": {"optimizer": "adam"}}, "training.optimizer must be sgd with apfl, not 'adam'"),
        ({"training": MOMENTUM}, "training.momentum must be 0 with apfl, not 0.9"),
    ],
    "ditto": [
        ({"mixing": "softpull"}, "a personal model stays at home and is mixed with none"),
        ({"stays": "batchnorm"}, "stays must be nothing with a personal model, which is whole, not 'batchn"),
        ({"step": "fedprox"}, "a personal model steps by its own rule"),
        ({"input": "harmofl"}, "a personal model steps by its own rule"),
        ({"extra_rounds": 2}, "extra_rounds must be 0 with a personal model, not 2"),
        ({"parts": ["scaffold", "ditto"]}, "one model of all sites; choose mixing: shared and no personal model"),
        ({"ditto": {"strength": -1}}, "ditto.strength must be greater than or equal to 0"),
    ],
    "fedavg": [({"parts": ["fedsm"]}, "a selector chooses among sites' models")],
    "fednova": [
        ({"mixing": "softpull"}, "fednova needs one model of all sites; choose mixing: shared"),
        ({"stays": "everything"}, "one model of all sites"),
        ({"extra_rounds": 2}, "extra_rounds must be 0 with fednova, not 2"),
        ({"parts": ["fedopt", "fednova"]}, "parts must begin with normalised steps, .* not with fedopt"),
        ({}, "training.optimizer must be sgd with fednova, not 'adam'"),
    ],
    "fedopt": [
        ({"server_lr": 0.5}, "server_lr must be 1 with fedopt.learning_rate"),
        ({"mixing": "softpull"}, "one model of all sites"),
        ({"stays": "everything"}, "one model of all sites"),
        ({"extra_rounds": 2}, "extra_rounds must be 0 with a server optimiser, .*, not 2; leave it out"),
        ({"fedopt": {"momentum": 0.5}}, "momentum does nothing without fedopt.rule: momentum"),
        ({"fedopt": {"rule": "momentum", "beta2": 0.5}}, "beta2 does nothing without fedopt.rule: adam"),
        ({"fedopt": {"rule": "yog"}}, "did you mean 'yogi'"),
    ],
    "fedrep": [
        ({"parts": ["scaffold"]}, "scaffold counts all steps"),
        ({"parts": ["fednova"]}, "fednova counts all steps"),
        *[({"stays": h}, f"stays must be head where sites train it .* not {h}") for h in ("nothing", "everything")],
        *[
            (
                {"fedrep": {"body_epochs": 2}, "training": {"local_epochs": epochs}},
                f"training.local_epochs must be above fedrep.body_epochs, 2, .* not {epochs}",
            )
            for epochs in (1, 2)
        ],
    ],
    "fedsm": [
        (
            {"model": {"normalization": "batch_home"}},
            "must be batch, group or instance with fedsm, .* stay at a hospital",
        ),
        ({"start_from_pretrained": True}, "cannot both start from the pretrained one"),
        ({"selector": {"learning": "moments", "steps": 2}}, "does nothing without selector.learning: gradients"),
        ({"stays": "batchnorm"}, "stays must be nothing where a selector"),
        ({"selector": {"labels": "best_model"}}, "extra_rounds must be at least 1"),
        (selected("ensemble"), "super_model.answer must be ensemble where the selector learns from"),
        (selected("best_model", super_model={"threshold": 0.5}), "learns the site"),
        (choose(answer="ensemble", threshold=0.5), "does nothing without super_model.answer: choice"),
        ({"extra_rounds": 2}, "extra_rounds has no use with"),
    ],
    "harmofl": [
        ({"start_from_pretrained": True}, "the pretrained model has seen images as they are"),
        (
            {"perturbation": {"follows_rate": True}, "training": {"schedule": "constant"}},
            "perturbation.follows_rate has no effect with a constant training.schedule",
        ),
        *[
            ({"amplitude": {"amplitude_factor": factor}}, "amplitude.amplitude_factor must be")
            for factor in (1, -1, True)
        ],
    ],
    "moon": [
        ({"mixing": "softpull"}, "must go with|one model of all sites"),
        ({"stays": "everything"}, "must go with|one model of all sites"),
        ({"parts": ["fedsm"]}, "must go with|one model of all sites"),
        ({"preset": "paper", "network": UNET}, "unet has no vector .*projection_head 256; set it to 0"),
    ],
    "perfedavg": [
        ({"stays": "everything"}, "a meta-step needs one model of all sites"),
        ({"mixing": "softpull"}, "a meta-step needs one model of all sites"),
        ({"extra_rounds": 2}, "extra_rounds must be 0 with meta-steps, not 2; raise perfedavg.deployed_steps"),
        ({"parts": ["scaffold"]}, "scaffold counts a step for every batch"),
        ({"parts": ["fednova"]}, "fednova counts a step for every batch"),
        ({"perfedavg": {"delta": 0.01}}, "perfedavg.delta does nothing without perfedavg.variant: hf"),
        ({"perfedavg": {"variant": "hf", "delta": 1e-5}}, "perfedavg.delta must be greater than or equal to 0.0001"),
        ({"perfedavg": {"alpha": 0.0}}, "perfedavg.alpha must be greater than 0"),
        ({"perfedavg": {"variant": "exact"}}, "perfedavg.variant must be 'fo' or 'hf', not 'exact'"),
        ({"perfedavg": {"deployed_steps": 0}}, "perfedavg.deployed_steps must be greater than 0"),
    ],
    "pfedme": [
        (
            {"pfedme": {"strength": 20.0, "inner_learning_rate": 0.1}},
            "pfedme.inner_learning_rate must be below 2 / strength, 0.1, not 0.1",
        ),
        ({"stays": "head"}, "stays must be nothing with a personal model"),
        ({"training": {"optimizer": "adam"}}, "training.optimizer must be sgd with pfedme, not 'adam'"),
        ({"training": MOMENTUM}, "training.momentum must be 0 with pfedme, not 0.9"),
        (
            {"training": PLAIN | {"learning_rate": 0.1}},
            "training.learning_rate must be at most 1 / algorithm.pfedme.strength, 0.0666667, not 0.1",
        ),
    ],
    "scaffold": [
        ({"mixing": "softpull"}, "one model of all sites"),
        ({"stays": "everything"}, "one model of all sites"),
        ({"extra_rounds": 3}, "extra_rounds must be 0 with scaffold, not 3; leave it out"),
        ({"training": {"optimizer": "adam"}}, "training.optimizer must be sgd with scaffold, not 'adam'"),
        (CONTROL | {"training": {"optimizer": "adamw"}}, "must be sgd with scaffold, not 'adamw'"),
        ({"training": MOMENTUM}, "training.momentum must be 0 with scaffold, not 0.9"),
    ],
}


@pytest.mark.parametrize(
    ("algorithm", "changes", "message"), [(name, *row) for name, rows in REFUSED.items() for row in rows], ids=str
)
def test_what_does_not_go_together_is_refused(make_study, algorithm, changes, message):
    with pytest.raises(ConfigError, match=message):
        make_study(name=algorithm, **changes)


@pytest.mark.parametrize(
    ("algorithm", "changes"),
    [
        ("adafed", layers_of("batch_stateless", source="pretrained")),
        ("adafed", layers_of("group", source="pretrained", layers="last")),
        ("scaffold", CONTROL | {"training": MOMENTUM}),
        ("harmofl", {"perturbation": {"follows_rate": True}, "training": {"schedule": "poly"}}),
    ],
    ids=str,
)
def test_what_goes_together_is_not(make_study, algorithm, changes):
    make_study(name=algorithm, **changes)
