"""What stays at a site goes with the rounds that the server has taken, and a round is repeated where that is right."""

import pytest

from silofl.base.settings import parse
from silofl.federation.checkpoint import checkpoint, restore_run
from silofl.federation.course import Course
from silofl.federation.outcome import finished_results
from silofl.study import Study

from ..conftest import SMALL_UNET, assert_alike
from .faults import flatten

pytestmark = pytest.mark.long

PLAIN = {"training": {"optimizer": "sgd", "momentum": 0}}
RECIPES = {
    "harmofl": {"name": "harmofl"},
    "ditto": {"name": "ditto"},
    "scaffold": PLAIN | {"name": "scaffold"},
    "feddyn": PLAIN | {"name": "feddyn"},
}


def everything(game, number):
    """Return the models at the server, and all that the sites keep after a round."""
    return flatten({site: [game.models(site), game.kept(site, number)] for site in game.sites})


def spoilt(task, site, answer):
    """Have the answer of one site refused, for a site without examples cannot have trained."""
    return type(answer)(answer.arrays, answer.meta | {"num_examples": 0}) if site == "east" else answer


def lost(task, site, answer):
    return answer.failed("lost on the way") if site == "east" else answer


@pytest.mark.parametrize(
    ("recipe", "change"),
    [
        *((recipe, spoilt) for recipe in RECIPES),
        ("scaffold", lost),
    ],
)
def test_untaken_update_has_not_happened_at_its_site(play, recipe, change):
    found = []
    for folder, missed in (("changed", {"change": change}), ("absent", {"absent": ("east",)})):
        game = play(("east", "west"), folder, **RECIPES[recipe])
        game.round()
        assert game.round(**missed).answered == ["west"]
        assert game.round().answered == ["east", "west"]
        found.append(everything(game, 3))
    assert_alike(*found)


# --- when a round is repeated


class ClientState:
    """A run with its checkpoints in memory, which may go back one round."""

    def __init__(self, game):
        self.game, self.states = game, {}

    def carry_out(self, lying=None):
        """Carry out the run; a site may say in each training that it has lost its last state."""
        game = self.game
        game.change = lying

        def save():
            self.states[game.server.finished_rounds] = checkpoint(game.server)

        def before():
            state = self.states.get(game.server.finished_rounds - 1)
            return state and restore_run(game.study, state)

        return Course(game.server, game.ask, save, game.warnings.append, before=before).run()


def lose(game, site, number):
    (game.folder(site) / "rounds" / f"round_{number:04d}.pt").unlink()


def test_private_round_is_not_repeated(play, make_study):
    plain = make_study(network=SMALL_UNET | {"normalization": "instance"}).model_dump(mode="json", exclude={"privacy"})
    privacy = {"dp_sgd": {"noise": 2.0, "clip": 1.0, "delta": 0.01}}
    game = play(study=parse(Study, plain | {"privacy": privacy}, "study.yaml"))

    def change(task, site, answer):
        if (task, answer.meta["round"], site) == ("train", 2, "west"):
            lose(game, "east", 2)
        return answer

    tests = ClientState(game).carry_out(change)
    (reason,) = finished_results(game.server, tests).reasons
    assert reason.startswith(
        "site 'east' began the train of round 3 without its state of round 2, from that of round 1"
    )
    assert game.asked.count("train") == 4


def test_repeated_round_asks_the_same_sites_and_agrees(play):
    found = []
    for folder in ("whole", "lost"):
        game = play(folder=folder, name="fedbn", federation={"max_missed_rounds": 1})
        kept, asked = ClientState(game), []

        def change(task, site, answer, game=game, folder=folder, asked=asked):
            asked.append((task, answer.meta["round"], site))
            # The first time in round 2: north fails in it, and then the state of east is gone.
            if task == "train" and answer.meta["round"] == 2 and asked.count(("train", 2, site)) == 1:
                if folder == "lost" and site == "west":
                    lose(game, "east", 2)
                return answer.failed("no GPU") if site == "north" else answer
            return answer

        kept.carry_out(lying=change)
        found.append(everything(game, 3))
        record = game.server.ledger[1]
        assert record.failed == {"north": "no GPU"} and record.missed == ["north"]
        assert asked.count(("train", 2, "north")) == 1
        assert any("was carried out once more" in note for note in record.notes) == (folder == "lost")
    assert_alike(*found)
