"""What sites say that they run: other releases take no part, everything else that differs is written down."""

import pytest

from silofl import __version__
from silofl.parts.task import Message

OTHER = "0" * 64
# The releases that work together have this beginning.
HERE = __version__.rpartition(".")[0]


def running(site, **changes):
    """Return a change of answers, by which a site runs something else than the others."""

    def change(task, name, answer):
        if name != site or "software" not in answer.meta:
            return answer
        return Message(answer.arrays, answer.meta | {"software": answer.meta["software"] | changes})

    return change


@pytest.mark.parametrize("release", ["0.1.9", "1.0.0"])
def test_site_of_another_release_is_always_refused(play, release):
    game = play(("east", "west"))
    for _ in range(2):
        record = game.round(change=running("west", silofl=release))
        assert record.answered == ["east"]
        assert f"site 'west' runs silofl {release}, and this machine {HERE}" in record.failed["west"]
    assert game.round().answered == ["east", "west"]


def test_site_silent_on_its_software_is_refused(play):
    def silent(task, site, answer):
        kept = {key: value for key, value in answer.meta.items() if key != "software"}
        return Message(answer.arrays, kept) if site == "west" else answer

    refused = play().round(change=silent).failed
    assert refused["west"].startswith("site 'west' does not say which software it runs; install")


def test_a_site_trains_nothing_for_a_server_of_another_release(play, monkeypatch):
    game = play()
    message = game.upcoming("train")["west"]
    monkeypatch.setattr("silofl.federation.site.Work", None)  # whatever it is needed for would fail
    message.meta["software"]["silofl"] = "1.0.0"
    answer = game.sites["west"].answer("train", message)
    assert answer.meta["error"].startswith(f"site 'west': the server runs silofl 1.0.0, and this machine {HERE}")


def test_changed_package_takes_part_and_is_noted(play):
    game, changed = play(("east", "west")), running("west", package=OTHER, torch="2.12.1")
    record = game.round(change=changed)
    (note,) = record.notes
    assert note.startswith("site 'west' runs other software than the server: torch 2.12.1 instead of ")
    assert "other files of silofl" in note
    assert record.answered == ["east", "west"]
    # Once: it has not changed again.
    assert game.round(change=changed).notes == []
