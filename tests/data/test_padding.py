import numpy as np
import pytest

from silofl.data.padding import Padding, describe_padding, find_padding, measure_padding


@pytest.mark.parametrize(
    ("stated", "found"),
    [
        # 3 of 8 voxels
        (None, Padding(-5.0, 3 / 8)),
        (7.0, Padding(7.0, 2 / 8, is_stated=True)),
        # The least one is measured as any, and one that no voxel has pads nothing.
        (-5.0, Padding(-5.0, 3 / 8)),
        (4095.0, Padding(-5.0, 3 / 8)),
    ],
)
def test_the_least_value_is_measured_or_a_higher_one_that_the_file_states_where_voxels_have_it(stated, found):
    assert measure_padding(np.int16([[-5, -5], [0, 7], [-5, 7], [2, 3]]), stated) == found


def test_stated_padding_is_named_with_value_and_share_and_no_least_value_is_taken_for_it():
    (sentence,) = describe_padding(find_padding([Padding(4095.0, 0.25, True), Padding(0.0, 0.2)]))
    assert sentence.startswith("4095 fills 12.5% of the voxels, and the files state that it is padding")
    assert find_padding([Padding(3.0, 0.1, True), Padding(3.0, 0.2)]) == Padding(3.0, 0.1)


def test_a_value_counts_where_more_than_one_percent_of_a_sites_voxels_share_it():
    # Noise: each image has a least value of its own.
    assert find_padding([Padding(-1040.0, 0.001), Padding(-1033.0, 0.002)]) is None
    # Two of four images: (0.2 + 0.1) / 4
    found = find_padding([Padding(-3024.0, 0.2), Padding(-3024.0, 0.1), Padding(-1040.0, 0.001), Padding(0.0, 0.01)])
    assert found == Padding(-3024.0, pytest.approx(0.075))
    assert find_padding([Padding(0.0, 0.01)]) is None and find_padding([]) is None


def test_padding_below_all_air_is_named_with_value_share_and_remedy_whatever_others_have():
    (sentence,) = describe_padding(Padding(-3024.0, 0.226))
    assert sentence.startswith("-3024 fills 22.6% of the voxels, less than air has in CT: it is padding")
    assert "data.background to {below: -1024}" in sentence and "silofl new-study --survey" in sentence


@pytest.mark.parametrize(("other", "is_named"), [(0.0, False), (3.0, True), (None, True)])
def test_another_least_value_is_named_where_no_other_site_shares_it_but_not_where_nobody_can_compare(other, is_named):
    others = {"south": None if other is None else Padding(other, 0.5)}
    assert bool(describe_padding(Padding(0.0, 0.4), others)) is is_named
    assert describe_padding(Padding(0.0, 0.4)) == [] and describe_padding(None, {"south": Padding(0.0, 0.5)}) == []
