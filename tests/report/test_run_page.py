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


def test_every_picture_of_a_report_has_its_files(finished):
    folder = finished()
    write_report(folder)
    names = {path.name for path in (folder / "figures").iterdir()}
    for stem in ("training", "drift", "cases_east", "cases_west"):
        assert {f"{stem}.png", f"{stem}.svg", f"{stem}.csv"} <= names
    # two panels with two sites, validation with their mean too, over two rounds; the first validation is east's
    rows = rows_of(folder / "figures" / "training.csv")
    assert rows[0] == ["panel", "line", "round", "value"] and len(rows) == 1 + 2 * 3 + 2 * 2
    assert rows[1] == ["Validation: dice", "east", "1", "0.1"]


def test_figures_that_cannot_be_written_are_named(finished):
    folder = finished()
    (folder / "figures").write_text("")
    with pytest.raises(ConfigError, match="training.png must be writable"):
        write_report(folder)


@pytest.fixture
def tested(run, results):
    """Make a run's folder that holds a result and nothing else."""
    return lambda **changes: run().json("results.json", results(**changes)).path


def test_a_report_is_one_file_that_loads_nothing_and_describes_its_images(finished, pictures):
    page = report(finished(shown=pictures(shift=0.5)))
    assert page.open == [] and "<script" not in page.source
    assert page.source.startswith("<!DOCTYPE html>")
    assert all(address.startswith(("#", "data:image/png;base64,")) for address in page.addresses)
    assert not re.search(r"url\(|@import", page.source)
    # curves, drift, two sites, normalisation
    assert len(page.images) == 5 and all(image["alt"] for image in page.images)
    assert "super model" not in page.text and "Selector" not in page.text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ended_early": "the run ended"}, ["every site tested the model. The run ended."]),
        ({"sites": {"east": 0.5, "west": None}, "mean": 0.5}, ["dice, mean over 1 of 2 sites 0.500"]),
        (
            {"sites": {"east": 0.5, "west": None}, "left": {"west": 1}},
            ["and every site that has not left tested the model.", "site west has left the study, after round 1"],
        ),
        ({"status": "INCOMPLETE", "reasons": ["site west was late"]}, ["site west was late", 'class="banner warning"']),
        ({"split_unit": "slices"}, ["CAUTION same person in training and test"]),
        ({"recipe": RECIPE | {"stays_home": "everything"}}, ["No model is mixed: each site trains alone."]),
    ],
)
def test_what_is_special_of_a_run_stands_on_its_page(tested, changes, words):
    page = report(tested(**changes))
    assert [word for word in words if word not in page.text and word not in page.source] == []
    assert "image_shape" not in page.text


def test_a_report_holds_status_sites_recipe_and_how_to_load_the_model(finished):
    folder = finished()
    (folder / "model").mkdir()
    (folder / "model" / "best.pt").write_bytes(b"")
    (folder / "model" / "README.md").write_text("To load one:\n\n```python\nimport torch\n```\n")
    page = report(folder)
    for words in (
        "COMPLETE",
        "0.625",
        "mean over sites",
        "alpha = 0.05",
        "best validation, round 2",
        "seed 0",
        "0.750",
        "listener",
    ):
        assert words in page.text
    assert "holds best.pt. BatchNorm never left the sites" in page.text
    assert "complete model is sites/NAME/small-1/supermodel" in page.text and "From model/ : import torch" in page.text
    assert 'class="banner good"' in page.source
    # Of four images curves and drift are drawn anew for a phone; those of two sites are narrow enough.
    assert page.source.count('<source media="screen and (max-width: 640px)"') == 2 and len(page.images) == 4


@pytest.mark.parametrize("has_own", [False, True])
def test_the_note_above_the_pictures_names_their_rows(finished, pictures, has_own):
    shown = pictures(("a", "b"))
    if has_own:
        shown = replace(shown, own=shown.predictions, own_values=shown.values)
    text = report(finished(shown=shown)).text
    assert ("Own: the site's own model, at its decision threshold. Federated: the model that the" in text) == has_own
    assert ("Prediction: the model that the run tests." in text) != has_own and "Kept: what the site" not in text


def test_a_caution_of_the_training_stands_beside_its_curves(run, results, record):
    rounds = [record(number, (value, value)) for number, value in enumerate((0.69, 0.20, 0.69), start=1)]
    page = report(run().json("results.json", results()).json("run.json", {}).study().ledger(*rounds).path)
    start = page.text.index("CAUTION round 3: the validation fell by more than 0.2 and came back")
    assert page.text.index("Training Training") < start if "Training Training" in page.text else start


def _rgb(colour):
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    return list(bytes.fromhex(digits))


def _luminance(rgb):
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in (part / 255 for part in rgb)]
    return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_a_report_leads_with_its_verdict_and_the_same_dots(finished):
    page = report(finished(joining={"east": dump_record(joined(local=0.5, federated=0.625, kept=0.75))}))
    assert page.source.index("banner") < page.source.index('class="lead"') < page.source.index("<img")
    assert page.images[0]["alt"].startswith("Test dice, mean over the hospitals: harmofl alone 0.500")
    order = [
        page.source.index(f'<section id="{name}"')
        for name in ("joining", "results", "training", "pictures", "traffic", "sites", "recipe")
    ]
    assert order == sorted(order)


def test_names_and_reasons_are_escaped(run, results, record, pictures):
    name = '<script>alert("x")</script>'
    broken = record(1, asked=[name], answered=[], failed={name: "<b>no</b>"}, validation=(0.1, 0.2))
    values = results(status="INCOMPLETE", reasons=[f"site {name} did not test"], sites={name: 0.5}, study=name)
    folder = run().json("results.json", values).study(labels={1: "<i>organ</i>"}).ledger(broken).path
    page = report(folder)
    assert "<script" not in page.source and "<b>" not in page.source
    assert f"site {name} did not test" in page.text


def test_a_note_of_the_ledger_is_nothing_that_went_wrong(finished, record):
    folder = finished()
    (folder / "ledger.json").write_text(json.dumps(dump_record([record(1, notes=["site 'west' keeps its own model"])])))
    page = report(folder)
    assert "What else happened, and why" in page.text and "went wrong" not in page.text


def test_a_failed_run_has_a_report_with_its_reason(run, results):
    values = results(status="FAILED", reasons=["no site joined"])
    page = report(run().json("results.json", values).json("run.json", {}).path)
    assert 'class="banner bad"' in page.source and "no site joined" in page.text
    assert (
        "Remove the cause, then continue: python -m silofl resume" in page.text
        and "No round has finished." in page.text
    )


def test_an_unfinished_run_has_a_report_with_its_curves_so_far(run, record):
    folder = run().study().json("run.json", {}).ledger(record(1)).path
    page = report(folder)
    assert "1 of 2 rounds are finished and there is no result yet" in page.text
    assert f"running or interrupted; go on with: python -m silofl resume {folder}" in page.text
    assert len(page.images) == 2 and "best round so far 1" in page.text
    assert "So far: best validation, round 1 (validation dice 0.500)." in page.text
    assert "0 of 2 rounds are finished" in report(run("begun").study().json("run.json", {}).path).text


def test_a_simulation_that_ended_before_its_first_round_shows_its_data_and_what_is_doubtful_of_them(run, results):
    data = {"sites": {"east": replace(counts(8, 2, 3), doubts=("dark images",)), "west": counts(7, 2, 3)}}
    values = results(status="FAILED", reasons=["no site joined"])
    page = report(run().json("results.json", values).json("run.json", {}).json("data.json", data).path)
    assert "No site has said" not in page.text
    assert "east: dark images" in page.text and re.search(r"west 7 \w+ 70", page.text)


def test_a_run_with_a_selector_shows_its_models_counts_map_and_threshold(finished_super):
    folder = finished_super()
    (folder / "supermodel").mkdir()
    (folder / "supermodel" / "model.json").write_text("{}")
    page = report(folder)
    assert page.open == [] and all(image["alt"] for image in page.images)
    # curves, curves of both models, drift, map
    assert len(page.images) == 4
    for words in (
        "The validation that chooses the round has no threshold gamma",
        "Right answers are on the diagonal: 5 of 5.",
        "The threshold gamma is 0.9",
        'SuperModel.load("supermodel")',
    ):
        assert words in page.text
    assert '<td class="number">0.600</td>' in page.source and 'class="number strong' not in page.source
    _check_contrast(page.source)


def _check_contrast(style):
    """Check that the words of a heated cell can be read in light and in dark."""
    schemes = re.findall(r":root \{.*?\}", style, re.S)
    assert schemes
    for block in schemes:
        named = dict(re.findall(r"--(\w+): ([^;]+);", block))
        ink, page = (_rgb(named[name]) for name in ("ink", "page"))
        heat = [int(part) for part in named["heat"].split(",")]
        most = float(named["most"])
        cell = [most * a + (1 - most) * b for a, b in zip(heat, page, strict=True)]
        bright, dark = sorted((_luminance(ink), _luminance(cell)), reverse=True)
        # WCAG's contrast of words, AA
        assert (bright + 0.05) / (dark + 0.05) >= 4.5


def test_a_site_that_was_left_out_is_shown_where_it_was_tested(finished_super, unseen_plain):
    folder = finished_super()
    (folder / "unseen.json").write_text(json.dumps(dump_record(unseen_plain(models={"global": 0.25}))))
    text = report(folder).text
    assert "A site that was left out Site coast took no part" in text and "0.250" in text


def test_a_report_opens_with_own_and_federated_models_at_the_site_that_took_no_part(finished_super, unseen_plain):
    folder, own = finished_super(), {"east": 0.5, "west": 0.25, "ensemble": 0.625}
    (folder / "unseen.json").write_text(json.dumps(dump_record(unseen_plain(models={"global": 0.6}, own=own))))
    page = report(folder)
    first = "At coast, which took no part in the training: the others' own models 0.250 to 0.500, the mean of their "
    assert f"A site that was left out {first}answers 0.625, federated model 0.600 (" in page.text
    assert page.source.index('<section id="unseen"') < page.source.index('<section id="results"')


def test_a_report_is_written_anew_and_leaves_no_other_file(finished, tmp_path):
    folder = finished()
    before = write_report(folder).read_bytes()
    assert write_report(folder).read_bytes() == before
    assert [path.name for path in folder.glob("*report*")] == ["report.html"]
    with pytest.raises(ConfigError, match="must be the folder of a run"):
        write_report(tmp_path)


def test_a_report_has_all_settings_and_the_size_of_each_sites_data(finished):
    folder = finished(algorithm="fedavg")
    data = {"sites": {"east": dump_record(counts(8, 2, 3, patients=5))}}
    (folder / "data.json").write_text(json.dumps(data))
    page = report(folder)
    for words in ("training.learning_ rate 0.001", "training.batch_ size 8", "data.augment []", "rounds 2", "seed 0"):
        assert words in page.text
    assert "east 8 5 80 2 5 20 3 5 30 west unknown unknown 30 1 unknown unknown 6" in page.text


def test_the_weights_of_adafed_are_a_picture_in_place_of_the_table(finished):
    folder = finished()
    weights = {"round": 3, "source": "running", "layers": "all", "self_weight": 0.5, "sites": ["east", "west"]}
    weights |= {"distances": [[0, 1], [1, 0]], "weights": [[0.5, 0.5], [0.5, 0.5]], "without": {}}
    (folder / "weights.json").write_text(json.dumps([weights]))
    page = report(folder)
    assert page.open == [] and all(image["alt"] for image in page.images)
    assert "Computed after 3 rounds." in page.text and "listener" not in page.text


def test_a_classification_shows_its_other_scores_all_sites_its_classes_and_the_metrics_of_packages(tested):
    also = {site: {"balanced_accuracy": 0.375} for site in ("east", "west")}
    by_label = {"east": {f"class {i}": 0.5 for i in range(5)}, "west": {}}
    everyone = {"accuracy": 0.5, "balanced_accuracy": 0.25, "num_cases": 40}
    failed = {"a==1/overlap": {"value": None, "num_cases": 0, "has_failed": True}}
    extra = {"east": {"a==1/overlap": {"value": 0.125, "num_cases": 1}}, "west": failed}
    changes = {"also": also, "by_label": by_label, "everyone": everyone, "extra_metrics": extra}
    text = report(tested(metric="accuracy", **changes)).text
    for words in ("balanced accuracy", "0.375", "on all sites' test data (40 cases): accuracy 0.500", "class 4"):
        assert words in text
    for words in ("0.125", "overlap is a metric of the package a==1", "It failed at west;"):
        assert words in text


def test_the_report_of_a_downloaded_job_that_was_killed_names_the_run_and_not_its_folder(tmp_path, make_study):
    # NVFlare's download of a job has its results here.
    folder = tmp_path / "3a4ab1f3" / "workspace" / "silofl"
    results = stopped_results(make_study(), "small-20261122-014922-f234", 2, "the job's process was killed")
    write_json(folder / "results.json", dump_record(results))
    page = write_report(folder).read_text()
    assert "continue_run: small-20261122-014922-f234 to go on" in page and "continue_run: silofl" not in page


def test_a_failed_run_of_which_the_name_alone_is_known_has_a_page_with_its_reason(tmp_path):
    failed = unscored_results("small", "FAILED", ["study.yaml cannot be read"])
    write_json(tmp_path / "results.json", dump_record(failed))
    page = report(tmp_path)
    assert 'class="banner bad"' in page.source and "study.yaml cannot be read" in page.text and "None" not in page.text


@pytest.mark.parametrize(
    ("weights", "rows"),
    [
        # Equal weights are one row for every site.
        ({site: {"east": 0.25, "west": 0.75} for site in ("east", "west")}, {"every site": [0.25, 0.75]}),
        (
            {"east": {"east": 0.7, "west": 0.3}, "west": {"east": 0.3, "west": 0.7}},
            {"east": [0.7, 0.3], "west": [0.3, 0.7]},
        ),
        # A site that a listener did not hear is an empty cell.
        ({"east": {"east": 0.5, "west": 0.5}, "west": {"west": 1.0}}, {"east": [0.5, 0.5], "west": [None, 1.0]}),
    ],
)
def test_weights_are_a_row_for_each_listener(record, weights, rows):
    table = weights_table([record(1), record(2, weights=weights)])
    assert table.columns == ["east", "west"] and weights_table([]) is None
    assert {row.name: [cell.share for cell in row.cells] for row in table.rows} == rows
    texts = [cell.text for row in table.rows for cell in row.cells]
    assert texts == ["-" if share is None else f"{share:.3f}" for shares in rows.values() for share in shares]


def test_a_report_is_written_without_torch(finished, tmp_path):
    code, said = run_without_torch("report", finished(), folder=tmp_path)
    assert code == 0, said
