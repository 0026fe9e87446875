import errno
import hashlib
import io
import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import nibabel
import numpy as np
import pydicom
import pytest
from PIL import Image
from rich.console import Console

import silofl
from silofl.base.errors import ConfigError, DataError, ExitCode
from silofl.command_line.cli import main
from silofl.inference.directory import read_fingerprint, read_model_folder, write_model_folder
from silofl.study.sections import DoNotUseSettings
from silofl_hospital.inference import command
from silofl_hospital.inference.command import Options, predict_inputs
from silofl_hospital.inference.output import write_map

RESIZE = {"transforms": [{"Resize": {"spatial_size": [32, 32]}}]}


@pytest.fixture
def super_model(tmp_path, make_contents, make_study):
    write_model_folder(tmp_path / "supermodel", make_contents(study=make_study(data=RESIZE)))
    return tmp_path / "supermodel"


@pytest.fixture
def picture(tmp_path):
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (20, 30), dtype=np.uint8)).save(tmp_path / "pic.png")
    return tmp_path / "pic.png"


@pytest.fixture
def bad(tmp_path):
    (tmp_path / "bad.nii.gz").write_bytes(b"no gzip")
    return tmp_path / "bad.nii.gz"


def predict_into(out, super_model, *inputs, **options):
    """Predict inputs; return the exit code, the records and what was printed."""
    text = io.StringIO()
    console = Console(file=text, width=200)
    code, records = predict_inputs(super_model, inputs, out, Options(device="cpu", **options), console)
    assert json.loads((out / "prediction.json").read_text()) == records
    return code, records, text.getvalue()


@pytest.fixture
def predict(super_model, tmp_path):
    """Predict inputs into ``out``."""
    return partial(predict_into, tmp_path / "out", super_model)


@pytest.fixture
def fail_at_scan(monkeypatch):
    """Let the writing of the scan's label map end with an error."""

    def fail(error):
        def write(folder, stem, *rest):
            if stem == "scan":
                raise error
            return write_map(folder, stem, *rest)

        monkeypatch.setattr(command, "write_map", write)

    return fail


def change_contents(folder, **changes):
    """Write a super model anew with changes of its contents."""
    write_model_folder(folder, replace(read_model_folder(folder), **changes))


def scores_by_label(labels):
    """Return facts with each site's scores by label."""
    score = {"value": 0.5, "num_cases": 3, "num_excluded": 0}
    return {site: score | {"labels": values} for site, values in labels.items()}


def test_every_input_gets_a_label_map_record_and_line(predict, super_model, write_volume, picture, tmp_path):
    code, (volume, plane), text = predict(write_volume(shape=(20, 24, 3)), picture)
    assert code == ExitCode.COMPLETE
    assert (volume["input"], volume["model"], volume["is_fallback"]) == ("scan.nii.gz", "south", False)
    assert volume["scores"] == pytest.approx({"north": 0.3, "south": 0.7})
    assert volume["volumes_ml"].keys() == {"organ", "lesion"} and plane["volumes_ml"] is None
    assert volume["super_model"] == read_fingerprint(super_model)
    # As sha256sum prints it.
    assert plane["sha256"] == {"pic.png": hashlib.sha256(picture.read_bytes()).hexdigest()}
    assert volume["versions"].keys() == {"silofl", "torch", "monai", "numpy"}
    assert volume["versions"]["silofl"] == silofl.__version__
    image = nibabel.load(tmp_path / "out" / volume["label_map"])
    np.testing.assert_allclose(image.affine, np.diag([-0.5, -0.75, 2, 1]))
    assert image.shape == (20, 24, 3)
    assert np.asarray(Image.open(tmp_path / "out" / plane["label_map"])).shape == (20, 30)
    assert text.startswith("scan.nii.gz: model of south (0.70); organ ") and "\npic.png: model of south" in text


def test_what_cannot_be_a_dicom_segmentation_is_a_warning(predict, write_dicom, picture, tmp_path):
    pytest.importorskip("highdicom")
    series = write_dicom(tmp_path / "series", np.random.default_rng(0).integers(0, 900, (20, 24, 3), dtype=np.int16))
    code, (bare, plane), _ = predict(series, picture, has_dicom_seg=True)
    assert code == ExitCode.COMPLETE and "dicom_seg" not in bare | plane
    assert "no DICOM segmentation: the input is no DICOM, and names no patient" in plane["warnings"]
    assert any("no DICOM segmentation, because" in warning for warning in bare["warnings"])
    assert (tmp_path / "out" / bare["label_map"]).is_file()


def test_the_record_has_time_and_names_of_a_series(predict, write_dicom, picture, tmp_path):
    series = write_dicom(tmp_path / "series", np.random.default_rng(0).integers(0, 900, (20, 24, 3), dtype=np.int16))
    (series / "note.txt").write_text("no DICOM")
    _, (volume, plane), _ = predict(series, picture)
    headers = [pydicom.dcmread(path) for path in sorted(series.glob("*.dcm"))]
    assert volume["dicom"] == {
        "patient": "p1",
        "accession": "",
        "study": headers[0].StudyInstanceUID,
        "series": headers[0].SeriesInstanceUID,
        "instances": [header.SOPInstanceUID for header in headers],
    }
    age = datetime.now(UTC) - datetime.fromisoformat(volume["time"])
    assert timedelta(0) <= age < timedelta(minutes=10) and "dicom" not in plane


def test_bad_inputs_and_surprises_do_not_stop_the_rest(predict, bad, picture, write_volume, fail_at_scan, tmp_path):
    fail_at_scan(RuntimeError("out of memory"))
    code, (first, second, third, fourth), text = predict(bad, tmp_path / "missing.png", write_volume(), picture)
    assert code == ExitCode.INCOMPLETE
    assert first["error"].startswith("bad.nii.gz is truncated or corrupt") and "label_map" not in first
    assert "missing.png" in second["error"] and "out of memory" in third["error"]
    assert "error" not in fourth and fourth["label_map"] == "pic_labels.png"
    # Three reasons, an answer and its warning, that this super model does not say what it learnt from, what was not
    # compared, that no list of withdrawn models was there; and the end.
    lines = text.splitlines()
    assert len(lines) == 8 and lines[-1] == f"1 answered, 3 failed; results in {tmp_path / 'out'}"
    assert str(tmp_path) not in "".join(lines[:-1]) + json.dumps([first, second])


def test_a_full_disk_is_named_and_leaves_no_half_answer(predict, picture, tmp_path, monkeypatch):
    def full(path, write):
        raise OSError(errno.ENOSPC, "No space left on device")

    # The label map is written already, and then its picture.
    monkeypatch.setattr(command, "write_atomically", full)
    code, (record,), _ = predict(picture, has_picture=True)
    sentence = "its answer cannot be written to out (No space left on device); "
    assert code == ExitCode.FAILED and record["error"] == f"{sentence}make room, or name another folder"
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"prediction.json", "prediction.lock"}


def test_what_is_done_is_kept_when_the_run_is_interrupted(predict, picture, write_volume, fail_at_scan, tmp_path):
    fail_at_scan(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        predict(picture, write_volume())
    (record,) = json.loads((tmp_path / "out" / "prediction.json").read_text())
    assert record["input"] == "pic.png"


def test_cases_in_folders_of_their_own_are_called_by_these(predict, tmp_path, picture):
    inputs = []
    for name in ("first", "second.case"):
        (tmp_path / name).mkdir()
        inputs.append(shutil.copy(picture, tmp_path / name / "t1.png"))
    with pytest.raises(
        ConfigError, match="the results of t1.png and t1.png .* call them by their folders with --by-folder, "
    ):
        predict(*map(Path, inputs))
    code, records, text = predict(*map(Path, inputs), is_named_by_folder=True, has_picture=True)
    assert code == ExitCode.COMPLETE and [record["input"] for record in records] == ["first", "second.case"]
    assert [record["label_map"] for record in records] == ["first_labels.png", "second.case_labels.png"]
    assert (tmp_path / "out" / "first_picture.png").exists() and text.startswith("first: ")


def test_equal_names_and_names_that_lead_elsewhere_are_refused(predict, tmp_path, picture, write_volume):
    with pytest.raises(ConfigError, match="the results of pic.png and PIC.nii.gz would be one file"):
        predict(picture, tmp_path / "PIC.nii.gz")
    scan = write_volume().rename(tmp_path / "..nii.gz")
    (tmp_path / "out_labels.nii.gz").write_text("precious")
    with pytest.raises(DataError, match="names no file of results"):
        predict(picture, scan)
    assert (tmp_path / "out_labels.nii.gz").read_text() == "precious" and not (tmp_path / "out").exists()


def test_earlier_answers_stay_and_what_failed_is_predicted_again(
    super_model, predict, picture, bad, write_volume, tmp_path
):
    predict(picture, bad)
    # The same name, and this time an image.
    bad.unlink()
    write_volume(bad.name)
    (tmp_path / "out" / "bad_seg.dcm").write_text("of a prediction that was killed")
    code, records, _ = predict(bad, site="north")
    assert code == ExitCode.COMPLETE and [record["input"] for record in records] == ["pic.png", "bad.nii.gz"]
    assert (records[1]["asked_for"], records[1]["threshold"]) == ("north", None) and "error" not in records[1]
    names = {"pic_labels.png", "bad_labels.nii.gz", "prediction.json", "prediction.lock"}
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert before.keys() == names
    # An answer is not replaced, whatever its capitals and whichever image it is of.
    with pytest.raises(ConfigError, match="out already holds an answer to PIC.nii.gz. Leave that input out, or name"):
        predict(write_volume("PIC.nii.gz"))
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_a_folder_that_holds_something_else_is_refused(predict, picture, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="out holds something else than an earlier prediction"):
        predict(picture)
    (tmp_path / "out" / "prediction.json").write_text("[3]")
    with pytest.raises(ConfigError, match="prediction.json"):
        predict(picture)
    assert (tmp_path / "out" / "prediction.json").read_text() == "[3]"


def test_two_predictions_do_not_write_one_folder_at_once(predict, picture, write_volume, tmp_path, monkeypatch):
    right, scan = command.Runner.predict, write_volume()

    def predict_meanwhile(self, one):
        if one.name == picture.name:
            with pytest.raises(ConfigError, match="out is in use"):
                predict(scan)
        return right(self, one)

    monkeypatch.setattr(command.Runner, "predict", predict_meanwhile)
    assert [record["input"] for record in predict(picture)[1]] == ["pic.png"]
    # As after a stop before the first answer.
    (tmp_path / "out" / "prediction.json").unlink()
    assert [record["input"] for record in predict(scan)[1]] == ["scan.nii.gz"]


def test_a_link_that_names_no_patient_stands_for_its_file(predict, write_volume, tmp_path):
    scan = write_volume()
    scan.rename(tmp_path / "Meier_Anna.nii.gz")
    (tmp_path / "p7.nii.gz").symlink_to(tmp_path / "Meier_Anna.nii.gz")
    _, (record,), text = predict(tmp_path / "p7.nii.gz", has_picture=True)
    assert record["input"] == "p7.nii.gz" and record["label_map"] == "p7_labels.nii.gz"
    assert "Meier" not in text + json.dumps(record)


@pytest.fixture
def titles(monkeypatch):
    """The lines over each picture that is drawn."""
    drawn = []
    monkeypatch.setattr(
        "silofl_hospital.inference.picture.draw_overlay",
        lambda *arguments: drawn.append(arguments[-2].splitlines()) or b"",
    )
    return drawn


def test_warnings_stand_in_record_on_screen_and_over_the_picture(predict, picture, titles):
    _, (record,), text = predict(picture, threshold=0.9, has_picture=True)
    assert (record["model"], record["is_fallback"], record["threshold"]) == ("global", True, 0.9)
    # Without a rule of the study nothing is forbidden.
    assert record["do_not_use"] is None
    fallback, unknown = record["warnings"]
    assert fallback.startswith("the selector fell back") and unknown.startswith("the super model does not say")
    *printed, unchecked, _ = text.splitlines()[1:-1]
    assert printed == [f"  warning: {fallback}", f"  warning: {unknown}"]
    assert unchecked.startswith("Not checked") and unchecked.endswith("the size of the answer")
    warnings = [f"warning: {fallback}", f"warning: {unknown}"]
    assert titles[0][1:] == ["for research, no medical device", *warnings]


def state_rule(folder, labels=None, **rule):
    """Write a rule of use, and tests of sites by label, into a super model."""
    study = read_model_folder(folder).study.model_copy(update={"do_not_use": DoNotUseSettings(**rule)})
    change_contents(folder, study=study, facts={"test": scores_by_label(labels or {})})


def test_a_forbidden_answer_is_recorded_and_has_no_files(super_model, predict, picture, tmp_path):
    labels = {"north": {"1": 0.9, "2": 0.5}, "south": {"1": 0.8, "2": 0.6}}
    state_rule(super_model, labels, on_fallback=True, on_unlike_image=True, label_below=0.7)
    code, (record,), text = predict(picture, threshold=0.9, has_picture=True)
    assert code == ExitCode.DO_NOT_USE and "1 answered; 1 of them must not be used, 0 failed" in text
    fallback, unknown = record["warnings"]
    # (0.5 + 0.6) / 2, and of organ (0.9 + 0.8) / 2
    low = "lesion has a mean test Dice of 0.55, and the study asks for 0.70"
    assert record["do_not_use"] == [fallback, unknown, low]
    line = f"DO NOT USE this answer: {fallback}; {unknown}; {low}"
    # The console breaks a line of 200 characters.
    assert f" {line} warning: {fallback} " in " ".join(text.split())
    assert "it must not be used, and none of its files is written" in text and "label_map" not in record
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"prediction.json", "prediction.lock"}


def test_the_command_ends_with_the_codes_of_all_commands(super_model, picture, bad, tmp_path, capsys):
    def command(out, *words):
        return main(["predict", str(super_model), "--device", "cpu", "-o", str(tmp_path / out), *map(str, words)])

    assert command("a", picture, "--json", "--picture", "--batch-size", 1, "--dicom-seg", "--by-folder") == 0
    assert json.loads(capsys.readouterr().out)[0]["input"] == tmp_path.name
    assert len([*(tmp_path / "a").glob("*_picture.png")]) == 1
    assert command("b", picture, bad) == 3
    assert command("c", bad) == 1
    state_rule(super_model, label_below=0.7)
    # An answer that must not be used is worse than one that is not there.
    assert command("f", picture, bad) == command("g", picture) == 4
    assert command("d", picture, "--site", "noth") == command("d", picture, "--threshold", 2) == 2
    assert main(["predict", str(tmp_path), str(picture), "-o", str(tmp_path / "e")]) == 2
    assert main(["export", str(tmp_path), "-o", str(tmp_path / "e")]) == 2
    assert not (tmp_path / "d").exists() and not (tmp_path / "e").exists()


def test_a_model_that_its_lead_withdraws_answers_no_further_case(super_model, predict, picture, monkeypatch, tmp_path):
    _, (record,), text = predict(picture)
    assert "Nobody has checked whether the model was withdrawn: no withdrawn.json is beside it" in text
    assert datetime.fromisoformat(record["time"]).tzinfo is not None
    checks = iter([True])

    def check(folder, fingerprint):
        if next(checks, False):
            return True
        raise ConfigError("the super model is withdrawn")

    monkeypatch.setattr(command, "check_not_withdrawn", check)
    # It is put on the list after the batch began.
    code, (record,), text = predict_into(tmp_path / "later", super_model, picture)
    assert code == ExitCode.FAILED and record["error"] == "the super model is withdrawn"
    assert "Nobody has checked" not in text
    with pytest.raises(ConfigError, match="is withdrawn"):
        predict(picture)
