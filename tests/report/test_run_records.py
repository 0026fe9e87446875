import json
import os
from dataclasses import astuple, fields
from pathlib import Path

import pytest

from silofl.base.errors import ConfigError
from silofl.base.schema import dump_record
from silofl.core.gain import BETTER
from silofl.federation.results import UNFINISHED
from silofl_desk.report.run_records import ResultRow, RunRecords, all_settings, data_table, list_result_rows, read_run
from tests.report.conftest import counts, joined, with_data


def test_all_that_a_study_decides_is_a_setting_with_its_defaults(made):
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


def test_the_data_table_has_cases_patients_and_images_and_says_unknown(made):
    table = data_table(with_data(made(), east=counts(8, 2, 3, patients=5)))
    assert table.columns[:4] == ("site", "training: cases", "training: patients", "training: images")
    assert table.rows[0] == ("east", "8", "5", "80", "2", "5", "20", "3", "5", "30")
    # of west: 30 training examples in the ledger, 1 validated case, 4 test cases and 2 excluded
    assert table.rows[1] == ("west", *["unknown"] * 2, "30", "1", *["unknown"] * 2, "6", *["unknown"] * 2)


def rows_in(result, **options):
    """Return the rows of a result."""
    return list_result_rows({"first": [RunRecords(Path("run"), result, [], {}, {}, **options)]})


@pytest.fixture
def rows(results):
    return lambda unseen=None, **changes: rows_in(results(**changes), unseen=unseen)


def values_of(rows, **wanted):
    """Return (site, model, metric, label, value) of the rows in which these columns have these values."""
    return [
        (row.site, row.model, row.metric, row.label, row.value)
        for row in rows
        if all(getattr(row, key) == value for key, value in wanted.items())
    ]


def test_a_row_says_what_its_value_is_of(rows):
    first = rows()[0]
    assert [field.name for field in fields(ResultRow)][:4] == ["method", "run", "algorithm", "seed"]
    assert (first.method, first.run, first.algorithm, first.seed) == ("first", "small-1", "harmofl", 0)
    assert (first.site, first.model, first.part, first.metric, first.label) == ("east", "federated", "test", "dice", "")
    assert (first.value, first.cases, len(astuple(first))) == (0.5, 1, 14)


def test_each_site_has_its_test_by_label_and_its_validation(rows):
    found = rows(by_label={"east": {"organ": 0.75, "lesion": 0.25}, "west": {}})
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


def test_a_choice_has_the_own_and_the_kept_model_and_what_joining_adds(rows):
    choice = joined(local=0.5, federated=0.625, kept=0.75)
    found = rows(joining={"east": dump_record(choice)}, sites={"east": 0.625}, cases={"east": 1})
    test = [row for row in found if row.part == "test"]
    assert values_of(test) == [
        ("east", "federated", "dice", "", 0.625),
        ("east", "alone", "dice", "", 0.5),
        ("east", "federated_calibrated", "dice", "", 0.625),
        ("east", "kept", "dice", "", 0.75),
        ("east", "federated_calibrated", "gain", "", 0.25),
    ]
    # A model leaves out the empty cases that it leaves empty too; only the tested one says how many that are.
    assert [row.cases for row in test] == [1, None, None, None, None]
    # the interval is that of joined()
    assert (test[-1].low, test[-1].high, test[-1].verdict) == (0.01, 0.2, BETTER)


def test_each_model_of_classes_counts_all_cases_and_a_gain_those_that_it_pairs(classes):
    def cases_of(**changes):
        choice = {"east": dump_record(joined(num_test_units=7, **changes))}
        found = rows_in(classes(joining=choice, cases={"east": 8, "west": 4}))
        return {(row.model, row.metric): row.cases for row in found if (row.site, row.part) == ("east", "test")}

    of_cases = cases_of(unit="case")
    assert (of_cases["alone", "accuracy"], of_cases["federated_calibrated", "gain"]) == (8, 7)
    assert cases_of(unit="patient")["federated_calibrated", "gain"] is None


def test_a_super_models_parts_and_other_metrics_have_rows(super_results, classes):
    found = rows_in(super_results())
    assert ("east", "ensemble", "dice", "", 0.55) in values_of(found)
    assert {row.cases for row in found if row.model != "federated"} == {None}
    of_classes = rows_in(classes())
    assert ("west", "federated", "auroc", "", 0.875) in values_of(of_classes)
    # the study's own metric has its row already
    assert len(values_of(of_classes, site="west", part="test", metric="accuracy")) == 1


def test_a_class_has_its_recall_and_a_finding_its_area_too(findings, classes):
    of_findings = rows_in(findings())
    assert [(row[3], row[4]) for row in values_of(of_findings, site="west", metric="recall")] == [
        ("effusion", 0.5),
        ("no effusion", 0.75),
        ("no nodule", 1.0),
    ]
    assert ("west", "federated", "auroc", "effusion", 1.0) in values_of(of_findings)
    of_classes = rows_in(classes(by_label={"east": {"sick": 0.25}, "west": {}}))
    assert values_of(of_classes, label="sick") == [("east", "federated", "recall", "sick", 0.25)]


def test_distances_name_their_unit_and_a_site_that_took_no_part_has_its_rows(rows, unseen_plain):
    surface = {"hd95": 12.5, "surface_dice": 0.5, "num_cases": 1, "num_undefined": 0, "unit": "mm"}
    found = rows(surface={"east": surface}, unseen=unseen_plain())
    assert values_of(found, metric="hd95_mm") == [("east", "federated", "hd95_mm", "", 12.5)]
    assert values_of(found, metric="surface_dice") == [("east", "federated", "surface_dice", "", 0.5)]
    wanted = [("coast", model, "dice", "", 0.6) for model in ("federated", "global")]
    assert values_of(found, part="unseen") == wanted
    assert [row.cases for row in found if row.part == "unseen"] == [4, None]


def test_a_finished_run_is_read_whole(finished):
    run = read_run(finished())
    assert (run.results.mean, len(run.ledger), run.labels) == (0.625, 2, {1: "organ"})
    assert sorted(run.pictures) == run.sites == ["east", "west"] and run.site_weights == []


def test_a_run_without_result_is_unfinished_and_described_by_its_study(run, record):
    found = read_run(run().study(seed=7).ledger(record(1)).path).results
    assert (found.status, found.algorithm, found.seed) == (UNFINISHED, "fedavg", 7)
    assert found.recipe.get("stays_home") == "nothing"


def test_a_run_at_a_server_has_no_study_and_still_can_be_read(run, record):
    records = read_run(run("nuclei-1").ledger(record(1)).path)
    assert (records.results.study, records.labels, records.pictures) == ("nuclei-1", {}, {})


@pytest.mark.parametrize(("files", "is_simulation"), [({"run.json": {}}, True), ({"ledger.json": []}, False)])
def test_only_a_simulation_can_be_resumed_by_the_command_line(run, files, is_simulation):
    folder = run()
    for name, value in files.items():
        folder.json(name, value)
    assert read_run(folder.path).is_simulation is is_simulation


def test_without_a_result_the_best_round_is_the_last_with_the_best_mean_over_the_sites_that_rounds_share(run, record):
    rounds = [record(1, (0.9, None)), record(2, (0.4, 0.6)), record(3, (0.5, 0.5)), record(4, (None, 0.5))]
    assert read_run(run().ledger(*rounds).path).best_round == 3
    assert read_run(run("unvalidated").ledger(record(1, validation=(None, None))).path).best_round is None


def test_sites_that_were_asked_count_even_when_they_never_answered(run, results, record):
    files = run().json("results.json", results()).ledger(record(1, asked=["east", "south", "west"]))
    assert read_run(files.path).sites == ["east", "south", "west"]


def test_labels_without_a_study_are_the_numbers_of_the_pictures(run, results, pictures):
    files = run().json("results.json", results()).pictures("east", pictures(labels=(1, 2)))
    assert read_run(files.path).labels == {1: "label 1", 2: "label 2"}


@pytest.mark.parametrize("name", ["missing", "empty", "file"])
def test_a_folder_that_is_no_run_is_refused(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=f"{name} must be the folder of a run; it holds no results.json"):
        read_run(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("results.json", '{"status": ', "results.json must be JSON; it is broken"),
        ("results.json", "[]", "results.json must hold keys and values, not list"),
        ("ledger.json", '[{"started_at": ""}]', "ledger.json: round must be given; it is missing; read it with the"),
        ("results.json", '{"study": "a", "algoritm": "b"}', "algoritm must be a known key; it is not .* 'algorithm'"),
        ("run.json", '{"changes": [1]}', r"run.json: changes must be {text: anything}, not .1."),
        ("unseen.json", "[" * 100_000, "unseen.json must be JSON; it is broken"),
        ("results.json", '{"mean": NaN}', "results.json must be JSON; it is broken .NaN is no number"),
        ("results.json", r'{"study": "\ud800"}', "results.json must be JSON; it is broken"),
        ("ledger.json", '[{"round": 99999999999999999999}]', "ledger.json: round must be between"),
        ("weights.json", "{}", "weights.json must hold a list, not dict"),
        ("weights.json", '[{"round": 1}]', "weights.json: source must be given; it is missing"),
    ],
)
def test_a_broken_file_is_named(run, name, text, sentence):
    folder = run().json("run.json", {}).path
    (folder / name).write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        read_run(folder)


@pytest.mark.parametrize("name", ["pictures", "selector"])
def test_broken_pictures_and_features_name_their_site(finished, finished_super, name):
    folder = finished() if name == "pictures" else finished_super()
    next((folder / "sites" / "west").glob(f"*/{name}.npz")).write_bytes(b"PK\x03\x04 not a zip")
    with pytest.raises(ConfigError, match=f"{name} of site 'west' must be a readable {name}.npz"):
        read_run(folder)


def test_the_selectors_features_and_the_left_out_site_are_read(finished_super, unseen):
    folder = finished_super()
    (folder / "unseen.json").write_text(json.dumps(dump_record(unseen())))
    run = read_run(folder)
    assert run.features["west"].features.shape == (7, 8) and run.unseen == unseen()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_a_permission_error(finished):
    folder = finished()
    (folder / "results.json").chmod(0)
    with pytest.raises(ConfigError, match="must be readable by this account"):
        read_run(folder)


def test_each_computation_of_the_weights_is_read_and_those_that_do_not_fit_their_sites_are_refused(run):
    # north shares no statistics
    values = {"round": 3, "source": "running", "layers": "all", "self_weight": 0.5, "sites": ["east", "north"]}
    values |= {"distances": [[0.0, None], [None, None]], "weights": [[1.0, 0.0], [0.5, 0.5]]}
    values |= {"without": {"north": "too few examples"}}
    files = run().json("run.json", {}).json("weights.json", [values, values | {"round": 6}])
    first, last = read_run(files.path).site_weights
    assert (first.round, last.round, last.without) == (3, 6, {"north": "too few examples"})
    assert last.weight("north", "east") == 0.5 and last.weight("north", "unknown") == 0
    assert last.distances == ((0.0, None), (None, None))
    files.json("weights.json", [values | {"weights": [[1.0]]}])
    with pytest.raises(ConfigError, match="weights must have 2 rows and columns, not rows of .1."):
        read_run(files.path)
