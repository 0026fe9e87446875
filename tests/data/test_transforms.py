import nibabel
import numpy as np
import pytest
from monai.data import MetaTensor

from silofl.base.errors import ConfigError
from silofl.data.transforms import ALLOWED, build_augmentation, check_transforms, compose

OPTIONS = {
    "Orientation": {"axcodes": "LPS"},
    "Spacing": {"pixdim": [2.0, 2.0, -1.0]},
    "Resize": {"spatial_size": [16, 20], "mode": "bilinear"},
    "ResizeWithPadOrCrop": {"spatial_size": [16, 80]},
    "CenterSpatialCrop": {"roi_size": [16, 20]},
    "SpatialPad": {"spatial_size": [70, 80], "value": -1},
    "ScaleIntensityRange": {"a_min": 0, "a_max": 2, "b_min": 0, "b_max": 1},
    "ScaleIntensityRangePercentiles": {"lower": 1, "upper": 99, "b_min": 0, "b_max": 1},
    "AdjustContrast": {"gamma": 2},
    "RandRotate": {"range_x": 0.3},
    "RandAffine": {"rotate_range": [0.3], "translate_range": [4, 4], "prob": 0.5},
    "RandScaleIntensity": {"factors": 0.3},
    "RandShiftIntensity": {"offsets": [-0.2, 0.2]},
}
SQUARES = np.zeros((1, 64, 64), np.float32)
SQUARES[:, 8:30, 20:50] = 1
SQUARES[:, 40:60, 5:25] = 2


def of_volumes(name):
    """Return options for three axes."""
    options = OPTIONS.get(name, {}).items()
    options = {key: [*value, 4] if key in ("spatial_size", "roi_size") else value for key, value in options}
    return options | ({"mode": "trilinear"} if name == "Resize" else {})


@pytest.mark.parametrize("name", ALLOWED["volume_transforms"])
def test_every_volume_transform_runs(study, name):
    assert check_transforms(study(volume_transforms=[{name: of_volumes(name)}])) is None


@pytest.mark.parametrize("kind", ["transforms", "augment"])
@pytest.mark.parametrize("task", ["segmentation", "classification"])
def test_every_transform_of_an_image_runs(study, kind, task):
    named = [{name: OPTIONS.get(name)} for name in ALLOWED[kind]]
    assert check_transforms(study(task, **{kind: named})) is None


@pytest.mark.parametrize(
    ("kind", "name", "hint"),
    [
        ("transforms", "Risize", "did you mean 'Resize'"),
        ("volume_transforms", "orientation", "did you mean 'Orientation'"),
        ("augment", "Lambda", ""),
        ("transforms", "RandFlip", ""),
        ("augment", "Resize", ""),
    ],
)
def test_a_transform_that_is_not_listed_is_refused(study, kind, name, hint):
    settings = study(**{kind: [name]})
    for refuse in (lambda: check_transforms(settings), lambda: compose(settings.data, kind, True)):
        with pytest.raises(ConfigError, match=f"data.{kind} must be among .*, not '{name}'.*{hint}"):
            refuse()


@pytest.mark.parametrize(
    ("kind", "named", "sentence"),
    [
        ("transforms", {"Resize": {"size": [8, 8]}}, "Resize: options must be among spatial_size, .*, not 'size'"),
        ("transforms", {"Resize": {"keys": "image", "spatial_size": 8}}, "options must be among .*, not 'keys'"),
        ("transforms", {"Resize": None}, "Resize refuses its options: .*spatial_size"),
        ("transforms", {"Resize": {"spatial_size": "big"}}, "Resize fails on a 2D image"),
        ("transforms", {"Resize": {"spatial_size": [8, 8, 8]}}, "Resize makes size .8, 8, 8. of a 2D image"),
        ("transforms", {"Resize": {"spatial_size": 8, "mode": "cubist"}}, "Resize fails on"),
        ("transforms", {"Resize": {"spatial_size": 8, "mode": ["area", "area"]}}, "mode must be one word"),
        ("augment", {"RandZoom": {"padding_mode": ["mean", "mean"]}}, "padding_mode must be one word"),
        ("transforms", {"CenterSpatialCrop": {"value": 1, "roi_size": 8}}, "options must be among .*, not 'value'"),
        ("volume_transforms", {"Orientation": {"axcodes": "XYZ"}}, "Orientation fails on a 3D image"),
        ("volume_transforms", {"Orientation": {"axcode": "RAS"}}, "not 'axcode' .did you mean 'axcodes'"),
        ("volume_transforms", {"Orientation": {"labels": [], "axcodes": "RAS"}}, "options .*not 'labels'"),
        ("volume_transforms", {"Spacing": {"pixdim": "fine"}}, "Spacing (fails|refuses)"),
        ("augment", {"RandFlip": {"probability": 1}}, "not 'probability' .did you mean 'prob'"),
        ("augment", {"RandFlip": {"prob": 1.5}}, "RandFlip: prob must be from 0 to 1, not 1.5"),
        ("augment", {"RandFlip": {"prob": "often"}}, "RandFlip: prob must be from 0 to 1, not 'often'"),
        ("augment", {"RandFlip": {"spatial_axis": 5}}, "RandFlip fails on a 2D image"),
        ("augment", {"RandZoom": {"min_zoom": 2, "max_zoom": 2, "keep_size": False}}, "changes an image's size"),
        ("augment", {"RandAffine": {"spatial_size": [32, 32]}}, "changes an image's size"),
        ("augment", {"RandShiftIntensity": {"offsets": 1, "factor_key": "x"}}, "not 'factor_key'"),
        # Sizes that would fill the memory.
        ("transforms", {"Resize": {"spatial_size": [1e9, 1e9]}}, "spatial_size must be from 1 to 16384, not 1e\\+09"),
        (
            "transforms",
            {"SpatialPad": {"spatial_size": [16384, 16385]}},
            "spatial_size must be from 1 to 16384, not 16385",
        ),
        ("volume_transforms", {"Resize": {"spatial_size": [4096, 4096, 4096]}}, "at most 268435456 pixels"),
        ("volume_transforms", {"Spacing": {"pixdim": [1e-9, 1, 1]}}, "pixdim must be from 0.01 to 1000, not 1e-09"),
        ("augment", {"RandZoom": {"min_zoom": 3000, "max_zoom": 3000}}, "min_zoom must be from 0.1 to 4, not 3000"),
        ("augment", {"RandGaussianSmooth": {"sigma_x": [1e9, 1e9]}}, "sigma_x must be from 0 to 100, not 1e\\+09"),
        ("volume_transforms", {"SpatialPad": {"spatial_size": 16384}}, "at most 268435456 pixels or voxels"),
        # 12 x 10 x 4 voxels of 1 mm become 1200 x 1000 x 400.
        ("volume_transforms", {"Spacing": {"pixdim": [0.01, 0.01, 0.01]}}, "4.8e\\+08 voxels, where at most 268435456"),
        ("transforms", {"CenterSpatialCrop": {"roi_size": float("nan")}}, "finite numbers, not .'roi_size': nan"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_wrong_options_are_refused_in_one_sentence(study, kind, named, sentence):
    with pytest.raises(ConfigError, match=f"data.{kind}.*{sentence}") as error:
        check_transforms(study(**{kind: [named]}))
    assert "\n" not in str(error.value)


def run(settings, kind, image, label, affine=None):
    case = {"image": MetaTensor(image, affine=affine), "label": MetaTensor(label, affine=affine)}
    moved = compose(settings.data, kind, True)(case)
    return np.asarray(moved["image"]), np.asarray(moved["label"])


PADDED = [{"value": -1}, *({"mode": mode} for mode in ("edge", "linear_ramp", "mean"))]


@pytest.mark.parametrize("name", ["SpatialPad", "ResizeWithPadOrCrop"])
@pytest.mark.parametrize("options", PADDED)
def test_padding_pads_the_label_with_background(study, name, options):
    settings = study(transforms=[{name: {"spatial_size": [70, 64], "method": "end"} | options}])
    bright = np.full((1, 64, 64), 2, np.float32)
    image, label = run(settings, "transforms", bright, bright)
    # By the image alone: -1, or what its own pixels give.
    assert image[0, 64].tolist() == [pytest.approx(-1 if "value" in options else 2, abs=0.5)] * 64
    np.testing.assert_array_equal(label[0, 64:], np.zeros((6, 64)))
    np.testing.assert_array_equal(label[0, :64], bright[0])


def test_orientation_is_nibabels(study):
    volume = np.random.default_rng(0).normal(size=(4, 5, 6)).astype(np.float32)
    affine = np.array([[0, -2, 0, 5], [1, 0, 0, 6], [0, 0, 3, 7], [0, 0, 0, 1]], float)
    oracle = nibabel.as_closest_canonical(nibabel.Nifti1Image(volume, affine)).get_fdata(dtype=np.float32)
    settings = study(volume_transforms=[{"Orientation": {"axcodes": "RAS"}}])
    image, label = run(settings, "volume_transforms", volume[None], volume[None], affine)
    np.testing.assert_array_equal(image[0], oracle)
    np.testing.assert_array_equal(label[0], oracle)


@pytest.mark.parametrize("name", ALLOWED["augment"])
def test_an_augmentation_moves_the_label_with_its_image(study, name):
    settings = study(augment=[{name: dict(OPTIONS.get(name, {})) | {"prob": 1.0}}])
    step = build_augmentation(settings).set_random_state(3)
    moved = step({"image": MetaTensor(SQUARES), "label": MetaTensor(SQUARES)})
    image, label = np.asarray(moved["image"]), np.asarray(moved["label"])
    assert set(np.unique(label)) <= {0, 1, 2}
    if name in ("RandRotate90", "RandFlip"):
        np.testing.assert_array_equal(image, label)
    elif name in ("RandRotate", "RandZoom", "RandAffine"):
        assert np.abs(image - label).mean() < 0.1
    else:
        np.testing.assert_array_equal(label, SQUARES)


def test_a_spacing_too_fine_for_a_volume_is_refused(study):
    # Voxels of 5 mm: 160 x 160 x 32 of them become 25 times as many along an axis, 1.28e10 along all.
    volume = MetaTensor(np.zeros((1, 160, 160, 32), np.float32), affine=np.diag([5.0, 5.0, 5.0, 1.0]))

    def resample(*pixdim):
        settings = study(volume_transforms=[{"Spacing": {"pixdim": [*pixdim]}}])
        return compose(settings.data, "volume_transforms", False)({"image": volume})

    assert resample(2.5, -1, 0)["image"].shape[1:] == (319, 160, 32)
    with pytest.raises(RuntimeError) as error:
        resample(0.2, 0.2, 0.2)
    assert str(error.value.__cause__) == "1.28e+10 voxels, where at most 268435456 are possible"


def test_anti_aliasing_blurs_the_image_alone(study):
    sizes = {"spatial_size": [16, 16], "mode": "bilinear"}
    blurred, plain = (
        run(study(transforms=[{"Resize": sizes | options}]), "transforms", SQUARES, SQUARES)
        for options in ({"anti_aliasing": True, "anti_aliasing_sigma": 4.0}, {})
    )
    np.testing.assert_array_equal(blurred[1], plain[1])
    assert not np.array_equal(blurred[0], plain[0])
