"""A run is stopped at any point, its files are damaged, and it goes on: to the same weights, or saying what is lost."""

import json
import shutil

import numpy as np
import pytest

from silofl.base.errors import StateError
from silofl.base.files import read_json
from silofl.federation.run_folder import BEFORE, CHECKPOINT, RunFolder
from silofl.federation.state import SiteState
from silofl_desk.studies.runs.in_process import run_in_process

from ..conftest import UNET
from .faults import DAMAGES, delete, flatten

pytestmark = pytest.mark.long

ROUNDS, SITES = 3, ("east", "west")
PLAIN = {"training": {"optimizer": "sgd", "momentum": 0}}
RECIPES = {
    "fedbn": {"name": "fedbn"},
    "harmofl": {"name": "harmofl"},
    # Large enough for the sums of its c_i to be rounded: the server's copy, of float64, is another one.
    "scaffold": PLAIN | {"name": "scaffold", "network": UNET},
    "moon": PLAIN | {"name": "moon", "network": UNET},
    "ditto": {"name": "ditto"},
    "local": {"name": "local"},
}
# What a site lacks that begins from an older state, in the words of the parts that keep it.
LOST = {
    "fedbn": "its optimisers and what stays at home (batchnorm)",
    "harmofl": "its optimisers and what stays at home (batchnorm)",
    "local": "its optimisers and what stays at home (everything) and its best round",
}
# Without these a site takes no part.
VITAL = {"moon": "its own model", "ditto": "its personal model"}
AGAIN = "round {} was carried out once more, because the state that it left at {} was missing or damaged"
# Recipe -> the weights of a run that nothing happened to.
WEIGHTS = {}


class Stopped(KeyboardInterrupt):
    """The process has ended."""


@pytest.fixture
def carried_out(tmp_path, settings_in, make_study):
    """Carry out a run in one process, or go on with it; returns its folder.

    It stops after some exchanges, and before an exchange's answers are looked at something may happen to its folder.
    """

    def carry_out(folder, recipe, exchanges=None, happens=None):
        path, study, asked = tmp_path / folder, make_study(rounds=ROUNDS, **RECIPES[recipe]), []

        def count():
            asked.append(1)
            if happens and len(asked) in happens:
                happens[len(asked)](path)
            if len(asked) == exchanges:
                raise Stopped

        settings = settings_in(path / "sites")
        try:
            run_in_process(study, path, SITES, settings, None, count)
        except Stopped:
            assert exchanges is not None
        return path

    return carry_out


def state_of(path, site, number):
    """Return a site's file of a round."""
    (found,) = path.glob(f"sites/{site}/*/rounds/round_{number:04d}.pt")
    return found


def notes(path):
    """Return what the ledger says of each round."""
    return [record["notes"] for record in json.loads((path / "ledger.json").read_text())]


def is_alike(left, right):
    return left.keys() == right.keys() and all(np.array_equal(left[name], right[name]) for name in left)


def said(path):
    """Return all sentences in a run's ledger and result."""
    ledger = json.loads((path / "ledger.json").read_text()) if (path / "ledger.json").is_file() else []
    sentences = [s for record in ledger for s in [*record["notes"], *record["failed"].values()]]
    return " ".join([*sentences, *read_json(path / "results.json")["reasons"]])


@pytest.fixture
def models(make_study):
    """Return the models that the server has after a run, and all that the sites keep after its last round."""

    def read(path, recipe):
        study = make_study(rounds=ROUNDS, **RECIPES[recipe])
        server = RunFolder(path, study).load()
        assert server.finished_rounds == ROUNDS
        traveling = {role: server.parts[role] for role in study.recipe.traveling_roles}
        found = {f"{role} {site}": part.of(site) for role, part in traveling.items() for site in SITES}
        for site in SITES:
            found[site] = SiteState(state_of(path, site, ROUNDS).parent, server.id, site).load(ROUNDS)[1]
        return flatten(found)

    return read


@pytest.fixture
def check_alike(carried_out, models):
    """Check that a run has the weights of one that nothing happened to."""

    def check(path, recipe="fedbn"):
        if recipe not in WEIGHTS:
            WEIGHTS[recipe] = models(carried_out(f"whole {recipe}", recipe), recipe)
        assert is_alike(WEIGHTS[recipe], models(path, recipe))

    return check


# A file that the run goes on from, or one that it would go on from if the later ones were lost.
FAULTS = [
    *(("fedbn", damage, CHECKPOINT) for damage in DAMAGES),
    *(("fedbn", "flipped", file) for file in (BEFORE, "round_0002.pt", "round_0003.pt")),
    ("scaffold", "flipped", CHECKPOINT),
]


@pytest.mark.parametrize(("recipe", "damage", "file"), FAULTS)
def test_damaged_file_leads_to_the_same_weights(check_alike, carried_out, recipe, damage, file):
    # After the sites have trained the third round, whose answers are lost.
    path = carried_out("stopped", recipe, exchanges=3)
    (damaged,) = [found for found in path.rglob(file) if "west" not in found.parts]
    DAMAGES[damage](damaged)
    carried_out("stopped", recipe)
    results = read_json(path / "results.json")
    check_alike(path, recipe)
    assert (results["status"], results["reasons"]) == ("COMPLETE", [])
    assert (f"from {BEFORE}: {CHECKPOINT} is" in said(path)) == (file == CHECKPOINT)
    assert notes(path)[1] == ([AGAIN.format(2, "site 'east'")] if file == "round_0002.pt" else [])


@pytest.mark.parametrize("number", [1, 3])
def test_state_of_any_round_is_made_again(check_alike, carried_out, number):
    path = carried_out("lost", "fedbn", happens={number: lambda path: delete(state_of(path, "west", number))})
    check_alike(path)
    assert notes(path)[number - 1] == [AGAIN.format(number, "site 'west'")]
    assert read_json(path / "results.json")["status"] == "COMPLETE"


def swap(path):
    """Give two sites each other's state of round 2."""
    east, west = (state_of(path, site, 2) for site in SITES)
    content = east.read_bytes()
    east.write_bytes(west.read_bytes())
    west.write_bytes(content)


@pytest.mark.parametrize("recipe", ["harmofl", "scaffold"])
def test_sites_that_have_each_others_states_make_their_own_again(check_alike, carried_out, recipe, caplog):
    path = carried_out("swapped", recipe, happens={2: swap})
    check_alike(path, recipe)
    assert notes(path)[1] == [AGAIN.format(2, "site 'east' and site 'west'")]
    assert "round_0002.pt belongs to site 'west' instead of 'east'" in caplog.text


def lose_all(path):
    shutil.rmtree(path / "sites" / "east")


@pytest.mark.parametrize("recipe", RECIPES)
def test_run_with_two_lost_states_is_incomplete(carried_out, recipe):
    path = carried_out("lost", recipe, happens={2: lose_all})
    results, last = read_json(path / "results.json"), json.loads((path / "ledger.json").read_text())[2]
    if recipe in VITAL:
        reason = f"the state of site 'east' lacks {VITAL[recipe]} of round 2; restore its state"
        assert last["answered"] == ["west"] and last["failed"]["east"].startswith(reason)
    else:
        begun = "site 'east' began the train of round 3 without its state of round 2, from none: "
        reason = begun + LOST.get(recipe, "its control variate came from the server, to within rounding")
        assert last["answered"] == ["east", "west"] and last["notes"][0].startswith(reason)
    assert any(reason in one for one in results["reasons"]) == (recipe != "scaffold")
    assert results["status"] == ("COMPLETE" if recipe == "scaffold" else "INCOMPLETE")


@pytest.mark.parametrize("exchanges", [1, 3, 4, 5])
def test_run_stopped_anywhere_ends_with_the_same_weights(check_alike, carried_out, exchanges):
    # Three rounds, then validation and test.
    carried_out("stopped", "fedbn", exchanges)
    path = carried_out("stopped", "fedbn")
    check_alike(path)
    assert said(path) == ""


def test_a_run_without_its_checkpoints_does_not_begin_anew(carried_out, make_study):
    path = carried_out("stopped", "fedbn", exchanges=3)
    for name in (CHECKPOINT, BEFORE):
        delete(path / name)
    folder = RunFolder(path, make_study(rounds=ROUNDS, **RECIPES["fedbn"]))
    with pytest.raises(StateError, match=f"{CHECKPOINT} is missing; {BEFORE} is missing"):
        folder.load()
    for name in ("ledger.json", "metrics.csv"):
        delete(path / name)
    assert folder.load() is None


def test_a_broken_ledger_is_written_again_from_the_checkpoint(carried_out, make_study):
    path = carried_out("stopped", "fedbn", exchanges=3)
    ledger = path / "ledger.json"
    before = ledger.read_bytes()
    for content in (b"", b"{", b"[1]", b'[{"round": 1}]', b"\xff\xfe", b"[" * 100_000, None):
        ledger.unlink() if content is None else ledger.write_bytes(content)
        RunFolder(path, make_study(rounds=ROUNDS, **RECIPES["fedbn"])).mend()
        assert ledger.read_bytes() == before, content
