import pytest

from silofl.algorithms.adafed import Similarity
from silofl.algorithms.fedprox import Proximal
from silofl.algorithms.fedsm import Selector, SoftPull, SuperModel
from silofl.algorithms.harmofl import Amplitude, Perturbation
from silofl.base.errors import ConfigError
from silofl.core.presets import algorithm_names, find_recipe
from silofl.core.recipe import PRESET_NAMES, Recipe


def test_every_algorithm_has_the_three_presets():
    assert {"fedavg", "fedbn", "fedprox", "harmofl", "local"} <= set(algorithm_names())
    for name in algorithm_names():
        for preset in PRESET_NAMES:
            assert find_recipe(name, preset, {})


def test_harmofls_presets_are_the_papers_the_codes_and_ours():
    paper, reference, recommended = (find_recipe("harmofl", preset, {}) for preset in PRESET_NAMES)
    assert (paper.input, paper.step) == (Amplitude(band="full", momentum=0.1), Perturbation(alpha=0.05))
    assert (reference.input, reference.weights) == (Amplitude(band=0, momentum=0.0), "uniform")
    assert (recommended.input, recommended.step) == (Amplitude(band=0, amplitude_factor=5.0), Perturbation())


def test_adafeds_presets_are_the_papers_the_codes_and_ours():
    paper, reference, recommended = (find_recipe("adafed", preset, {}) for preset in PRESET_NAMES)
    assert [r.mixing.self_weight for r in (paper, reference, recommended)] == [0.5, 0.3, 0.5]
    assert [r.start_from_pretrained for r in (paper, reference, recommended)] == [True, False, False]
    assert [r.needs_pretrained for r in (paper, reference, recommended)] == [True, True, False]
    assert {(r.mixing.section, r.stays) for r in (paper, reference, recommended)} == {("statistics", "batchnorm")}


def test_the_mixing_of_adafed_goes_with_harmofls_step():
    recipe = find_recipe("adafed", "recommended", {"step": "harmofl", "perturbation": {"alpha": 0.1}})
    assert (recipe.mixing, recipe.step) == (Similarity(), Perturbation(alpha=0.1))


def test_a_study_may_change_any_answer():
    changes = {"stays": "batchnorm", "amplitude": {"band": 3}, "perturbation": {"alpha": 0.5}}
    recipe = find_recipe("harmofl", "paper", changes)
    assert (recipe.stays, recipe.input.band, recipe.step.alpha) == ("batchnorm", 3, 0.5)


@pytest.mark.parametrize("algorithm", ["local", "fedavg", "fedbn", "fedprox", "finetuning"])
def test_the_baselines_may_begin_with_a_pretrained_model(algorithm):
    recipe = find_recipe(algorithm, "recommended", {"start_from_pretrained": True})
    assert recipe.needs_pretrained and recipe.start_from_pretrained


def test_a_study_may_do_without_an_answer():
    recipe = find_recipe("harmofl", "paper", {"input": "none", "step": "plain"})
    assert recipe == find_recipe("fedavg", "paper", {})
    assert find_recipe("fedsm", "paper", {"mixing": "shared", "parts": []}) == recipe


def test_an_answer_is_borrowed_by_its_algorithms_name():
    borrowed = {"mixing": "softpull", "parts": ["fedsm"], "input": "harmofl", "step": "fedprox"}
    recipe = find_recipe("fedavg", "recommended", borrowed)
    assert recipe == Recipe(
        input=Amplitude(band=0, amplitude_factor=5.0),
        step=Proximal(),
        mixing=SoftPull(),
        parts=(Selector(), SuperModel()),
    )
    assert recipe.roles == ("global", "personal")


@pytest.mark.parametrize(
    ("algorithm", "preset", "changes", "message"),
    [
        ("harmfl", "paper", {}, "did you mean 'harmofl'"),
        ("harmofl", "papr", {}, "did you mean 'paper'"),
        # what an earlier release had
        ("plan", "recommended", {}, "^Algorithm 'plan' is not in this version any more. Run jobs/survey_"),
        ("oneshot", "recommended", {}, "^Algorithm 'oneshot' is not in this version any more. Choose fedavg."),
        ("monthly_answers", "recommended", {}, "^Algorithm 'monthly_answers' is not .* run silofl monitor."),
        ("fedavg", "recommended", {"parts": ["plan"]}, "^Algorithm 'plan' is not in this version any more."),
        (
            "fedavg",
            "paper",
            {"average_last": 0.25},
            "^The key average_last of algorithm is not in this version .* Remov",
        ),
        ("harmofl", "paper", {"amplitde": {}}, "did you mean 'amplitude'"),
        ("harmofl", "paper", {"amplitude": {"bnd": 0}}, "algorithm.amplitude.bnd .*did you mean 'band'"),
        ("harmofl", "paper", {"step": "fedprx"}, "did you mean 'fedprox'"),
        ("harmofl", "paper", {"step": "fedavg"}, "must be plain or the name of an algorithm .*, not 'fedavg'$"),
        ("harmofl", "paper", {"parts": "fedsm"}, "must be a list"),
        ("harmofl", "paper", {"amplitude": 3}, "must hold constants, band, momentum, amplitude_factor, not 3"),
        ("harmofl", "paper", {"perturbation": {"alpha": 0}}, "algorithm.perturbation.alpha must be greater than 0"),
        # another algorithm's key
        ("fedavg", "recommended", {"softpull": {}}, "a key of algorithm must be one of .*, not 'softpull'"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(algorithm, preset, changes, message):
    with pytest.raises(ConfigError, match=message):
        find_recipe(algorithm, preset, changes)


def test_a_study_without_a_mean_of_rounds_is_read():
    assert find_recipe("fedavg", "paper", {"average_last": 0.0}) == find_recipe("fedavg", "paper", {})


def test_fedsms_presets_differ_in_how_the_selector_learns():
    recipes = [find_recipe("fedsm", preset, {}) for preset in PRESET_NAMES]
    selectors = [recipe.option("selector") for recipe in recipes]
    assert [selector.learning for selector in selectors] == ["local_steps", "moments", "gradients"]
    assert [selector.network for selector in selectors] == ["vgg11", "vgg11", "light"]
    assert all(recipe.mixing == SoftPull(self_weight=0.7) for recipe in recipes)
