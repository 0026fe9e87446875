import pytest

from silofl.algorithms.recipe import PRESET_NAMES, algorithm_names, find_recipe
from silofl.errors import ConfigError


def test_every_algorithm_has_the_three_presets():
    assert {"fedavg", "fedbn", "fedprox", "harmofl", "local"} <= set(algorithm_names())
    for name in algorithm_names():
        for preset in PRESET_NAMES:
            assert find_recipe(name, preset, {})


def test_harmofls_presets_are_the_papers_the_codes_and_ours():
    paper, reference, recommended = (find_recipe("harmofl", preset, {}) for preset in PRESET_NAMES)
    assert (paper.amplitude_band, paper.amplitude_momentum, paper.perturbation) == ("full", 0.1, 0.05)
    assert (reference.amplitude_band, reference.amplitude_momentum, reference.weights) == (0, 0.0, "uniform")
    assert recommended.step == "perturbed" and recommended.has_amplitude


def test_adafeds_presets_are_the_papers_the_codes_and_ours():
    paper, reference, recommended = (find_recipe("adafed", preset, {}) for preset in PRESET_NAMES)
    assert [r.self_weight for r in (paper, reference, recommended)] == [0.5, 0.3, 0.5]
    assert [r.start_from_pretrained for r in (paper, reference, recommended)] == [True, False, False]
    assert [r.needs_pretrained for r in (paper, reference, recommended)] == [True, True, False]
    assert {(r.mixing, r.stays_home) for r in (paper, reference, recommended)} == {("adafed", "batchnorm")}


def test_the_mixing_of_adafed_goes_with_harmofls_step():
    recipe = find_recipe("adafed", "recommended", {"step": "perturbed", "perturbation": 0.1})
    assert (recipe.mixing, recipe.step, recipe.perturbation) == ("adafed", "perturbed", 0.1)


def test_a_study_may_change_any_answer():
    recipe = find_recipe("harmofl", "paper", {"stays_home": "batchnorm", "amplitude_band": 3, "perturbation": 0.5})
    assert (recipe.stays_home, recipe.amplitude_band, recipe.perturbation) == ("batchnorm", 3, 0.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("harmfl", "paper", {}), "did you mean 'harmofl'"),
        (("harmofl", "papr", {}), "did you mean 'paper'"),
        (("harmofl", "paper", {"amplitude_bnd": 0}), "did you mean 'amplitude_band'"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(arguments, message):
    with pytest.raises(ConfigError, match=message):
        find_recipe(*arguments)


@pytest.mark.parametrize(
    ("algorithm", "change"),
    [("fedavg", {"perturbation": 0.2}), ("harmofl", {"proximal": 0.1}), ("fedbn", {"amplitude_momentum": 0.5})],
)
def test_a_constant_that_would_do_nothing_is_refused(algorithm, change):
    with pytest.raises(ConfigError, match="without it, it does nothing"):
        find_recipe(algorithm, "recommended", change)


def test_fedsms_presets_differ_in_how_the_selector_learns():
    recipes = [find_recipe("fedsm", preset, {}) for preset in PRESET_NAMES]
    assert [recipe.selector for recipe in recipes] == ["local_steps", "moments", "gradients"]
    assert [recipe.selector_network for recipe in recipes] == ["vgg11", "vgg11", "light"]
    assert all(recipe.mixing == "softpull" and recipe.self_weight == 0.7 for recipe in recipes)


@pytest.mark.parametrize(
    ("algorithm", "changes", "message"),
    [
        ("fedavg", {"self_weight": 0.5}, "must go with mixing: softpull or adafed"),
        ("fedbn", {"statistics": "running"}, "must go with mixing: adafed"),
        ("adafed", {"statistics_layers": "last"}, "must go with mixing: adafed and statistics: pretrained"),
        ("adafed", {"stays_home": "nothing"}, "stays_home must be batchnorm with running statistics"),
        ("harmofl", {"start_from_pretrained": True}, "amplitude_band must be none with a pretrained model"),
        ("local", {"start_from_pretrained": True}, "must be false where every site trains alone"),
        ("fedsm", {"start_from_pretrained": True}, "must be false where a global and a personalised model"),
        ("softpull", {"selector_steps": 2}, "must go with selector: gradients"),
        ("fedavg", {"selector": "gradients"}, "selector must go with mixing: softpull"),
        ("fedsm", {"stays_home": "batchnorm"}, "stays_home must be nothing where a selector"),
        ("fedsm", {"selector_labels": "best_model"}, "extra_rounds must be at least 1"),
        ("fedsm", {"selector_labels": "best_model", "extra_rounds": 2, "threshold": 0.5}, "learns the site"),
        ("fedsm", {"extra_rounds": 2}, "extra_rounds must go with"),
    ],
)
def test_answers_that_do_not_go_together_are_refused(algorithm, changes, message):
    with pytest.raises(ConfigError, match=message):
        find_recipe(algorithm, "recommended", changes)
