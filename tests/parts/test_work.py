"""One task at a site; what the site's own models, and the models of a selector, come to on its data."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from silofl.algorithms.fedsm import selector
from silofl.base.errors import TrainingError
from silofl.base.schema import dump_record
from silofl.base.settings import parse
from silofl.data.data_profile import Form, measure_data_profile
from silofl.data.parts import Examples
from silofl.data.site_data import SiteData
from silofl.data.targets import IGNORED
from silofl.models.names import read_arrays, traveling_names
from silofl.parts.answer import read_answer
from silofl.parts.task import Message
from silofl.parts.work import Work
from silofl.study import Study
from silofl.training.evaluation import predict, score_predictions

CPU = torch.device("cpu")
SITES = ["east", "north", "west"]
CLASSES = np.array([0, 0, 0, 1])


def classification(**changes):
    settings = {
        "name": "small",
        "task": "classification",
        "labels": {0: "normal", 1: "odd", 2: "rare"},
        "rounds": 1,
        "metric": "balanced_accuracy",
        "model": {"name": "lenet5", "normalization": "group"},
        "training": {"loss": "cross_entropy", "batch_size": 2},
        "algorithm": {"name": "fedavg"},
    }
    return parse(Study, settings | changes, "study.yaml")


@pytest.fixture
def part():
    """Four images, of which three are of class 0 and one of class 1."""
    images = np.random.default_rng(0).random((4, 1, 28, 28), dtype=np.float32)
    return Examples(images, CLASSES, tuple("abcd"), (None,) * 4, tuple("abcd"))


@pytest.fixture
def blobs():
    """Four slices of two cases with a label map each."""
    rng, cases = np.random.default_rng(0), ("a", "a", "b", "b")
    images = rng.random((4, 1, 32, 32), dtype=np.float32)
    return Examples(images, rng.integers(0, 2, (4, 32, 32), dtype=np.uint8), cases, (0, 1, 0, 1), cases)


def begin(study, part, about=None, **options):
    """Begin a task at a site whose three parts of data are alike."""
    message = Message(meta={"run": "run", "round": 1, "step": 1} | (about or {}))
    return Work("east", study, SiteData(part, part, part), message, CPU, **options)


def says(model, label):
    """Make a model take every image for one class."""
    with torch.no_grad():
        model.network.head.weight.zero_()
        model.network.head.bias.copy_(torch.tensor([9.0 * (number == label) for number in range(3)]))


class Always(nn.Module):
    """A selector that takes every image for one site."""

    def __init__(self, site):
        super().__init__()
        self.logits = torch.tensor([[9.0 * (name == site) for name in SITES]])

    def forward(self, images):
        return self.logits.expand(len(images), -1)


@pytest.fixture
def with_selector(monkeypatch):
    """Give a task a selector of a test's own, which stands for the one that was received."""

    def begin_with(study, part, model, outputs):
        monkeypatch.setattr(selector.SiteSelector, "_load_received", lambda self: (model, outputs))
        return begin(study, part, {"selector": {"outputs": outputs, "step": 0}})

    return begin_with


def test_classes_findings_and_pixels_are_counted(part, blobs):
    assert begin(classification(), part).count_classes().tolist() == [3, 1, 0]
    findings = classification(task="multilabel", metric="auroc")
    # {0, 1}, {1}, {1} and none
    assert begin(findings, replace(part, targets=np.array([3, 2, 2, 0]))).count_classes().tolist() == [1, 3, 0]
    maps = np.zeros((4, 32, 32), np.uint8)
    maps[0, 0] = 1
    maps[1, 0] = IGNORED
    masks = classification(task="segmentation", labels={1: "lesion"}, metric="dice", model={"name": "unet"})
    examples = replace(blobs, targets=maps, has_ignored=True)
    assert begin(masks, examples).count_classes().tolist() == [4 * 32 * 32 - 64, 32]


def test_a_mean_loss_is_over_all_training_data(part):
    work = begin(classification(training={"loss": "cross_entropy", "batch_size": 3}), part)
    model = work.own.train()
    # Of three images and of one, in evaluation.
    found, is_training = work.mean_loss(model), model.training
    logits = model.eval()(torch.from_numpy(part.images))
    assert is_training and found == pytest.approx(nn.functional.cross_entropy(logits, torch.from_numpy(CLASSES)).item())


# --- segmentation


def role_score(work, role):
    part = work.data.validation
    return score_predictions(predict(work.models[role], part, 2, CPU), part, work.study)


@pytest.mark.parametrize(("taken_for", "role"), [("east", "personal"), ("north", "global")])
def test_a_case_counts_with_the_chosen_model(make_study, blobs, with_selector, taken_for, role):
    study = make_study(name="fedsm", model={"normalization": "instance"})
    work = with_selector(study, blobs, Always(taken_for), SITES)
    with torch.no_grad():
        work.models["personal"].network.model[2].conv.bias += 10
    found = work.validation()
    assert found["value"] == role_score(work, role).value
    assert found["selector_accuracy"] == float(taken_for == "east")
    assert found["models"] == {name: role_score(work, name).value for name in ("global", "personal")}
    assert found["models"]["global"] != found["models"]["personal"]


# --- classification


def test_a_site_sends_its_classes_recall_and_cases(part):
    work = begin(classification(), part)
    says(work.own, 0)
    found = work.validation()
    # class 0 is right in 3 of 3, class 1 in 0 of 1; all images have the same probabilities
    assert found == {
        "value": 1 / 2,
        "num_cases": 4,
        "num_excluded": 0,
        "labels": {"0": 1.0, "1": 0.0},
        "also": {"accuracy": 3 / 4, "balanced_accuracy": 1 / 2, "auroc": 1 / 2},
        "label_cases": {"0": 3, "1": 1},
        "mean_over": "labels",
    }
    meta = {"round": 1, "metrics": {"validation": found}}
    answer = read_answer("east", {}, json.loads(json.dumps(meta)), {})
    assert dump_record(answer.numbers.metrics.validation) == found


# --- a task


def test_an_answer_holds_round_counts_and_image_size(make_study, blobs):
    answer = begin(make_study(), blobs).answer()
    assert answer.meta["round"] == 1 and answer.meta["num_examples"] == 4
    assert answer.meta["image_shape"] == [1, 32, 32] and answer.meta["metrics"].keys() == {"loss"}
    # The first round's model has no validation: nothing has been trained.
    later = begin(make_study(), blobs, {"round": 2}).answer()
    assert later.meta["metrics"].keys() == {"validation", "loss"}


def test_an_answer_says_nothing_of_few_patients_images(make_study, blobs):
    many = blobs.select_rows([0, 1, 2, 3, 0])
    many = replace(many, patients=tuple("vwxyz"))
    sent = begin(make_study(), many).answer().meta["domain"]
    assert [one["measure"] for one in sent["intensities"]] == ["mean", "contrast", "roughness"]
    few_patients = replace(many, patients=tuple("vwxyy"))
    assert "intensities" not in begin(make_study(), few_patients, min_patients=5).answer().meta["domain"]


def test_the_sizes_of_voxels_leave_from_enough_patients_alone(make_study, blobs, monkeypatch):
    monkeypatch.setattr(SiteData, "data_profile", measure_data_profile([Form("volumes", voxel_mm=(0.5, 0.5, 3.0))], []))
    sent = [begin(make_study(), blobs, min_patients=least).answer().meta["domain"] for least in (0, 1000)]
    voxels = {"least": [0.5, 0.5, 3.0], "most": [0.5, 0.5, 3.0]}
    assert sent == [{"kinds": ["volumes"], "voxels": voxels}, {"kinds": ["volumes"]}]


def test_the_losses_of_all_that_learns_leave_with_their_names(make_study, blobs, with_selector):
    training = {"measures_drift": True}
    study = make_study(name="fedsm", step="harmofl", model={"normalization": "instance"}, training=training)
    server_half = selector.PART.start(study, SITES, None)[0]
    about = {"selector": {"outputs": SITES, "step": 0}}
    work = begin(study, blobs, about)
    work.message.arrays.update({f"selector/{name}": array for name, array in server_half.parameters.items()})
    metrics = work.answer().meta["metrics"]
    assert metrics.keys() == {"loss", "drift", "loss_global", "loss_selector"}


def list_long_numbers(value, where=""):
    """Return where a number with more than 3 decimals, or 3 significant digits, stands among plain values."""
    if isinstance(value, dict | list | tuple):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return [place for key, one in items for place in list_long_numbers(one, f"{where} {key}")]
    is_long = isinstance(value, float) and round(value, 3) != value and float(f"{value:.3g}") != value
    return [where] if is_long else []


@pytest.mark.parametrize("name", ["fedavg", "fedsm", "local"])
def test_no_answer_holds_all_digits_of_a_score(play, name):
    options = {"model": {"normalization": "instance"}, "training": {"measures_drift": True}}
    game, found = play(rounds=2, baseline_comparison=True, name=name, **options), []
    game.finish(change=lambda task, site, answer: found.append((task, answer.meta)) or answer)
    assert {"train", "guard_choose" if name != "local" else "test"} < {task for task, _ in found}
    plain = [(task, {key: one for key, one in meta.items() if key != "domain"}) for task, meta in found]
    assert [place for task, meta in plain for place in list_long_numbers(meta, task)] == []


def test_an_unknown_task_is_refused(make_study, blobs):
    with pytest.raises(TrainingError, match="must be one of train, validate, test, statistics in .* not 'fly'"):
        begin(make_study(name="adafed"), blobs, task="fly").answer()


def test_the_models_begin_from_message_and_home(make_study, blobs):
    study = make_study(name="fedbn")
    work = begin(study, blobs)
    names = traveling_names(work.own, study.recipe)
    received = {f"model/{name}": array + 1 for name, array in read_arrays(work.own.state_dict(), names).items()}
    home = {f"model/{name}": value + 2 for name, value in work.own.state_dict().items()}
    other = begin(study, blobs, kept={"models": {"home": home, "optimizer": {}}})
    other.message.arrays.update(received)
    for name, value in other.own.state_dict().items():
        expected = received.get(f"model/{name}", home[f"model/{name}"])
        np.testing.assert_array_equal(value, np.asarray(expected), err_msg=name)
