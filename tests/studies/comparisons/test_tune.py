import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from silofl.base.files import read_json
from silofl_desk.studies.comparisons import tune
from silofl_desk.studies.comparisons.tune import (
    Trial,
    choose,
    find_best,
    list_normalizations,
    rates_around,
    rates_beyond,
    search,
)
from silofl_desk.studies.runs import simulate
from silofl_desk.studies.runs.simulation import changed_study

from ..conftest import JOB

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("undrawn")]

MASKS, CLASSES = (JOB.with_name(f"fedavg_{kind}") for kind in ("masks", "classes"))
OWN = Trial("group", 0.003)
# What the phantoms' study takes from its images does not matter where nothing trains.
SMALL = ["--set", "data.transforms=[{Resize: {spatial_size: [32, 32]}}]"]
# BatchNorm stays at home, so that rates alone are tried.
FEDBN = ["--set", "algorithm={name: fedbn}", "--set", "model.normalization=batch"]


@pytest.mark.parametrize(
    ("rate", "around"),
    [
        (0.003, [0.001, 0.003, 0.01]),
        (1, [0.3, 1, 3]),
        (0.0015, [0.0005, 0.0015, 0.005]),
        (1e-5, [3e-6, 1e-5, 3e-5]),
    ],
)
def test_the_rates_around_one_are_about_a_third_and_three_times_it(rate, around):
    assert rates_around(rate) == around
    # Beyond an edge alone.
    assert rates_beyond(rate, around) == []


class Measured:
    """Scores by trial, of which each seed after the first lies 0.01 higher; records what was asked for."""

    def __init__(self, scores):
        self.scores, self.asked = scores, []

    def __call__(self, trials, num_seeds):
        self.asked.append(([str(trial) for trial in trials], num_seeds))
        found = {trial: self.scores.get(str(trial)) for trial in trials}
        return {t: () if v is None else tuple(v + 0.01 * n for n in range(num_seeds)) for t, v in found.items()}


GRID = ["group 0.001", "group 0.003", "group 0.01"]


def test_the_studys_own_values_that_validate_best_need_no_further_seed():
    measure = Measured({"group 0.001": 0.6, "group 0.003": 0.7, "group 0.01": 0.7})
    scores = search(OWN, ["group"], measure)
    assert measure.asked == [(GRID, 1)]
    # of two that are level the study's own
    assert find_best(OWN, scores) == choose(OWN, scores) == OWN


def test_a_best_rate_at_an_edge_extends_the_grid_once_and_is_confirmed_with_further_seeds():
    measure = Measured({"group 0.001": 0.6, "group 0.003": 0.7, "group 0.01": 0.8, "group 0.03": 0.9, "group 0.1": 1.0})
    scores = search(OWN, ["group"], measure)
    assert measure.asked == [(GRID, 1), (["group 0.03"], 1), (["group 0.003", "group 0.03"], 3)]
    assert choose(OWN, scores) == Trial("group", 0.03)


def test_a_lead_within_the_seeds_spread_is_a_tie_and_the_studys_own_values_stay():
    # seeds of 0.700, 0.710, 0.720: a deviation of 0.01
    scores = search(OWN, ["group", "instance"], Measured({"group 0.003": 0.7, "instance 0.003": 0.709}))
    assert (find_best(OWN, scores), choose(OWN, scores)) == (Trial("instance", 0.003), OWN)


@pytest.mark.parametrize(
    ("job", "shape", "changes", "names"),
    [
        (MASKS, (1, 32, 32), {}, ["group", "instance", "batch"]),
        # the study's own is tried in any case, and is the first
        (MASKS, (1, 32, 32), {"model.normalization": "batch"}, ["batch", "group", "instance"]),
        # What keeps BatchNorm at home or starts from a file keeps its normalisation.
        (MASKS, (1, 32, 32), {"algorithm": {"name": "fedbn"}, "model.normalization": "batch"}, ["batch"]),
        (MASKS, (1, 32, 32), {"model.weights": "w.pt", "model.weights_sha256": "0" * 64}, ["group"]),
        # The last maps of DenseNet come to one value on 32 x 32.
        (CLASSES, (3, 32, 32), {"model": {"name": "densenet121", "normalization": "group"}}, ["group", "batch"]),
    ],
)
def test_the_normalisations_that_the_network_can_have_are_tried(job, shape, changes, names):
    assert list_normalizations(changed_study(job, changes), job, changes, shape) == names


@pytest.fixture
def tuned(silofl, training, monkeypatch):
    """Tune with made-up runs; returns exit code, output and the names of the runs.

    ``scores`` gives the validation by trial, 0.1 by default; without one a run ends without a result.
    """

    def call(job, data, *options, scores):
        def carry_out(runs, out, processes, console):
            failures = {}
            for run in (run for run in runs if not run.has_started):
                value = scores.get(run.name, 0.1)
                if isinstance(value, BaseException):
                    raise value
                if value is None:
                    failures[run.path] = "it ended early"
                    continue
                score = {"value": value, "num_cases": 1, "num_excluded": 0}
                training.results = {"validation": {site: score for site in ("north", "south")}}
                simulate.start_simulation(run.job, run.path, run.wanted, run.changes, Console(quiet=True))
            return failures

        monkeypatch.setattr(tune, "run_side_by_side", carry_out)
        training.carried_out.clear()
        code, out, error = silofl("tune", job, "--data", data, *SMALL, *options)
        return code, out + error, training.carried_out

    return call


def test_a_search_ends_with_the_options_to_train_with(tuned, phantoms):
    scores = {"group 0.003": 0.5, "group 0.001": 0.4, "group 0.01": 0.6, "group 0.03": 0.55}
    given = ("--rounds", "2", "--out", "found", "--cache", "pictures", "--skip-unreadable", "0.1")
    code, said, carried_out = tuned("fedavg_masks", phantoms, *given, scores=scores)
    assert code == 0, said
    runs = [read_json(path) for path in Path("found").rglob("run.json")]
    assert {(run["cache"], run["skip_unreadable"]) for run in runs} == {(str(Path("pictures").resolve()), 0.1)}
    assert "0.001, 0.003, 0.01, with model.normalization group, instance, batch\n" in said
    # the grid, one beyond its edge, two further seeds of the study's own values and the best ones
    assert len(carried_out) == 9 + 1 + 4 and carried_out[9] == "group-0.03-seed0"
    assert "group 0.01 validates best: 0.600 ± 0.000; the study's own values, group 0.003: 0.500 ± 0.000." in said
    options = "--set model.normalization=group --set training.learning_rate=0.01"
    assert f"Write these values into study.yaml, or train with {options}\n" in said


def test_a_search_that_was_interrupted_goes_on_and_finished_runs_are_used_again(tuned, phantoms):
    scores = {"batch 0.003": 0.5, "batch 0.01": KeyboardInterrupt()}
    code, said, carried_out = tuned(MASKS, phantoms, *FEDBN, scores=scores)
    assert (code, carried_out) == (130, ["batch-0.001-seed0", "batch-0.003-seed0"])
    assert "give the same command again" in said
    code, said, carried_out = tuned(MASKS, phantoms, *FEDBN, scores=scores | {"batch 0.01": 0.45})
    assert (code, carried_out) == (0, ["batch-0.01-seed0"])
    assert "The study's own values validate best: batch 0.003." in said
    code, said, carried_out = tuned(MASKS, phantoms, *FEDBN, "--rounds", "7", scores=scores)
    assert code == 2 and "holds another run, which differs in rounds" in said


def test_a_rate_that_does_not_train_is_named_and_the_code_says_that_it_is_missing(tuned, phantoms, tmp_path):
    scores = {"batch 0.001": 0.6, "batch 0.0003": 0.7, "batch 0.003": 0.5, "batch 0.01": None}
    code, said, _ = tuned(MASKS, phantoms, *FEDBN, scores=scores)
    assert code == 3 and "0.0003 is at the edge of the rates tried" in said
    assert "batch-0.01-seed0 has no score: it ended early" in said
    code, said, _ = tuned(MASKS, phantoms, *FEDBN, "--out", "none", scores=dict.fromkeys(scores, None))
    assert code == 1 and "no run has a validation score; none/logs says why" in said


def test_without_validation_data_nothing_can_be_chosen(silofl, phantoms, tmp_path):
    data = shutil.copytree(phantoms, tmp_path / "data", ignore=shutil.ignore_patterns(".silofl*"))
    for path in data.glob("*/dataset.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"validation": []}))
    code, _, error = silofl("tune", MASKS, "--data", data, *SMALL)
    assert code == 2 and error.endswith(
        f"No site in {data} has validation data to choose the values by. Import it with --validation 0.2.\n"
    )


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--set", "training.lr=1"], "did you mean 'training.learning_rate'"),
        (["--pretrained", "f.pt"], "needs no pretrained model. Leave out --pretrained."),
        (["--out", "f.pt"], "f.pt is a file. Name a folder with --out."),
        (["--processes", "0"], "must be a whole number of at least 1"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_trained(refused, phantoms, tmp_path, options, reason):
    (tmp_path / "f.pt").touch()
    assert reason in refused("tune", MASKS, "--data", phantoms, *SMALL, *options)
    assert not (tmp_path / "tuning").exists()
