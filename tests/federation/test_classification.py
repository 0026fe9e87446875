"""What a site of a classification measures and sends."""

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from silofl.data.parts import Part
from silofl.federation.message import check_score
from silofl.federation.site_tests import SiteTests, numbers, validate
from silofl.models.members import Members
from silofl.settings import parse
from silofl.study import Study
from silofl.training.metrics import Score, accuracy_by_case

CPU = torch.device("cpu")
CLASSES = np.array([0, 0, 0, 1])


def make_study(**changes):
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
    images = np.random.default_rng(0).random((4, 1, 28, 28), dtype=np.float32)
    return Part(images, CLASSES, tuple("abcd"), (None,) * 4, tuple("abcd"))


def says(model, label):
    """Make a model take every image for one class."""
    with torch.no_grad():
        model.network.head.weight.zero_()
        model.network.head.bias.copy_(torch.tensor([9.0 * (number == label) for number in range(3)]))


def test_a_site_sends_its_classes_recall_and_number_of_cases_with_the_other_metrics(part):
    study = make_study()
    members = Members.build(study, (1, 28, 28))
    says(members.own, 0)
    found = validate(members, None, part, study, "east", CPU)
    # class 0 is right in 3 of 3, class 1 in 0 of 1; all images have the same probabilities
    assert found == {
        "value": 1 / 2,
        "num_cases": 4,
        "num_excluded": 0,
        "labels": {"0": 1.0, "1": 0.0},
        "also": {"accuracy": 3 / 4, "balanced_accuracy": 1 / 2, "auroc": 1 / 2},
        "label_cases": {"0": 3, "1": 1},
    }
    meta = {"metrics": {"validation": found}}
    assert check_score("east", "validation", json.loads(json.dumps(meta))) == found


class BySite(nn.Module):
    """A selector that takes an image for its own site where its first pixel is zero."""

    def forward(self, images):
        is_own = images[:, 0, 0, 0] == 0
        return torch.stack([is_own, ~is_own], dim=1).float()


def test_the_super_models_balanced_accuracy_is_that_of_the_answers_together(part):
    study = make_study(algorithm={"name": "fedsm"})
    members = Members.build(study, (1, 28, 28))
    says(members.models["personal"], 0)
    says(members.models["global"], 1)
    part.images[:2, 0, 0, 0] = 0
    selector = SimpleNamespace(model=BySite(), outputs=["east", "west"])
    found = validate(members, selector, part, study, "east", CPU)
    # the personalised model answers a and b with 0, the global one c and d with 1: 2 of 3 and 1 of 1
    assert found["labels"] == {"0": pytest.approx(2 / 3), "1": 1.0}
    assert found["value"] == pytest.approx((2 / 3 + 1) / 2) and found["also"]["accuracy"] == 3 / 4
    assert found["models"] == {"global": 1 / 2, "personal": 1 / 2}


def test_the_test_of_a_single_model_says_the_same_as_its_validation(part, tmp_path):
    study = make_study()
    members = Members.build(study, (1, 28, 28))
    tests = SiteTests(study, SimpleNamespace(test=part), tmp_path, CPU)
    assert tests.test_model(members.own, "east") == validate(members, None, part, study, "east", CPU)


def test_what_leaves_of_a_classification_names_no_case():
    score = accuracy_by_case(CLASSES, CLASSES, ("Doe^Jane", "b", "c", "d"), "accuracy", np.eye(3)[CLASSES])
    assert "Doe" not in json.dumps(numbers(score))


def test_a_segmentation_sends_nothing_of_classes():
    assert numbers(Score.of({"a": 0.5}, {1: {"a": 0.5}})).keys() == {"value", "num_cases", "num_excluded", "labels"}


ALONE = """
import sys
from pathlib import Path
from silofl.site import Site
from silofl.study import load_study
from silofl.flare.executor import SiteExecutor
from silofl.federation.ledger import Round
from silofl.federation.server import ServerRounds
from silofl.federation.site import SiteRounds

job, data, state = map(Path, sys.argv[1:])
study = load_study(job / "app" / "config" / "study.yaml")
settings = Site(data=f"{data}/{{site}}", state_dir=f"{state}/{{site}}", has_progress=False)
sites = {name: SiteRounds(name, study, settings) for name in ("ann", "bob")}
server = ServerRounds.start(study, "run", list(sites))
for number in range(1, study.rounds + 1):
    record = Round(number)
    shared = {name: sites[name].answer("statistics", task) for name, task in server.statistics_tasks().items()}
    if shared:
        server.note_statistics(record, shared, {})
    answers = {name: site.answer("train", server.train_task(name)) for name, site in sites.items()}
    server.finish_round(record, answers)
for name, site in sites.items():
    print(site.answer("test", server.evaluation_task(name, study.rounds)).meta["metrics"]["test"]["num_cases"])
print(sorted({"monai", "SimpleITK", "nibabel"} & {name.partition(".")[0] for name in sys.modules}))
"""


def test_a_whole_run_on_windows_loads_none_of_the_libraries_it_has_no_need_of(windows, write_windows_job, tmp_path):
    job = write_windows_job("adafed_activity", {"name": "adafed", "preset": "recommended"})
    command = [sys.executable, "-c", ALONE, job, windows, tmp_path / "state"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)
    assert done.stdout.split("\n")[:3] == ["26", "25", "[]"], done.stdout + done.stderr
