"""The engine knows no paper: read from its source."""

import importlib
import re
from pathlib import Path

import pytest

import silofl
from silofl.core.algorithm_option import AlgorithmOption
from silofl.core.presets import algorithm_names, load_presets

PACKAGE = Path(silofl.__file__).parent
SOURCES = sorted((PACKAGE / "federation").glob("*.py"))
# The mean by examples, which all algorithms share; and a word of plain English.
OF_THE_ENGINE = {"fedavg", "local"}
# Files of the protocol of parts, and of plain English.
OF_THE_PROTOCOL = {"__init__", "answer", "asked_once", "load", "model", "checked_cast", "part", "task", "work"} | {
    "half_round",
    "normalization",
    "paper",
    "operating_points",
    "tensors",
}
# The schema of results.json, whose key it is; and the contrasts of images.
OF_A_FILE = {("results", "super_model"), ("numbers", "contrast")}


def option_classes():
    """Return every answer with constants that a file in algorithms/ defines."""
    files = [importlib.import_module(f"silofl.algorithms.{name}") for name in algorithm_names()]
    found = {value for file in files for value in vars(file).values() if isinstance(value, type)}
    return {one for one in found if issubclass(one, AlgorithmOption) and one is not AlgorithmOption}


def names_of_papers():
    """Return the names of algorithms, of their constants' sections, and of the parts that send something for them."""
    answers = option_classes()
    sections = {answer.section for answer in answers}
    files = {path.stem for path in PACKAGE.glob("parts/*.py")} | {
        path.stem for path in PACKAGE.glob("algorithms/*/*.py")
    }
    return sorted({*algorithm_names(), *sections, *(files - OF_THE_PROTOCOL)} - OF_THE_ENGINE)


def stem(name):
    """Return what words of one family share: perturbation and perturbed, statistics and statistical."""
    return re.sub("(ation|al|s)$", "", name)


def test_names_cover_all_algorithms_sections_and_parts():
    wanted = {"harmofl", "fedsm", "adafed", "fedprox", "amplitude", "perturbation", "softpull"}
    assert wanted | {"selector", "statistics", "super_model"} <= set(names_of_papers())
    assert all(answer.section for answer in option_classes())
    assert [load_presets(name) for name in algorithm_names()]


def test_the_engine_names_no_algorithm_no_section_and_no_part():
    found = []
    for path in SOURCES:
        lines = path.read_text(encoding="utf-8").lower().splitlines()
        names = [name for name in names_of_papers() if (path.stem, name) not in OF_A_FILE]
        found += [(path.stem, n, name) for name in names for n, line in enumerate(lines, 1) if stem(name) in line]
    assert found == []


@pytest.mark.parametrize(("name", "most"), [("server", 275), ("site", 250)])
def test_the_two_halves_of_the_engine_stay_short(name, most):
    assert len((PACKAGE / "federation" / f"{name}.py").read_text(encoding="utf-8").splitlines()) <= most


def test_everything_in_the_folder_was_read():
    assert {"server", "site", "course", "egress", "run_folder"} <= {path.stem for path in SOURCES}
