"""Command lines of every command, good or not: the work or one sentence, in time, and nothing written elsewhere."""

import io
import os
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from silofl.cli import COMMANDS, main
from silofl_hospital.report.page import FIGURES, NUMBERS, name_beside
from tests.conftest import JOBS
from tests.test_cli import arguments_of

from .conftest import EXAMPLES, SECONDS, ends_well

pytestmark = pytest.mark.fuzz
STUDY = {"name": "small", "task": "segmentation", "labels": {1: "blob"}, "rounds": 1, "device": "cpu"}
STUDY |= {"model": {"features": [4] * 6}, "training": {"batch_size": 2}, "data": {"transforms": []}}
STUDY |= {"algorithm": {"name": "fedsm"}}
SITE = {"data": "$WORLD/data/{site}", "state_dir": "$WORLD/state/{site}"}
# Every value is tried for every argument; a command line holds no NUL, and bytes that are no text as half characters.
PLACES = ["data", "data/east", "data/east/dataset.json", "data/east/case.png", "job", "job/app/config/study.yaml"]
PLACES += ["run", "run/supermodel", "set", "site.yaml", "empty", "new", "new/inner", "new.html", "new.pt", "../new"]
PLACES += ["/proc/new", "/dev/null", ".", "..", "/", "~", "no/such", "x" * 300, "$HOME", "set/north/images", "link"]
NASTY = ["", " ", "-", "--", "-1", "0", "1", "2", "1.5", "1e9", "1e999", "nan", "9" * 30, "9" * 5000, "½", "é\n"]
NASTY += ["\udcff", "[red]", "[/red]", "%s%n", "east", "east,west", ",", "east,east", "a" * 5000, "{site}", "32x32"]
NASTY += [
    "99999x99999",
    "auto",
    "rounds=1",
    "rounds=",
    "=1",
    "model.features=[[",
    "data.transforms=[]",
    "labels={1: x}",
]
NASTY += ["rounds={a: 1, a: 2}", "folders", "fedbn", "harmofl:nothing", "50Mbit", "0bit", "1e400Gbit", "small"]
NASTY += ["tls,clock", "--out", "--json"]
# Dest of an argument -> what makes a good line of it.
GOOD = {"job": ["job"], "jobs": ["job"], "data": ["data"], "out": ["new", "new.html", "new.pt"], "source": ["set"]}
GOOD |= {"layout": ["folders"], "target": ["new"], "run": ["run"], "runs": ["run"], "super_model": ["run/supermodel"]}
GOOD |= {"inputs": ["data/east/case.png"], "study": ["small", "job/app/config/study.yaml"], "site": ["east"]}
GOOD |= {"sites": ["3", "east,west"], "settings": ["rounds=1"]}
GOOD |= {"epochs": ["1"], "seeds": ["0"], "rounds": ["1"], "methods": ["fedbn"], "image_size": ["32x32"]}
GOOD |= {"site_config": ["site.yaml"]}
# What no command may change, whatever it is told to write to; beside the data lie the decoded images.
KEPT = ("data", "job", "set", "site.yaml")
CACHES = (".silofl-cache",)
# Where a command writes that is not told where.
DEFAULTS = ("demo", "phantoms", "comparison.html", "tuning")


@pytest.fixture(scope="module")
def world(tmp_path_factory, site_data):
    """A folder with a job, its data, a finished run of it, an annotated set and a site's settings."""
    folder = tmp_path_factory.mktemp("world")
    shutil.copytree(site_data, folder / "data", ignore=shutil.ignore_patterns(".*"))
    shutil.copytree(JOBS / "fedsm_phantoms", folder / "job")
    (folder / "job" / "app" / "config" / "study.yaml").write_text(yaml.safe_dump(STUDY))
    (folder / "site.yaml").write_text(yaml.safe_dump(SITE))
    (folder / "empty").mkdir()
    (folder / "link").symlink_to("data")
    # The same examples as pictures: an annotated set, and a case for `predict`.
    with np.load(site_data / "north" / "site.npz") as arrays:
        for kind, name in (("images", "images"), ("masks", "labels")):
            (folder / "set" / "north" / kind).mkdir(parents=True)
            for number in range(3):
                picture = Image.fromarray(arrays[name][number])
                picture.save(folder / "set" / "north" / kind / f"training{number}.png")
        Image.fromarray(arrays["images"][0]).save(folder / "data" / "east" / "case.png")
    arguments = ("simulate", folder / "job", "--data", folder / "data", "--out", folder / "run", "--alone")
    assert main([str(argument) for argument in arguments]) == 0
    for path in (folder / "data").glob(".*"):
        shutil.rmtree(path)
    (folder / "state" / "east").mkdir(parents=True)
    return folder


@st.composite
def lines(draw, command):
    """Draw a command line of a command: some of its arguments, good values or any."""
    line = []
    any_value = st.sampled_from(PLACES + NASTY)
    for argument in arguments_of(command):
        is_needed = argument.required or argument.nargs in (None, "?") and not argument.option_strings
        # Of twenty lines one lacks what it needs, and six have an option.
        if draw(st.integers(0, 19)) >= (19 if is_needed else 6):
            continue
        if argument.option_strings:
            line.append(draw(st.sampled_from(argument.option_strings)))
        if argument.nargs == 0:
            continue
        good = st.sampled_from(sorted(argument.choices or ()) or GOOD.get(argument.dest, PLACES + NASTY))
        count = draw(st.integers(1, 3)) if argument.nargs == "+" else 1
        line += [draw(good if draw(st.integers(0, 3)) else any_value) for _ in range(count)]
    return line


def files_in(folder):
    """Return every path below a folder with what tells whether it was changed."""
    found = {}
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(root, name)
            facts = path.lstat()
            content = 0 if path.is_dir() else (facts.st_size, facts.st_mtime_ns)
            found[path.relative_to(folder)] = (facts.st_mode, content)
    return found


class NoProcess:
    """A process that ends at once; what the sites' processes do is others' to test."""

    def __init__(self, *arguments):
        self.tell, self.poll, self.end = lambda text: None, lambda: 0, lambda: None


@pytest.mark.parametrize("command", COMMANDS)
@settings(max_examples=EXAMPLES // 2)
@given(data=st.data())
def test_a_command_does_its_work_or_says_what_is_wrong(world, tmp_path, capsys, monkeypatch, command, data):
    line = data.draw(lines(command))
    place = tmp_path / "place"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(world, place / "here", symlinks=True)
    monkeypatch.chdir(place / "here")
    monkeypatch.setenv("WORLD", str(place / "here"))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    for module in ("simulate", "side_by_side"):
        monkeypatch.setattr(f"silofl_desk.studies.{module}.ProcessTree", NoProcess)
    monkeypatch.setattr("silofl_desk.studies.simulate.run_alone", lambda *arguments: None)
    # The phantoms and a page take seconds; `report` writes its pages all the same.
    monkeypatch.setattr("silofl_desk.studies.simulate.write_report", lambda run: run / "report.html")
    monkeypatch.setattr(
        "silofl_desk.phantoms.phantoms._make_site", lambda folder, *_: shutil.copytree(world / "set", folder)
    )
    before = files_in(place)
    # Figures are work, and so is a script that torch traces; neither is a hang.
    ends_well([*command.split(), *line], capsys, SECONDS * (12 if command in ("report", "export") else 1))
    after = files_in(place)
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    named = [Path(os.path.normpath(Path("here", value))) for value in (*DEFAULTS, *line)]
    # Beside the workspace of NVFlare's simulator, which deletes what lies in it.
    named += [path.with_name(f"{path.name}-results") for path in named if command == "prepare" and path.name]
    # Beside a page lie its figures and its numbers.
    if command == "report":
        named += [name_beside(path, name) for path in named if path.name for name in (FIGURES, NUMBERS)]
    # Beside a pretrained network lies what is known of it.
    named += [path.with_suffix(".json") for path in named if path.suffix == ".pt"]
    caches = [Path(os.path.normpath(Path("here", value))) for key, value in pairwise(line) if key == "--cache"]
    # A link may lead to a folder of the data, where decoded images go then.
    caches += [(place / one).resolve().relative_to(place) for one in caches if os.path.islink(place / one)]
    for path in changed:
        inner = path.relative_to("here") if path.is_relative_to("here") else path
        assert any(path.is_relative_to(name) or name.is_relative_to(path) for name in named), path
        # The demonstration's --out may be a folder that is there.
        is_own = command == "demo" and {"phantoms", "logs"} & {*inner.parts}
        is_cache = set(inner.parts) & set(CACHES) or any(path.is_relative_to(cache) for cache in caches)
        assert inner.parts[0] not in KEPT or is_cache or is_own, path
