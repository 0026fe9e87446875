import pytest

from silofl.errors import TrainingError
from silofl.federation.state import SiteState
from silofl.files import save_tensors


def test_only_the_states_that_may_be_asked_for_again_are_kept(tmp_path):
    state = SiteState(tmp_path)
    for number in range(1, 8):
        state.save(number, {"part": {"number": number}}, best_round=2 if number > 2 else None)
    assert state.rounds() == [2, 6, 7]
    assert state.load(6) == {"part": {"number": 6}}
    # Of round 5 nothing is left but what came before it.
    assert state.load(5) == {"part": {"number": 2}}
    assert state.load(1) == {}


@pytest.mark.parametrize(("old", "number"), [({"home": {}, "optimizer": {}}, 1), ({"format": 3, "parts": {}}, 3)])
def test_the_state_of_another_version_is_refused_in_one_sentence(tmp_path, old, number):
    save_tensors(tmp_path / "round_0004.pt", old)
    sentence = (
        f"the site's state after round 4 must have format 2, not {number}; go on with the version of SiloFL that wrote "
        "it, or start anew"
    )
    with pytest.raises(TrainingError) as caught:
        SiteState(tmp_path).load(5)
    assert str(caught.value) == sentence
