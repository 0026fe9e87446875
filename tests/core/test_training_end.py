import pytest

from silofl.core.training_end import is_finished, measure_own_rise


@pytest.mark.parametrize(
    ("scores", "is_so"),
    [
        ([], False),
        ([0.5] * 3, False),
        ([0.5] * 4, True),
        ([0.5, 0.5, 0.5049, 0.3], True),
        ([0.5, 0.5, 0.5051, 0.3], False),
        # 0.805 - 0.8 is 0.005000000000000004.
        ([0.8, 0.8, 0.805, 0.8], True),
        # A slow rise is none of the last rounds alone, and counts all the same.
        ([0.500, 0.502, 0.504, 0.506], False),
        ([0.6, None, None, None], True),
        ([None, None, None, 0.6], False),
    ],
)
def test_a_model_is_finished_once_its_last_rounds_raised_nothing(scores, is_so):
    assert is_finished(measure_own_rise(scores, 3)) == is_so
