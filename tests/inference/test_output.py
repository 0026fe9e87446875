from pathlib import Path

import nibabel
import numpy as np
import pytest

from silofl.base.errors import DataError
from silofl.inference.prediction import Prediction
from silofl_hospital.inference.output import (
    input_stem,
    model_sentence,
    prediction_record,
    prediction_sentence,
    write_map,
)


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("a/scan.nii.gz", "scan"),
        ("scan.v2.NII", "scan.v2"),
        ("series", "series"),
        ("a.b/", "a.b"),
        # A blank of Japanese writing is printed as any letter is.
        ("山田　太郎.nii.gz", "山田　太郎"),
    ],
)
def test_a_stem_is_the_name_without_the_formats_ending(name, stem):
    assert input_stem(Path(name)) == stem


@pytest.mark.parametrize("name", ["..nii.gz", "...nii.gz", "..png", "/", "a\nb.png", "a\x1b[2J.nii", "a\x85.png"])
def test_names_that_lead_elsewhere_or_command_terminals_are_refused(name):
    with pytest.raises(DataError, match="names no file of results: it is empty or of dots alone") as error:
        input_stem(Path("folder", name))
    assert str(error.value).isprintable()


def test_a_volumes_label_map_is_a_nifti_on_its_affine(tmp_path):
    label_map = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    affine = np.float32([[0, -1.2, 0.1, 3], [0.9, 0, 0, 4], [0, 0.1, 3, 5], [0, 0, 0, 1]]).astype(float)
    name = write_map(tmp_path, "scan", Path("scan.mha"), label_map, affine)
    image = nibabel.load(tmp_path / name)
    assert name == "scan_labels.nii.gz" and image.get_data_dtype() == np.uint8
    np.testing.assert_array_equal(np.asanyarray(image.dataobj), label_map)
    np.testing.assert_array_equal(image.affine, affine)


@pytest.mark.parametrize("codes", [(0, 0), (1, 0), (1, 2), (0, 2)])
@pytest.mark.parametrize("unit", ["mm", "micron"])
def test_a_label_map_lies_where_programs_see_its_nifti(tmp_path, codes, unit):
    stored = nibabel.Nifti1Image(np.zeros((2, 3, 4), np.int16), None)
    stored.header["descrip"] = "Meier, born 1970"
    stored.set_qform(np.diag([-2.0, 2, 2, 1]), codes[0])
    stored.set_sform([[0, -1.2, 0.1, 3], [0.9, 0, 0, 4], [0, 0.1, 3, 5], [0, 0, 0, 1]], codes[1])
    stored.header.set_xyzt_units(unit)
    nibabel.save(stored, tmp_path / "scan.nii")
    source = nibabel.load(tmp_path / "scan.nii")
    name = write_map(tmp_path, "scan", tmp_path / "scan.nii", np.ones((2, 3, 4), np.uint8), source.affine)
    written = nibabel.load(tmp_path / name)
    np.testing.assert_array_equal(written.affine, source.affine)
    for key in ("qform_code", "sform_code", "pixdim", "srow_x", "quatern_d", "qoffset_x", "xyzt_units"):
        np.testing.assert_array_equal(written.header[key], source.header[key])
    assert b"Meier" not in written.to_bytes()


@pytest.mark.parametrize(
    ("prediction", "wanted"),
    [
        (Prediction("north", {"north": 0.93, "south": 0.07}, False), "model of north (0.93)"),
        (
            Prediction("global", {"north": 0.4, "south": 0.6}, True),
            "global model, as no hospital is above 0.7 (nearest south, 0.60)",
        ),
        (Prediction("ensemble", {"north": 0.4, "south": 0.6}, False), "ensemble (nearest south, 0.60)"),
        (Prediction("ensemble", {}, False), "ensemble"),
        (Prediction("mean of all sites", {}, False), "mean of all sites"),
        (Prediction("north", {}, False), "model of north"),
        (Prediction("global", {}, False), "global model"),
        (Prediction("local", {}, False), "local model"),
        (Prediction("local", {"local": 0.93, "south": 0.07}, False), "model of local (0.93)"),
        (Prediction("global", {"global": 0.8, "north": 0.2}, False), "global model (0.80)"),
        (Prediction("local", {}, False, bias=-0.7), "local model, decision threshold 0.67"),
    ],
)
def test_a_sentence_says_whose_model_answered_and_how_sure(prediction, wanted):
    assert model_sentence(prediction, 0.7) == wanted


def test_a_record_and_a_sentence_say_what_was_found(make_study):
    maps = make_study()
    volumes = Prediction("global", {}, False, np.ones((2, 2, 1)), volumes_ml={"organ": 0.5, "lesion": 0.0})
    assert prediction_record(volumes, maps, None)["volumes_ml"] == {"organ": 0.5, "lesion": 0.0}
    assert prediction_sentence(volumes, maps, None) == "global model; organ 0.50 ml, lesion 0.00 ml"
    unmeasured = Prediction("global", {}, False, np.ones((2, 2, 1)), warnings=("no grid",))
    assert prediction_sentence(unmeasured, maps, None) == "global model; organ 4 voxels, lesion 0 voxels"
    record = prediction_record(unmeasured, maps, None)
    assert record["volumes_ml"] is None and record["warnings"] == ["no grid"]
    picture = Prediction("global", {}, False, np.uint8([[1, 1], [0, 2]]))
    assert prediction_sentence(picture, maps, None) == "global model; organ 2 pixels, lesion 1 pixel"
    classes = make_study("classification")
    classified = Prediction("global", {}, False, label=1, class_scores={"normal": 0.1, "tumour": 0.9})
    record = prediction_record(classified, classes, None)
    assert (record["label"], record["label_name"]) == (1, "tumour") and "volumes_ml" not in record
    assert prediction_sentence(classified, classes, None) == "global model; tumour (0.90)"


def test_each_finding_is_recorded_with_its_probability(make_study):
    study = make_study("multilabel", labels={0: "effusion", 1: "nodule"})
    scores = {"effusion": 0.81, "nodule": 0.125}
    prediction = Prediction("global", {}, False, findings=("effusion",), class_scores=scores)
    record = prediction_record(prediction, study, None)
    assert (record["findings"], record["class_scores"]) == (["effusion"], scores) and "label" not in record
    assert prediction_sentence(prediction, study, None) == "global model; effusion yes (0.81), nodule no (0.12)"
