import re
from importlib import import_module
from pathlib import Path
from typing import ClassVar

import pytest

from silofl.core.algorithm_option import AlgorithmOption, SecondModel, Traits
from silofl.core.presets import algorithm_names, find_recipe
from silofl.core.recipe import PRESET_NAMES, Recipe
from silofl.parts.part import Part


def test_what_is_frozen_is_part_of_what_stays_at_home():
    recipe = find_recipe("fedavg", "paper", {})
    stays = recipe.questions(["its state"], ["features.*", "hidden.*"])["What stays at home?"]
    assert "Each site also keeps its state. Frozen parameters neither learn nor travel: features.*, hidden.*." in stays
    assert "rozen" not in str(recipe.questions())


def test_a_recipe_answers_five_questions_with_its_constants():
    questions = find_recipe("fedsm", "recommended", {"softpull": {"self_weight": 0.6}}).as_dict()["questions"]
    assert len(questions) == 5 and "lambda = 0.6" in questions["Who listens to whom?"]
    assert "The global model" in questions["Who listens to whom?"]


def told(algorithm="fedavg", **changes):
    """Return the answers to the five questions."""
    return list(find_recipe(algorithm, "recommended", changes).questions().values())


def test_the_plain_recipe_says_that_nothing_special_is_done():
    amplitude, step, home, mixing, beside = told()
    assert amplitude.startswith("Not:") and step.startswith("Plain:") and home.startswith("Nothing:")
    assert mixing == "Every site gets the same weighted mean; a site's weight is its number of training examples."
    assert beside == "Nothing."


@pytest.mark.parametrize("name", ["fednova", "feddyn", "scaffold"])
def test_with_another_mean_no_page_says_weighted(name):
    mixing = find_recipe(name, "paper", {}).questions()["Who listens to whom?"]
    assert mixing.startswith("Every site gets the same model; a site's weight is")


class ByLoss(AlgorithmOption):
    section: ClassVar[str] = "loss"
    traits: ClassVar[Traits] = Traits(weighed_by="its loss")


def test_no_constant_of_an_algorithm_is_read_outside_its_file():
    sources = [path for path in (Path(__file__).parents[2] / "custom").rglob("*.py") if "algorithms" not in path.parts]
    reading = re.compile(r"\.option\(\"|\.constant\(|\[\"constants\"\]\[")
    assert [path.name for path in sources if reading.search(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    ("algorithm", "changes", "second_model", "roles", "sent", "is_collected"),
    [
        ("fedavg", {}, SecondModel.NONE, ("model",), ("model",), False),
        ("softpull", {}, SecondModel.NONE, ("model",), ("model",), False),
        ("finetuning", {}, SecondModel.NONE, ("model",), ("model",), False),
        ("fedsm", {}, SecondModel.PAIRED, ("global", "personal"), ("global", "personal"), False),
        ("ditto", {}, SecondModel.STAYS, ("global", "personal"), ("global",), False),
        ("perfedavg", {}, SecondModel.ADAPTED, ("model",), ("model",), False),
        ("ditto", {"parts": ["ditto", "fedsm"]}, SecondModel.STAYS, ("global", "personal"), ("global",), True),
        ("perfedavg", {"parts": ["fedsm"]}, SecondModel.ADAPTED, ("global", "personal"), ("global", "personal"), True),
        ("finetuning", {"parts": ["fedsm"]}, SecondModel.FINE_TUNED, ("global", "personal"), ("global",), True),
    ],
)
def test_the_second_model_decides_roles_and_what_travels(algorithm, changes, second_model, roles, sent, is_collected):
    recipe = find_recipe(algorithm, "recommended", changes)
    assert recipe.second_model == second_model
    assert recipe.roles == roles and recipe.traveling_roles == sent
    assert recipe.collects_personal == is_collected


@pytest.mark.parametrize("weights", ["examples", "uniform"])
def test_a_part_that_weighs_sites_says_their_weight(weights):
    mixing = Recipe(parts=(ByLoss(),), weights=weights).questions()["Who listens to whom?"]
    assert mixing.endswith("a site's weight is its loss.")


def test_every_part_that_decides_what_a_site_counts_says_so():
    recipes = [find_recipe(name, preset, {}) for name in algorithm_names() for preset in PRESET_NAMES]
    halves = {
        one: import_module(one.implementation).PART for recipe in recipes for one in recipe.parts if one.implementation
    }
    assert halves
    deciding = [one for one, half in halves.items() if half and half.weights is not Part.weights]
    assert [one.section for one in deciding if not one.traits.weighed_by] == []


@pytest.mark.parametrize(
    ("algorithm", "changes", "question", "words"),
    [
        ("harmofl", {"amplitude": {"band": "full"}}, 0, "of all frequencies"),
        ("harmofl", {"amplitude": {"band": 0}}, 0, "of the mean intensity alone"),
        ("harmofl", {"amplitude": {"band": 3}}, 0, "up to radius 3"),
        ("fedavg", {"step": "harmofl", "perturbation": {"alpha": 0.2}}, 1, "alpha = 0.2"),
        ("fedprox", {"fedprox": {"mu": 0.3}}, 1, "mu = 0.3"),
        ("local", {}, 2, "Everything: each site trains alone and sends only its scores."),
        ("local", {}, 3, "Nobody: no weights leave a site."),
        ("fedrep", {}, 1, "a round's last epoch trains the body alone, all before the head alone"),
        ("fedrep", {"fedrep": {"body_epochs": 2}}, 1, "a round's last 2 epochs train the body alone"),
        ("fedavg", {"stays": "head"}, 2, "The head, the last layer, which decides (FedPer)"),
        ("fedavg", {"server_lr": 0.5}, 3, "learning rate 0.5"),
        ("softpull", {}, 3, "keeps lambda = 0.7 of itself"),
        ("fedsm", {}, 3, "The global model is the weighted mean"),
        ("adafed", {}, 3, "the BatchNorm layers' own, taken after half of the rounds of FedBN (f-AdaFed)"),
        ("adafed", {"statistics": {"rounds": 3, "refresh_every": 5}}, 3, "after 3 rounds of FedBN, and anew every 5"),
        ("adafed", {"statistics": {"rounds": 1}}, 3, "taken after 1 round of FedBN"),
        ("adafed", {"statistics": {"source": "pretrained"}}, 3, "of every BatchNorm layer in a pretrained model"),
        ("adafed", {"statistics": {"source": "pretrained", "layers": "last"}}, 3, "of the last layer (d-AdaFed)"),
        ("adafed", {"statistics": {"rounds": 1}}, 3, "keeps lambda = 0.5 of itself"),
        ("apfl", {}, 2, "0.5 at first, then each site's own"),
        ("apfl", {"apfl": {"learning_rate": 0.0}}, 2, "for all and alw"),
        ("ditto", {"ditto": {"strength": 1.0}}, 2, "pulled towards the received one (Ditto), lambda = 1."),
        ("ditto", {}, 4, "Nothing."),
        ("pfedme", {}, 2, "which follows it (pFedMe), lambda = 15, 5 steps a batch."),
        ("fedavg", {"robust": "median"}, 3, "same model; a site's weight is 1. Of each number it takes the"),
        ("fedavg", {"robust": "clipped"}, 3, "training examples. An update that would pull the model further"),
        ("softpull", {"robust": "clipped"}, 3, "An update that would pull the model further"),
        ("fedavg", {"robust": {"rule": "clipped", "factor": 1.5}}, 3, "than 1.5 times the sites' median"),
        ("harmofl", {}, 4, "The mean amplitude of each site's training images, once."),
        ("adafed", {}, 4, "The statistics by which sites are compared"),
        ("softpull", {}, 4, "Nothing."),
        (
            "fedopt",
            {"fedopt": {"rule": "yogi", "learning_rate": 0.1}},
            4,
            "step is FedYogi's, learning rate 0.1",
        ),
        ("fedsm", {"selector": {"learning": "gradients"}}, 4, "takes 1 step of Adam"),
        ("fedsm", {"selector": {"learning": "local_steps"}}, 4, "local steps"),
        ("fedsm", {"selector": {"learning": "moments"}}, 4, "Adam's moments"),
    ],
)
def test_an_answer_is_told_with_its_constants(algorithm, changes, question, words):
    assert words in told(algorithm, **changes)[question]
    assert "global model" not in told("softpull")[3]
