import json

import numpy as np
import pytest
import torch

from silofl.base.schema import dump_record
from silofl.federation.results import read_results
from silofl.federation.run_folder import RECORDS, RunFolder


@pytest.fixture
def finished(ended, tmp_path):
    game, tests = ended(rounds=2, name="harmofl")
    return game, tests, RunFolder(tmp_path / "run", game.study)


def test_finished_run_is_complete_and_names_its_round(finished, tmp_path):
    game, tests, folder = finished
    folder.save(game.server)
    folder.finish(game.server, tests)
    values = json.loads((folder.path / "results.json").read_text())
    assert values["status"] == "COMPLETE" and values["reasons"] == []
    assert values["best_round"] == game.server.best_round and f"round {values['best_round']}" in values["model"]
    by_site = {site: score.value for site, score in tests.scores.items()}
    assert {site: one["value"] for site, one in values["sites"].items()} == by_site
    assert values["mean"] == pytest.approx(sum(by_site.values()) / 3)
    # two test cases at every site
    assert values["pooled"] == pytest.approx(values["mean"])
    state = torch.load(folder.path / "model" / "best.pt", weights_only=True)
    assert state["input_norm.is_fixed"] and "network.model.0.conv.weight" in state
    # Without the checkpoint for who downloads the job.
    folder.copy_results(tmp_path / "job" / "silofl")
    assert {path.name for path in (tmp_path / "job" / "silofl").iterdir()} == COPIED
    folder.copy_results(folder.path)
    assert (folder.path / "checkpoint.pt").is_file()


def test_each_round_is_written_with_what_came_after(play, tmp_path):
    game = play(("east", "west"), rounds=3)
    folder = RunFolder(tmp_path / "run", game.study)
    for number in range(3):
        game.round()
        folder.save(game.server)
        records = [dump_record(one) for one in game.server.ledger]
        assert json.loads((folder.path / "ledger.json").read_text()) == records
        assert folder.load().ledger == game.server.ledger
        game.server.ledger[-1].notes.append(f"said after round {number + 1}")
    folder.save(game.server)
    written = json.loads((folder.path / "ledger.json").read_text())
    assert [record["notes"][-1] for record in written] == [f"said after round {number}" for number in (1, 2, 3)]


def run_code(folder, monkeypatch):
    """Execute the code in the README of the models as it is printed, and return its names."""
    text = (folder.path / "model" / "README.md").read_text()
    monkeypatch.chdir(folder.path / "model")
    names = {}
    exec(text.split("```python")[1].split("```")[0], names)  # noqa: S102
    return names


@pytest.fixture
def with_models(ended, tmp_path):
    """Return a run of one round, its tests and its folder with all that it leaves."""

    def make(**options):
        game, tests = ended(rounds=1, **options)
        folder = RunFolder(tmp_path / "run", game.study)
        folder.finish(game.server, tests)
        return game, tests, folder

    return make


@pytest.mark.parametrize("algorithm", [{"name": "fedavg"}, {"name": "harmofl", "preset": "paper"}])
def test_loading_code_reads_all_arrays_or_refuses(with_models, monkeypatch, algorithm):
    game, _, folder = with_models(**algorithm)
    names = run_code(folder, monkeypatch)
    assert names["logits"].shape[:2] == (1, 1) and names["study"] == game.study
    written = torch.load("best.pt", weights_only=True)
    # torch counts batches anew where a file has no counters, which never travel
    absent = names["model"].state_dict().keys() - written.keys()
    assert all(name.endswith("num_batches_tracked") for name in absent)
    (part,) = (part for part in game.server.parts.values() if part.outcome(game.server, {}).models)
    for name, array in part.outcome(game.server, {}).models[""].items():
        np.testing.assert_array_equal(names["model"].state_dict()[name], array)
    torch.save({name: array for name, array in written.items() if not name.endswith("running_mean")}, "best.pt")
    with pytest.raises(RuntimeError, match="Missing key"):
        run_code(folder, monkeypatch)


@pytest.mark.parametrize(("algorithm", "why"), [("harmofl", "BatchNorm never left"), ("local", "trained alone")])
def test_incomplete_models_say_where_complete_ones_are(with_models, algorithm, why):
    _, _, folder = with_models(name=algorithm)
    text = (folder.path / "model" / "README.md").read_text()
    assert why in text and "Each site's complete model is `STATE_DIR/run/supermodel`" in text and "python" not in text


def test_killed_runs_download_says_how_to_go_on(finished, tmp_path):
    game, _, folder = finished
    folder.save(game.server)
    folder.copy_progress(tmp_path / "job" / "silofl", game.server.id)
    assert {path.name for path in (tmp_path / "job" / "silofl").iterdir()} == {*RECORDS, "results.json"}
    results = read_results(tmp_path / "job" / "silofl")
    assert results.run == game.server.id and results.was_stopped
    assert results.reasons == (
        "the job's process at the server was killed after round 2 of 2; submit the job again with "
        f"continue_run: {game.server.id} to go on",
    )
    assert not (folder.path / "results.json").exists()


# What a lead downloads of every finished run.
COPIED = {"results.json", "ledger.json", "metrics.csv", "model"}


@pytest.mark.parametrize(
    ("options", "files"),
    [
        ({"name": "fedavg"}, {"best.pt", "last.pt"}),
        ({"name": "softpull"}, {f"{k}-{site}.pt" for k in ("best", "last") for site in ("east", "north", "west")}),
        ({"name": "fedsm", "model": {"normalization": "instance"}}, set()),
    ],
)
def test_each_model_has_a_file_and_a_shared_one_too(with_models, options, files):
    _, _, folder = with_models(**options)
    assert {path.name for path in folder.path.glob("model/*.pt")} == files
    assert (folder.path / "supermodel").is_dir()


def test_a_run_keeps_its_id_from_before_its_first_round(play, tmp_path):
    game = play(("east", "west"))
    folder = RunFolder(tmp_path / "run", game.study)
    assert not folder.is_begun and folder.name_run("first") == "first"
    again = RunFolder(tmp_path / "run", game.study)
    assert again.is_begun and again.load() is None and again.name_run("second") == "first"
    (tmp_path / "run" / "run_id").write_text("damaged")
    assert not again.is_begun and again.name_run("second") == "second"
