import pytest

from silofl.core.small_cells import find_small_cells


@pytest.mark.parametrize(
    ("counts", "few"),
    [
        ({"a": 9, "b": 7}, ""),
        # Without its neighbour the small one would be the total less all others.
        ({"a": 9, "b": 2, "c": 7}, "bc"),
        # Two small ones of 5 patients together, and two of 4.
        ({"a": 9, "b": 2, "c": 3}, "bc"),
        ({"a": 9, "b": 2, "c": 2, "d": 8}, "bcd"),
        ({"a": 9, "b": 2}, "ab"),
        ({"a": 9, "b": 0, "c": 7}, "bc"),
        ({"a": 2}, "a"),
    ],
)
def test_a_small_group_is_withheld_with_those_that_tell_it(counts, few):
    assert find_small_cells(counts, 5, is_partition=True) == {*few}


def test_overlapping_groups_are_withheld_one_by_one():
    assert find_small_cells({"a": 9, "b": 2, "c": 7}, 5, is_partition=False) == {"b"}
    assert find_small_cells({"a": 9, "b": 0}, 0, is_partition=True) == set()
