import json
from dataclasses import astuple, fields
from pathlib import Path

import pytest

from silofl.base.errors import ConfigError
from silofl.base.schema import dump_record
from silofl.core.gain import BETTER
from silofl.federation.results import UNFINISHED
from silofl_desk.report.run_records import ResultRow, RunRecords, all_settings, data_table, list_result_rows, read_run
from tests.report.conftest import counts, joined, with_data


def test_all_that_a_study_decides_is_a_setting(made):
    settings = all_settings(made(study={"training": {"learning_rate": 0.01}, "seed": 3}, seed=3))
    assert settings["training.learning_rate"] == "0.01" and settings["training.loss"] == "dice_ce"
    assert settings["model.features"] == "[32, 32, 64, 128, 256, 32]" and settings["labels"] == "{1: organ}"
    assert (settings["rounds"], settings["seed"], settings["data.split_unit"]) == ("2", "3", "patient")
    # an answer of the recipe that study.yaml leaves to the preset
    assert settings["algorithm.perturbation.alpha"] == "0.05"
    # A class of another package has no such features.
    network = {"network": "monai.networks.nets.SegResNet", "normalization": "batch"}
    keys = all_settings(made(study={"model": network})).keys()
    assert "model.network" in keys and keys.isdisjoint({"model.name", "model.features", "model.dropout"})
    # Without its study those in its result are known.
    found = all_settings(made(rounds=7))
    assert (found["rounds"], found["algorithm.name"]) == ("7", "harmofl") and "training.learning_rate" not in found


def test_the_data_table_has_cases_patients_and_images(made):
    table = data_table(with_data(made(), east=counts(8, 2, 3, patients=5)))
    assert table.columns[:4] == ("site", "training: cases", "training: patients", "training: images")
    assert table.rows[0] == ("east", "8", "5", "80", "2", "5", "20", "3", "5", "30")
    # of west: 30 training examples in the ledger, 1 validated case, 4 test cases and 2 excluded
    assert table.rows[1] == ("west", *["unknown"] * 2, "30", "1", *["unknown"] * 2, "6", *["unknown"] * 2)


@pytest.fixture
def rows(results):
    """List the rows of a result by its changes."""

    def make(build=results, unseen=None, **changes):
        return list_result_rows({"first": [RunRecords(Path("run"), build(**changes), [], {}, {}, unseen=unseen)]})

    return make


def values_of(rows, **wanted):
    """Return (site, model, metric, label, value) of the rows in which these columns have these values."""
    return [
        (row.site, row.model, row.metric, row.label, row.value)
        for row in rows
        if all(getattr(row, key) == value for key, value in wanted.items())
    ]


def test_each_site_has_its_test_by_label_and_its_validation(rows):
    found = rows(by_label={"east": {"organ": 0.75, "lesion": 0.25}, "west": {}})
    first = found[0]
    assert [field.name for field in fields(ResultRow)][:4] == ["method", "run", "algorithm", "seed"]
    assert (first.method, first.run, first.algorithm, first.seed) == ("first", "small-1", "harmofl", 0)
    assert (first.value, first.cases, len(astuple(first))) == (0.5, 1, 14)
    assert values_of(found, site="east", part="test") == [
        ("east", "federated", "dice", "", 0.5),
        ("east", "federated", "dice", "organ", 0.75),
        ("east", "federated", "dice", "lesion", 0.25),
    ]
    assert values_of(found, part="validation") == [
        ("east", "federated", "dice", "", 0.4),
        ("west", "federated", "dice", "", 0.6),
    ]
    assert ("west", "federated", "dice", "", None) in values_of(rows(sites={"east": 0.5, "west": None}))
    assert rows(status="FAILED", reasons=["no"]) == []


def test_a_choice_has_own_and_kept_model_and_gain(rows):
    choice = joined(local=0.5, federated=0.625, kept=0.75)
    found = rows(joining={"east": dump_record(choice)}, sites={"east": 0.625}, cases={"east": 1})
    test = [row for row in found if row.part == "test"]
    assert values_of(test) == [
        ("east", "federated", "dice", "", 0.625),
        ("east", "local", "dice", "", 0.5),
        ("east", "federated_calibrated", "dice", "", 0.625),
        ("east", "kept", "dice", "", 0.75),
        ("east", "federated_calibrated", "gain", "", 0.25),
    ]
    assert [row.cases for row in test] == [1, None, None, None, None]
    # the interval is that of joined()
    assert (test[-1].low, test[-1].high, test[-1].verdict) == (0.01, 0.2, BETTER)


def test_models_metrics_classes_and_surfaces_have_rows(rows, super_results, classes, findings, unseen_plain):
    assert ("east", "ensemble", "dice", "", 0.55) in values_of(rows(super_results))
    of_classes = rows(classes, by_label={"east": {"sick": 0.25}, "west": {}})
    assert ("west", "federated", "auroc", "", 0.875) in values_of(of_classes)
    # the study's own metric has its row already
    assert len(values_of(of_classes, site="west", part="test", metric="accuracy")) == 1
    # Of a class it is the recall, of a finding the area too.
    assert values_of(of_classes, label="sick") == [("east", "federated", "recall", "sick", 0.25)]
    assert ("west", "federated", "auroc", "effusion", 1.0) in values_of(rows(findings))
    surface = {"hd95": 12.5, "surface_dice": 0.5, "num_cases": 1, "num_undefined": 0, "unit": "mm"}
    found = rows(surface={"east": surface}, unseen=unseen_plain())
    assert values_of(found, metric="hd95_mm") == [("east", "federated", "hd95_mm", "", 12.5)]
    assert values_of(found, metric="surface_dice") == [("east", "federated", "surface_dice", "", 0.5)]
    wanted = [("coast", model, "dice", "", 0.6) for model in ("federated", "global")]
    assert values_of(found, part="unseen") == wanted
    assert [row.cases for row in found if row.part == "unseen"] == [4, None]


def test_a_finished_run_is_read_with_its_pictures(finished, unseen):
    folder = finished()
    (folder / "unseen.json").write_text(json.dumps(dump_record(unseen())))
    run = read_run(folder)
    assert (run.results.mean, len(run.ledger), run.labels) == (0.625, 2, {1: "organ"})
    assert sorted(run.pictures) == run.sites == ["east", "west"]
    assert run.unseen == unseen() and run.is_simulation


def test_a_run_without_result_is_described_by_its_study(run, record):
    rounds = [record(1, (0.9, None)), record(2, (0.4, 0.6), asked=["east", "south", "west"]), record(3, (0.5, 0.5))]
    found = read_run(run().study(seed=7).ledger(*rounds, record(4, (None, 0.5))).path)
    assert (found.results.status, found.results.algorithm, found.results.seed) == (UNFINISHED, "fedavg", 7)
    # The last with the best mean over the sites that rounds share; who never answered counts as a site.
    assert (found.best_round, found.sites) == (3, ["east", "south", "west"])
    records = read_run(run("nuclei-1").ledger(record(1, validation=(None, None))).path)
    assert (records.results.study, records.labels, records.pictures, records.best_round) == ("nuclei-1", {}, {}, None)
    assert not records.is_simulation


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_a_folder_that_is_no_run_is_refused(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=f"{name} has no results.json, ledger.json or run.json; name the folder"):
        read_run(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("results.json", '{"status": ', "results.json is broken JSON"),
        ("ledger.json", '[{"started_at": ""}]', "ledger.json: round is missing; read it with the"),
        ("unseen.json", "[" * 100_000, "unseen.json is broken JSON"),
    ],
)
def test_a_broken_file_is_named(run, name, text, sentence):
    folder = run().json("run.json", {}).path
    (folder / name).write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        read_run(folder)


def test_broken_pictures_name_their_site(finished):
    folder = finished()
    next((folder / "sites" / "west").glob("*/pictures.npz")).write_bytes(b"PK\x03\x04 not a zip")
    with pytest.raises(ConfigError, match="the pictures of site 'west', cannot be read"):
        read_run(folder)
