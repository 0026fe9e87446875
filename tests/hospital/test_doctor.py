"""What a report of a fault says of a machine and a study, and that it names nobody."""

import os
import sys
from importlib.metadata import version

import pytest
import yaml

from silofl import __version__
from silofl.cli import main
from silofl.command import WHEELS
from silofl.study import load_study
from silofl_hospital.site import doctor

NAMES = {"gliomas_of_ann", "tumour_of_ann", "contrast_of_ann", "north_of_ann"}


@pytest.fixture
def folder(tmp_path):
    """A study in which everything that a user may name is named after somebody."""
    study = {
        "name": "gliomas_of_ann",
        "task": "classification",
        "metric": "accuracy",
        "labels": {0: "healthy_of_ann", 1: "tumour_of_ann"},
        "rounds": 4,
        "data": {"channels": 1, "channel_names": ["contrast_of_ann"]},
        "model": {"name": "densenet121", "normalization": "group", "weights": "by_ann.pt", "weights_sha256": "a" * 64},
        "training": {
            "loss": "cross_entropy",
            "betas": [0.8, 0.99],
            "class_weights": {"healthy_of_ann": 1, "tumour_of_ann": 2},
        },
        "algorithm": {"name": "fedprox", "proximal": {"mu": 0.5}},
        "federation": {"sites": ["north_of_ann", "south_of_ann"]},
    }
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    return tmp_path


def read_facts(capsys, *arguments):
    assert main(["doctor", *map(str, arguments)]) == 0
    text = capsys.readouterr().out
    return dict(line.split(maxsplit=1) for line in text.splitlines()), text


def test_a_report_names_versions_and_machine(capsys):
    facts, _ = read_facts(capsys)
    assert facts["silofl"].startswith(f"{__version__}, files ")
    assert all(facts[wheel] == version(wheel) for wheel in WHEELS)
    assert (facts["torch"], facts["NVFlare"], facts["MONAI"]) == (version("torch"), "2.9.0", version("monai"))
    assert facts["Python"] == sys.version.split()[0] and facts["cores"] == str(os.cpu_count())
    assert facts["memory"].endswith(" GiB free") and facts["disk"].endswith(" GiB free here") and facts["GPU"]


def test_a_report_says_what_a_study_sets_and_no_name(folder, capsys):
    facts, text = read_facts(capsys, "--study", folder / "study.yaml")
    assert facts["study"] == load_study(folder / "study.yaml").digest[:12]
    assert (facts["task"], facts["rounds"], facts["labels"], facts["name"]) == (
        "classification",
        "4",
        "2 given",
        "given",
    )
    assert (facts["model.normalization"], facts["training.betas"]) == ("group", "(0.8, 0.99)")
    assert (facts["algorithm.name"], facts["algorithm.proximal.mu"]) == ("fedprox", "0.5")
    written = (folder / "study.yaml").read_text()
    assert all(name in written for name in NAMES) and "_ann" not in text and str(folder) not in text
    # What is left at its default is not repeated.
    assert "seed" not in facts


def test_a_report_says_so_where_torch_cannot_be_loaded(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert doctor.list_machine_facts()["GPU"] == "unknown, as torch cannot be loaded: ModuleNotFoundError"
