"""The pages that people read: their commands parse, their links lead somewhere, their example runs."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from provisioning import __main__ as provisioning
from silofl import cli
from silofl.algorithms.presets import algorithm_names
from silofl.algorithms.recipe import PRESET_NAMES
from silofl.data.pooled import POOLED_SITE
from silofl.errors import ConfigError
from silofl.federation.egress import Gate
from silofl.methods.parts import list_kinds
from silofl.settings import parse
from silofl.site import Site
from silofl.studies import compare, compared_runs, pooled
from silofl.studies.demo import NEXT, RUNS
from silofl.studies.hospitals import COLUMNS
from silofl.studies.methods import VARIANTS, find_method_algorithm
from silofl.studies.reference import all_answers, study_keys
from silofl.studies.simulation import changed_study

ROOT = Path(__file__).resolve().parents[1]
JOBS = ROOT / "jobs"
GENERATED = {ROOT / "docs" / "study.md", ROOT / "docs" / "results.md"}
ROOMS = (".", "bench", "docs", "jobs", "provisioning", "site_configs")
EVERY_PAGE = [path for room in ROOMS for path in sorted((ROOT / room).glob("*.md"))]
PAGES = [path for path in EVERY_PAGE if path not in GENERATED and path.name != "CHANGELOG.md"]
EXAMPLE = ROOT / "docs" / "new-algorithm.md"
# The algorithm that a reader of the example writes.
WRITTEN = "fedavgm"
SHAPE = ["--set", "model.features=[8,8,8,8,8,8]", "--set", "data.transforms=[{Resize: {spatial_size: [32, 32]}}]"]


def page_id(path):
    return str(path.relative_to(ROOT))


def text_of(path):
    return path.read_text(encoding="utf-8")


def fences(text, language=r"\w*"):
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def spans(text):
    """Return inline code, each piece on one line."""
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", re.sub(r"(?ms)^```.*?^```", "", text))]


def commands(text):
    """Return (program, arguments) of every command of a page; program is silofl, provisioning or make."""
    joined = re.sub(r"\\\n\s*", " ", text)
    lines = [line for block in fences(joined) for line in block.splitlines()]
    lines += [line for line in joined.splitlines() if line.startswith("    ")] + spans(text)
    for line in lines:
        known = re.match(r"(?:\$ )?(?:\S*python -m )?(silofl|provisioning|make) (?=[a-z])(.+)", line.strip())
        if known:
            yield known[1], shlex.split(known[2], comments=True)


def parsed(program, arguments, monkeypatch):
    """Parse a command with the real parser, without carrying it out."""
    module = {"silofl": cli, "provisioning": provisioning}[program]
    seen = []
    monkeypatch.setattr(module, "run_command", lambda name, command, options: seen.append(options) or 0)
    # The paths of a page are its reader's, and so is the algorithm of the example.
    monkeypatch.setattr("os.path.exists", lambda path: True)
    monkeypatch.setattr("silofl.studies.methods.algorithm_names", lambda: [*algorithm_names(), WRITTEN])
    assert module.main(arguments) == 0
    return seen[0]


@cache
def known_keys():
    return {key.name for key in study_keys(all_answers())}


@cache
def anchors(path):
    """Return the anchors of a page's headings, as GitHub makes them."""
    lines = re.sub(r"(?ms)^```.*?^```", "", text_of(path)).splitlines()
    titles = [line.lstrip("#").strip().lower() for line in lines if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


def linked(path):
    """Return the files and folders that a page links to, each with the anchors in it."""
    text, found = re.sub(r"(?ms)^```.*?^```", "", text_of(path)), {}
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if not link.startswith(("http://", "https://")):
            name, _, anchor = link.partition("#")
            found.setdefault((path.parent / name).resolve() if name else path, set()).update({anchor} - {""})
    return found


def test_commands_are_found_in_blocks_in_lists_and_in_sentences():
    page = "Call `python -m\nsilofl report RUN`.\n\n```\n$ make demo  # now\npython -m silofl resume \\\n    RUN\n```\n"
    page += "\n       python -m provisioning check-kits KIT\n\nNot `silofl: an error` and not `make`.\n"
    assert list(commands(page)) == [
        ("make", ["demo"]),
        ("silofl", ["resume", "RUN"]),
        ("provisioning", ["check-kits", "KIT"]),
        ("silofl", ["report", "RUN"]),
    ]


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_every_command_parses(path, monkeypatch, capsys):
    targets = re.findall(r"^([\w-]+):", text_of(ROOT / "Makefile"), flags=re.MULTILINE)
    names = {"silofl": cli.COMMANDS, "provisioning": provisioning.COMMANDS, "make": targets}
    for program, arguments in commands(text_of(path)):
        name = " ".join(arguments[:2]) if arguments[0] == "site" else arguments[0]
        assert name in names[program], arguments
        # A command that is only named has no arguments to parse.
        if program != "make" and len(arguments) > len(name.split()) and "--help" not in arguments:
            try:
                parsed(program, arguments, monkeypatch)
            except SystemExit:
                pytest.fail(f"{program} {shlex.join(arguments)}: {capsys.readouterr().err}")


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_every_set_names_a_key_of_a_study(path):
    keys = [
        argument.partition("=")[0]
        for _, arguments in commands(text_of(path))
        if WRITTEN not in " ".join(arguments)
        for option, argument in zip(arguments, arguments[1:], strict=False)
        # What is swept may also be a folder of data.
        if option == "--set" or (option == "--sweep" and not argument.startswith("data="))
    ]
    assert [key for key in keys if key not in known_keys()] == []


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_every_method_that_a_command_names_is_known(path):
    for _, arguments in commands(text_of(path)):
        for option, names in zip(arguments, arguments[1:], strict=False):
            for name in names.split(",") if option == "--methods" and WRITTEN not in names else ():
                assert find_method_algorithm(name)


def write_empty_sites(folder, names):
    """Make sites of which there is a dataset.json alone, which is all that a comparison's plan looks at."""
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "dataset.json").write_text("{}")
    return folder


@pytest.fixture
def without_data(tmp_path, monkeypatch):
    """Let comparisons be planned on six sites without data, and without a file of a pretrained model."""
    for module in (compared_runs, pooled):
        monkeypatch.setattr(module, "check_all_data", lambda runs: None)
    monkeypatch.setattr(compared_runs, "check_pretrained", lambda *settled: None)
    monkeypatch.setattr(pooled, "pool_sites", lambda *asked: write_empty_sites(tmp_path / "pooled", [POOLED_SITE]))
    monkeypatch.chdir(ROOT)
    return write_empty_sites(tmp_path / "sites", map("site-{}".format, range(6)))


def read_comparison(arguments, data, monkeypatch):
    """Return what a command asks `compare` for, with seed 0 alone, on a folder in the place of all others."""
    seen = []
    options = parsed("silofl", arguments, monkeypatch)
    monkeypatch.setattr(compare, "compare", lambda asked, *_: seen.append(asked) or 0)
    assert compare.run(options) == 0
    swept = seen[0].sweep.values
    if "data" in swept:
        folders = [data.rename(data.with_name("swept"))]
        folders += [shutil.copytree(folders[0], f"{folders[0]}{number}") for number in range(1, len(swept["data"]))]
        sweep = replace(seen[0].sweep, values=swept | {"data": tuple(map(str, folders))})
        return replace(seen[0], seeds=(0,), sweep=sweep)
    return replace(seen[0], seeds=(0,), data=str(data))


def list_comparisons():
    """Return all comparisons of the pages but those with a job, or an algorithm, that the page has its reader write."""
    found = [
        (page_id(path), [argument.replace("NAME", "fedavg") for argument in arguments])
        for path in PAGES
        for _, arguments in commands(text_of(path))
        if arguments[0] == "compare" and len(arguments) > 1
    ]
    written = {WRITTEN, "planned"}
    return [(page, arguments) for page, arguments in found if not written & {*",".join(arguments).split(",")}]


@pytest.mark.parametrize(("page", "arguments"), list_comparisons())
def test_every_row_of_a_comparison_can_begin(page, arguments, without_data, tmp_path, monkeypatch):
    asked = read_comparison(arguments, without_data, monkeypatch)
    try:
        runs = compared_runs.plan_runs(asked, tmp_path / "out")
        runs += pooled.plan_centralised_runs(asked, tmp_path / "out", Console(quiet=True)) if asked.is_pooled else []
        for run in runs:
            assert changed_study(run.job, run.changes).recipe
    except ConfigError as error:
        pytest.fail(f"{page}: silofl {shlex.join(arguments)}: {error}")


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_every_job_exists(path):
    text = text_of(path)
    own = {arguments[1] for _, arguments in commands(text) if arguments[0] == "new-study" and len(arguments) > 1}
    own |= {
        arguments[arguments.index("--out") + 1] for _, arguments in commands(text) if {"plan", "--out"} <= {*arguments}
    }
    named = {f"jobs/{name}" for name in re.findall(r"(?<![\w./])jobs/(\w+)(?!\.md)\b", text)} - own
    assert sorted(name for name in named if not (ROOT / name).is_dir()) == []
    # A job that is gone was named after an algorithm and a data set that are still there.
    sets = "|".join(sorted({job.parent.name.partition("_")[2] for job in JOBS.glob("*/meta.json")}))
    algorithms = "|".join([*algorithm_names(), *VARIANTS])
    bare = re.findall(rf"\b(?:{algorithms})_(?:{sets})\b", text)
    assert sorted(name for name in {*bare} - {name for name, _, _ in RUNS.values()} if not (JOBS / name).is_dir()) == []


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_every_key_of_a_study_that_a_sentence_names_exists(path):
    keys = {name.removeprefix("algorithm.") for name in known_keys()}
    sections = {name.partition(".")[0] for name in keys if "." in name}
    last = {name.rpartition(".")[2] for name in keys} | sections | {*Site.model_fields}
    for span in spans(text_of(path)):
        name, _, value = span.removeprefix("algorithm.").partition(": ")
        head, dot, _ = name.partition(".")
        if re.fullmatch(r"[a-z_]+\.[a-z_]+", name) and head in sections and not (ROOT / head).is_dir():
            assert name in keys or name.endswith((".yaml", ".json", ".md", ".py")), span
        elif value and re.fullmatch(r"[a-z_]+", name):
            assert name in last, span


def test_the_yaml_of_the_pages_is_accepted():
    for path in PAGES:
        for block in fences(text_of(path), "yaml"):
            values = yaml.safe_load(block)
            if not values.keys() <= Site.model_fields.keys():
                study = changed_study(JOBS / "fedavg_phantoms", values)
                assert "algorithm" not in values or study.algorithm.name == values["algorithm"]["name"]
            else:
                assert parse(Site, {"data": "/data", "state_dir": "/state"} | values, page_id(path)).data


@pytest.mark.parametrize("path", EVERY_PAGE, ids=page_id)
def test_every_link_leads_somewhere(path):
    for target, anchor in linked(path).items():
        assert target.exists()
        # A picture has no anchors.
        assert not anchor or anchor <= anchors(target)


def test_the_readme_is_one_screen_from_which_every_page_can_be_reached():
    start = ROOT / "README.md"
    assert len(text_of(start).splitlines()) <= 75
    reached, new = set(), {start}
    while new:
        reached |= new
        new = {target for path in new for target in linked(path) if target.suffix == ".md"} - reached
    assert [page_id(path) for path in EVERY_PAGE if path not in reached and path.name != "CHANGELOG.md"] == []


def test_the_readme_opens_with_a_sentence_a_picture_and_what_two_commands_print():
    text = text_of(ROOT / "README.md")
    parts = ["![", "\n```\n$ make demo", "silofl import folders", "(docs/papers.md#", "nvflare ", "| you are | read |"]
    assert (places := sorted(map(text.index, parts))) == [text.index(part) for part in parts] and places[0] < 900
    shown = next(block for block in fences(text) if block.startswith("$ make demo"))
    assert len(shown.splitlines()) <= 15 and max(map(len, shown.splitlines())) <= 100
    head = next(line for line in shown.splitlines() if line.startswith("method "))
    assert tuple(head.split()) == COLUMNS


def test_the_readme_has_the_commands_that_the_demonstration_ends_with():
    wanted = [line.strip() for line in NEXT.splitlines() if line.startswith("  silofl")]
    assert "\n".join(wanted) in text_of(ROOT / "README.md")


# The one way of training that every algorithm allows, in a job whose network all of their presets take.
CLASSES = JOBS / "adafed_pneumonia"
PLAIN_SGD = {"training.optimizer": "sgd", "training.momentum": 0.0, "training.local_epochs": 2}


def every_algorithm():
    """Return every algorithm with each of its presets, and the variants of `compare`."""
    named = [{"name": name, "preset": preset} for name in algorithm_names() for preset in PRESET_NAMES]
    return [*named, *VARIANTS.values()]


def test_the_privacy_page_has_a_row_for_each_kind_that_an_algorithm_sends():
    text = text_of(ROOT / "docs" / "privacy.md")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:3] == "| `"]
    listed = {(row[0], row[1], row[3]) for row in rows if len(row) == 4}
    sent = {
        (f"`{kind.name}`", kind.purpose, "yes" if kind.is_of_images else "no")
        for algorithm in every_algorithm()
        for kind in list_kinds(changed_study(CLASSES, PLAIN_SGD | {"algorithm": algorithm}))
    }
    assert listed == sent


def test_the_privacy_page_says_what_each_kind_can_tell():
    text = text_of(ROOT / "docs" / "privacy.md")
    risks = {}
    for algorithm in every_algorithm():
        study = changed_study(CLASSES, PLAIN_SGD | {"algorithm": algorithm})
        risks |= Gate.of(study, Site(data="/data", state_dir="/state")).risks
    assert len(risks) == 12
    for kind, risk in risks.items():
        assert f"| `{kind}` | {risk} |" in text


# --- The worked example of docs/new-algorithm.md

CHECK = """
import sys
from pathlib import Path

import silofl
from silofl.cli import main

root, jobs, data, shape = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]
assert Path(silofl.__file__).is_relative_to(root), silofl.__file__
for run, algorithm, rounds in (("one", "fedavg", 1), ("two", "fedavg", 2), ("momentum", "fedavgm", 2)):
    job = ["simulate", f"{jobs}/fedavg_phantoms", "--data", data, "--out", str(root / run), "--alone"]
    assert main([*job, "--rounds", str(rounds), "--set", f"algorithm.name={algorithm}", *shape]) == 0, run
"""


def write_example(root):
    """Write what the page has its reader type into a copy of the package."""
    shutil.copytree(
        ROOT / "custom" / "silofl", root / "custom" / "silofl", ignore=shutil.ignore_patterns("__pycache__")
    )
    for block in fences(text_of(EXAMPLE), "python"):
        path = root / block.partition("\n")[0].removeprefix("# ")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block, encoding="utf-8")
    return os.environ | {"PYTHONPATH": str(root / "custom")}


def carried_out(*arguments, **options):
    return subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, timeout=600, **options
    )


def test_the_examples_own_test_passes(tmp_path):
    environment = write_example(tmp_path)
    done = carried_out("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", cwd=tmp_path, env=environment)
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout + done.stderr


def test_a_slip_in_the_examples_key_is_answered_as_the_page_says(tmp_path):
    environment = write_example(tmp_path)
    (arguments,) = [a for _, a in commands(text_of(EXAMPLE)) if WRITTEN in " ".join(a) and a[0] == "estimate"]
    done = carried_out("-m", "silofl", *arguments, cwd=ROOT, env=environment)
    assert done.returncode == 2 and done.stderr.strip() in " ".join(text_of(EXAMPLE).split())


def test_the_example_runs_and_its_server_steps_with_momentum(tmp_path):
    import torch

    from silofl.data.phantoms import make_phantoms
    from silofl.files import load_tensors
    from silofl.models.networks import build_model

    environment = write_example(tmp_path)
    data = make_phantoms(tmp_path / "data", seed=7, patients={"north": 6, "south": 6})
    done = carried_out("-c", CHECK, tmp_path, JOBS, data, *SHAPE, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    one, two, momentum = (load_tensors(tmp_path / run / "model" / "last.pt") for run in ("one", "two", "momentum"))
    changes = {"model.features": [8] * 6, "data.transforms": [{"Resize": {"spatial_size": [32, 32]}}]}
    study = changed_study(JOBS / "fedavg_phantoms", changes)
    model = build_model(study, (1, 32, 32), study.seed)
    for name, start in model.named_parameters():
        # x_2 = x_1 + u_2 with u_2 = 0.9 u_1 + d_2 and u_1 = x_1 - x_0; FedAvg's x_2 is x_1 + d_2
        torch.testing.assert_close(momentum[name], two[name] + 0.9 * (one[name] - start.detach()), rtol=1e-4, atol=1e-6)
    for name in two.keys() - dict(model.named_parameters()).keys():
        torch.testing.assert_close(momentum[name], two[name], rtol=0, atol=0)
