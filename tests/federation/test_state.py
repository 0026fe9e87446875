import pytest

from silofl.base.errors import StateError
from silofl.base.files import save_state, save_tensors
from silofl.federation.state import SiteState

from .faults import DAMAGES


@pytest.fixture
def state(tmp_path):
    return SiteState(tmp_path, "run", "east")


def test_only_states_asked_for_again_are_kept(state):
    for number in range(1, 8):
        state.save(number, {"part": {"number": number}}, number - 1, best_round=2 if number > 2 else None)
    assert state.rounds() == [2, 5, 6, 7]
    assert state.load(6) == (6, {"part": {"number": 6}})
    # Of round 4 nothing is left but what came before it.
    assert state.load(4) == (2, {"part": {"number": 2}})
    assert state.load(1) == (0, {})


@pytest.mark.parametrize(
    ("save", "found"),
    [
        (lambda path: save_tensors(path, {"format": 2, "parts": {}}), "3 or older"),
        (lambda path: save_state(path, 5, {}, {}), "5"),
    ],
)
def test_the_state_of_another_version_is_refused_in_one_sentence(state, tmp_path, save, found):
    save(tmp_path / "round_0004.pt")
    with pytest.raises(StateError, match=f"^round_0004.pt has format {found}, .* reads 4; go on with the version"):
        state.load(5)


@pytest.mark.parametrize(
    ("run", "site", "number", "sentence"),
    [
        ("other", "east", 2, "belongs to run 'other' instead of 'run'"),
        ("run", "west", 2, "belongs to site 'west' instead of 'east'"),
        ("run", "east", 1, "belongs to round 1 instead of 2"),
    ],
)
def test_state_of_another_run_site_or_round_is_lost(tmp_path, run, site, number, sentence, caplog):
    state, other = SiteState(tmp_path / "own", "run", "east"), SiteState(tmp_path / "other", run, site)
    for one in (1, 2):
        state.save(one, {"part": {"number": one}}, one - 1, None)
    other.save(number, {"part": {"number": 7}}, 0, None)
    (tmp_path / "other" / f"round_000{number}.pt").replace(tmp_path / "own" / "round_0002.pt")
    assert state.load(2) == (1, {"part": {"number": 1}})
    assert f"round_0002.pt {sentence}" in caplog.text


def test_checksum_covers_run_site_round_and_parts(state, tmp_path):
    state.save(1, {"part": {"number": 1}}, 0, None)
    path = tmp_path / "round_0001.pt"
    content = path.read_bytes()
    for word in (b"run", b"east", b"round", b"part"):
        # Both are as long, so that all else of the archive holds.
        assert word in content[32:]
        path.write_bytes(content[:32] + content[32:].replace(word, word[::-1]))
        assert state.load(1) == (0, {})


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_state_is_named_and_the_earlier_used(state, tmp_path, damage, caplog):
    for number in (1, 2):
        state.save(number, {"part": {"number": number}}, number - 1, None)
    DAMAGES[damage](tmp_path / "round_0002.pt")
    assert state.load(2) == (1, {"part": {"number": 1}})
    assert ("round_0002.pt is damaged" in caplog.text) == (damage != "deleted")
    DAMAGES[damage](tmp_path / "round_0001.pt")
    assert state.load(2) == (0, {})


def test_server_going_back_does_not_fill_the_disk(state):
    for number in range(30, 0, -1):
        state.save(number, {"part": {"number": number}}, number - 1, best_round=number)
        assert len(state.rounds()) <= 5
    assert state.rounds() == [1, 27, 28, 29, 30]
    # Forwards again each takes its place.
    for number in range(2, 30):
        state.save(number, {"part": {"number": -number}}, number - 1, best_round=None)
    assert state.load(29) == (29, {"part": {"number": -29}})


def test_untaken_rounds_go_when_a_later_is_kept(state):
    for number in (1, 2):
        state.save(number, {}, number - 1, None)
    # The answers of rounds 3 and 4 came too late: each began from round 2, and so does the fifth.
    for number in (3, 4, 5):
        state.save(number, {}, 2, best_round=4)
        assert state.rounds() == [1, 2, number]
    state.save(6, {}, 5, best_round=4)
    # Of round 4, the best, the site has what it had then: its state of round 2.
    assert state.rounds() == [2, 5, 6]
