"""Sites with a few tiny random images, and a server to play rounds with: no network, no NVFlare."""

import json

import numpy as np
import pytest
from PIL import Image

from silofl.federation.ledger import Round
from silofl.federation.server import ServerRounds
from silofl.federation.site import SiteRounds
from silofl.federation.super_rounds import SuperRounds
from silofl.settings import parse
from silofl.site import Site
from silofl.study import Study


@pytest.fixture
def make_study():
    def make(rounds=3, seed=0, model=None, **algorithm):
        return parse(
            Study,
            {
                "name": "small",
                "task": "segmentation",
                "labels": {1: "blob"},
                "rounds": rounds,
                "seed": seed,
                "device": "cpu",
                "data": {"augment": [{"RandFlip": {"prob": 0.5, "spatial_axis": 0}}]},
                "model": {"features": [4, 4, 4, 4, 4, 4], "normalization": "batch", **(model or {})},
                "training": {"batch_size": 2, "learning_rate": 0.01},
                "algorithm": {"name": "fedavg", **algorithm},
            },
            "study.yaml",
        )

    return make


def write_site(folder, seed, counts):
    rng = np.random.default_rng(seed)
    (folder).mkdir(parents=True)
    content = {"task": "segmentation", "labels": {"1": "blob"}}
    for part, count in counts.items():
        content[part] = []
        for i in range(count):
            truth = np.zeros((32, 32), np.uint8)
            row, column = rng.integers(2, 18, 2)
            truth[row : row + 12, column : column + 12] = 1
            image = np.clip(rng.normal(60 + 20 * seed, 10, (32, 32)) + 90 * truth, 0, 255).astype(np.uint8)
            name = f"{part}{i}"
            Image.fromarray(image).save(folder / f"{name}.png")
            Image.fromarray(truth).save(folder / f"{name}_mask.png")
            content[part].append({"image": f"{name}.png", "label": f"{name}_mask.png", "patient": name})
    (folder / "dataset.json").write_text(json.dumps(content))


@pytest.fixture(scope="session")
def site_data(tmp_path_factory):
    root = tmp_path_factory.mktemp("sites")
    for seed, (name, training) in enumerate({"east": 5, "north": 4, "west": 3}.items()):
        write_site(root / name, seed, {"training": training, "validation": 2, "test": 2})
    return root


class Play:
    """A whole run in this process, round by round."""

    def __init__(self, study, data, folder, sites, pretrained=None, min_examples=1):
        self.study = study
        settings = Site(
            data=f"{data}/{{site}}",
            state_dir=f"{folder}/{{site}}",
            cache_dir=f"{data}/.cache",
            has_progress=False,
            min_examples=min_examples,
        )
        self.sites = {name: SiteRounds(name, study, settings) for name in sites}
        self.server = ServerRounds.start(study, "run", list(sites), pretrained)
        self.answers = {}

    def round(self, absent=(), change=lambda site, answer: answer):
        record = Round(self.server.finished_rounds + 1, asked=sorted(self.sites))
        present = [name for name in self.sites if name not in absent]
        self.share_statistics(record, present)
        sent = {name: self.server.train_task(name) for name in present}
        self.answers = {name: change(name, self.sites[name].answer("train", sent[name])) for name in present}
        for name in present:
            self.server.accept(name, sent[name], self.answers[name])
        self.server.finish_round(record, self.answers)
        return record

    def share_statistics(self, record, present):
        tasks = self.server.statistics_tasks()
        if tasks:
            answers = {name: self.sites[name].answer("statistics", tasks[name]) for name in present if name in tasks}
            failed = {name: answer.meta["error"] for name, answer in answers.items() if "error" in answer.meta}
            given = {name: answer for name, answer in answers.items() if name not in failed}
            self.server.note_statistics(record, given, failed)

    def evaluate(self, task, number):
        return {n: s.answer(task, self.server.evaluation_task(n, number)) for n, s in self.sites.items()}

    def selector_step(self, step):
        sent = {name: self.server.selector_task(name, step) for name in self.sites}
        answers = {name: site.answer("selector", sent[name]) for name, site in self.sites.items()}
        for name in self.sites:
            self.server.accept_selector(name, sent[name], answers[name])
        self.server.step_selector(answers)
        return answers

    def together(self):
        """Carry out the end of a run with a selector; returns the super model's rounds and the sites' tests."""
        end = SuperRounds(self.server)
        learns_later = self.study.recipe.learns_best_model
        answers = {n: s.answer("assemble", end.task(n, has_selector=not learns_later)) for n, s in self.sites.items()}
        end.note_assembled(answers)
        for number in range(self.server.finished_rounds + 1, self.study.total_rounds + 1):
            record = Round(number, asked=sorted(self.sites))
            self.server.finish_selector_round(record, self.selector_step(1))
        tests = {n: s.answer("test_super_model", end.task(n)) for n, s in self.sites.items()}
        return end, {name: answer.meta["metrics"]["test"] for name, answer in tests.items()}

    def all_rounds(self):
        while self.server.finished_rounds < self.study.training_rounds:
            self.round()
        answers = self.evaluate("validate", self.server.finished_rounds)
        self.server.note_validation({name: a.meta["metrics"]["validation"] for name, a in answers.items()})
        return self


@pytest.fixture
def play(tmp_path, site_data, make_study):
    def start(sites=("east", "north", "west"), folder="state", study=None, pretrained=None, min_examples=1, **options):
        return Play(study or make_study(**options), site_data, tmp_path / folder, sites, pretrained, min_examples)

    return start
