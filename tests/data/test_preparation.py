import weakref
from dataclasses import replace

import nibabel
import numpy as np
import pytest

from silofl.base.errors import DataError
from silofl.data import prepared_image
from silofl.data.contrasts import build_source
from silofl.data.manifest import read_manifest
from silofl.data.preparation import build_preparation, check_has_slices, prepare_case
from silofl.data.prepared_image import prepare_image, prepare_with_inverse
from silofl.reading.image import Image
from silofl.study.data_settings import DataSettings

VOLUME = np.random.default_rng(0).integers(0, 1000, (4, 5, 6), dtype=np.int16)
LABEL = (VOLUME > 500).astype(np.uint8)


@pytest.fixture
def prepare(site):
    """Prepare the first training case of the site under a study."""

    def prepare_first(study):
        manifest = read_manifest(site.write(split_unit=study.data.split_unit), study)
        return prepare_case(manifest.training[0], manifest, build_preparation(study))

    return prepare_first


@pytest.fixture
def volume(site):
    """Give the site a volume as its first training case."""

    def add(affine=None, label=LABEL, **changes):
        affine = np.eye(4) if affine is None else affine
        nibabel.save(nibabel.Nifti1Image(VOLUME, affine), site.folder / "v.nii.gz")
        nibabel.save(nibabel.Nifti1Image(label, affine), site.folder / "l.nii.gz")
        record = {"image": "v.nii.gz", "label": "l.nii.gz", "patient": "v", "case": "scan"} | changes
        site.content["training"].insert(0, record)

    return add


def test_a_picture_becomes_one_example(site, study, prepare):
    site.picture("a.png", np.uint8([[0, 51, 255], [102, 153, 204]]))
    site.mask("a-mask.png", np.uint8([[0, 1, 1], [0, 0, 1]]))
    case = prepare(study())
    np.testing.assert_allclose(case.images, [[[[0, 0.2, 1], [0.4, 0.6, 0.8]]]], rtol=1e-6)
    assert case.targets.tolist() == [[[0, 1, 1], [0, 0, 1]]]
    assert (case.case, case.patient, case.slices) == ("a", "a", (None,))
    assert (case.images.dtype, case.targets.dtype) == (np.float32, np.uint8)


TO_THE_FEET = np.diag([1.0, 1, -1, 1])


@pytest.mark.parametrize(
    ("affine", "changes", "axcodes", "numbers"),
    [
        (None, {}, None, (0, 1, 2, 3, 4, 5)),
        # A range includes both ends.
        (None, {"slices": [2, 4]}, None, (2, 3, 4)),
        (None, {"slices": [1, 5, 2]}, None, (1, 3, 5)),
        # Slices are cut in stored order before the volume is turned: the third axis runs to the feet.
        (TO_THE_FEET, {"slices": [0, 2]}, "RAS", (2, 1, 0)),
    ],
)
def test_a_volume_becomes_its_slices_along_the_last_axis(study, prepare, volume, affine, changes, axcodes, numbers):
    volume(affine, **changes)
    turned = {"volume_transforms": [{"Orientation": {"axcodes": axcodes}}]} if axcodes else {}
    case = prepare(study(intensity="raw", **turned))
    np.testing.assert_array_equal(case.images[:, 0], VOLUME[..., numbers].transpose(2, 0, 1))
    np.testing.assert_array_equal(case.targets, LABEL[..., numbers].transpose(2, 0, 1))
    assert case.slices == tuple(sorted(numbers))
    if not changes:
        # Or along another axis, by turning it.
        case = prepare(study(intensity="raw", volume_transforms=[{"Orientation": {"axcodes": "ASR"}}]))
        np.testing.assert_array_equal(case.images[:, 0], VOLUME)
        np.testing.assert_array_equal(case.targets, LABEL)


def test_intensities_are_scaled_over_the_whole_volume(study, prepare, volume):
    volume(slices=[0, 0])
    low, high = np.percentile(VOLUME, (0.5, 99.5))
    expected = np.clip((VOLUME[..., 0] - low) / (high - low), 0, 1)
    np.testing.assert_allclose(prepare(study(intensity="percentiles")).images[0, 0], expected, atol=1e-6)


@pytest.mark.parametrize("wrong", [0.5, 300, -1])
def test_a_label_changed_by_a_transform_is_refused(site, study, wrong):
    manifest, steps = read_manifest(site.write(), study()), build_preparation(study())
    broken = replace(steps, image_steps=lambda case: {**case, "label": case["label"] * 0 + wrong})
    with pytest.raises(DataError, match=f"case 'a': the study's transforms make {wrong} of a label, .* 0 to 255"):
        prepare_case(manifest.training[0], manifest, broken)


TILTED = np.array([[0.0, -1.5, 0, 7], [0.5, 0, 0, 8], [0, 0, 4, 9], [0, 0, 0, 1]])


@pytest.mark.parametrize(
    ("settings", "changes", "expected"),
    [
        ({}, {}, (0.5, 1.5, 4)),
        # every second slice
        ({}, {"slices": [0, 4, 2]}, (0.5, 1.5, 8)),
        ({"volume_transforms": [{"Orientation": {"axcodes": "RAS"}}]}, {}, (1.5, 0.5, 4)),
        ({"volume_transforms": [{"Spacing": {"pixdim": [1.0, 1.0, 2.0]}}]}, {}, (1, 1, 2)),
        # 4 rows of 0.5 mm become 8, 5 columns of 1.5 mm become 10
        ({"transforms": [{"Resize": {"spatial_size": [8, 10]}}]}, {}, (0.25, 0.75, 4)),
        ({"transforms": [{"CenterSpatialCrop": {"roi_size": [2, 2]}}]}, {}, (0.5, 1.5, 4)),
    ],
)
def test_the_voxel_size_is_that_of_the_prepared_volume(study, prepare, volume, settings, changes, expected):
    volume(TILTED, **changes)
    case = prepare(study(intensity="raw", **settings))
    assert case.spacing == pytest.approx(expected, rel=1e-5)


def stacked(order):
    """Return for each row of slice numbers these slices of the volume as channels."""
    return np.stack([np.stack([VOLUME[..., z] for z in row]) for row in order])


@pytest.mark.parametrize(
    ("slices", "order", "settings"),
    [
        ([2, 4], [(2, 2, 3), (2, 3, 4), (3, 4, 4)], {}),
        ([1, 5, 2], [(1, 1, 3), (1, 3, 5), (3, 5, 5)], {}),
        ([3, 3], [(3, 3, 3)], {}),
        # The third axis is turned round.
        ([0, 2], [(2, 2, 1), (2, 1, 0), (1, 0, 0)], {"volume_transforms": [{"Orientation": {"axcodes": "RAI"}}]}),
    ],
)
def test_neighbours_are_slices_of_the_turned_record_only(study, prepare, volume, slices, order, settings):
    # What lies outside may be another record's, in another part.
    volume(slices=slices)
    np.testing.assert_array_equal(prepare(study(intensity="raw", neighbours=1, **settings)).images, stacked(order))


@pytest.mark.parametrize(("intensity", "neighbours"), [("zscore", 0), ("percentiles", 1)])
def test_a_prediction_sees_what_training_saw(site, study, prepare, volume, intensity, neighbours):
    volume()
    settings = study(
        intensity=intensity,
        neighbours=neighbours,
        volume_transforms=[{"Orientation": {"axcodes": "LPI"}}],
        transforms=[{"SpatialPad": {"spatial_size": [8, 8], "value": 3}}],
    )
    found = prepare_image(build_source(site.folder / "v.nii.gz", settings.data), settings)
    assert found.shape == (6, 1 + 2 * neighbours, 8, 8)
    np.testing.assert_array_equal(found, prepare(settings).images)


def test_only_the_case_holds_the_volume_that_is_transformed(site, study, volume, monkeypatch):
    volume()
    settings = study()
    transform = prepared_image.transform_case

    def transform_copy(case, *arguments, **options):
        given = weakref.ref(case["image"])
        case["image"] = case["image"].copy()
        assert given() is None
        return transform(case, *arguments, **options)

    monkeypatch.setattr(prepared_image, "transform_case", transform_copy)
    source = build_source(site.folder / "v.nii.gz", settings.data)
    for numbers in (None, range(0, 6, 2)):
        prepared = prepare_with_inverse(source, build_preparation(settings, False), numbers=numbers)
        assert prepared.shape == (4, 5, len(prepared.images))


@pytest.mark.parametrize("slices", [[0, 6], [9, 12]])
def test_slices_beyond_the_volume_and_of_a_picture_are_refused(site, study, prepare, volume, slices):
    site.content["training"][0] |= {"slices": [0, 0], "case": "a"}
    with pytest.raises(DataError, match="case 'a': a.png is a picture, and has no slice 0"):
        prepare(study())
    volume(slices=slices)
    with pytest.raises(DataError, match=f"v.nii.gz has 6 slices, and has no slice {slices[1]}"):
        prepare(study(intensity="raw"))


@pytest.mark.parametrize("options", [{"spatial_size": 8}, {"spatial_size": [9, 9], "mode": "cubist"}])
def test_a_transform_that_fails_names_the_case(study, prepare, options):
    with pytest.raises(
        DataError, match=r"case 'a': the study's transforms fail on an image of size \(8, 8\); MONAI says"
    ):
        prepare(study(transforms=[{"Resize": options}]))


@pytest.mark.parametrize(
    ("shape", "is_window", "settings", "sentence"),
    [
        ((1, 4, 4), False, {"neighbours": 2}, "not a picture; give the volume, or set data.neighbours to 0"),
        ((3, 1, 9), True, {"neighbours": 2}, "not a window; give the volume, or set data.neighbours to 0"),
        ((1, 4, 4), False, {"dimensions": 3}, "not a picture; give the volume, or set data.dimensions to 2"),
    ],
)
def test_an_image_without_slices_is_refused_where_it_needs_some(shape, is_window, settings, sentence):
    image = Image(np.zeros(shape, np.uint8), None, 255, is_window)
    check_has_slices(image, DataSettings(), "a.png")
    with pytest.raises(DataError, match=f"a.png must be a volume.* {sentence}$"):
        check_has_slices(image, DataSettings(**settings), "a.png")
    # One slice is a volume.
    check_has_slices(Image(np.zeros((1, 4, 4, 1), np.uint8), np.eye(4), 255), DataSettings(**settings), "a.nii.gz")
