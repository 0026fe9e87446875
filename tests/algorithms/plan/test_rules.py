from dataclasses import replace

import numpy as np
import pytest

from silofl.algorithms.plan.patch import FEATURES, NetworkForm
from silofl.algorithms.plan.rules import Draft, SiteFacts, make_plan, target_spacing
from silofl.base.errors import ConfigError
from silofl.data.data_fingerprint import EDGES, NUM_BINS, pool_fingerprints

from ...data.test_data_fingerprint import fingerprint

LABELS = {1: "organ"}
UNET = NetworkForm.of("unet", (32, 32, 64, 128, 256), is_classifying=False, dimensions=3)
DRAFT = Draft(3, "segmentation", LABELS, (), None, "percentiles", "RAS", UNET)


def alike(*values):
    """Return quartiles that are all the same."""
    return [values] * 3


def planned(draft=DRAFT, **sites):
    """Return the plan's values by key."""
    return {one.key: one.value for one in make_plan(draft, sites or {"north": fingerprint()}).decisions}


def spacing_of(plan):
    return plan["data.volume_transforms"][1]["Spacing"]["pixdim"]


def test_isotropic_volumes_are_brought_to_their_median_spacing():
    thin = fingerprint(cases=1, spacing_mm=alike(1, 1, 1), shape=alike(100, 100, 90))
    thick = fingerprint(cases=3, spacing_mm=alike(1.5, 1.5, 2), shape=alike(80, 80, 45))
    plan = planned(north=thin, south=thick)
    assert spacing_of(plan) == [1.5, 1.5, 2]
    # medians by case: 80 x 80 x 45 voxels, in multiples of 16
    assert plan["data.patches.size"] == [80, 80, 48]
    assert plan["data.intensity"] == "zscore" and plan["data.transforms"] == []
    assert plan["data.volume_transforms"][0] == {"Orientation": {"axcodes": "RAS"}}


def test_a_patch_that_is_longer_than_the_median_says_why():
    site = fingerprint(cases=1, spacing_mm=alike(1, 1, 1), shape=alike(21, 64, 20))
    reason = next(one.reason for one in make_plan(DRAFT, {"a": site}).decisions if one.key == "data.patches.size")
    assert reason.endswith("; X and Z beyond the median, as nnU-Net pads a side that it halves")
    whole = replace(site, shape=np.array(alike(32.0, 64.0, 16.0)))
    reason = next(one.reason for one in make_plan(DRAFT, {"a": whole}).decisions if one.key == "data.patches.size")
    assert "beyond the median" not in reason


def test_thick_slices_of_anisotropic_volumes_are_brought_to_the_10th_percentile():
    site = fingerprint(spacing_mm=[[0.6, 0.6, 2], [0.6, 0.6, 3], [0.6, 0.6, 4]], shape=alike(512, 512, 40))
    # 3 / 0.6 = 5 and 512 / 40 = 12.8; the tail begins at 4 / 3, and 0.4 of the way from there to 2 mm are 1.6 mm
    np.testing.assert_allclose(target_spacing(pool_fingerprints([site])), [0.6, 0.6, 1.6])
    # 40 slices of 3 mm are 75 of 1.6 mm
    reason = next(one.reason for one in make_plan(DRAFT, {"a": site}).decisions if one.key == "data.patches.size")
    assert "measures 512 x 512 x 75 voxels" in reason


@pytest.mark.parametrize(
    ("spacing", "shape"),
    [
        # 3 / 1.1 is less than 3
        ([[1.1, 1.1, 2], [1.1, 1.1, 3], [1.1, 1.1, 4]], (512, 512, 40)),
        # 512 / 200 is less than 3
        ([[0.6, 0.6, 2], [0.6, 0.6, 3], [0.6, 0.6, 4]], (512, 512, 200)),
    ],
)
def test_only_long_and_few_voxels_make_a_set_anisotropic(spacing, shape):
    site = fingerprint(spacing_mm=spacing, shape=alike(*shape))
    assert target_spacing(pool_fingerprints([site]))[2] == 3


def test_no_axis_becomes_finer_than_the_others():
    site = fingerprint(spacing_mm=[[1, 1, 0.6], [1, 1, 3], [1, 1, 3]], shape=alike(512, 512, 40))
    # the 10th percentile is 0.12 + 0.4 * 0.48 = 0.312
    assert target_spacing(pool_fingerprints([site])).tolist() == [1, 1, 1]


def test_images_in_2d_are_resized_to_their_median_plane():
    draft = replace(DRAFT, dimensions=2, network=NetworkForm.of("unet", (32,) * 5, is_classifying=False, dimensions=2))
    plan = planned(draft, a=fingerprint(shape=alike(100, 130, 30)))
    assert plan["data.transforms"] == [{"Resize": {"spatial_size": [112, 144]}}]
    assert not {"data.patches.size", "data.volume_transforms"} & plan.keys()
    # 5 % of 4 * 100 * 130 * 30 voxels are 78000, 4 images of 112 x 144
    assert plan["training.batch_size"] == 4
    square = planned(replace(draft, has_square_sides=True), a=fingerprint(shape=alike(100, 130, 30)))
    assert square["data.transforms"] == [{"Resize": {"spatial_size": [112, 112]}}]


def test_ct_is_clipped_to_its_foreground_and_scaled_by_it():
    site = fingerprint(intensity=[[-100, 40, 300, 50, 25]])
    plan = planned(replace(DRAFT, modality="CT"), a=site)
    # (-100 - 50) / 25 and (300 - 50) / 25
    scale = {"a_min": -100, "a_max": 300, "b_min": -6, "b_max": 10, "clip": True}
    assert plan["data.intensity"] == "raw" and plan["data.transforms"] == [{"ScaleIntensityRange": scale}]


def foreground(shift=0, spread=4):
    """Return the fingerprint of foregrounds about 90 HU, as many bins wide, at a site whose values are shifted."""
    histogram = np.zeros(NUM_BINS)
    first = int((88 + shift - EDGES[0]) // 4)
    histogram[first - spread : first + spread + 1] = 10
    return fingerprint(histogram=histogram)


def window_of(plan):
    (scale,) = [one.value[0]["ScaleIntensityRange"] for one in plan.decisions if one.key == "data.transforms"]
    return scale["a_min"], scale["a_max"]


def test_of_two_sites_with_shifted_values_both_are_named_and_the_window_is_that_of_both():
    ct = replace(DRAFT, modality="CT")
    sites = {"south": foreground(1024), "west": foreground(8)}
    plan = make_plan(ct, sites)
    # From 80 to 116 and from 1096 to 1132.
    assert window_of(plan) == pytest.approx((80, 1132), abs=4)
    (warning,) = plan.warnings
    assert warning.startswith("the values of site 'south' lie 1016 above those of site 'west', more than the range")
    assert make_plan(replace(DRAFT, modality="MR"), sites).warnings == ()
    assert make_plan(ct, {"north": foreground(), "west": foreground(24)}).warnings == ()


def test_the_window_of_ct_is_planned_without_a_site_whose_values_are_far_from_all_others():
    sites = {"south": foreground(1024), "north": foreground(), "west": foreground(8)}
    plan = make_plan(replace(DRAFT, modality="CT"), sites, 3)
    # Of the means the others have 10 and 4, which reach from 0 to 116; 1132 is beyond 116 + 3 * 116.
    assert window_of(plan) == pytest.approx((72, 116), abs=4)
    (warning,) = plan.warnings
    assert warning.startswith("the values of site 'south', 0 to 1132, are far from all others' 0 to 115.8 and")


def test_a_histogram_counts_by_its_sites_cases_and_not_by_its_voxels():
    ct = replace(DRAFT, modality="CT")
    honest = {"north": foreground(), "west": foreground(8)}
    loud = replace(foreground(200), histogram=1000 * foreground(200).histogram)
    sites = honest | {"south": replace(foreground(200), cases=4)}
    assert window_of(make_plan(ct, sites)) == window_of(make_plan(ct, honest | {"south": loud}))


def test_means_that_no_others_have_do_not_scale_the_window():
    honest = {"north": foreground(), "west": foreground()}
    liar = replace(foreground(), intensity=np.array([[0.0, 10.0, 20.0, 1e6, 4.0]]))
    ct = replace(DRAFT, modality="CT")
    plans = [make_plan(ct, sites, 3) for sites in (honest, honest | {"south": liar})]
    first, second = ([one.value for one in plan.decisions if one.key == "data.transforms"] for plan in plans)
    assert first == second
    assert plans[0].warnings == () and plans[1].warnings[0].startswith(
        "the values of site 'south', 0 to 1e+06, are far"
    )


def test_ten_million_claimed_cases_set_neither_spacing_nor_batch_and_are_named():
    honest = {name: fingerprint(cases=4, spacing_mm=alike(1, 1, 1), shape=alike(60, 60, 60)) for name in "abcd"}
    liar = fingerprint(cases=10**7, spacing_mm=alike(9, 9, 9), shape=alike(7, 7, 7))
    plan, wanted = make_plan(DRAFT, honest | {"liar": liar}, 3), planned(**honest)
    assert spacing_of({one.key: one.value for one in plan.decisions}) == spacing_of(wanted) == [1, 1, 1]
    assert plan.warnings[0] == (
        "site 'liar' says that it has 10000000 cases, 2.5e+06 times the others' median, and counts by 12: ask it"
    )
    # 3 * 4 and four times 4 cases.
    assert any("all 28 cases" in one.reason for one in plan.decisions)
    assert not any("'a'" in warning for warning in plan.warnings)
    # Of three sites it counts by one case fewer than both others: 3 * 4 would be more than a half.
    few = make_plan(DRAFT, {"a": honest["a"], "b": honest["b"], "liar": liar}, 3)
    assert spacing_of({one.key: one.value for one in few.decisions}) == [1, 1, 1] and "counts by 7" in few.warnings[0]
    # Data at hand need no belief.
    assert planned(**honest, liar=liar)["training.batch_size"] > wanted["training.batch_size"]


def test_pictures_keep_the_scale_of_their_type_and_magnetic_resonance_gets_one_by_case():
    assert "data.intensity" not in planned(replace(DRAFT, intensity="dtype"))
    assert planned(replace(DRAFT, modality="MR"))["data.intensity"] == "zscore"


def test_an_only_channel_of_the_name_ct_is_ct_unless_the_modality_says_otherwise():
    named = replace(DRAFT, channel_names=("ct",))
    assert planned(named)["data.intensity"] == "raw"
    assert planned(replace(named, modality="MR"))["data.intensity"] == "zscore"
    assert planned(replace(DRAFT, channel_names=("T1",)))["data.intensity"] == "zscore"


def test_channels_stay_and_their_comment_counts_the_sites_that_have_them():
    draft = replace(DRAFT, channel_names=("T1", "T2"))
    numbers = [[0, 1, 2, 1, 1]] * 2
    plan = make_plan(
        draft,
        {"a": fingerprint(intensity=numbers, channels=[1, 0]), "b": fingerprint(intensity=numbers, channels=[1, 1])},
    )
    assert [one.value for one in plan.decisions[:2]] == [2, ["T1", "T2"]]
    assert plan.decisions[1].reason.startswith("T1 at 2, T2 at 1 of 2 sites")
    assert plan.warnings == ("site 'a' lacks the channel T2",)


def test_a_dynunet_gets_its_levels_from_the_spacing():
    network = NetworkForm.of("DynUNet", FEATURES, is_classifying=False, dimensions=3)
    plan = planned(replace(DRAFT, network=network), a=fingerprint(shape=alike(64, 64, 16), spacing_mm=alike(1, 1, 1)))
    # 64 is halved four times, 16 twice
    assert plan["model.arguments.strides"] == [[1, 1, 1], [2, 2, 2], [2, 2, 2], [2, 2, 1], [2, 2, 1]]
    assert plan["model.arguments.upsample_kernel_size"] == plan["model.arguments.strides"][1:]
    assert plan["model.arguments.kernel_size"] == [[3, 3, 3]] * 5
    assert plan["model.arguments.filters"] == [32, 64, 128, 256, 320]


def test_a_site_is_warned_of_where_it_is_far_from_the_plan():
    usual = fingerprint(cases=9, spacing_mm=alike(1, 1, 2))
    odd = fingerprint(cases=1, spacing_mm=alike(1, 0.4, 5), classes=[1, 0])
    assert make_plan(DRAFT, {"a": usual}).warnings == ()
    plan = make_plan(DRAFT, {"a": usual, "b": odd})
    assert plan.sites["b"] == SiteFacts(1, spacing_mm=(1, 0.4, 5), shape=(100, 100, 30), classes=(1, 0))
    assert plan.warnings == (
        "site 'b' has a median spacing of 0.4 mm along Y, 0.4 times the plan's 1 mm",
        "site 'b' has a median spacing of 5 mm along Z, 2.5 times the plan's 2 mm",
        "site 'b' has no case annotated with organ",
    )


def test_what_a_site_withholds_is_not_said_to_be_lacking():
    draft = replace(DRAFT, channel_names=("T1", "T2"))
    numbers = {"intensity": [[0, 1, 2, 1, 1]] * 2, "channels": [1, 0], "classes": [1, 0]}
    one = replace(fingerprint(**numbers), few_channels=(1,), few_classes=(1,))
    plan = make_plan(draft, {"a": one})
    assert plan.sites["a"].classes == (1, None)
    assert plan.decisions[1].reason.startswith("T1 at 1, T2 at 0, and withheld by others, of 1 sites")
    assert plan.warnings == ("site 'a' withholds organ, T2: fewer patients than its min_patients have it",)


def test_a_plan_needs_a_site():
    with pytest.raises(ConfigError, match="must have at least 1 site's fingerprint, not 0"):
        make_plan(DRAFT, {})


def test_the_same_sites_in_another_order_give_the_same_plan():
    sites = {"a": fingerprint(cases=5), "b": fingerprint(cases=2, spacing_mm=alike(2, 2, 2), classes=[0.5, 0.5])}
    assert planned(**sites) == planned(**dict(reversed(sites.items())))
