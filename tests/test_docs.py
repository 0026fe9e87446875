"""The pages that people read: their commands parse, their links lead somewhere, their example runs."""

import json
import re
import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import get_type_hints

import pytest
import yaml
from rich.console import Console

from docs.site.study_page import study_keys
from provisioning import __main__ as provisioning
from silofl.base.errors import ConfigError
from silofl.base.settings import parse
from silofl.command_line import cli
from silofl.core.algorithm_option import AlgorithmOption
from silofl.core.presets import algorithm_names
from silofl.core.recipe import PRESET_NAMES
from silofl.data.data_profile import DataProfile
from silofl.federation.egress import Gate
from silofl.parts.answer import Metrics, Numbers
from silofl.parts.load import list_outbound_payloads
from silofl.parts.part import Part
from silofl.parts.work import SitePart
from silofl.setup.site import Site
from silofl.training.site_score import SiteScore
from silofl_clinic.settings import Clinic
from silofl_desk.report.sentences import POOLED_SITE
from silofl_desk.studies.comparisons import compare, compared_runs, pooled
from silofl_desk.studies.comparisons.demo import NEXT
from silofl_desk.studies.comparisons.methods import VARIANTS, find_method_algorithm
from silofl_desk.studies.runs.simulation import changed_study

ROOT = Path(__file__).resolve().parents[1]
JOBS = ROOT / "jobs"
GENERATED = {ROOT / "docs" / "study.md", ROOT / "docs" / "results.md"}
ROOMS = (".", "bench", "docs", "jobs", "provisioning", "recipes", "site_configs")
EVERY_PAGE = [path for room in ROOMS for path in sorted((ROOT / room).glob("*.md"))]
PAGES = [path for path in EVERY_PAGE if path not in GENERATED and path.name != "CHANGELOG.md"]
EXAMPLE = ROOT / "docs" / "new-algorithm.md"
# A key that the page gets wrong, to show the answer.
SLIP = "algorithm.feddyn.alfa"


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


def page_commands():
    """Yield (page, program, arguments) of every command of the pages."""
    for path in PAGES:
        yield from ((page_id(path), *command) for command in commands(text_of(path)))


def parsed(program, arguments, monkeypatch):
    """Parse a command with the real parser, without carrying it out."""
    module = {"silofl": cli, "provisioning": provisioning}[program]
    seen = []
    monkeypatch.setattr(module, "run_command", lambda name, command, options: seen.append(options) or 0)
    # The paths of a page are its reader's.
    monkeypatch.setattr("os.path.exists", lambda path: True)
    assert module.main(arguments) == 0
    return seen[0]


@cache
def known_keys():
    return {key.name for key in study_keys()}


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


def test_every_command_of_a_page_parses(monkeypatch, capsys):
    targets = re.findall(r"^([\w-]+):", text_of(ROOT / "Makefile"), flags=re.MULTILINE)
    names = {"silofl": cli.COMMANDS, "provisioning": provisioning.COMMANDS, "make": targets}
    for page, program, arguments in page_commands():
        name = " ".join(arguments[:2]) if arguments[0] in ("server", "site") else arguments[0]
        assert name in names[program], (page, arguments)
        # A command that is only named has no arguments to parse.
        if program != "make" and len(arguments) > len(name.split()) and "--help" not in arguments:
            try:
                parsed(program, arguments, monkeypatch)
            except SystemExit:
                pytest.fail(f"{page}: {program} {shlex.join(arguments)}: {capsys.readouterr().err}")


def test_every_key_and_method_that_a_command_names_is_known():
    given = [
        (page, option, value)
        for page, _, arguments in page_commands()
        for option, value in zip(arguments, arguments[1:], strict=False)
    ]
    keys = [(page, value.partition("=")[0]) for page, option, value in given if option == "--set"]
    assert keys and [(page, key) for page, key in keys if key not in known_keys() | {SLIP}] == []
    methods = {name for _, option, names in given if option == "--methods" for name in names.split(",")}
    assert methods and all(map(find_method_algorithm, methods))


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
    return replace(seen[0], seeds=(0,), data=str(data))


def list_comparisons():
    """Return all comparisons of the pages but those with a job that the page has its reader write."""
    found = [
        (page, [argument.replace("NAME", "fedavg") for argument in arguments])
        for page, _, arguments in page_commands()
        if arguments[0] == "compare" and len(arguments) > 1
    ]
    return [(page, arguments) for page, arguments in found if "planned" not in ",".join(arguments).split(",")]


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


def test_every_key_of_a_study_that_a_sentence_names_exists():
    keys = {name.removeprefix("algorithm.") for name in known_keys()}
    sections = {name.partition(".")[0] for name in keys if "." in name}
    last = {name.rpartition(".")[2] for name in keys} | sections | {*Site.model_fields, *Clinic.model_fields}
    for page, span in ((page_id(path), span) for path in PAGES for span in spans(text_of(path))):
        name, _, value = span.removeprefix("algorithm.").partition(": ")
        head, dot, _ = name.partition(".")
        if re.fullmatch(r"[a-z_]+\.[a-z_]+", name) and head in sections and not (ROOT / head).is_dir():
            assert name in keys or name.endswith((".yaml", ".json", ".md", ".py")), (page, span)
        elif value and re.fullmatch(r"[a-z_]+", name):
            assert name in last, (page, span)


def test_the_yaml_of_the_pages_is_accepted():
    for path in PAGES:
        for block in fences(text_of(path), "yaml"):
            values = yaml.safe_load(block)
            if "folder" in values:
                assert parse(Clinic, values, page_id(path)).allowed
            elif not values.keys() <= Site.model_fields.keys():
                study = changed_study(JOBS / "fedavg_phantoms", values)
                assert "algorithm" not in values or study.algorithm.name == values["algorithm"]["name"]
            else:
                assert parse(Site, {"data": "/data", "state_dir": "/state"} | values, page_id(path)).data


def test_every_link_leads_somewhere():
    for page in EVERY_PAGE:
        for target, anchor in linked(page).items():
            assert target.exists(), page_id(page)
            # A picture has no anchors.
            assert not anchor or anchor <= anchors(target), page_id(page)


def test_every_file_of_the_repository_that_a_page_names_exists():
    rooms = re.compile(r"(?:tests|custom|bench|jobs|provisioning|site_configs|docs)/[\w./-]+")
    named = {(page_id(page), span) for page in EVERY_PAGE for span in spans(text_of(page)) if rooms.fullmatch(span)}
    assert named and not [(page, span) for page, span in sorted(named) if not (ROOT / span).exists()]


def test_the_readme_is_one_screen_from_which_every_page_can_be_reached():
    start = ROOT / "README.md"
    assert len(text_of(start).splitlines()) <= 75
    reached, new = set(), {start}
    while new:
        reached |= new
        new = {target for path in new for target in linked(path) if target.suffix == ".md"} - reached
    assert [page_id(path) for path in EVERY_PAGE if path not in reached and path.name != "CHANGELOG.md"] == []


def test_the_site_has_every_page_and_its_questions_lead_to_pages():
    site = ROOT / "docs" / "site"
    in_menu = set(re.findall(r": (\S+\.md)$", text_of(site / "mkdocs.yml"), re.M))
    assert {page_id(path) for path in EVERY_PAGE} <= in_menu
    pages = json.loads(text_of(site / "questions.json")).values()
    # mkdocs makes a folder's README its index.
    names = {re.sub(r"(^|/)README\.md$", r"\1index.html", name).replace(".md", ".html") for name in in_menu}
    assert len(pages) >= 25 and set(pages) <= names


def test_the_readme_has_the_commands_that_the_demonstration_ends_with():
    wanted = [line.strip() for line in NEXT.splitlines() if line.startswith("  silofl")]
    assert "\n".join(wanted) in text_of(ROOT / "README.md")


# The one way of training that every algorithm allows, in a job whose network all of their presets take.
CLASSES = JOBS / "adafed_pneumonia"
PLAIN_SGD = {"training.optimizer": "sgd", "training.momentum": 0.0, "training.local_epochs": 2}
EVALUATION = {"rounds": 0, "model.pretrained_sha256": "0" * 64}


def every_algorithm():
    """Return every algorithm with each of its presets, and the variants of `compare`."""
    named = [{"name": name, "preset": preset} for name in algorithm_names() for preset in PRESET_NAMES]
    return [*named, *VARIANTS.values()]


def read_kinds():
    """Return kind -> (who sends it and whether it is a mean over the images, the text) of the privacy page's list."""
    page = re.sub(r"\n  (?=\S)", " ", text_of(ROOT / "docs" / "privacy.md"))
    return {kind: (head, text) for kind, head, text in re.findall(r"^- \*\*`(\w+)`\*\* \((.*?)\): (.*)$", page, re.M)}


def describe_risk(risk):
    """Return what a kind can tell, and the switch that stops it, as the privacy page has them."""
    told, _, switch = risk.partition("; ")
    return f"*Risk*: {told}. *Switch*: {switch}."


def test_the_privacy_page_lists_each_kind_that_an_algorithm_sends_with_its_risk():
    sent = {
        kind.name: kind
        for change in (*({"algorithm": one} for one in every_algorithm()), EVALUATION)
        for kind in list_outbound_payloads(changed_study(CLASSES, PLAIN_SGD | change))
    }
    listed = read_kinds()
    assert len(sent) >= 10 and listed.keys() == sent.keys()
    for name, kind in sent.items():
        head, text = listed[name]
        assert head.startswith("sent by ") and head.endswith("; a mean over the images") == kind.is_of_images
        assert text.startswith(f"{kind.purpose}. {describe_risk(kind.risk)}")


def test_the_security_page_says_of_each_kind_how_one_sites_numbers_are_bounded():
    table = text_of(ROOT / "docs" / "security.md").partition("\n## What one hospital's numbers can steer\n")[2]
    rows = [row.strip("| ").split(" | ") for row in table.partition("\n## ")[0].splitlines() if row.startswith("| `")]
    assert all(len(row) == 3 and all(row) for row in rows)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    assert named == {*read_kinds(), "numbers"}
    # What a rule of `robust` bounds says so in its row.
    kinds = [
        kind
        for change in every_algorithm()
        for kind in list_outbound_payloads(changed_study(CLASSES, PLAIN_SGD | {"algorithm": change}))
    ]
    bounded = {kind.name for kind in kinds if kind.is_bounded}
    robust = {name for row in rows if "`robust`" in row[1] for name in re.findall(r"`(\w+)`", row[0])}
    assert robust == bounded


def test_one_table_has_a_row_for_each_algorithm_and_its_heading_their_number():
    text = text_of(ROOT / "docs" / "algorithms.md")
    heading, _, table = text.partition("\n## All ")[2].partition("\n## ")[0].partition("\n")
    assert heading == f"{len(algorithm_names())} in one table"
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, re.M)) == sorted(algorithm_names())


def test_the_privacy_page_says_what_numbers_can_tell():
    study = changed_study(CLASSES, PLAIN_SGD)
    risk = Gate.of(study, Site(data="/data", state_dir="/state")).risks["numbers"]
    assert describe_risk(risk) in " ".join(text_of(ROOT / "docs" / "privacy.md").split())


# What every answer may hold beside arrays -> the words of the privacy page on it.
SAID = {
    **dict.fromkeys(["num_examples", "image_shape"], "number and size of training images"),
    "num_patients": "patients",
    "steps": "patients and steps",
    "loss": "losses",
    "drift": "the drift",
    "epsilon": "what was spent",
    "validation": "the validation score",
    "round_test": "with `evaluate_every_round` the test score",
    "test": "**At the end**: the test score",
    "round": "round",
    "unreadable": "unreadable cases sends how many and why",
    "software": "the versions of silofl",
    "min_partners": "In every answer**: `min_partners`",
    "shares_models": "whether models of single sites may leave",
    "rehearsal": "**In a rehearsal**: a round's time and memory, and what would fail",
    "value": "the study's metric",
    "num_cases": "numbers of cases that count",
    "num_excluded": "left out as empty",
    "labels": "of each label or class",
    "also": "accuracy, balanced accuracy, AUROC",
    "label_cases": "number of cases of each class",
    "areas": "each finding's area under a curve",
    "mean_over": "which of these the metric averages",
    "models": "of several models",
    "choices": "for how many cases and slices the selector chose",
    "selector": "slices the selector chose which site",
    "selector_accuracy": "takes for the site's own",
    "num_empty": "cases have no label: their number",
    "num_false_positive": "in how many of them one is predicted",
    "value_with_truth": "the mean over the others",
    "surface": "mean surface distances",
    "extra_metrics": "metric of a package",
    "operating_point": "the temperature",
    "withheld": "and which of its scores are withheld",
    "kinds": "their form",
    "colours": "grey or coloured",
    "modalities": "the DICOM modality",
    "units": "unit of PET",
    "axes": "the directions of the axes",
    "voxels": "voxel sides",
    "intensities": "of the mean, contrast and roughness",
    "labelled": "mean share of labelled pixels",
}


def test_the_privacy_page_names_every_number_of_an_answer():
    page = " ".join(re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text_of(ROOT / "docs" / "privacy.md")).split())
    numbers = page.partition("## Numbers that leave ")[2].partition("## ")[0]
    names = {*Numbers.model_fields, *Metrics.model_fields, *get_type_hints(SiteScore), *get_type_hints(DataProfile)}
    assert names - {"metrics", "FORMER_KEYS", "RENAMED_KEYS"} == SAID.keys()
    assert {words for words in SAID.values() if words not in numbers} == set()


# --- The worked example of docs/new-algorithm.md


def test_every_piece_of_code_of_the_example_stands_in_the_algorithms_file_or_its_test():
    files = ("custom/silofl/algorithms/feddyn.py", "tests/algorithms/test_feddyn.py")
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in files]
    blocks = [*fences(text_of(EXAMPLE), "python")]
    assert len(blocks) == 5 and [block for block in blocks if not any(block in text for text in texts)] == []


@pytest.mark.parametrize("protocol", [AlgorithmOption, Part, SitePart])
def test_the_example_names_every_question_of_the_protocol(protocol):
    questions = {name for name in {*vars(protocol), *protocol.__annotations__} if not name.startswith(("_", "model_"))}
    table = next(part for part in text_of(EXAMPLE).split("\n\n") if part.startswith(f"| `{protocol.__name__}`"))
    assert {name for name in questions if f"`{name}`" not in table} == set()
