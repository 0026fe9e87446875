from silofl.core.outliers import cap_claims, compare_to_others, find_unlike


def test_a_site_is_compared_with_the_median_of_the_others():
    # of east (5 + 9) / 2 = 7, of north (3 + 9) / 2 = 6, of west (3 + 5) / 2 = 4
    assert compare_to_others({"east": 3.0, "north": 5.0, "west": 9.0}) == {"east": 3 / 7, "north": 5 / 6, "west": 9 / 4}


def test_nothing_is_compared_with_nobody_or_with_zero():
    assert compare_to_others({"east": 3.0}) == {} == compare_to_others({})
    assert compare_to_others({"east": 0.0, "west": 1.0}) == {"east": 0.0}


def test_beyond_three_times_or_below_a_third_of_the_others_median_is_unlike():
    assert find_unlike({"a": 1.0, "b": 1.0, "c": 3.0}, 3) == {}
    assert find_unlike({"a": 1.0, "b": 1.0, "c": 3.5}, 3) == {"c": 3.5}
    assert find_unlike({"a": 1.0, "b": 1.0, "c": 0.25}, 3) == {"c": 0.25}
    assert find_unlike({"a": 1.0, "c": 100.0}, 3) == {} == find_unlike({}, 3)


def test_a_number_that_is_far_too_large_makes_no_other_look_small():
    # Of a and b the others' median would be 50.5: a fiftieth of it.
    assert find_unlike({"a": 1.0, "b": 1.0, "c": 100.0}, 3) == {"c": 100.0}
    # Of the four that are left one is small: 0.2 of the others' median, 1.
    assert find_unlike({"a": 1.0, "b": 1.0, "c": 100.0, "d": 0.2, "e": 1.0}, 3) == {"c": 100.0, "d": 0.2}


def test_of_what_a_site_claims_so_many_times_the_median_of_the_others_count():
    # The others of "mad" have 4 and 8, 6 in the median.
    assert cap_claims({"east": 4, "mad": 10**7, "west": 8}, 10) == {"east": 4, "mad": 60, "west": 8}
    assert cap_claims({"east": 4, "north": 40}, 10) == {"east": 4, "north": 40}
    assert cap_claims({"east": 4}, 10) == {"east": 4}
