"""A run is stopped at any point, its files are damaged, and it goes on: to the same weights, or saying what is lost."""

import json
import random
import shutil

import numpy as np
import pytest

from silofl.errors import StateError
from silofl.federation.alone import run_alone
from silofl.federation.run_folder import BEFORE, CHECKPOINT, RunFolder
from silofl.files import read_json

from ..conftest import UNET
from .faults import DAMAGES, delete, flip, truncate

ROUNDS = 3
RECIPES = {
    "fedbn": {"name": "fedbn"},
    "harmofl": {"name": "harmofl"},
    "softpull": {"name": "softpull", "softpull": {"self_weight": 1.0}},
    # Large enough for the sums of its c_i to be rounded: the server's copy, of float64, is another one.
    "scaffold": {"name": "scaffold", "training": {"optimizer": "sgd", "momentum": 0}, "network": UNET},
}
# Recipe -> the weights of a run that nothing happened to.
WEIGHTS = {}


class Stopped(Exception):
    """The process has ended."""


@pytest.fixture
def carried_out(tmp_path, settings_in, make_study):
    """Carry out a run in one process, or go on with it, for some exchanges or to its end; returns its folder."""

    def carry_out(folder, recipe, exchanges=None):
        path, study, asked = tmp_path / folder, make_study(rounds=ROUNDS, **RECIPES[recipe]), []

        def count():
            asked.append(1)
            if len(asked) == exchanges:
                raise Stopped

        settings = settings_in(path / "sites")
        try:
            run_alone(study, path, ("east", "west"), settings, None, count)
        except Stopped:
            assert exchanges is not None
        return path

    return carry_out


def models(path, study):
    """Return the models that the server has after a run."""
    server = RunFolder(path, study).load()
    assert server.finished_rounds == ROUNDS
    return {f"{site}/{name}": a for site in server.sites for name, a in server.parts["model"].of(site).items()}


def is_alike(left, right):
    return left.keys() == right.keys() and all(np.array_equal(left[name], right[name]) for name in left)


def said(path):
    """Return all sentences in a run's ledger and result."""
    ledger = json.loads((path / "ledger.json").read_text()) if (path / "ledger.json").is_file() else []
    sentences = [s for record in ledger for s in [*record["notes"], *record["failed"].values()]]
    return " ".join([*sentences, *read_json(path / "results.json")["reasons"]])


@pytest.fixture
def ended(carried_out, make_study):
    """Return the weights of a run that nothing happened to."""

    def weights(recipe):
        if recipe not in WEIGHTS:
            study = make_study(rounds=ROUNDS, **RECIPES[recipe])
            WEIGHTS[recipe] = models(carried_out(f"whole {recipe}", recipe), study)
        return WEIGHTS[recipe]

    return weights


# A file that the run goes on from, or one that it would go on from if the later ones were lost.
FILES = (CHECKPOINT, BEFORE, "round_0002.pt", "round_0003.pt")
FAULTS = [
    *(("fedbn", damage, file) for damage in DAMAGES for file in FILES),
    *((recipe, "flipped", file) for recipe in ("harmofl", "softpull", "scaffold") for file in (FILES[0], FILES[2])),
]


@pytest.mark.parametrize(("recipe", "damage", "file"), FAULTS)
def test_a_run_goes_on_to_the_same_weights_or_says_what_is_lost(ended, carried_out, make_study, recipe, damage, file):
    study = make_study(rounds=ROUNDS, **RECIPES[recipe])
    # After the sites have trained the third round, whose answers are lost.
    path = carried_out("stopped", recipe, exchanges=3)
    (damaged,) = [found for found in path.rglob(file) if "west" not in found.parts]
    if damage == "flipped":
        flip(damaged, random.Random(f"{recipe} {file}").random())
    else:
        DAMAGES[damage](damaged)
    carried_out("stopped", recipe)
    results, is_same = read_json(path / "results.json"), is_alike(ended(recipe), models(path, study))
    assert results["status"] == "COMPLETE"
    if file == "round_0002.pt":
        # The site goes on from its first round: its optimiser is one round older, and so are the weights.
        assert not is_same
        assert "site 'east' began the train of round 3 without its state of round 2, from that of round 1" in said(path)
    else:
        assert is_same
        assert (f"from {BEFORE}: {CHECKPOINT} must be" in said(path)) == (file == CHECKPOINT)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_site_that_lost_its_whole_state_comes_back(carried_out, recipe):
    path = carried_out("stopped", recipe, exchanges=2)
    shutil.rmtree(path / "sites" / "east")
    carried_out("stopped", recipe)
    results, ledger = read_json(path / "results.json"), json.loads((path / "ledger.json").read_text())
    # A test of the first round's model lacks what stayed at home then.
    assert all("began the test of round 1" in reason for reason in results["reasons"])
    assert (results["best_round"] == 1 and recipe in ("fedbn", "harmofl")) == bool(results["reasons"])
    assert [record["answered"] for record in ledger] == [["east", "west"]] * ROUNDS
    home = RECIPES[recipe].get("stays_home") or ("batchnorm" if recipe in ("fedbn", "harmofl") else None)
    lost = "its optimisers" + (f" and what stays at home ({home})" if home else "")
    assert ledger[1]["notes"] == [
        f"site 'east' began the train of round 2 without its state of round 1, from none: {lost} could not be restored"
    ]
    assert ledger[0]["notes"] == []
    # The last record also has what is said of the test.
    assert ledger[2]["notes"] == results["reasons"]


@pytest.mark.parametrize("exchanges", range(1, 7))
def test_a_run_that_is_stopped_anywhere_ends_with_the_same_weights(ended, carried_out, make_study, exchanges):
    # Three rounds, then validation and test.
    carried_out("stopped", "fedbn", exchanges)
    path = carried_out("stopped", "fedbn")
    assert is_alike(ended("fedbn"), models(path, make_study(rounds=ROUNDS, **RECIPES["fedbn"])))
    assert said(path) == ""


@pytest.mark.parametrize("damage", [flip, truncate])
def test_a_run_without_a_whole_checkpoint_ends_saying_which_files_are_needed(carried_out, damage):
    path = carried_out("stopped", "fedbn", exchanges=3)
    for name in (CHECKPOINT, BEFORE):
        damage(path / name)
    carried_out("stopped", "fedbn")
    results = read_json(path / "results.json")
    assert results["status"] == "FAILED"
    assert results["reasons"] == [
        f"{path} must hold a whole checkpoint of the rounds that have finished: {CHECKPOINT} must be as it was "
        f"written; its checksum does not fit; {BEFORE} must be as it was written; its checksum does not fit: restore "
        "one of them, or start anew and lose these rounds"
    ]


def test_a_run_without_its_checkpoints_does_not_begin_anew(carried_out, make_study):
    path = carried_out("stopped", "fedbn", exchanges=3)
    for name in (CHECKPOINT, BEFORE):
        delete(path / name)
    folder = RunFolder(path, make_study(rounds=ROUNDS, **RECIPES["fedbn"]))
    with pytest.raises(StateError, match=f"{CHECKPOINT} must be there; it is missing; {BEFORE} must be there"):
        folder.load()
    for name in ("ledger.json", "metrics.csv"):
        delete(path / name)
    assert folder.load() is None


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'[{"round": 1}]', b"\xff\xfe", b"[" * 100_000, None])
def test_a_broken_ledger_is_written_again_from_the_checkpoint(carried_out, make_study, content):
    path = carried_out("stopped", "fedbn", exchanges=3)
    ledger = path / "ledger.json"
    before = ledger.read_bytes()
    ledger.unlink() if content is None else ledger.write_bytes(content)
    RunFolder(path, make_study(rounds=ROUNDS, **RECIPES["fedbn"])).mend()
    assert ledger.read_bytes() == before
