import pytest

from silofl.report.method_rows import rows_of
from silofl.report.ranking import best_and_second, ranked, sites_won


@pytest.mark.parametrize(
    ("values", "best", "second"),
    [
        ([0.1, 0.3, 0.2], [1], [2]),
        # equal as shown: 0.300
        ([0.3001, 0.2, 0.2999, 0.1], [0, 2], [1]),
        ([0.1, 0.3, 0.1], [1], [0, 2]),
        ([None, 0.1, 0.3, 0.2], [2], [3]),
        # the second of two is the last
        ([0.1, 0.3], [1], []),
        ([0.5, 0.5, 0.5], [0, 1, 2], []),
        ([0.5, None], [], []),
        ([], [], []),
    ],
)
def test_places_go_by_the_decimals_shown(values, best, second):
    assert best_and_second(values) == (best, second)


def test_a_row_is_compared_where_it_has_every_seed(method):
    rows = rows_of(
        [method("a", (0.9, 0.9), (0.9, None)), method("b", *[(0.5, 0.5)] * 2), method("c", *[(0.6, 0.4)] * 2)]
    )
    east, west, average, _ = ranked(rows, 2)
    assert (east, west) == (([0], [2]), ([1], []))
    # the average of a counts only where each site has a value
    assert average == ([1, 2], [])


def test_there_are_no_places_without_rows():
    assert ranked([], 1) == []


def test_a_shared_site_is_won_by_both():
    places = [([0], [1]), ([0, 1], []), ([1], [0])]
    assert sites_won(places, 0, ["east", "west"]) == ["east", "west"]
    assert sites_won(places, 1, ["east", "west"]) == ["west"]
