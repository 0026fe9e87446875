"""Small files as scanners, annotation tools and careless exporters write them: each is read rightly or refused."""

import json

import numpy as np
import pytest

from silofl.data.site_data import load_site_data
from silofl.data.targets import IGNORED
from silofl.reading.images import read_image, read_label
from silofl.study import load_study
from silofl_desk.studies.runs.simulation import study_file

from ..conftest import SMALL_UNET, case_builder
from .conftest import JOBS

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("decoded_here", "undrawn")]

TINY = [
    "--rounds",
    1,
    "--set",
    f"model={json.dumps(SMALL_UNET)}",
    "--set",
    "device=cpu",
    "--set",
    "baseline_comparison=false",
]


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Build a case in a folder of its own, once."""
    return case_builder("build.py", tmp_path_factory.mktemp("cases"))


@pytest.fixture
def import_folders(silofl, tmp_path):
    """Import images/ and masks/ of all hospitals in a folder; returns what was said, and the data's folder."""

    def run(source, labels, *options, data=tmp_path / "data"):
        code, out, error = silofl("import", "folders", source, data, "--labels", labels, *options)
        assert code == 0, out + error
        return out + error, data

    return run


@pytest.fixture
def train(silofl, tmp_path):
    """Begin a study with a folder of hospitals and carry out a round of it."""

    def run(data, job=tmp_path / "job", out=tmp_path / "run"):
        code, printed, error = silofl("new-study", data, job, "--from", JOBS / "fedavg_phantoms")
        if code == 0:
            code, printed, error = silofl("simulate", job, "--data", data, "--out", out, "--in-process", *TINY)
        assert code == 0, printed + error

    return run


def test_dicom_segmentations_are_masks_by_the_names_of_their_segments(build, import_folders, train, tmp_path):
    import pydicom

    patterns = ("--image-pattern", "{case}/ct", "--mask-pattern", "{case}/seg.dcm")
    _, data = import_folders(build("dicom_seg") / "in", "organ", *patterns)
    train(data)
    case = data / "north"
    label = read_label(case / "masks" / "c0.dcm", labels={1: "organ"}, image=read_image(case / "images/c0/ct"))
    # highdicom stores no frame of a slice without the organ: its pixels are those of the frames.
    assert label.array.sum() == pydicom.dcmread(case / "masks" / "c0.dcm").pixel_array.sum() > 0


@pytest.mark.parametrize("case", ["nnunet_ignore", "nnunet_regions"])
def test_a_set_of_nnunet_goes_from_import_to_export(build, silofl, train, tmp_path, case):
    code, out, error = silofl("import", "folders", build(case) / "in", tmp_path / "data", "--layout", "nnunet")
    assert code == 0, out + error
    train(tmp_path / "data")
    run, study = tmp_path / "run", load_study(study_file(tmp_path / "run" / "job"))
    code, out, error = silofl("export", run / "supermodel", "--out", tmp_path / "bundle")
    assert code == 0, out + error
    if case == "nnunet_regions":
        assert study.labels == {1: "whole 1", 2: "core"} and study.regions == {"whole": (1, 2), "core": (2,)}
        scored = json.loads((run / "results.json").read_text())
        assert scored["regions"] == {"whole": [1, 2], "core": [2]}
    else:
        data = load_site_data(tmp_path / "data" / "north", study, tmp_path / "cache")
        # the lower half of six slices of each case
        assert study.labels == {1: "organ"} and (np.asarray(data.training.targets[3]) == IGNORED).all()
        assert not (np.asarray(data.training.targets[2]) == IGNORED).any()
