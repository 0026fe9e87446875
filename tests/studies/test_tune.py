import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from silofl.base.files import read_json
from silofl.base.schema import dump_record
from silofl.data.parts import Examples
from silofl.federation.ledger import Round
from silofl.federation.results import read_results
from silofl.training.site_score import SiteScore
from silofl_desk.studies import simulate, tune
from silofl_desk.studies.simulation import changed_study
from silofl_desk.studies.tune import Found, Trial, list_normalizations, rates_around, rates_beyond, search

from .conftest import JOB

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
        (0.01, [0.003, 0.01, 0.03]),
        (0.1, [0.03, 0.1, 0.3]),
        (1, [0.3, 1, 3]),
        (0.0005, [0.0002, 0.0005, 0.002]),
        (0.0015, [0.0005, 0.0015, 0.005]),
        (1e-5, [3e-6, 1e-5, 3e-5]),
    ],
)
def test_the_rates_around_one_are_about_a_third_and_three_times_it(rate, around):
    assert rates_around(rate) == around


def test_rates_lie_beyond_an_edge_alone():
    assert rates_beyond(0.01, (0.001, 0.003, 0.01)) == [0.03]
    assert rates_beyond(0.001, (0.001, 0.003, 0.01)) == [0.0003]
    assert rates_beyond(0.003, (0.001, 0.003, 0.01)) == []


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
    found = search(OWN, ["group"], measure)
    assert measure.asked == [(GRID, 1)]
    # of two that are level the study's own
    assert (found.best, found.chosen, found.is_tie) == (OWN, OWN, False)


def test_a_best_rate_at_an_edge_extends_the_grid_once_and_is_confirmed_with_further_seeds():
    measure = Measured({"group 0.001": 0.6, "group 0.003": 0.7, "group 0.01": 0.8, "group 0.03": 0.9, "group 0.1": 1.0})
    found = search(OWN, ["group"], measure)
    assert measure.asked == [(GRID, 1), (["group 0.03"], 1), (["group 0.003", "group 0.03"], 3)]
    assert found.chosen == Trial("group", 0.03) and found.rates_beyond(found.chosen) == [0.1]


def test_a_lead_within_the_seeds_spread_is_a_tie_and_the_studys_own_values_stay():
    # seeds of 0.700, 0.710, 0.720: a deviation of 0.01
    found = search(OWN, ["group", "instance"], Measured({"group 0.003": 0.7, "instance 0.003": 0.709}))
    assert (found.best, found.is_tie, found.chosen) == (Trial("instance", 0.003), True, OWN)
    found = search(OWN, ["group", "instance"], Measured({"group 0.003": 0.7, "instance 0.003": 0.711}))
    assert (found.is_tie, found.chosen) == (False, Trial("instance", 0.003))


def test_a_trial_of_one_seed_is_not_set_against_means_over_seeds():
    scores = {Trial("group", 0.001): (0.9,), OWN: (0.6, 0.6, 0.6), Trial("group", 0.01): (0.95, 0.7, 0.7)}
    assert Found(OWN, scores).chosen == Trial("group", 0.01)


def test_a_rate_that_does_not_train_has_no_say():
    found = search(OWN, ["group"], Measured({"group 0.001": 0.6}))
    assert found.chosen == Trial("group", 0.001) and found.scores[OWN] == ()
    found = search(OWN, ["group"], Measured({}))
    assert not any(found.scores.values()) and found.best == OWN


# --- which normalisations


@pytest.fixture
def alike():
    """Two sites of which the images are noise of one brightness, and a function that makes one of them another."""

    def make(shape=(1, 32, 32), brighter=0.0):
        random, found = np.random.default_rng(0), {}
        for number, site in enumerate(("north", "south")):
            images = random.random((8, *shape), np.float32) + number * brighter
            training = Examples(images, np.zeros(8, np.int64), tuple(map(str, range(8))), *[(None,) * 8] * 2)
            found[site] = SimpleNamespace(training=training, image_shape=shape)
        return found

    return make


def listed(job, data, **changes):
    return list_normalizations(changed_study(job, changes), job, changes, data)


def test_shared_batchnorm_is_tried_only_where_the_hospitals_look_alike(alike):
    assert listed(MASKS, alike()) == (["group", "instance", "batch"], [])
    found, reasons = listed(MASKS, alike(brighter=5.0))
    assert found == ["group", "instance"] and reasons == ["batch is left out: the hospitals' images look different"]
    # the study's own is tried in any case, and is the first
    assert listed(MASKS, alike(brighter=5.0), **{"model.normalization": "batch"})[0] == ["batch", "group", "instance"]


@pytest.mark.parametrize("job", ["fedavg_masks_3d", "fedavg_classes_3d", "fedavg_classes"])
def test_volumes_and_classes_have_the_same_choice(alike, job):
    job = JOB.with_name(job)
    study = changed_study(job, {})
    size = study.data.patches.size if study.data.patches else (32,) * study.data.dimensions
    assert listed(job, alike((study.data.channels, *size)))[0] == ["group", "instance", "batch"]


def test_what_keeps_batchnorm_at_home_or_starts_from_a_file_keeps_its_normalisation(alike):
    changes = {"algorithm": {"name": "fedbn"}, "model.normalization": "batch"}
    assert listed(MASKS, alike(), **changes) == (
        ["batch"],
        ["model.normalization stays batch: BatchNorm stays at each hospital"],
    )
    weights = {"model.weights": "w.pt", "model.weights_sha256": "0" * 64}
    found, (reason,) = listed(MASKS, alike(), **weights)
    assert found == ["group"] and reason == "model.normalization stays group: what everybody starts from has it"


def test_a_normalisation_that_the_images_are_too_small_for_is_left_out_and_why(alike):
    # the last maps of LeNet-5 come to one value on 16 x 16, but not on 28 x 28
    changes = {"model": {"name": "densenet121", "normalization": "group"}}
    found, reasons = listed(CLASSES, alike((3, 32, 32)), **changes)
    assert found == ["group", "batch"] and reasons[0].startswith("instance is left out: densenet121 must answer an")


# --- the command


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
                rising = [
                    dump_record(Round(n, validation={"north": {**score, "value": value * n / 20}})) for n in (1, 2)
                ]
                (run.path / "ledger.json").write_text(json.dumps(rising))
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
    assert "0.001, 0.003, 0.01, with model.normalization group, instance, batch: 9 runs of 2 rounds, then" in said
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
    assert code == 2 and "must be a run of what is asked for, not one that differs in rounds" in said


def test_a_rate_that_does_not_train_is_named_and_the_code_says_that_it_is_missing(tuned, phantoms, tmp_path):
    scores = {"batch 0.001": None, "batch 0.003": 0.5, "batch 0.01": None}
    code, said, _ = tuned(MASKS, phantoms, *FEDBN, scores=scores)
    assert code == 3 and "batch-0.01-seed0 has no score: it ended early" in said
    code, said, _ = tuned(MASKS, phantoms, *FEDBN, "--out", "none", scores=scores | {"batch 0.003": None})
    assert code == 1 and "no run has a validation score; none/logs says why" in said


def test_a_chosen_rate_at_the_edge_of_those_tried_is_said_to_be_so(tuned, phantoms):
    code, said, _ = tuned(MASKS, phantoms, *FEDBN, scores={"batch 0.001": 0.6, "batch 0.0003": 0.7})
    assert code == 0 and "0.0003 is at the edge of the rates tried" in said


@pytest.mark.parametrize(
    ("accuracies", "said"),
    [
        # 54 of 100, as each of 9 trials may have by luck
        (
            (0.54, 0.5, 0.46),
            "shown to be better than guessing: the best has accuracy 0.540 in 100 validation cases, 0.500 by always",
        ),
        ((0.9, 0.5, 0.46), ""),
    ],
)
def test_a_search_that_only_found_guesses_says_so_and_keeps_the_studys_own_values(
    monkeypatch, capsys, accuracies, said
):
    grid = [Trial("group", rate) for rate in (0.001, 0.003, 0.01)]
    found = Found(grid[1], dict(zip(grid, ((one,) * 3 for one in accuracies), strict=True)))

    def read_made_up(folder):
        value = next(found.scores[trial][0] for trial in grid if f"-{trial.rate:g}-" in folder.name)
        cases = {"label_cases": {"0": 25, "1": 25}, "labels": {"0": value, "1": value}}
        score = SiteScore(value=value, num_cases=50, num_excluded=0, also={"accuracy": value}, **cases)
        return SimpleNamespace(has_classes=True, has_findings=False, validation={"north": score, "south": score})

    monkeypatch.setattr(tune, "read_results", read_made_up)
    trials = tune._Trials(CLASSES, Path("o"), None, {}, changed_study(CLASSES, {}), 1, Console(width=200))
    assert tune._show_search(found, trials) == 0
    text = capsys.readouterr().out
    stay = "; the study's own values, group 0.003, stay"
    assert (f"CAUTION  no model is {said}" in text and stay in text and "*" not in text) == bool(said)
    assert ("training.learning_rate=0.001" in text and "validates best" in text) == (not said)
    assert ("guessing" in text) == bool(said)


def test_without_validation_data_nothing_can_be_chosen(silofl, phantoms, tmp_path):
    data = shutil.copytree(phantoms, tmp_path / "data", ignore=shutil.ignore_patterns(".silofl*"))
    for path in data.glob("*/dataset.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"validation": []}))
    code, _, error = silofl("tune", MASKS, "--data", data, *SMALL)
    assert code == 2 and error.endswith(
        f"{data} must have validation data, by which the values are chosen; no site has any: import it with "
        "--validation 0.2\n"
    )


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--set", "training.lr=1"], "did you mean 'training.learning_rate'"),
        (["--pretrained", "f.pt"], "--pretrained must go with a study that needs a pretrained model"),
        (["--out", "f.pt"], "--out must be a folder, not f.pt, which is a file"),
        (["--processes", "0"], "must be a whole number of at least 1"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_trained(refused, phantoms, tmp_path, options, reason):
    (tmp_path / "f.pt").touch()
    assert reason in refused("tune", MASKS, "--data", phantoms, *SMALL, *options)
    assert not (tmp_path / "tuning").exists()


def test_the_results_that_choose_are_of_validation(tuned, phantoms, tmp_path):
    tuned(MASKS, phantoms, *FEDBN, scores={"batch 0.003": 0.4})
    found = read_results(tmp_path / "tuning" / "runs" / "batch-0.003-seed0")
    # made-up tests are 0.5 with seed 0
    assert (found.validation_mean, found.mean) == (pytest.approx(0.4), 0.5) and found.joining is None
