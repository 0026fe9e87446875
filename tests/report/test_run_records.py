import json
import os

import pytest

from silofl.errors import ConfigError
from silofl.federation.results import UNFINISHED
from silofl.inference.unseen import UnseenTest
from silofl.report.run_records import read_run
from silofl.schema import dump_record, read_record
from silofl.studies.conditions import run_names


def test_a_finished_run_is_read_whole(finished):
    run = read_run(finished())
    assert (run.results.mean, len(run.ledger), run.labels) == (0.625, 2, {1: "organ"})
    assert sorted(run.pictures) == run.sites == ["east", "west"]


def test_a_run_without_result_is_unfinished_and_described_by_its_study(run, record):
    found = read_run(run().study(seed=7).ledger(record(1)).path).results
    assert (found.status, found.algorithm, found.seed) == (UNFINISHED, "fedavg", 7)
    assert found.recipe_value("stays_home") == "nothing"


def test_a_run_at_a_server_has_no_study_and_still_can_be_read(run, record):
    records = read_run(run("nuclei-1").ledger(record(1)).path)
    assert (records.results.study, records.labels, records.pictures) == ("nuclei-1", {}, {})


@pytest.mark.parametrize(("files", "is_simulation"), [({"run.json": {}}, True), ({"ledger.json": []}, False)])
def test_only_a_simulation_can_be_resumed_by_the_command_line(run, files, is_simulation):
    folder = run()
    for name, value in files.items():
        folder.json(name, value)
    assert read_run(folder.path).is_simulation is is_simulation


def test_without_a_result_the_best_round_is_the_first_with_the_best_mean_over_the_sites_that_rounds_share(run, record):
    rounds = [record(1, (0.9, None)), record(2, (0.4, 0.6)), record(3, (0.5, 0.5)), record(4, (None, 0.6))]
    assert read_run(run().ledger(*rounds).path).best_round == 2


def test_without_validation_there_is_no_best_round_yet(run, record):
    assert read_run(run().ledger(record(1, validation=(None, None))).path).best_round is None


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
        (
            "ledger.json",
            '[{"started_at": ""}]',
            "ledger.json: round must be given; it is missing; read it with the version",
        ),
        ("results.json", '{"study": "a", "algoritm": "b"}', "algoritm must be a known key; it is not .* 'algorithm'"),
        ("unseen.json", '{"sites": "a"}', r"unseen.json: sites must be a known key; it is not \(did you mean 'site'"),
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


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"models": {"north": 0.5}}, "models must hold 'ensemble' with a selector, not only .'north'."),
        ({"models": {"ensemble": 0.5}}, "models must hold 'global' with a selector, not only .'ensemble'."),
        ({"by_threshold": []}, "by_threshold must be given with a threshold; it is empty"),
        (
            {"by_threshold": [{"threshold": None, "value": 0.5, "num_counted": 4, "choices": {"global": 4}}]},
            "each row of by_threshold must have a threshold",
        ),
    ],
)
def test_the_test_of_a_left_out_site_without_what_its_tables_show_is_refused(unseen, changes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        unseen(**changes)


def test_broken_pictures_name_their_site(finished):
    folder = finished()
    next((folder / "sites" / "west").glob("*/pictures.npz")).write_bytes(b"PK\x03\x04 not a zip")
    with pytest.raises(ConfigError, match="pictures of site 'west' must be a readable pictures.npz"):
        read_run(folder)


def test_the_selectors_features_and_the_left_out_site_are_read(finished_super, unseen):
    folder = finished_super()
    (folder / "unseen.json").write_text(json.dumps(dump_record(unseen())))
    run = read_run(folder)
    assert run.features["west"].features.shape == (7, 8) and run.unseen == unseen()


def test_the_test_of_a_left_out_site_is_written_with_the_keys_of_its_rule(unseen, unseen_plain):
    with_selector, without = dump_record(unseen()), dump_record(unseen_plain())
    assert with_selector.keys() - without.keys() == {
        "answer",
        "threshold",
        "threshold_from",
        "choices",
        "by_threshold",
        "best_in_hindsight",
    }
    with pytest.raises(ConfigError, match="unseen.json: choices must be given; it is missing"):
        read_record(UnseenTest, {key: value for key, value in with_selector.items() if key != "choices"}, "unseen.json")


def test_broken_features_name_the_site(finished_super):
    folder = finished_super()
    next((folder / "sites" / "west").glob("*/selector.npz")).write_bytes(b"PK\x03\x04 not a zip")
    with pytest.raises(ConfigError, match="selector of site 'west' must be a readable selector.npz"):
        read_run(folder)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_a_permission_error(finished):
    folder = finished()
    (folder / "results.json").chmod(0)
    with pytest.raises(ConfigError, match="must be readable by this account"):
        read_run(folder)


@pytest.fixture
def record_of_weights():
    """Build one record of weights.json: north shares no statistics."""
    values = {"round": 3, "source": "running", "layers": "all", "self_weight": 0.5, "sites": ["east", "north"]}
    values |= {"distances": [[0.0, None], [None, None]], "weights": [[1.0, 0.0], [0.5, 0.5]]}
    return lambda **changes: values | {"without": {"north": "too few examples"}} | changes


def test_each_computation_of_the_weights_is_read(run, record_of_weights):
    records = [record_of_weights(), record_of_weights(round=6)]
    first, last = read_run(run().json("run.json", {}).json("weights.json", records).path).site_weights
    assert (first.round, last.round, last.without) == (3, 6, {"north": "too few examples"})
    assert last.weight("north", "east") == 0.5 and last.weight("north", "unknown") == 0
    assert last.distances == ((0.0, None), (None, None))


def test_weights_that_do_not_fit_their_sites_are_refused(run, record_of_weights):
    folder = run().json("run.json", {}).json("weights.json", [record_of_weights(weights=[[1.0]])]).path
    with pytest.raises(ConfigError, match="weights must have 2 rows and columns, not rows of .1."):
        read_run(folder)


def test_a_run_without_weights_has_none(finished):
    assert read_run(finished()).site_weights == []


def test_runs_are_named_by_row_and_algorithm(finished):
    runs = [read_run(finished("a")), read_run(finished("b", algorithm="fedavg"))]
    assert list(run_names(runs)) == ["1: harmofl", "2: fedavg"]


def test_runs_that_differ_in_seed_or_preset_say_so(finished):
    runs = [read_run(finished("a", seed=1)), read_run(finished("b", seed=2, preset="paper"))]
    assert list(run_names(runs)) == ["1: harmofl recommended seed 1", "2: harmofl paper seed 2"]


def test_runs_that_differ_in_what_was_set_say_so(run, results):
    fast = {"training.learning_rate": 0.1, "model": {"name": "unet"}, "algorithm.name": "harmofl", "rounds": 2}
    # The name of a study has a column of its own.
    changes = (fast, {"rounds": 2, "name": "again"}, {"rounds": 2})
    folders = [
        run(str(i)).json("results.json", results()).json("run.json", {"changes": c}) for i, c in enumerate(changes)
    ]
    names = list(run_names([read_run(one.path) for one in folders]))
    assert names == ["1: harmofl learning_rate=0.1", "2: harmofl", "3: harmofl"]
