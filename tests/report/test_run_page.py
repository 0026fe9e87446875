"""What a run's page shows, and in which order, is decided before any template."""

import json
import re
from dataclasses import replace

import pytest

from silofl.base.errors import ConfigError
from silofl.base.files import write_json
from silofl.base.schema import dump_record
from silofl.federation.outcome import stopped_results, unscored_results
from silofl_desk.report.run_page import weights_table, write_report
from tests.report.conftest import RECIPE, counts, joined, report, rows_of

from ..starting import run_without_torch

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture
def tested(run, results):
    """Make a run's folder that holds a result and nothing else."""
    return lambda **changes: run().json("results.json", results(**changes)).path


def test_a_report_is_one_file_that_loads_nothing(finished, pictures):
    folder = finished(shown=pictures(shift=0.5))
    page = report(folder)
    assert page.open == [] and "<script" not in page.source and page.source.startswith("<!DOCTYPE html>")
    assert all(address.startswith(("#", "data:image/png;base64,")) for address in page.addresses)
    assert not re.search(r"url\(|@import", page.source)
    # curves, drift, two sites, normalisation
    assert len(page.images) == 5 and all(image["alt"] for image in page.images)
    assert "super model" not in page.text and "Selector" not in page.text
    names = {path.name for path in (folder / "figures").iterdir()}
    for stem in ("training", "drift", "cases_east", "cases_west"):
        assert {f"{stem}.png", f"{stem}.svg", f"{stem}.csv"} <= names
    # two panels with two sites, validation with their mean too, over two rounds; the first validation is east's
    rows = rows_of(folder / "figures" / "training.csv")
    assert rows[0] == ["panel", "line", "round", "value"] and len(rows) == 1 + 2 * 3 + 2 * 2
    assert rows[1] == ["Validation: dice", "east", "1", "0.1"]
    # It is written anew, and leaves no other file.
    before = (folder / "report.html").read_bytes()
    assert write_report(folder).read_bytes() == before
    assert [path.name for path in folder.glob("*report*")] == ["report.html"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ended_early": "the run ended"}, ["every site tested the model. The run ended."]),
        ({"sites": {"east": 0.5, "west": None}, "mean": 0.5}, ["dice, mean over 1 of 2 sites 0.500"]),
        ({"status": "INCOMPLETE", "reasons": ["site west was late"]}, ["site west was late", 'class="banner warning"']),
        ({"split_unit": "slices"}, ["CAUTION same person in training and test"]),
        ({"recipe": RECIPE | {"stays": "everything"}}, ["No model is mixed: each site trains alone."]),
        ({"withheld": {"east": {"least": 3}}}, ["Withheld: site east withholds its test score: "]),
    ],
)
def test_what_is_special_of_a_run_stands_on_its_page(tested, changes, words):
    page = report(tested(**changes))
    assert [word for word in words if word not in page.text and word not in page.source] == []


def test_a_report_holds_all_sections(finished):
    choice = {"east": dump_record(joined(local=0.5, federated=0.625, kept=0.75))}
    folder = finished(joining=choice)
    (folder / "data.json").write_text(json.dumps({"sites": {"east": dump_record(counts(8, 2, 3, patients=5))}}))
    (folder / "model").mkdir()
    (folder / "model" / "best.pt").write_bytes(b"")
    page = report(folder)
    for words in (
        "COMPLETE",
        "mean over sites",
        "alpha = 0.05",
        "best validation, round 2",
        "listener",
        "holds best.pt; its README.md says how to load it. BatchNorm never left the sites",
        "complete model is sites/NAME/small-1/supermodel",
        "training.learning_ rate 0.001",
        "data.augment []",
        "east 8 5 80 2 5 20 3 5 30 west unknown unknown 30 1 unknown unknown 6",
        "Prediction, or federated: the model that the run tests.",
    ):
        assert words in page.text
    assert page.source.index("banner") < page.source.index('class="lead"') < page.source.index("<img")
    assert page.images[0]["alt"].startswith("Test dice, mean over the hospitals: harmofl local 0.500")
    places = ("joining", "results", "training", "pictures", "sites", "weights", "models", "data", "recipe")
    order = [page.source.index(f'<section id="{name}"') for name in places]
    assert order == sorted(order)


def test_a_caution_of_the_training_stands_beside_its_curves(run, results, record):
    rounds = [record(number, (value, value)) for number, value in enumerate((0.69, 0.20, 0.69), start=1)]
    page = report(run().json("results.json", results()).json("run.json", {}).study().ledger(*rounds).path)
    caution = page.text.index("CAUTION round 3: the validation fell by more than 0.2 and came back")
    assert page.text.index("Reported: best validation") < caution < page.text.index("training examples")


def test_names_and_reasons_are_escaped(run, results, record):
    name = '<script>alert("x")</script>'
    broken = record(1, asked=[name], answered=[], failed={name: "<b>no</b>"}, validation=(0.1, 0.2))
    values = results(status="INCOMPLETE", reasons=[f"site {name} did not test"], sites={name: 0.5}, study=name)
    page = report(run().json("results.json", values).study(labels={1: "<i>organ</i>"}).ledger(broken).path)
    assert "<script" not in page.source and "<b>" not in page.source
    assert f"site {name} did not test" in page.text and "What else happened, and why" in page.text


def test_unfinished_and_failed_runs_have_a_report(run, results, record):
    data = {"sites": {"east": replace(counts(8, 2, 3), warnings=("dark images",)), "west": counts(7, 2, 3)}}
    values = results(status="FAILED", reasons=["no site joined"])
    page = report(run("failed").json("results.json", values).json("run.json", {}).json("data.json", data).path)
    assert 'class="banner bad"' in page.source
    for words in (
        "no site joined",
        "Remove the cause, then continue: python -m silofl resume",
        "No round has finished.",
    ):
        assert words in page.text
    assert "east: dark images" in page.text and re.search(r"west 7 \w+ 70", page.text)
    folder = run().study().json("run.json", {}).ledger(record(1)).path
    page = report(folder)
    assert "1 of 2 rounds are finished and there is no result yet" in page.text
    assert f"running or interrupted; go on with: python -m silofl resume {folder}" in page.text
    assert len(page.images) == 2
    assert "So far: best validation, round 1 (validation dice 0.500)." in page.text


def test_a_run_with_a_selector_shows_models_and_counts(finished_super, unseen_plain):
    folder, own = finished_super(), {"east": 0.5, "west": 0.25, "ensemble": 0.625}
    (folder / "supermodel").mkdir()
    (folder / "supermodel" / "model.json").write_text("{}")
    (folder / "unseen.json").write_text(json.dumps(dump_record(unseen_plain(models={"global": 0.25}, own=own))))
    page = report(folder)
    # curves, curves of both models, drift
    assert page.open == [] and len(page.images) == 3
    first = "At coast, which took no part in the training: the others' local models 0.250 to 0.500, the mean of their "
    for words in (
        "Right answers are on the diagonal: 5 of 5.",
        "The threshold gamma is 0.9",
        "supermodel/ holds all models and the rule that chooses between them",
        f"A site that was left out {first}answers 0.625, federated model 0.600 (",
    ):
        assert words in page.text
    assert '<td class="number">0.600</td>' in page.source and 'class="number strong' not in page.source
    assert page.source.index('<section id="unseen"') < page.source.index('<section id="results"')


def test_the_report_of_a_killed_job_names_the_run(tmp_path, make_study):
    # NVFlare's download of a job has its results here.
    folder = tmp_path / "3a4ab1f3" / "workspace" / "silofl"
    results = stopped_results(make_study(), "small-20261122-014922-f234", 2, "the job's process was killed")
    write_json(folder / "results.json", dump_record(results))
    page = write_report(folder).read_text()
    assert "continue_run: small-20261122-014922-f234 to go on" in page and "continue_run: silofl" not in page


def test_a_failed_run_has_a_page_with_its_reason(tmp_path):
    with pytest.raises(ConfigError, match="has no results.json"):
        write_report(tmp_path)
    write_json(
        tmp_path / "results.json", dump_record(unscored_results("small", "FAILED", ["study.yaml cannot be read"]))
    )
    page = report(tmp_path)
    assert 'class="banner bad"' in page.source and "study.yaml cannot be read" in page.text and "None" not in page.text


@pytest.mark.parametrize(
    ("weights", "rows", "shares"),
    [
        # Equal weights are one row for every site.
        (
            {site: {"east": 0.25, "west": 0.75} for site in ("east", "west")},
            (("every site", "0.250", "0.750"),),
            {(0, 1): 0.25, (0, 2): 0.75},
        ),
        # A site that a listener did not hear is an empty cell.
        (
            {"east": {"east": 0.5, "west": 0.5}, "west": {"west": 1.0}},
            (("east", "0.500", "0.500"), ("west", "-", "1.000")),
            {(0, 1): 0.5, (0, 2): 0.5, (1, 2): 1.0},
        ),
    ],
)
def test_weights_are_a_row_for_each_listener(record, weights, rows, shares):
    table = weights_table([record(1), record(2, weights=weights)])
    assert table.content.columns == ("listener", "east", "west") and weights_table([]) is None
    assert (table.content.rows, table.shares) == (rows, shares)


def test_a_report_is_written_without_torch(finished, tmp_path):
    code, said = run_without_torch("report", finished(), folder=tmp_path)
    assert code == 0, said
