"""Spacing, patch and window by a survey: worked by hand, and bounded against one hospital's claims."""

import json

import numpy as np
import pytest

from silofl.base.errors import ConfigError
from silofl.data.ct_values import EDGES, NUM_BINS
from silofl.data.inventory import Inventory
from silofl_desk.studies.plans.survey_rules import (
    MOST_VOXELS,
    Surveyed,
    choose_patch,
    choose_spacing,
    choose_window,
    read_survey,
    weigh_sites,
)


def site(spacing=(1.0, 1.0, 2.0), shape=(100.0, 100.0, 30.0), patients=4, **changes):
    values = {"task": "segmentation", "kind": "volumes", "unit": "patients", "patients": patients, "cases": patients}
    values |= {"labels": {"organ": patients}, "contrasts": {}, "shape": shape, "spacing_mm": spacing}
    return Inventory(**(values | {"least": 0} | changes))


def surveyed(**sites):
    return Surveyed(sites, weigh_sites(sites))


def organ(shift=0):
    """Return the shares of an organ from 48 to 112 HU, shifted."""
    first = int(np.digitize(48 + shift, EDGES)) - 1
    shares = np.zeros(NUM_BINS)
    shares[first : first + 4] = 0.25
    return tuple(shares.tolist())


def test_the_spacing_is_the_median_of_the_hospitals_by_their_patients():
    few, many = site((1.0, 1.0, 5.0), patients=2), site((0.5, 0.5, 2.0), patients=5)
    assert choose_spacing(surveyed(a=few, b=many)) == [0.5, 0.5, 2]
    with pytest.raises(ConfigError, match="The survey has no spacing"):
        choose_spacing(surveyed(a=site(spacing=None)))


def test_a_patch_has_the_median_volumes_proportions_and_no_more_voxels_than_fit():
    # On a grid of 1 mm the volume has 100 x 100 x 60 voxels, which are less than 96^3.
    assert choose_patch(surveyed(a=site()), [1, 1, 1]) == [112, 112, 64]
    # 400 x 400 x 100: sides stay near 4 : 4 : 1.
    sides = choose_patch(surveyed(a=site(shape=(400.0, 400.0, 50.0))), [1, 1, 1])
    assert sides[0] == sides[1] and np.prod(sides) <= MOST_VOXELS and 3 <= sides[0] / sides[2] <= 5
    assert all(side % 16 == 0 for side in sides)


def test_ct_is_clipped_to_its_labelled_voxels_and_scaled_by_them():
    window = choose_window(surveyed(a=site(ct_shares=organ())))
    # Bins of a quarter each from 48 to 112: mean 80, deviation sqrt((24^2 + 8^2) / 2) = 17.9.
    assert (window["a_min"], window["a_max"]) == (48, 112) and window["clip"]
    assert window["b_max"] == pytest.approx((112 - 80) / 17.89, abs=0.02) and window["b_min"] == -window["b_max"]
    assert choose_window(surveyed(a=site(ct_shares=organ()), b=site())) is None


def test_values_far_from_all_others_count_for_no_window():
    sites = {"south": site(ct_shares=organ(1024)), "north": site(ct_shares=organ()), "west": site(ct_shares=organ(16))}
    window = choose_window(surveyed(**sites))
    # To a bin: half a percent at either end is left out.
    assert (window["a_min"], window["a_max"]) == (49, 127)


def test_ten_million_claimed_patients_set_no_median():
    honest = {name: site((1.0, 1.0, 1.0)) for name in "abcd"}
    found = surveyed(**honest, liar=site((9.0, 9.0, 9.0), patients=10**7))
    # 3 * 4 of four times 4.
    assert found.weights["liar"] == 12 and choose_spacing(found) == [1, 1, 1]
    # Of three sites it counts by one fewer than both others: 3 * 4 would be more than a half.
    few = surveyed(a=honest["a"], b=honest["b"], liar=site((9.0, 9.0, 9.0), patients=10**7))
    assert few.weights["liar"] == 7 and choose_spacing(few) == [1, 1, 1]


def test_a_file_of_the_desk_and_one_of_a_network_are_read_and_others_are_refused(tmp_path):
    path = tmp_path / "survey.json"
    record = site(ct_shares=organ()).model_dump(mode="json")
    path.write_text(json.dumps({"sites": {"north": record}, "sentences": [], "not_said": {"west": "fewer"}}))
    assert choose_spacing(read_survey(path)) == [1, 1, 2]
    for content, words in (
        ({"sites": {}}, "holds no survey of any hospital"),
        ({"sites": {"north": record | {"ct_shares": [0.5, 0.5]}}}, "survey.json: north: ct_shares must be 320 shares"),
    ):
        path.write_text(json.dumps(content))
        with pytest.raises(ConfigError, match=words):
            read_survey(path)
