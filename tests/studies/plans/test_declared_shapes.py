from pathlib import Path

from silofl.base.settings import parse
from silofl.study import Study, load_study
from silofl_desk.studies.plans.declared_shapes import (
    IMAGE,
    WINDOW,
    image_shape,
    prepared_shape,
)

JOBS = Path(__file__).resolve().parents[3] / "jobs"


def study_of(job):
    return load_study(JOBS / job / "app" / "config" / "study.yaml")


def without_transforms(job):
    return parse(Study, study_of(job).model_dump() | {"data": {}}, "study.yaml")


def test_a_study_that_resizes_says_how_large_its_images_are_and_another_has_an_assumed_size():
    study = study_of("fedavg_phantoms")
    assert image_shape(study) == image_shape(study, (500, 30)) == (1, 96, 96)
    study = without_transforms("fedavg_phantoms")
    assert image_shape(study) == (1, *IMAGE) and image_shape(study, (40, 50)) == (1, 40, 50)
    assert image_shape(study_of("adafed_activity"))[1:] == WINDOW


def test_examples_have_the_channels_of_their_neighbours():
    # A transform of one channel, which it would not be of three.
    centre = {"NormalizeIntensity": {"subtrahend": [0.5], "divisor": [1.0], "channel_wise": True}}
    for transforms in ((), (centre,)):
        values = study_of("fedavg_phantoms").model_dump() | {"data": {"neighbours": 1, "transforms": transforms}}
        study = parse(Study, values, "study.yaml")
        assert image_shape(study, (40, 50)) == (3, 40, 50)


def test_a_volume_that_is_cut_into_patches_has_a_size_of_its_own():
    study = study_of("harmofl_volumes")
    assert image_shape(study, (250, 200, 100)) == (2, 32, 32, 16)
    # Voxels of 1 mm become those of 5 mm, from the first one's place on.
    assert prepared_shape(study, (250, 200, 100)) == (2, 51, 41, 21)
