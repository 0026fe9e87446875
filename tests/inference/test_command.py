import errno
import hashlib
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

import silofl
from silofl.cli import main
from silofl.errors import ConfigError, DataError, ExitCode
from silofl.inference import command
from silofl.inference.command import Options, predict_inputs
from silofl.inference.directory import read_fingerprint, read_model_folder, write_model_folder
from silofl.study.sections import DoNotUseSettings


@pytest.fixture
def super_model(tmp_path, make_contents, make_study):
    study = make_study(data={"transforms": [{"Resize": {"spatial_size": [32, 32]}}]})
    write_model_folder(tmp_path / "supermodel", make_contents(study=study))
    return tmp_path / "supermodel"


@pytest.fixture
def picture(tmp_path):
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (20, 30), dtype=np.uint8)).save(tmp_path / "pic.png")
    return tmp_path / "pic.png"


@pytest.fixture
def bad(tmp_path):
    (tmp_path / "bad.nii.gz").write_bytes(b"no gzip")
    return tmp_path / "bad.nii.gz"


@pytest.fixture
def predict(super_model, tmp_path):
    """Predict inputs into ``out``; return the exit code, the records and what was printed."""

    def run(*inputs, **options):
        text = io.StringIO()
        console = Console(file=text, width=200)
        code, records = predict_inputs(super_model, inputs, tmp_path / "out", Options(device="cpu", **options), console)
        assert json.loads((tmp_path / "out" / "prediction.json").read_text()) == records
        return code, records, text.getvalue()

    return run


def test_every_input_gets_its_label_map_its_record_and_its_line(predict, super_model, write_volume, picture, tmp_path):
    code, (volume, plane), text = predict(write_volume(shape=(20, 24, 3)), picture)
    assert code == ExitCode.COMPLETE
    assert (volume["input"], volume["model"], volume["is_fallback"]) == ("scan.nii.gz", "south", False)
    assert volume["scores"] == pytest.approx({"north": 0.3, "south": 0.7}) and set(volume["volumes_ml"]) == {
        "organ",
        "lesion",
    }
    assert volume["super_model"] == read_fingerprint(super_model)
    # As sha256sum prints it.
    assert plane["sha256"] == {"pic.png": hashlib.sha256(picture.read_bytes()).hexdigest()}
    assert volume["versions"].keys() == {"silofl", "torch", "monai", "numpy"}
    assert volume["versions"]["silofl"] == silofl.__version__
    assert plane["volumes_ml"] is None
    image = nibabel.load(tmp_path / "out" / volume["label_map"])
    np.testing.assert_allclose(image.affine, np.diag([-0.5, -0.75, 2, 1]))
    assert image.shape == (20, 24, 3)
    assert np.asarray(Image.open(tmp_path / "out" / plane["label_map"])).shape == (20, 30)
    assert text.startswith("scan.nii.gz: model of south (0.70); organ ") and "\npic.png: model of south" in text


def test_what_cannot_be_a_dicom_segmentation_is_a_warning_and_no_error(predict, write_dicom, picture, tmp_path):
    pytest.importorskip("highdicom")
    series = write_dicom(tmp_path / "series", np.random.default_rng(0).integers(0, 900, (20, 24, 3), dtype=np.int16))
    code, (bare, plane), _ = predict(series, picture, has_dicom_seg=True)
    assert code == ExitCode.COMPLETE and "dicom_seg" not in bare | plane
    assert "no DICOM segmentation: the input is no DICOM, and names no patient" in plane["warnings"]
    assert any("the series must have all that it refers to" in warning for warning in bare["warnings"])
    assert (tmp_path / "out" / bare["label_map"]).is_file()


def test_a_bad_input_does_not_stop_the_rest(predict, bad, picture, tmp_path):
    code, (first, second, third), text = predict(bad, tmp_path / "missing.png", picture)
    assert code == ExitCode.INCOMPLETE
    assert first["error"].startswith("bad.nii.gz must be a whole file") and "label_map" not in first
    assert "missing.png" in second["error"] and third["label_map"] == "pic_labels.png"
    # Two reasons, an answer and its warning, that this super model does not say what it learnt from; and the end.
    lines = text.splitlines()
    assert len(lines) == 5 and lines[-1] == f"1 answered, 2 failed; results in {tmp_path / 'out'}"
    assert str(tmp_path) not in "".join(lines[:-1]) + json.dumps([first, second])


def test_nothing_but_bad_inputs_is_a_failure(predict, bad):
    assert predict(bad)[0] == ExitCode.FAILED


def test_a_surprise_is_told_and_does_not_stop_the_rest(predict, picture, write_volume, monkeypatch):
    right = command.write_map

    def surprising(folder, stem, *rest):
        if stem == "scan":
            raise RuntimeError("out of memory")
        return right(folder, stem, *rest)

    monkeypatch.setattr(command, "write_map", surprising)
    code, (first, second), _ = predict(write_volume(), picture)
    assert code == ExitCode.INCOMPLETE and "out of memory" in first["error"] and "error" not in second


def test_a_full_disk_is_named_and_leaves_no_half_of_an_answer(predict, picture, tmp_path, monkeypatch):
    right = command.write_atomically

    def full(path, write):
        if path.name.endswith("_picture.png"):
            raise OSError(errno.ENOSPC, "No space left on device")
        right(path, write)

    monkeypatch.setattr(command, "write_atomically", full)
    code, (record,), _ = predict(picture, has_picture=True)
    assert code == ExitCode.FAILED and record["error"] == (
        "its answer must be written to out; the system said 'No space left on device': make room, or name another "
        "folder"
    )
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"prediction.json", "prediction.lock"}


def test_what_is_done_is_kept_when_the_run_is_interrupted(predict, picture, write_volume, monkeypatch, tmp_path):
    right = command.write_map

    def interrupted(folder, stem, *rest):
        if stem == "scan":
            raise KeyboardInterrupt
        return right(folder, stem, *rest)

    monkeypatch.setattr(command, "write_map", interrupted)
    with pytest.raises(KeyboardInterrupt):
        predict(picture, write_volume())
    (record,) = json.loads((tmp_path / "out" / "prediction.json").read_text())
    assert record["input"] == "pic.png"


def test_cases_in_folders_of_their_own_are_called_by_these(predict, tmp_path, picture):
    inputs = []
    for name in ("first", "second.case"):
        (tmp_path / name).mkdir()
        inputs.append(shutil.copy(picture, tmp_path / name / "t1.png"))
    with pytest.raises(ConfigError, match="not t1.png and t1.png; .* call them by their folders with --by-folder, "):
        predict(*map(Path, inputs))
    code, records, text = predict(*map(Path, inputs), is_named_by_folder=True, has_picture=True)
    assert code == ExitCode.COMPLETE and [record["input"] for record in records] == ["first", "second.case"]
    assert [record["label_map"] for record in records] == ["first_labels.png", "second.case_labels.png"]
    assert (tmp_path / "out" / "first_picture.png").exists() and text.startswith("first: ")
    # The same image once more takes its own answer's place.
    _, records, _ = predict(Path(inputs[0]), is_named_by_folder=True)
    assert [record["input"] for record in records] == ["second.case", "first"]


def test_two_inputs_of_one_name_are_refused_before_any_work(predict, tmp_path, picture, write_volume):
    with pytest.raises(ConfigError, match="inputs must have different names, not pic.png and PIC.nii.gz"):
        predict(picture, tmp_path / "PIC.nii.gz")
    with pytest.raises(ConfigError, match="inputs must be named once, not pic.png twice"):
        predict(picture, picture)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["..nii.gz", "...nii.gz", "line\nbreak.nii.gz"])
def test_an_input_whose_name_leads_elsewhere_is_refused_before_any_work(predict, write_volume, picture, tmp_path, name):
    scan = write_volume().rename(tmp_path / name)
    (tmp_path / "out_labels.nii.gz").write_text("precious")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    with pytest.raises(DataError, match="must be named by more than dots"):
        predict(picture, scan)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
    assert not (tmp_path / "out").exists()


def test_a_folder_that_holds_something_else_is_refused_and_an_earlier_prediction_is_replaced(
    predict, picture, bad, tmp_path
):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="out must be a new folder or that of an earlier prediction"):
        predict(picture)
    (tmp_path / "out" / "notes.txt").unlink()
    predict(bad)
    bad.rename(tmp_path / "bad.png")
    # The same name: its answer takes the place of the earlier one.
    assert [record["input"] for record in predict(tmp_path / "bad.png", picture)[1]] == ["bad.png", "pic.png"]


def test_a_second_prediction_leaves_no_file_without_its_record(predict, picture, write_volume, bad, tmp_path):
    scan = write_volume()
    predict(scan, picture, has_picture=True)
    # The other input stays, and of this one the picture of the earlier answer goes.
    code, records, text = predict(scan, site="north")
    assert [(record["input"], record["model"]) for record in records] == [
        ("pic.png", "south"),
        ("scan.nii.gz", "north"),
    ]
    names = {"pic_labels.png", "pic_picture.png", "scan_labels.nii.gz", "prediction.json", "prediction.lock"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names
    assert code == ExitCode.COMPLETE and text.splitlines()[-1] == f"1 answered, 0 failed; results in {tmp_path / 'out'}"


@pytest.mark.parametrize("content", ["another image", "no image", None])
def test_the_answer_to_another_image_of_the_same_name_is_not_replaced(predict, write_volume, tmp_path, content):
    scan = write_volume()
    predict(scan)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    other = tmp_path / "other" / "SCAN.nii.gz"
    other.parent.mkdir()
    if content == "another image":
        nibabel.save(nibabel.Nifti1Image(nibabel.load(scan).get_fdata()[::-1], np.eye(4)), other)
    elif content is not None:
        other.write_text(content)
    with pytest.raises(ConfigError, match="SCAN.nii.gz must be the image of which out holds the answer by this name"):
        predict(other)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


@pytest.mark.parametrize("sums", [None, "no sums", {"scan.nii.gz": ["no sum"]}])
def test_an_answer_to_an_image_that_nothing_is_known_of_is_not_replaced(predict, write_volume, tmp_path, sums):
    predict(write_volume())
    records = json.loads((tmp_path / "out" / "prediction.json").read_text())
    (tmp_path / "out" / "prediction.json").write_text(json.dumps([record | {"sha256": sums} for record in records]))
    with pytest.raises(ConfigError, match="must be the image of which out holds the answer"):
        predict(tmp_path / "scan.nii.gz")


def test_an_earlier_answer_goes_whatever_its_capitals(predict, write_volume, tmp_path):
    scan = write_volume()
    shutil.copy(scan, tmp_path / "Scan.nii.gz")
    predict(tmp_path / "Scan.nii.gz")
    records = predict(scan)[1]
    assert [record["input"] for record in records] == ["scan.nii.gz"]
    names = {"scan_labels.nii.gz", "prediction.json", "prediction.lock"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names


def test_two_predictions_do_not_write_one_folder_at_once(predict, picture, write_volume, tmp_path, monkeypatch):
    right, scan = command._Runner.predict, write_volume()

    def predict_meanwhile(self, one):
        if one.name == picture.name:
            with pytest.raises(ConfigError, match="out must not be in use; another run still writes it"):
                predict(scan)
        return right(self, one)

    monkeypatch.setattr(command._Runner, "predict", predict_meanwhile)
    assert [record["input"] for record in predict(picture)[1]] == ["pic.png"]
    # As after a stop before the first answer.
    (tmp_path / "out" / "prediction.json").unlink()
    assert [record["input"] for record in predict(scan)[1]] == ["scan.nii.gz"]


def test_of_two_contrasts_all_files_make_the_same_image(tmp_path, make_contents, make_study, write_volume):
    data = {"channels": 2, "channel_names": ["T1", "T2"], "transforms": [{"Resize": {"spatial_size": [32, 32]}}]}
    write_model_folder(tmp_path / "two", make_contents("only", study=make_study(data=data), shape=(2, 32, 32)))
    paths = {}
    for seed, (patient, name) in enumerate((p, n) for p in ("p1", "p2") for n in ("T1", "T2")):
        (tmp_path / patient).mkdir(exist_ok=True)
        paths[patient, name] = write_volume(f"{patient}/{name}.nii.gz", seed=seed)

    def predict(first, second=None):
        case = {"T1": paths[first, "T1"]} | ({"T2": paths[second, "T2"]} if second else {})
        options, console = Options(device="cpu"), Console(file=io.StringIO())
        return predict_inputs(tmp_path / "two", [case], tmp_path / "out", options, console)[1]

    (wanted,) = predict("p1", "p1")
    for first, second in (("p2", "p1"), ("p1", "p2")):
        with pytest.raises(ConfigError, match="must be the image of which out holds the answer"):
            predict(first, second)
    assert predict("p1", "p1") == [wanted]
    # One that comes later is no other case.
    (alone,) = predict("p1")
    assert "contrast T2 is missing" in " ".join(alone["warnings"]) and predict("p1", "p1") == [wanted]


def test_each_contrast_has_its_checksum_whatever_its_files_are_called(tmp_path, make_contents, make_study):
    data = {"channels": 2, "channel_names": ["T1", "T2"], "intensity": "zscore"}
    study = make_study(data=data | {"transforms": [{"Resize": {"spatial_size": [32, 32]}}]})
    write_model_folder(tmp_path / "two", make_contents("only", study=study, shape=(2, 32, 32)))
    case, rng = {name: tmp_path / name / "p1.nii.gz" for name in ("T1", "T2")}, np.random.default_rng(0)
    for path in case.values():
        path.parent.mkdir()
        nibabel.save(nibabel.Nifti1Image(rng.normal(size=(20, 24, 3)).astype(np.float32), np.eye(4)), path)
    options, console = Options(device="cpu"), Console(file=io.StringIO())
    _, (record,) = predict_inputs(tmp_path / "two", [case], tmp_path / "out", options, console)
    assert record["sha256"] == {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in case.items()}


def test_a_record_that_no_prediction_wrote_is_refused(predict, picture, tmp_path):
    (tmp_path / "out").mkdir()
    for content in ("{}", "[3]", "no JSON"):
        (tmp_path / "out" / "prediction.json").write_text(content)
        with pytest.raises(ConfigError, match="prediction.json"):
            predict(picture)
        assert (tmp_path / "out" / "prediction.json").read_text() == content


def test_a_link_that_names_no_patient_stands_for_its_file(predict, write_volume, tmp_path):
    scan = write_volume()
    scan.rename(tmp_path / "Meier_Anna.nii.gz")
    (tmp_path / "p7.nii.gz").symlink_to(tmp_path / "Meier_Anna.nii.gz")
    _, (record,), text = predict(tmp_path / "p7.nii.gz", has_picture=True)
    assert record["input"] == "p7.nii.gz" and record["label_map"] == "p7_labels.nii.gz"
    assert "Meier" not in text + json.dumps(record)


def test_a_label_that_no_site_learnt_is_said_with_the_answer(super_model, predict, picture):
    contents = read_model_folder(super_model)
    score = {"value": 0.5, "num_cases": 3, "num_excluded": 0}
    tests = {"north": score | {"labels": {"1": 0.7}}, "south": score | {"labels": {"1": 0.02}}}
    write_model_folder(super_model, replace(contents, facts=contents.facts | {"test": tests}))
    _, (record,), text = predict(picture)
    assert not any("not learnt" in warning for warning in record["warnings"])
    assert "What these models can do: Dice in test: organ 0.02 to 0.70" in text
    tests["north"]["labels"]["1"] = 0.04
    write_model_folder(super_model, replace(contents, facts=contents.facts | {"test": tests}))
    warnings = predict(picture)[1][0]["warnings"]
    write_model_folder(super_model, replace(contents, facts=contents.facts | {"validation": tests}))
    assert "organ was not learnt: its validation Dice is 0.04" in " ".join(predict(picture)[1][0]["warnings"])
    assert (
        "organ was not learnt: its test Dice is 0.04 at the best site; to find it, or none, means nothing" in warnings
    )


def test_a_label_that_a_sites_own_model_did_not_learn_is_said_with_the_answer(super_model, predict, picture):
    contents, score = read_model_folder(super_model), {"value": 0.5, "num_cases": 3, "num_excluded": 0}
    write_model_folder(super_model, replace(contents, facts=score | {"labels": {"1": 0.04}}))
    warnings = predict(picture)[1][0]["warnings"]
    assert "organ was not learnt: its test Dice is 0.04 at the site; to find it, or none, means nothing" in warnings
    write_model_folder(super_model, replace(contents, facts=score | {"labels": {"1": 0.4}}))
    assert not any("not learnt" in warning for warning in predict(picture)[1][0]["warnings"])


def test_at_a_threshold_of_1_the_global_model_answers_and_that_is_no_warning(predict, picture):
    _, (record,), text = predict(picture, threshold=1.0)
    assert record["model"] == "global" and record["is_fallback"]
    assert not any(warning.startswith("the selector fell back") for warning in record["warnings"])
    assert "global model, which always answers at a threshold of 1 (nearest south, 0.70)" in text


def test_options_are_handed_on(predict, picture):
    (asked,) = predict(picture, site="north")[1]
    assert asked["model"] == asked["asked_for"] == "north" and asked["threshold"] is None
    (record,) = predict(picture, threshold=0.9)[1]
    assert record["model"] == "global" and record["is_fallback"] and record["threshold"] == 0.9


def test_a_picture_is_drawn_when_asked_for(predict, picture, write_volume, tmp_path):
    for record in predict(write_volume(), picture, has_picture=True)[1]:
        assert Image.open(tmp_path / "out" / record["picture"]).width > 100


def test_a_picture_shows_what_the_study_makes_of_the_background(tmp_path, make_contents, make_study, write_volume):
    data = {"transforms": [{"Resize": {"spatial_size": [32, 32]}}], "background": {"nan": 0}}
    write_model_folder(tmp_path / "padded", make_contents(study=make_study(data=data)))
    array = np.random.default_rng(0).random((20, 24, 3), dtype=np.float32)
    array[:3] = np.nan
    options, console = Options(device="cpu", has_picture=True), Console(file=io.StringIO())
    code, (record,) = predict_inputs(
        tmp_path / "padded", [write_volume(array=array)], tmp_path / "out", options, console
    )
    assert code == ExitCode.COMPLETE
    assert Image.open(tmp_path / "out" / record["picture"]).width > 100


def test_warnings_stand_in_the_record_on_the_screen_and_over_the_picture(predict, picture, monkeypatch):
    titles = []
    monkeypatch.setattr("silofl.inference.picture.draw_overlay", lambda *arguments: titles.append(arguments[-2]) or b"")
    _, (record,), text = predict(picture, threshold=0.9, has_picture=True)
    fallback, unknown = record["warnings"]
    assert fallback.startswith("the selector fell back") and unknown.startswith("the super model does not say")
    assert text.splitlines()[1:-1] == [f"  warning: {fallback}", f"  warning: {unknown}"]
    assert titles[0].splitlines()[1:] == [
        "for research, no medical device",
        f"warning: {fallback}",
        f"warning: {unknown}",
    ]


def state_rule(folder, labels=None, **rule):
    """Write a rule of use, and tests of two sites by label, into a super model."""
    contents = read_model_folder(folder)
    score = {"value": 0.5, "num_cases": 3, "num_excluded": 0}
    tests = {site: score | {"labels": values} for site, values in (labels or {}).items()}
    study = contents.study.model_copy(update={"do_not_use": DoNotUseSettings(**rule)})
    write_model_folder(folder, replace(contents, study=study, facts=contents.facts | {"test": tests}))


def test_an_answer_that_the_studys_rule_forbids_is_one_line_and_in_the_record(super_model, predict, picture):
    labels = {"north": {"1": 0.9, "2": 0.5}, "south": {"1": 0.8, "2": 0.6}}
    state_rule(super_model, labels, on_fallback=True, on_unlike_image=True, label_below=0.7)
    _, (record,), text = predict(picture, threshold=0.9)
    fallback, unknown = record["warnings"]
    # (0.5 + 0.6) / 2, and of organ (0.9 + 0.8) / 2
    low = "lesion has a mean test Dice of 0.55, and the study asks for 0.70"
    assert record["do_not_use"] == [fallback, unknown, low]
    # The console breaks a line of 200 characters.
    assert f" DO NOT USE this answer: {fallback}; {unknown}; {low} warning: {fallback} " in " ".join(text.split())


def test_an_answer_within_the_studys_rule_is_not_forbidden_and_without_one_nothing_is_said(
    super_model, predict, picture
):
    assert predict(picture, threshold=0.9)[1][0]["do_not_use"] is None
    labels = {"north": {"1": 0.9, "2": 0.7}}
    state_rule(super_model, labels, on_fallback=True, label_below=0.7)
    _, (record,), text = predict(picture)
    assert record["do_not_use"] == [] and "DO NOT USE" not in text
    # The image's doubts are no part of this rule.
    assert record["warnings"]


def test_a_label_of_unknown_quality_is_not_used_where_the_study_asks_for_one(super_model, predict, picture):
    state_rule(super_model, label_below=0.7)
    _, (record,), _ = predict(picture)
    assert record["do_not_use"] == [
        "the Dice of organ is not known, and the study asks for 0.70",
        "the Dice of lesion is not known, and the study asks for 0.70",
    ]


def test_that_an_answer_must_not_be_used_stands_over_its_picture(super_model, predict, picture, monkeypatch):
    titles = []
    monkeypatch.setattr("silofl.inference.picture.draw_overlay", lambda *arguments: titles.append(arguments[-2]) or b"")
    state_rule(super_model, {"north": {"1": 0.9, "2": 0.5}}, label_below=0.7)
    predict(picture, has_picture=True)
    assert titles[0].splitlines()[1:3] == [
        "for research, no medical device",
        "DO NOT USE this answer: lesion has a mean test Dice of 0.50, and the study asks for 0.70",
    ]


def test_a_super_model_of_weights_that_are_not_finite_is_a_bad_command(super_model, picture, tmp_path, capsys):
    contents = read_model_folder(super_model)
    state = contents.models["south"]
    state = {name: value * torch.nan if value.is_floating_point() else value for name, value in state.items()}
    write_model_folder(super_model, replace(contents, models=contents.models | {"south": state}))
    out = str(tmp_path / "out")
    assert main(["predict", str(super_model), str(picture), "--device", "cpu", "-o", out]) == ExitCode.BAD_INPUT
    assert "the weights of 'south' must be finite numbers" in capsys.readouterr().err and not Path(out).exists()
    assert main(["export", str(super_model), "-o", out]) == ExitCode.BAD_INPUT


def test_a_class_is_recorded_without_a_label_map(tmp_path, make_contents, make_study, picture):
    data = {"transforms": [{"Resize": {"spatial_size": [32, 32]}}]}
    write_model_folder(tmp_path / "classes", make_contents("only", study=make_study("classification", data=data)))
    console = Console(file=io.StringIO())
    options = Options(has_picture=True, device="cpu")
    code, (record,) = predict_inputs(tmp_path / "classes", [picture], tmp_path / "out", options, console)
    assert code == ExitCode.COMPLETE and record["label_name"] in ("normal", "tumour") and "label_map" not in record
    assert (tmp_path / "out" / record["picture"]).is_file()


def test_the_command_ends_with_the_codes_of_all_commands(super_model, picture, bad, tmp_path, capsys):
    common = ["predict", str(super_model), "--device", "cpu", "-o"]
    assert main([*common, str(tmp_path / "a"), str(picture), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["input"] == "pic.png"
    assert main([*common, str(tmp_path / "b"), str(picture), str(bad)]) == 3
    assert main([*common, str(tmp_path / "c"), str(bad)]) == 1
    assert main([*common, str(tmp_path / "d"), str(picture), "--site", "noth"]) == 2
    assert main([*common, str(tmp_path / "d"), str(picture), "--threshold", "2"]) == 2
    assert main([*common, str(tmp_path / "f"), str(picture), "--picture", "--batch-size", "1"]) == 0
    assert (tmp_path / "f" / "pic_picture.png").is_file()
    assert main([*common, str(tmp_path / "g"), str(picture), "--dicom-seg"]) == 0
    assert main([*common, str(tmp_path / "named"), str(picture), "--by-folder"]) == 0
    (record,) = json.loads((tmp_path / "named" / "prediction.json").read_text())
    assert record["input"] == tmp_path.name
    assert main(["predict", str(tmp_path), str(picture), "-o", str(tmp_path / "e")]) == 2
    assert not (tmp_path / "d").exists() and not (tmp_path / "e").exists()


def test_a_map_of_disagreement_lies_on_the_inputs_grid_and_its_mean_in_the_record(
    predict, picture, write_volume, tmp_path
):
    volume = write_volume()
    _, records, printed = predict(volume, picture, has_disagreement=True)
    for record, source in zip(records, (volume, picture), strict=True):
        found = record["disagreement"]
        assert found["models"] == ["global", "north", "south"] and 0 <= found["mean"] <= 1
        assert f"{found['mean']:.0%} of the 3 models disagree where any has a label" in printed
        path = tmp_path / "out" / found["map"]
        if source == volume:
            image = nibabel.load(path)
            np.testing.assert_allclose(image.affine, nibabel.load(volume).affine, atol=1e-6)
            assert image.shape == nibabel.load(volume).shape and 0 <= image.get_fdata().max() <= 1
        else:
            assert Image.open(path).size == Image.open(picture).size
    # the next answer takes the map's place
    predict(volume, picture)
    assert not list((tmp_path / "out").glob("*disagreement*"))


def test_the_command_tells_what_each_model_says_of_a_class(tmp_path, make_contents, make_study, picture, capsys):
    data = {"transforms": [{"Resize": {"spatial_size": [32, 32]}}]}
    write_model_folder(tmp_path / "classes", make_contents("mean", study=make_study("classification", data=data)))
    command = ["predict", str(tmp_path / "classes"), str(picture), "-o", str(tmp_path / "out"), "--device", "cpu"]
    assert main([*command, "--disagreement"]) == ExitCode.COMPLETE
    (record,) = json.loads((tmp_path / "out" / "prediction.json").read_text())
    low, high = record["disagreement"]["ranges"]["tumour"]
    assert low <= record["class_scores"]["tumour"] <= high and "map" not in record["disagreement"]
    assert f"the 2 models say normal {1 - high:.2f} to {1 - low:.2f}" in " ".join(capsys.readouterr().out.split())
