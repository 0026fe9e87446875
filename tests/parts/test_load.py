import importlib

import pytest

from silofl.base.errors import ConfigError
from silofl.parts.load import find_outbound_payload, list_outbound_payloads, start_parts
from silofl.parts.work import Work

from ..conftest import assert_alike

INSTANCE = {"normalization": "instance"}
ROLES = {
    "fedavg": ["model", "usual"],
    "softpull": ["model", "softpull", "usual"],
    "local": ["model", "usual", "guard"],
    "harmofl": ["model", "amplitude", "usual"],
    "adafed": ["model", "statistics", "usual"],
}


@pytest.mark.parametrize("name", ROLES)
def test_a_study_has_the_models_and_its_recipes_parts(make_study, name):
    assert list(start_parts(make_study(name=name), ["a", "b"], None)) == ROLES[name]


def test_the_models_come_first(make_study):
    study = make_study(name="fedsm", input="harmofl", model=INSTANCE)
    found = start_parts(study, ["a", "b"], None)
    assert list(found) == ["global", "personal", "amplitude", "softpull", "selector", "super_model", "usual"]
    assert all(part.role == role for role, part in found.items())
    assert_alike(found["global"].common, found["personal"].common)


def test_site_parts_are_those_of_the_same_files(make_study):
    study = make_study(name="fedsm", input="harmofl", model=INSTANCE)
    names = [half.name for half in Work("a", study, None, None, None).parts if half.name]
    assert names == ["models", "amplitude", "selector", "super_model"]


def test_an_array_is_of_the_kind_that_holds_it(make_study):
    sent = list_outbound_payloads(make_study(name="harmofl"))
    assert find_outbound_payload(sent, "amplitude", "mean").name == "amplitude"
    assert find_outbound_payload(sent, "model", "network.model.2.conv.weight").name == "weights"
    assert find_outbound_payload(sent, "selector", "network.model.2.conv.weight") is None
    assert len({(kind.role, kind.name) for kind in sent}) == len(sent)


# --- files that are broken, or half written


def test_a_broken_file_disturbs_no_other_study(make_study, monkeypatch):
    load = importlib.import_module

    def load_all_but_one(name):
        if name == "silofl.algorithms.fedprox":
            raise SyntaxError("half a line")
        return load(name)

    monkeypatch.setattr(importlib, "import_module", load_all_but_one)
    make_study(name="fedavg")
    with pytest.raises(ConfigError, match=r"algorithms/fedprox cannot be loaded \(SyntaxError: half a line\)"):
        make_study(name="fedprox")


def test_a_part_that_is_not_there_is_named_too(make_study, monkeypatch):
    study = make_study(name="adafed")
    monkeypatch.setattr(type(study.recipe.mixing), "implementation", "silofl.algorithms.not_written_yet")
    with pytest.raises(ConfigError, match=r"algorithms/not_written_yet.py cannot be loaded \(ModuleNotFoundError"):
        start_parts(study, ["a", "b"], None)
