from silofl.core.outliers import cap_claims, compare_to_others, find_edges, find_far_ranges


def test_a_site_is_compared_with_the_median_of_the_others():
    # of east (5 + 9) / 2 = 7, of north (3 + 9) / 2 = 6, of west (3 + 5) / 2 = 4
    assert compare_to_others({"east": 3.0, "north": 5.0, "west": 9.0}) == {"east": 3 / 7, "north": 5 / 6, "west": 9 / 4}


def test_nothing_is_compared_with_nobody_or_with_zero():
    assert compare_to_others({"east": 3.0}) == {} == compare_to_others({})
    assert compare_to_others({"east": 0.0, "west": 1.0}) == {"east": 0.0}


def test_a_claim_counts_up_to_three_medians_of_others():
    # The others of "mad" have 4 and 8, 6 in the median.
    assert cap_claims({"east": 4, "mad": 10**7, "west": 8}, 10) == {"east": 4, "mad": 60, "west": 8}
    assert cap_claims({"east": 4, "north": 40}, 10) == {"east": 4, "north": 40}
    assert cap_claims({"east": 4}, 10) == {"east": 4}


def test_of_eight_sites_two_cannot_hide_each_other():
    # The other seven, without one at each end; of seven sites none is left out.
    assert find_edges([1, 2, 3, 4, 5, 6, 100]) == (2, 6) and find_edges([1, 2, 3, 4, 5, 100]) == (1, 100)
    # Of twelve sites three may be odd: two of the other eleven do not count at each end.
    assert find_edges([*range(9), 100, 100]) == (2, 8)


def test_far_ranges_are_found_though_two_are_alike():
    honest = {name: (0.0, 1.0) for name in "abcdef"}
    far = find_far_ranges(honest | {"x": (50.0, 51.0), "y": (50.0, 52.0)}, 3)
    assert far == {"x": (0.0, 1.0), "y": (0.0, 1.0)}
    # Three widths beyond the others' range are none too many.
    assert find_far_ranges(honest | {"x": (-3.0, 4.0)}, 3) == {} != find_far_ranges(honest | {"x": (0.0, 4.1)}, 3)
    assert find_far_ranges({"a": (0.0, 1.0), "x": (50.0, 51.0)}, 3) == {}
