import csv
import io
import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from rich.console import Console

from silofl.base.schema import dump_record, read_record
from silofl.core.gain import BETTER
from silofl.core.intervals import Estimate
from silofl.core.presets import find_recipe
from silofl.data.counts import PartCounts, SiteCounts
from silofl.federation.ledger import Round
from silofl.federation.results import Results
from silofl.inference.evaluation import ALL, MISSING, Evaluation
from silofl.inference.super_results import ThresholdTest
from silofl.training.joined import Joined
from silofl.training.site_score import SiteScore
from silofl_desk.report.run_page import write_report
from silofl_desk.report.run_records import CasePictures, RunRecords, read_run
from silofl_desk.report.unseen import UnseenTest
from tests.conftest import mark_best

RUN_ID = "small-1"
RECIPE = find_recipe("harmofl", "recommended", {}).as_dict()
SELECTOR_RECIPE = find_recipe("fedsm", "recommended", {}).as_dict()
# What stands together in a result, or not at all.
SUPER = {"models": {}, "choices": {}, "selector": {"outputs": [], "cases": {}}, "threshold": None}
SUPER |= {"threshold_without": {}}
NO_NUMBERS = {"sites": {}, "best_round": None, "model": None, "mean": None, "spread": None, "pooled": None}
VOID = {"meta", "img", "wbr", "br", "link", "source"}
LABELS = {1: "organ", 2: "lesion"}


def whole(values):
    """Return the values of a result with all that stands together with some of them."""
    if values["status"] == "FAILED":
        values = {key: value for key, value in values.items() if key not in ("run", "validation")} | NO_NUMBERS
        return score_sites(values | {"validation": {}})
    values = whole_super(SUPER | values) if SUPER.keys() & values.keys() else values
    validation = {
        site: {"num_cases": int(score["value"] is not None), "num_excluded": 0} | score
        for site, score in values["validation"].items()
    }
    return score_sites(values | {"validation": validation})


def whole_super(values):
    """Return the values of a super model's result, in which each site that tested says what its selector chose."""
    selector, tested = values["selector"], [site for site, value in values["sites"].items() if value is not None]
    chosen = {site: {"cases": selector["cases"].get(site, {})} for site in tested}
    found = {"outputs": selector["outputs"]}
    found |= {key: values[key] for key in ("threshold", "threshold_without")}
    rest = {key: value for key, value in values.items() if key not in ("selector", *found)}
    return rest | {"super_model": found, "selected": chosen}


# Key of a site's score -> the name under which a test gives it by site.
COLUMNS = {"num_cases": "cases", "num_excluded": "excluded_cases", "num_patients": "patients", "labels": "by_label"}
COLUMNS |= {"num_empty": "empty_cases", "num_false_positive": "false_positive_cases", "value_with_truth": "with_truth"}
COLUMNS |= {key: key for key in ("also", "label_cases", "areas", "surface", "extra_metrics", "withheld")}
COLUMNS |= {
    "operating_point": "operating_points_by_site",
    "models": "models",
    "choices": "choices",
    "selector": "selected",
}


def score_sites(values):
    """Return a result's values in which each site has its score, of what a test gives by site."""
    columns = {key: values.get(name) or {} for key, name in COLUMNS.items()}
    columns["areas"] = columns["areas"] or values.get("class_areas") or {}
    is_classified = {"also", "label_cases", "operating_points_by_site", "class_areas"} & {*values}
    task = "multilabel" if "areas" in values else "classification" if is_classified else "segmentation"
    rest = {key: value for key, value in values.items() if key not in (*COLUMNS.values(), "class_areas")}

    def score(site, value):
        own = {key: column[site] for key, column in columns.items() if column.get(site) is not None}
        if value is None and not own:
            return None
        own = {"num_excluded": 0} | own | {"value": value, "num_cases": own.get("num_cases") or int(value is not None)}
        if "label_cases" in own:
            own["labels"] = own.get("labels") or dict.fromkeys(own["label_cases"], 0.5)
            own["label_cases"] = {key: own["label_cases"].get(key, 0) for key in own["labels"]}
        return own if value is not None else own | {"num_cases": 0}

    return {"task": task} | rest | {"sites": {site: score(site, value) for site, value in values["sites"].items()}}


@pytest.fixture
def results():
    """Build a finished run's result of two sites."""

    def build(**changes):
        values = {
            "study": "small",
            "algorithm": "harmofl",
            "preset": "recommended",
            "recipe": RECIPE,
            "seed": 0,
            "rounds": 2,
            "metric": "dice",
            "labels": {"1": "organ"},
            "normalization": "batch",
            "split_unit": "patient",
            "version": "0.1.0",
            "status": "COMPLETE",
            "reasons": [],
            "run": RUN_ID,
            "best_round": 2,
            "model": "best validation, round 2",
            "sites": {"east": 0.5, "west": 0.75},
            "mean": 0.625,
            "spread": 0.125,
            "pooled": 0.7,
            "cases": {"east": 1, "west": 4},
            "excluded_cases": {"east": 0, "west": 2},
            "validation": {"east": {"value": 0.4}, "west": {"value": 0.6}},
        }
        return read_record(Results, whole(values | changes), "results.json")

    return build


@pytest.fixture
def printed():
    """Return what a function prints of a value."""

    def show(function, value, width=80):
        stream = io.StringIO()
        function(value, Console(file=stream, width=width))
        return stream.getvalue()

    return show


@pytest.fixture
def super_results(results):
    """Build a finished FedSM run's result: personal is the best at east, and ties with super at west."""

    def build(**changes):
        values = {
            "algorithm": "fedsm",
            "recipe": SELECTOR_RECIPE,
            "models": {
                "west": {"global": 0.7, "east": 0.1, "west": 0.75, "ensemble": 0.65, "super": 0.75},
                "east": {"global": 0.4, "east": 0.6, "west": 0.2, "ensemble": 0.55, "super": 0.5},
            },
            "choices": {"west": {"west": 4, "global": 2}, "east": {"east": 1}},
            "selector": {
                "outputs": ["east", "west"],
                "cases": {"west": {"west": 4}, "east": {"east": 1}},
            },
            "threshold": 0.9,
        }
        return results(**(values | changes))

    return build


@pytest.fixture
def record():
    """Build one record of the ledger in which two sites answered."""

    def build(number=1, validation=(0.4, 0.6), **changes):
        scores = dict(zip(("east", "west"), validation, strict=True))
        values = {
            "started_at": "2030-01-02T03:04:05+00:00",
            "asked": ["east", "west"],
            "answered": ["east", "west"],
            "weights": {site: {"east": 0.25, "west": 0.75} for site in scores},
            "examples": {"east": 10, "west": 30},
            "metrics": {site: {"loss": 1 / number, "drift": 0.1} for site in scores},
            "validation": {
                s: SiteScore(value=v, num_cases=int(v is not None), num_excluded=0) for s, v in scores.items()
            },
            "bytes_to": dict.fromkeys(scores, 1_000_000),
            "bytes_from": dict.fromkeys(scores, 500_000),
            "seconds": 2.0,
        }
        return Round(number, **(values | changes))

    return build


@pytest.fixture
def pictures():
    """Build a site's pictures: squares as truth, the same squares one pixel lower as prediction."""

    def build(cases=("a", "b", "c"), channels=1, labels=(1,), shift=0.0, size=24):
        rng = np.random.default_rng(0)
        images = rng.random((len(cases), channels, size, size)).astype(np.float32)
        truths = np.zeros((len(cases), size, size), np.uint8)
        for place, label in enumerate(labels):
            truths[:, 4 + 8 * place : 10 + 8 * place, 4:12] = label
        values = np.linspace(0.2, 0.8, len(cases))
        return CasePictures(images, images + shift, truths, np.roll(truths, 1, axis=1), values, np.array(cases))

    return build


class RunFiles:
    """A run's folder that a test fills."""

    def __init__(self, path):
        self.path = path
        path.mkdir(parents=True)

    def json(self, name, value):
        (self.path / name).write_text(json.dumps(dump_record(value)), encoding="utf-8")
        return self

    def ledger(self, *records):
        return self.json("ledger.json", mark_best(records))

    def study(self, **changes):
        values = {"name": "small", "task": "segmentation", "labels": {1: "organ"}, "rounds": 2}
        values["algorithm"] = {"name": "fedavg"}
        path = self.path / "job" / "app" / "config" / "study.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(yaml.safe_dump(values | changes), encoding="utf-8")
        return self

    def pictures(self, site, shown):
        path = self.path / "sites" / site / RUN_ID / "pictures.npz"
        path.parent.mkdir(parents=True)
        np.savez_compressed(path, **{name: array for name, array in vars(shown).items() if array is not None})
        return self


@pytest.fixture
def run(tmp_path):
    """Make a run's folder by its name."""
    return lambda name="run": RunFiles(tmp_path / name)


@pytest.fixture
def finished(run, results, record, pictures):
    """Make the folder of a finished simulation with two rounds and pictures of two cases a site."""

    def make(name="run", shown=None, **changes):
        files = run(name).json("results.json", results(**changes)).json("run.json", {}).study()
        files.ledger(record(1, (0.1, 0.2)), record(2))
        for site in ("east", "west"):
            files.pictures(site, shown or pictures(("a", "b")))
        return files.path

    return make


@pytest.fixture
def super_record(record):
    """Build one record of a FedSM run's ledger."""

    def build(number=1, accuracy=0.5, **changes):
        made = record(number, **changes)
        more = {"models": {"global": 0.3, "personal": 0.5}, "selector_accuracy": accuracy}
        made.validation = {site: replace(score, **more) for site, score in made.validation.items()}
        return made

    return build


@pytest.fixture
def finished_super(run, super_results, super_record):
    """Make the folder of a finished simulation of FedSM."""

    def make(name="run", **changes):
        files = run(name).json("results.json", super_results(**changes)).json("run.json", {})
        return files.ledger(super_record(1), super_record(2)).path

    return make


@pytest.fixture
def method(results):
    """Build a method, name -> results, by its runs' values at the sites east (1 case) and west (4 cases)."""

    def build(name, *values, **changes):
        runs = []
        for seed, (east, west) in enumerate(values):
            known = [value for value in (east, west) if value is not None]
            together = (east + 4 * west) / 5 if len(known) == 2 else known[0]
            sites = {"sites": {"east": east, "west": west}, "pooled": together, "mean": sum(known) / len(known)}
            runs.append(results(**{"recipe": {"stays": "nothing"}, "seed": seed, **sites, **changes}))
        return {name: runs}

    return build


@pytest.fixture
def fedsm(method):
    """A method with a selector: its models' values at each site beside the super model's own."""
    models = {
        "east": {"global": 0.5, "east": 0.75, "west": 0.25, "ensemble": 0.625, "super": 0.75},
        "west": {"global": 0.25, "east": 0.0, "west": 0.5, "ensemble": 0.375, "super": 0.5},
    }
    return method("fedsm", (0.75, 0.5), models=models, threshold=0.9)


@pytest.fixture
def classes(results):
    """Build a classification's result; the site east has no AUROC."""

    def build(**changes):
        also = {
            "east": {"accuracy": 0.5, "balanced_accuracy": 0.25},
            "west": {"accuracy": 0.75, "balanced_accuracy": 0.75, "auroc": 0.875},
        }
        return results(**{"metric": "accuracy", "also": also, **changes})

    return build


@pytest.fixture
def findings(classes):
    """Build a result of two findings by AUROC; the site west has no case with a nodule."""

    def build(**changes):
        recalls = {"effusion": 0.5, "no effusion": 0.75, "no nodule": 1.0}
        by_label = {"east": {**recalls, "nodule": 0.25}, "west": recalls}
        cases = {"effusion": 2, "no effusion": 4, "no nodule": 6}
        cases = {"east": {**cases, "nodule": 4, "no nodule": 2}, "west": cases}
        areas = {"east": {"effusion": 0.875, "nodule": 0.625}, "west": {"effusion": 1.0}}
        labels = {"0": "effusion", "1": "nodule"}
        tested = {"by_label": by_label, "label_cases": cases, "areas": areas}
        return classes(**{"metric": "auroc", "labels": labels, **tested, **changes})

    return build


def evaluate_plainly(value, num_cases, num_excluded=0):
    """Return the evaluation of a segmentation by Dice alone."""
    organ = dict.fromkeys(("lesion_sensitivity", "false_lesions", "size_error", "hd95", "surface_dice"), MISSING)
    scores = {ALL: {"dice": Estimate(value, None, num_cases)}, "organ": {"dice": MISSING, **organ}}
    facts = dict.fromkeys(("fingerprint", "study", "rule", "quality"), "")
    facts |= {"task": "segmentation", "metric": "dice", "parts": ("test",), "unit": "case", "num_units": num_cases}
    facts |= {"num_refused": 0, "answers": {}, "warnings": {}, "versions": {}, "lesions": {"organ": 0}}
    facts |= {"distance_unit": "mm", "size_unit": "ml"}
    return Evaluation(**facts, scores=scores, num_cases=num_cases, num_excluded=num_excluded)


@pytest.fixture
def unseen():
    """Build the test of a super model with a selector at a site of four cases that was left out."""
    candidates = ((0.0, 0.5, 4, 0), (0.9, 0.6, 1, 3), (1.0, 0.625, 0, 4))
    tests = [ThresholdTest(gamma, value, {"global": other, "north": own}) for gamma, value, own, other in candidates]

    def build(value=0.6, num_cases=4, num_excluded=0, **changes):
        evaluation = evaluate_plainly(value, num_cases, num_excluded)
        values = {"site": "coast", "digest": "d", "rule": "choice", "evaluation": evaluation}
        values |= {"models": {"global": 0.55, "north": 0.5, "ensemble": 0.575}, "choices": tests[1].choices}
        values |= {"threshold": 0.9, "by_threshold": tuple(tests)}
        return UnseenTest(**values | changes)

    return build


@pytest.fixture
def unseen_plain(unseen):
    """Build the test of a super model without selector at a site of four cases that was left out."""
    nothing = {"choices": None, "threshold": None, "by_threshold": ()}
    return lambda **changes: unseen(**{"rule": "only", "models": {"global": 0.6}, **nothing, **changes})


@pytest.fixture
def made(run, results, record):
    """Make a run of the sites east and west: its result, and a study with changes where it has one."""
    names = iter(range(100))

    def build(study=None, **changes):
        files = run(f"run-{next(names)}").json("results.json", results(**changes)).ledger(record(1))
        return read_run((files if study is None else files.study(**study)).path)

    return build


def counts(training, validation, test, patients=None, digest="0123456789"):
    return SiteCounts(*(PartCounts(cases, patients, 10 * cases) for cases in (training, validation, test)), digest)


def with_data(run: RunRecords, **data):
    return replace(run, data=data)


@pytest.fixture
def measured(run, results, record):
    """Make a run's folder by the drift of its rounds."""

    def make(name, *drifts, **changes):
        files = run(name).json("results.json", results(**changes)).json("run.json", {}).study()
        rounds = []
        for number, drift in enumerate(drifts, start=1):
            metrics = {site: {"loss": 0.5, "drift": drift} for site in ("east", "west")}
            rounds.append(record(number, metrics=metrics, dissimilarity=2.0))
        return files.ledger(*rounds).path

    return make


def rows_of(path):
    return list(csv.reader(path.open(newline="")))


@pytest.fixture
def chosen_run(results):
    """Build the records of a run from its sites' choices."""

    def build(unseen=None, ledger=(), changes=None, **by_site):
        values = {"joining": {site: dump_record(one) for site, one in by_site.items()}}
        values |= {"sites": {site: one.test["federated"] for site, one in by_site.items()}}
        values |= {"validation": {site: {"value": 0.5} for site in by_site}}
        found = results(**values | (changes or {}))
        fields = {"site": "coast", "digest": "d", "rule": "mean", "models": {}}
        tested = None if unseen is None else UnseenTest(evaluation=evaluate_plainly(unseen, 3), **fields)
        return RunRecords(Path("run"), found, list(ledger), {}, {}, unseen=tested)

    return build


def joined(chosen="federated", local=0.7, federated=0.8, kept=0.85, verdict=BETTER, **changes):
    has_interval = verdict not in ("too few to say", "keeps its own model")
    values = {
        "chosen": chosen,
        "bias": 0.0,
        "local_bias": 0.0,
        "lead": 0.0,
        "unit": "patient",
        "num_units": 9,
        "is_one_person": False,
        "validation": {"federated": federated, "federated_calibrated": federated, "local": local, "chosen": kept},
        "test": {"federated": federated, "federated_calibrated": federated, "local": local, "chosen": kept},
        "difference": round(kept - local, 3),
        "standard_error": 0.05,
        "low": 0.01 if has_interval else None,
        "high": 0.2 if has_interval else None,
        "p_below": None,
        "num_test_units": 25,
        "verdict": verdict,
        "local_rounds": 30,
        "local_best_round": 20,
    }
    return Joined(**values | changes)


@pytest.fixture
def joining(results):
    """Build a result whose sites have made a choice."""

    def build(sites=None, **by_site):
        values = {"joining": {site: dump_record(one) for site, one in by_site.items()}}
        return results(**values | ({"sites": sites} if sites else {}))

    return build


class PageText(HTMLParser):
    """Reads a page: its words, its images, and whether every tag is closed."""

    def __init__(self, path):
        super().__init__()
        self.open, self.words, self.images, self.addresses = [], [], [], []
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        self.close()
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "img":
            self.images.append(attributes)
        self.addresses += [attributes[name] for name in ("src", "srcset", "href") if name in attributes]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.words.append(data)


def shown_colours(png, colours):
    """Whether a picture holds each of some colours, given as #rrggbb."""
    found = {pixel for _, pixel in Image.open(io.BytesIO(png)).convert("RGB").getcolors(2**20)}
    return [tuple(bytes.fromhex(colour[1:])) in found for colour in colours]


def report(folder):
    return PageText(write_report(folder))
