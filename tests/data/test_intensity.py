import numpy as np
import pytest
from monai.transforms import NormalizeIntensity, ScaleIntensityRangePercentiles

from silofl.base.errors import DataError
from silofl.data.intensity import scale_intensity, to_channels

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (1, 6, 7), dtype=np.uint8)


def test_grey_is_repeated_and_colour_becomes_luminance_in_volumes_too():
    np.testing.assert_array_equal(to_channels(GREY, 3), np.concatenate([GREY, GREY, GREY]))
    # 0.299 * 100 + 0.587 * 200 + 0.114 * 50 = 29.9 + 117.4 + 5.7
    np.testing.assert_allclose(to_channels(np.uint8([[[100]], [[200]], [[50]]]), 1), [[[153.0]]], rtol=1e-6)
    # Numbers of 16 bits are kept.
    deep = np.full((3, 2, 2), 65535, np.uint16)
    np.testing.assert_allclose(to_channels(deep, 1), deep[:1], rtol=1e-6)
    assert to_channels(np.zeros((1, 2, 3, 4)), 3).shape == (3, 2, 3, 4)
    assert to_channels(np.zeros((3, 2, 3, 4)), 1).shape == (1, 2, 3, 4)


@pytest.mark.parametrize(
    ("stored", "channels", "is_window"),
    [(3, 1, True), (1, 3, True), (4, 3, True), (3, 27, False), (2, 1, False), (5, 1, False)],
)
def test_only_pictures_are_brought_to_another_number_of_channels(stored, channels, is_window):
    with pytest.raises(DataError, match=f"data.channels is {channels}, and the image has {stored}; set .* to {stored}"):
        to_channels(np.zeros((stored, 1, 8)), channels, is_window)


def test_dtype_refuses_negative_values_and_fractions():
    with pytest.raises(DataError, match="has negative values, as -1, which intensity 'dtype'"):
        scale_intensity(np.array([-1, 5], np.int16), "dtype", 32767)
    with pytest.raises(DataError, match="has fractions or numbers of several types, which intensity 'dtype'"):
        scale_intensity(np.array([0.1, 5], np.float32), "dtype", None)


def test_percentiles_and_zscore_are_monais():
    array = RNG.normal(3, 5, size=(3, 20, 30)).astype(np.float32)
    for method, oracle in (
        ("percentiles", ScaleIntensityRangePercentiles(0.5, 99.5, 0, 1, clip=True)),
        ("zscore", NormalizeIntensity()),
    ):
        np.testing.assert_allclose(scale_intensity(array, method, None), oracle(array), atol=1e-6)


def test_percentiles_clip_outliers_and_keep_what_few_pixels_show():
    # The 0.5 and the 99.5 percentile of 0..1000 are 5 and 995.
    scaled = scale_intensity(np.arange(1001, dtype=np.float32), "percentiles", None)
    np.testing.assert_allclose(scaled[[0, 5, 500, 995, 1000]], [0, 0, 0.5, 1, 1], atol=1e-6)
    array = np.zeros(1000, np.uint8)
    array[7:9] = 50, 100
    np.testing.assert_allclose(scale_intensity(array, "percentiles", 255)[6:9], [0, 0.5, 1])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("method", ["percentiles", "zscore"])
@pytest.mark.parametrize("value", [0, 7])
def test_a_constant_image_becomes_zeros(method, value):
    assert not scale_intensity(np.full((1, 4, 4), value, np.uint8), method, 255).any()
