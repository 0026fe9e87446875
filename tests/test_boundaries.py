"""The rules of the layout, read from the source itself."""

import ast
import importlib
import json
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CUSTOM = ROOT / "custom"
# Wheel -> what its rooms and files begin with here.
WHEELS = {"silofl": "", "silofl_hospital": "hospital/", "silofl_desk": "desk/", "silofl_clinic": "clinic/"}
SOURCES = sorted(path for wheel in WHEELS for path in (CUSTOM / wheel).rglob("*.py"))
# What NVFlare builds for a job, what a study names, and the readers of files, which are looked up by their ending.
REACHED = ("silofl.flare.", "silofl.algorithms.", "silofl.parts.", "silofl.reading.")
STARTED_BY_HAND = {
    "silofl.__main__",
    "silofl.base.options",
    "silofl.command_line",
    "silofl.command_line.cli",
    "silofl.command_line.command",
    "silofl.parent",
}
# Names that other wheels hand on.
PUBLIC = {"silofl.recipes"}
CONFIGURATIONS = sorted((ROOT / "jobs").glob("*/app/config/config_fed_*.json"))
# Room or file of a wheel -> what it may import besides itself; those of other wheels begin with their name.
BELOW = {"base": set(), "parent": set()}
for _room, _below in (
    ("command_line", ("base",)),
    ("core", ("base",)),
    ("setup", ("base",)),
    # It knows no study.
    ("reading", ("core", "parent")),
    ("study", ("core", "setup")),
    ("models", ("study",)),
    ("data", ("study", "reading", "command_line")),
    ("training", ("data", "models")),
    ("inference", ("training", "command_line")),
    ("parts", ("inference",)),
    ("algorithms", ("parts",)),
    # Not the algorithms: the engine asks the parts that a study names, and knows none.
    ("federation", ("parts",)),
    ("flare", ("federation",)),
    ("__main__", ("command_line", "parent")),
    ("hospital/report", ("federation",)),
    ("hospital/inference", ("flare", "hospital/report")),
    ("hospital/importing", ("data",)),
    ("hospital/site", ("hospital/inference", "hospital/importing")),
    ("hospital/command_line", ("federation", "hospital/importing")),
    ("desk/options", ("base",)),
    ("desk/phantoms", ("data",)),
    ("desk/inference", ("hospital/inference",)),
    ("desk/flare", ("flare",)),
    ("desk/report", ("hospital/report",)),
    ("desk/studies", ("hospital/site", "algorithms", "desk/options", "desk/phantoms", "desk/flare", "desk/report")),
    ("desk/command_line", ("hospital/command_line", "desk/studies")),
    ("desk/recipes", ("desk/studies",)),
    ("clinic/monitor", ("hospital/inference",)),
    ("clinic/settings", ("base",)),
    ("clinic/pseudonyms", ("reading",)),
    ("clinic/exams", ("clinic/pseudonyms", "clinic/settings")),
    ("clinic/acceptor", ()),
    ("clinic/receiver", ("clinic/acceptor", "clinic/exams")),
    ("clinic/receive", ("clinic/receiver",)),
    ("clinic/archive", ("clinic/receiver",)),
    ("clinic/fetch", ("clinic/archive",)),
    ("clinic/report", ("hospital/inference",)),
    ("clinic/series_rules", ("clinic/settings", "reading")),
    ("clinic/serve", ("clinic/archive", "clinic/receive", "clinic/report", "clinic/series_rules")),
    ("clinic/command_line", ("hospital/command_line",)),
    ("recipes", ("command_line",)),
):
    BELOW[_room] = {*_below}.union(*(BELOW[name] for name in _below))


def name_of(path):
    return str(path.relative_to(CUSTOM))


def module_of(path):
    parts = path.relative_to(CUSTOM).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(tree, module, is_package=False):
    """Return the full names of all that a module imports, anywhere in it, in any form."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            names |= {origin, *(f"{origin}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Call) and _is_import_call(node):
            names.add(str(node.args[0].value))
    return names


def _is_import_call(node):
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    is_text = bool(node.args) and isinstance(node.args[0], ast.Constant)
    return called in ("import_module", "__import__") and is_text


def crossings(imported, forbidden):
    return sorted(n for n in imported for f in forbidden if n == f or n.startswith(f + "."))


def rooms_in(imported):
    """Return the rooms and top-level files of the wheels that full names belong to."""
    names = [name.split(".") for name in imported if name.startswith(tuple(f"{wheel}." for wheel in WHEELS))]
    return {WHEELS[first] + second for first, second, *_ in names} & BELOW.keys()


@pytest.fixture(scope="module")
def trees():
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES}


@pytest.fixture(scope="module")
def imported(trees):
    return {path: imports_of(tree, module_of(path), path.name == "__init__.py") for path, tree in trees.items()}


def room_of(path):
    wheel, *parts = path.relative_to(CUSTOM).with_suffix("").parts
    return WHEELS[wheel] + parts[0]


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("import nvflare.apis.fl_context as context", "nvflare.apis.fl_context"),
        ("from nvflare import apis", "nvflare.apis"),
        ("def f():\n    from silofl.training.loop import train", "silofl.training.loop"),
        ("from .. import flare", "silofl.flare"),
        ("from ..training import loop", "silofl.training.loop"),
        ("import importlib\nimportlib.import_module('nvflare')", "nvflare"),
    ],
)
def test_an_import_is_seen_in_every_form(code, wanted):
    assert wanted in imports_of(ast.parse(code), "silofl.federation.site")


def test_every_room_and_every_file_beside_them_has_its_place():
    assert {room_of(path) for path in SOURCES} == {
        "__init__",
        *(f"{wheel}__init__" for wheel in WHEELS.values()),
        *BELOW,
    }


@pytest.mark.parametrize("room", BELOW)
def test_a_room_imports_nothing_from_above_it(imported, room):
    inside = {path: names for path, names in imported.items() if room_of(path) == room}
    found = {name_of(path): sorted(rooms_in(names) - BELOW[room] - {room}) for path, names in inside.items()}
    assert inside and {path: names for path, names in found.items() if names} == {}


def find_arrows(tree, modules):
    """Yield the modules that one imports, those for types alone too; of a package only what it takes from it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in modules else node.module for name in names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_no_files_import_each_other_in_a_circle(trees):
    modules = {module_of(path): path for path in SOURCES}
    graph = {
        name: {*find_arrows(trees[path], modules)}.intersection(modules) - {name} for name, path in modules.items()
    }
    # The names that silofl hands on are imported when they are asked for.
    graph["silofl"] = set()
    assert len([*TopologicalSorter(graph).static_order()]) == len(SOURCES)


def test_only_flare_knows_nvflare(imported):
    knowing = {room_of(path) for path, names in imported.items() if crossings(names, ["nvflare"])}
    assert knowing == {"flare", "desk/flare"}


def test_the_mathematics_needs_neither_nvflare_nor_monai(imported):
    for path, names in imported.items():
        if room_of(path) == "core":
            assert crossings(names, ["nvflare", "monai"]) == [], name_of(path)


# --- the wheels


def test_what_a_job_reaches_is_in_the_first_wheel(imported):
    """All that NVFlare may build for a job, what that imports, and the readers that a process of its own looks up."""
    modules = {module_of(path): path for path in SOURCES}
    waiting = [name for name in modules if name.startswith(REACHED)]
    reached = set()
    while waiting:
        module = waiting.pop()
        if module in reached:
            continue
        reached.add(module)
        # A package's own file comes with each of its modules; the names that it hands on are imported when asked for.
        waiting += [module.rpartition(".")[0]] if "." in module else []
        names = set() if module == "silofl" else imported[modules[module]]
        waiting += [name for name in names if name in modules]
    assert {name.partition(".")[0] for name in reached} == {"silofl"}
    others = {name for name in modules if name.startswith("silofl.")} - reached
    assert others == STARTED_BY_HAND | PUBLIC


def test_no_job_reaches_the_other_wheels(imported):
    own = {path: names for path, names in imported.items() if path.is_relative_to(CUSTOM / "silofl")}
    others = ["silofl_hospital", "silofl_desk", "silofl_clinic"]
    assert {name_of(path) for path, names in own.items() if crossings(names, others)} == set()


def test_the_wheel_of_hospitals_knows_nothing_of_the_desk(imported):
    own = {path: names for path, names in imported.items() if path.is_relative_to(CUSTOM / "silofl_hospital")}
    assert {name_of(path) for path, names in own.items() if crossings(names, ["silofl_desk"])} == set()


def test_nobody_knows_the_wheel_of_clinics(imported):
    others = {path: names for path, names in imported.items() if not path.is_relative_to(CUSTOM / "silofl_clinic")}
    assert {name_of(path) for path, names in others.items() if crossings(names, ["silofl_clinic"])} == set()


# --- provisioning

PROVISIONING = sorted((ROOT / "provisioning").glob("*.py"))


def test_the_package_knows_nothing_of_provisioning(imported):
    assert {name_of(path) for path, names in imported.items() if crossings(names, ["provisioning"])} == set()


def test_provisioning_imports_its_own_files_by_their_full_name():
    files = {path.stem for path in PROVISIONING}
    for path in PROVISIONING:
        names = imports_of(ast.parse(path.read_text(encoding="utf-8")), f"provisioning.{path.stem}")
        assert sorted(names & files) == [], path.name


def test_there_is_one_kit(trees):
    parsed = [*trees.values(), *(ast.parse(path.read_text(encoding="utf-8")) for path in PROVISIONING)]
    classes = [node.name for tree in parsed for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    assert classes.count("Kit") == 1


# --- jobs


def class_paths(config):
    """Return all that a job's configuration has NVFlare build."""
    if isinstance(config, list):
        return [path for value in config for path in class_paths(value)]
    if not isinstance(config, dict):
        return []
    here = [config[key] for key in ("path", "class_path") if key in config]
    return here + [path for value in config.values() for path in class_paths(value)]


def test_every_job_has_a_configuration_of_both_sides():
    jobs = {path.name for path in (ROOT / "jobs").iterdir() if path.is_dir()}
    for side in ("client", "server"):
        assert {path.parents[2].name for path in CONFIGURATIONS if path.stem == f"config_fed_{side}"} == jobs


def test_every_class_that_a_job_names_exists():
    for path in CONFIGURATIONS:
        names = class_paths(json.loads(path.read_text()))
        assert any(name.startswith("silofl.flare.") for name in names), path
        for name in names:
            module, _, attribute = name.rpartition(".")
            assert isinstance(getattr(importlib.import_module(module), attribute), type), (path, name)


def test_jobs_hold_settings_and_no_code():
    files = {path.suffix for path in (ROOT / "jobs").rglob("*") if path.is_file()}
    assert files <= {".json", ".yaml", ".md"}


# --- what every file keeps to


def unsafe_loads(tree):
    """Return the lines on which something is unpickled that may hold code."""
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
            options = {option.arg: ast.unparse(option.value) for option in node.keywords}
            lines += [node.lineno] * (options.get("weights_only") != "True")
        elif isinstance(node, ast.ImportFrom) and node.module == "torch" and "load" in {a.name for a in node.names}:
            lines.append(node.lineno)
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            lines.append(node.lineno)
    return lines


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("torch.load(path)", [1]),
        ("torch.load(path, weights_only=False)", [1]),
        ("torch.load(path, map_location='cpu', weights_only=True)", []),
        ("from torch import load", [1]),
        ("np.load(path, allow_pickle=True)", [1]),
        ("np.load(path)", []),
    ],
)
def test_an_unsafe_load_is_seen(code, lines):
    assert unsafe_loads(ast.parse(code)) == lines


def test_no_file_loads_what_may_hold_code(trees, imported):
    assert {name_of(path): lines for path, tree in trees.items() if (lines := unsafe_loads(tree))} == {}
    unsafe = {name_of(path): crossings(names, ["pickle", "dill", "joblib"]) for path, names in imported.items()}
    assert {path: names for path, names in unsafe.items() if names} == {}
