"""No hospital trains alone for somebody else: what is mixed with too few others moves no model."""

from dataclasses import replace

import numpy as np
import pytest

from silofl.base.errors import AggregationError
from silofl.federation.admission import drop_lonely, part_lonely
from silofl.federation.outcome import finished_results
from silofl.parts.answer import Numbers, SiteAnswer
from silofl.parts.task import Message

from ..conftest import assert_alike


def asking(**partners):
    """Return a change by which sites ask for other numbers of partners than all do."""

    def change(task, site, answer):
        if site not in partners or "error" in answer.meta:
            return answer
        return Message(answer.arrays, answer.meta | {"min_partners": partners[site]})

    return change


def without(game, *dead):
    """Let sites answer nothing from now on, as those that a job does not reach."""
    game.absent = dead
    return game


def assert_unmoved(game, before, wanted):
    """Check that a round fails by name and leaves the model as it was."""
    with pytest.raises(AggregationError, match=wanted):
        game.finish(absent=game.absent, change=game.change)
    assert_alike(game.models("east"), before)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"name": "fedsm", "model": {"normalization": "instance"}},
        {"federation": {"min_sites_for_ratio": 1}},
    ],
)
def test_lone_site_trains_nothing_and_makes_no_model(play, options):
    game = play(("east",), min_partners=1, **options)
    assert_unmoved(game, game.models("east"), "site 'east' must have at least 1 other site in the round, not 0, as min")
    # Nothing was read or computed for it.
    assert "data" not in vars(game.sites["east"]) and not (game.folder("east") / "rounds").exists()


def test_site_with_dead_partner_moves_no_model(play):
    game = without(play(("east", "west"), min_partners=1), "west")
    assert_unmoved(
        game, game.models("east"), "too few sites sent an answer to mix with that of site 'east'.* 1 other site"
    )


def test_demanding_site_is_left_out_and_others_go_on(play):
    game = play(min_partners=1)
    record = game.round(change=asking(west=3))
    assert record.answered == ["east", "north"] and record.failed.keys() == {"west"}
    assert record.failed["west"] == (
        "too few sites sent an answer to mix with that of site 'west', which asks for at least 3 other sites by "
        "min_partners of its site.yaml; let more sites take part"
    )
    results = finished_results(game.server, game.finish(change=asking(west=3)))
    assert results.status == "INCOMPLETE" and "site west missed rounds [1, 2, 3] (too few sites" in results.reasons[0]


def test_array_kept_back_by_others_is_not_one_sites(play):
    def keep_back(task, site, answer):
        if task != "train" or site == "east":
            return answer
        return Message({n: a for n, a in answer.arrays.items() if "running" not in n}, answer.meta)

    game = play(min_partners=1, model={"normalization": "batch"})
    before = game.models("east")
    record = game.round(change=keep_back)
    after = game.models("east")
    assert record.answered == ["east", "north", "west"]
    assert {"running" in name: np.array_equal(after[name], before[name]) for name in sorted(after)} == {
        False: False,
        True: True,
    }
    names = [name for name in after if "running" in name]
    assert any(f"site 'west' keeps back {len(names)} arrays by its policy" in note for note in record.notes)


def test_amplitude_left_alone_is_not_taken(play):
    def louder(task, site, answer):
        scale = {"east": 1, "north": 1e6, "west": 1e9}[site]
        arrays = {n: scale * a if n.startswith("amplitude") else a for n, a in answer.arrays.items()}
        return Message(arrays, answer.meta)

    options = {"name": "harmofl", "federation": {"min_sites_for_ratio": 1}}
    alone, game = play(folder="alone", **options), play(min_partners=1, **options)
    for one in (alone, game):
        one.round(change=louder)
    # With nobody's word for it the mean would be that of a single site.
    assert alone.server.parts["amplitude"].amplitude is not None
    assert game.server.parts["amplitude"].amplitude is None


def test_server_silent_on_how_many_it_asks_gets_nothing(play):
    game = play(min_partners=1)
    ask = game.ask

    def say_nothing(task, messages):
        bare = {s: replace(m, meta={k: v for k, v in m.meta.items() if k != "sites"}) for s, m in messages.items()}
        return ask(task, bare)

    game.ask = say_nothing
    with pytest.raises(AggregationError, match="must have at least 1 other site in the round, not 0"):
        game.round()


def test_senders_with_enough_partners_are_left():
    def answer(partners, *names):
        return SiteAnswer({name: np.ones(1) for name in names}, Numbers(round=1, min_partners=partners))

    answers = {"a": answer(1, "w", "b"), "b": answer(1, "w"), "c": answer(3, "w"), "d": answer(0, "own")}
    left, lonely = part_lonely(answers, lambda name: name != "own")
    # b is a's only: c asks for 3 of 2 others, and a and b are left with each other.
    assert {site: sorted(one.arrays) for site, one in left.items()} == {"a": ["w"], "b": ["w"], "d": ["own"]}
    assert left["a"].withheld == ("b",) and [*lonely] == ["c"]
    same = drop_lonely(answers, lambda name: False)
    assert same == answers
