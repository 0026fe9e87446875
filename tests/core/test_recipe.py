import pytest

from silofl.core.presets import find_recipe


def test_a_recipe_answers_five_questions_with_its_constants():
    questions = find_recipe("fedsm", "recommended", {"softpull": {"self_weight": 0.6}}).as_dict()["questions"]
    assert len(questions) == 5 and "lambda = 0.6" in questions["Who listens to whom?"]
    assert "The global model beside it" in questions["Who listens to whom?"]
    assert find_recipe("local", "paper", {}).questions()["Who listens to whom?"] == "Nobody: no weights leave a site."


def told(algorithm="fedavg", **changes):
    """Return the answers to the five questions."""
    return list(find_recipe(algorithm, "recommended", changes).questions().values())


def test_the_plain_recipe_says_that_nothing_special_is_done():
    amplitude, step, home, mixing, beside = told()
    assert amplitude.startswith("Not:") and step.startswith("Plain:") and home.startswith("Nothing:")
    assert mixing == "Every site gets the same weighted mean; a site's weight is its number of training examples."
    assert beside == "Nothing."


@pytest.mark.parametrize("name", ["fednova", "feddyn", "scaffold"])
def test_where_a_part_may_take_another_mean_no_page_says_that_it_is_the_weighted_one(name):
    mixing = find_recipe(name, "paper", {}).questions()["Who listens to whom?"]
    assert mixing.startswith("Every site gets the same model; a site's weight is")


@pytest.mark.parametrize(
    ("band", "words"), [("full", "of all frequencies"), (0, "of the mean intensity alone"), (3, "up to radius 3")]
)
def test_the_band_of_amplitude_normalisation_is_told(band, words):
    assert words in told("harmofl", amplitude={"band": band})[0]


def test_a_step_is_told_with_its_constant():
    assert "alpha = 0.2" in told(step="harmofl", perturbation={"alpha": 0.2})[1]
    assert "mu = 0.3" in told("fedprox", proximal={"mu": 0.3})[1]


def test_a_server_learning_rate_is_told_when_it_changes_something():
    assert "learning rate 0.5" in told(server_lr=0.5)[3]


def test_local_training_listens_to_nobody():
    assert told("local")[2:4] == [
        "Everything: each site trains alone and sends only its scores.",
        "Nobody: no weights leave a site.",
    ]


def test_softpull_tells_lambda_and_the_global_model_beside_it():
    alone, both = told("softpull"), told("fedsm")
    assert "keeps lambda = 0.7 of itself" in alone[3] and "global model" not in alone[3]
    assert "The global model beside it is the weighted mean" in both[3]


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        ("harmofl", "The mean amplitude of each site's training images, once."),
        ("adafed", "The statistics by which sites are compared"),
        ("softpull", "Nothing."),
        ("fedavg", "Nothing."),
    ],
)
def test_what_input_and_mixing_send_beside_the_model_is_told(algorithm, words):
    assert told(algorithm)[4].startswith(words)


@pytest.mark.parametrize(
    ("learning", "words"),
    [("gradients", "takes 1 step of Adam"), ("local_steps", "local steps"), ("moments", "Adam's moments")],
)
def test_how_the_selector_learns_is_told(learning, words):
    assert words in told("fedsm", selector={"learning": learning})[4]


def test_a_head_at_home_is_told():
    assert told(stays_home="head")[2].startswith("The head, the last layer, which decides (FedPer)")


@pytest.mark.parametrize(
    ("constants", "words"),
    [
        ({}, "the BatchNorm layers' own, taken after half of the rounds of FedBN (f-AdaFed)"),
        ({"rounds": 3, "refresh_every": 5}, "taken after 3 rounds of FedBN, and anew every 5 rounds"),
        ({"rounds": 1}, "taken after 1 round of FedBN"),
        ({"source": "pretrained"}, "mean and variance of the inputs of every BatchNorm layer in a pretrained model"),
        ({"source": "pretrained", "layers": "last"}, "inputs of the last layer (d-AdaFed)"),
    ],
)
def test_adafed_tells_lambda_and_the_statistics_that_sites_are_compared_by(constants, words):
    mixing = told("adafed", statistics=constants)[3]
    assert "keeps lambda = 0.5 of itself" in mixing and words in mixing
