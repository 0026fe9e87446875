import errno
import json
import subprocess
import sys
from contextlib import contextmanager
from itertools import count

import pydicom
import pytest
import yaml
from pydicom.sr.codedict import codes

from silofl.base.errors import ConfigError
from silofl.inference.directory import read_fingerprint, write_model_folder
from silofl.reading.access import open_error
from silofl_clinic.exams import BROKEN, CUT, EMPTY, INCOMPLETE, Inbox
from silofl_clinic.serve import ANSWERS, Service
from silofl_hospital.inference.withdrawn import ROOT

from ..studies.network.test_withdraw import network, write_list, write_pem  # noqa: F401
from .conftest import remove_elements, send, until

ABDOMEN, HEAD = {"BodyPartExamined": "ABDOMEN"}, {"BodyPartExamined": "HEAD"}


@pytest.fixture
def put(make_clinic):
    """Put exams where a receiver would."""

    def put(*exams):
        inbox = Inbox(make_clinic())
        for files in exams:
            for path in files:
                folder = inbox.add(path.read_bytes())
            assert inbox.put_away(folder) == ""

    return put


@pytest.fixture
def serve(model, make_clinic, archive):
    """Start a service by what differs in the settings."""

    def make(**settings):
        return Service(model, make_clinic(archive=archive[0], device="cpu", **settings))

    return make


@pytest.fixture
def withdraw(model, network):  # noqa: F811
    """Sign the list beside the model; of its own fingerprint if no other is given."""

    numbers = count(1)

    def sign(*fingerprints):
        write_pem(model.parent / ROOT, network.root)
        models = dict.fromkeys(fingerprints or [read_fingerprint(model)], "misses cysts")
        write_list(model, network.lead, models, next(numbers))

    return sign


def records(root):
    contents = (json.loads(path.read_text()) for path in sorted((root / ANSWERS).glob("*/prediction.json")))
    return [record for (record,) in contents]


def test_an_answer_comes_back_as_segmentation_and_report(serve, put, archive, write_exam, tmp_path):
    files = write_exam("a", **ABDOMEN)
    put(files)
    (line,) = serve().answer_all()
    source, (record,) = pydicom.dcmread(files[0]), records(tmp_path / "clinic")
    assert line.startswith(f"{source.SeriesInstanceUID}: model of south (0.70); organ ") and not record["do_not_use"]
    ((report,), (segments,)) = sorted(archive[1].values(), key=lambda document: document[0].Modality != "SR")
    assert (segments.Modality, report.Modality) == ("SEG", "SR")
    for document in (segments, report):
        assert (document.PatientID, document.StudyInstanceUID) == ("p1", source.StudyInstanceUID)
    assert [item.SegmentLabel for item in segments.SegmentSequence] == ["organ", "lesion"]
    assert report.ContentTemplateSequence[0].TemplateIdentifier == "1500"
    assert find_volumes(report) == pytest.approx(record["volumes_ml"], abs=1e-3)
    assert report.ContentSequence[-1].TextValue == "Research only, no medical device" and "52988006" in str(report)


def find_volumes(report):
    """Return the millilitres of each label in a report, by its tracking identifier."""
    import highdicom

    content = highdicom.sr.Comprehensive3DSR.from_dataset(report).content
    groups = content.get_volumetric_roi_measurement_groups()
    return {
        group.tracking_identifier: group.get_measurements(name=codes.SCT.Volume)[0].value
        for group in groups
        if group.get_measurements(name=codes.SCT.Volume)[0].unit.value == "mL"
    }


def test_only_a_grown_series_is_answered_anew(serve, put, archive, write_exam):
    files = write_exam("a", **ABDOMEN)
    put(files[:5])
    service = serve()
    assert len([*service.answer_all()]) == 1 and [*service.answer_all()] == [] and [*serve().answer_all()] == []
    put(files[:5])
    assert [*service.answer_all()] == []
    put(files)
    assert len([*service.answer_all()]) == 1
    assert len(archive[1]) == 4 and all(len(copies) == 1 for copies in archive[1].values())


def test_an_answer_that_must_not_be_used_goes_nowhere(serve, put, archive, write_exam):
    put(write_exam("a", **HEAD))
    service = serve()
    (line,) = service.answer_all()
    assert "none of its files is written" in line and archive[1] == {} and service.counts() == {"do not use": 1}


def test_what_an_archive_did_not_take_is_sent_later(model, make_clinic, serve, put, archive, write_exam):
    put(write_exam("a", **ABDOMEN))
    away = Service(model, make_clinic(archive=archive[0] | {"port": 1}, device="cpu"))
    _, line = away.answer_all()
    assert line.startswith("1 not sent yet: archive ARCHIVE takes no connection at 127.0.0.1:1 (it did not answer)")
    assert [*away.answer_all()] == [] and away.counts() == {"not sent yet": 1}
    service = serve()
    assert [*service.answer_all()] == [] and service.counts() == {"sent": 1} and len(archive[1]) == 2


def test_answers_may_stay_here(model, make_clinic, put, write_exam):
    put(write_exam("a", **ABDOMEN))
    service = Service(model, make_clinic(device="cpu"))
    assert len([*service.answer_all()]) == 1 and service.counts() == {"kept here": 1}


def test_other_modalities_and_segmentations_get_no_answer(serve, write_exam, tmp_path):
    watched = tmp_path / "watched"
    for name, modality in (("a", "MR"), ("b", "SEG"), ("c", "CT")):
        write_exam(name, Modality=modality, **ABDOMEN)[0].parent.rename(watched.parent / f"series_{name}")
    watched.mkdir()
    for path in tmp_path.glob("series_*"):
        path.rename(watched / path.name)
    (watched / "empty").mkdir()
    service = serve(watched=str(watched), modalities=["CT"])
    assert len([*service.answer_all()]) == 1 and service.counts() == {"sent": 1}


def test_localizers_are_not_for_the_model(serve, put, archive, write_exam, tmp_path):
    put(write_exam("a", ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"], **ABDOMEN), write_exam("b", **ABDOMEN))
    service = serve()
    assert len([*service.answer_all()]) == 1 and [*service.answer_all()] == []
    assert service.counts() == {"sent": 1, "not for this model": 1} and len(records(tmp_path / "clinic")) == 1


@pytest.mark.parametrize(
    ("rule", "is_answered"),
    [
        ({"description": "*ABDOMEN*"}, True),
        ({"description": "head*"}, False),
        ({"image_type": "AXIAL"}, True),
        ({"image_type": "MIP"}, False),
        ({"plane": "axial"}, True),
        ({"plane": "coronal"}, False),
        ({"least_slices": 3}, True),
        ({"least_slices": 99}, False),
    ],
)
def test_a_series_is_answered_that_meets_a_rule(serve, put, archive, write_exam, rule, is_answered):
    elements = {"SeriesDescription": "CT abdomen thin", "ImageType": ["ORIGINAL", "PRIMARY", "AXIAL"]}
    put(write_exam("a", **elements, **ABDOMEN))
    service = serve(series=[rule, {"description": "no such series"}])
    assert len([*service.answer_all()]) == is_answered
    assert service.counts() == ({"sent": 1} if is_answered else {"not for this model": 1})


def test_a_deflated_file_stops_no_other_answer(serve, write_exam, tmp_path):
    watched = tmp_path / "watched"
    for name in ("a", "b"):
        (folder := watched / name).parent.mkdir(exist_ok=True)
        write_exam(name, **ABDOMEN)[0].parent.rename(folder)
    bomb = pydicom.dcmread(next((watched / "a").glob("*")))
    bomb.file_meta.TransferSyntaxUID = pydicom.uid.DeflatedExplicitVRLittleEndian
    bomb.save_as(watched / "a" / "bomb.dcm")
    service = serve(watched=str(watched))
    refused, _ = lines = [*service.answer_all()]
    assert "bomb.dcm is deflated" in refused and len(lines) == 2
    assert service.counts() == {"sent": 1} and [*service.answer_all()] == []


def test_a_refused_series_is_recorded_with_the_reason(serve, put, archive, write_exam, tmp_path):
    put(write_exam("a", Modality="MR", **ABDOMEN), write_exam("b", **ABDOMEN))
    service = serve()
    assert len([*service.answer_all()]) == 2 and [*service.answer_all()] == []
    assert service.counts() == {"failed": 1, "sent": 1} and len(archive[1]) == 2
    (error,) = [record["error"] for record in records(tmp_path / "clinic") if "error" in record]
    assert "MR" in error


def fail_at(service, monkeypatch, failures):
    """Let the model fail at the next inputs of each exam, by its description, with these errors."""
    predict = service.runner.model.predict

    def fail(case, *options):
        (first, *_) = case.values() if isinstance(case, dict) else [case]
        name = next(pydicom.dcmread(path).SeriesDescription for path in first.iterdir())
        if failures.get(name):
            raise failures[name].pop()
        return predict(case, *options)

    monkeypatch.setattr(service.runner.model, "predict", fail)


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    "failure", [FULL, MemoryError(), RuntimeError("CUDA out of memory"), open_error("a", OSError(errno.EMFILE, "many"))]
)
def test_no_exam_is_lost_to_a_failure_that_passes(serve, put, archive, write_exam, tmp_path, monkeypatch, failure):
    monkeypatch.setattr("silofl_clinic.serve.PAUSES", (0, 0))
    put(write_exam("a", SeriesDescription="bad", **ABDOMEN), write_exam("b", SeriesDescription="good", **ABDOMEN))
    service = serve()
    fail_at(service, monkeypatch, {"bad": [failure, failure]})
    lines = [[*service.answer_all()] for _ in range(4)]
    # The other exam is answered at once, and the failed one at its third try.
    assert [len(answered) for answered in lines] == [1, 0, 1, 0] and service.counts() == {"sent": 2}
    assert all("error" not in record for record in records(tmp_path / "clinic"))


def test_after_three_tries_an_exam_has_failed_until_it_is_sent_again(
    serve, put, archive, write_exam, tmp_path, monkeypatch
):
    monkeypatch.setattr("silofl_clinic.serve.PAUSES", (0, 0))
    files = write_exam("a", SeriesDescription="bad", AccessionNumber="A7", **ABDOMEN)
    study = pydicom.dcmread(files[0]).StudyInstanceUID
    put(files)
    service = serve()
    fail_at(service, monkeypatch, {"bad": [FULL] * 3})
    lines = [[*service.answer_all()] for _ in range(4)]
    assert [len(answered) for answered in lines] == [0, 0, 1, 0] and service.counts() == {"failed": 1}
    (record,) = records(tmp_path / "clinic")
    assert "No space left" in record["error"]
    assert (record["dicom"]["study"], record["dicom"]["accession"]) == (study, "A7")
    put(files)
    assert len([*service.answer_all()]) == 1 and service.counts() == {"sent": 1}


def test_an_exam_waits_for_its_next_try(serve, put, archive, write_exam, monkeypatch):
    put(write_exam("a", SeriesDescription="bad", **ABDOMEN))
    service = serve()
    fail_at(service, monkeypatch, {"bad": [FULL]})
    assert [[*service.answer_all()] for _ in range(3)] == [[], [], []] and service.counts() == {}
    ((tries, due),) = service._later.values()
    assert tries == 1 and due > 0


def test_models_of_classes_and_pseudonyms_are_refused(model, make_contents, make_study, make_clinic, tmp_path):
    write_model_folder(tmp_path / "classes", make_contents(study=make_study("classification")))
    with pytest.raises(ConfigError, match="a model of task classification has no DICOM segmentations"):
        Service(tmp_path / "classes", make_clinic())
    with pytest.raises(ConfigError, match="has_pseudonyms of clinic.yaml would rename their patients"):
        Service(model, make_clinic(has_pseudonyms=True))


def test_a_withdrawn_model_answers_and_sends_nothing(model, serve, put, make_clinic, archive, write_exam, withdraw):
    put(write_exam("a", **ABDOMEN))
    # Its archive is away, so that an answer waits.
    service = Service(model, make_clinic(archive=archive[0] | {"port": 1}, device="cpu"))
    assert len([*service.answer_all()]) == 2
    service = serve()
    withdraw()
    put(write_exam("b", **ABDOMEN), write_exam("c", Modality="MR", **ABDOMEN))
    (line,) = service.answer_all()
    assert "is withdrawn, as the lead signed" in line and "'misses cysts'" in line
    assert [*service.answer_all()] == [] and archive[1] == {}
    assert service.counts() == {"not sent yet": 1}
    with pytest.raises(ConfigError, match="is withdrawn, as the lead signed"):
        serve()
    withdraw("0" * 64)
    assert len([*service.answer_all()]) == 2 and [*service.answer_all()] == []
    assert service.counts() == {"failed": 1, "sent": 2} and len(archive[1]) == 4


def test_another_model_answers_after_a_withdrawal(
    model, make_contents, make_clinic, put, archive, write_exam, withdraw
):
    put(write_exam("a", **ABDOMEN))
    away = Service(model, make_clinic(archive=archive[0] | {"port": 1}, device="cpu"))
    [*away.answer_all()]
    withdraw()
    put(write_exam("b", **ABDOMEN))
    [*away.answer_all()]
    write_model_folder(model.parent / "next", make_contents(scores=(0.7, 0.3)))
    service = Service(model.parent / "next", make_clinic(archive=archive[0], device="cpu"))
    assert len([*service.answer_all()]) == 2
    assert service.counts() == {"not sent yet": 1, "sent": 2} and len(archive[1]) == 4


@pytest.mark.long
def test_a_day_with_a_killed_service_loses_no_exam(model, archive, write_exam, tmp_path, free_port):
    number, cut, head, empty, broken = 8, 1, 3, 5, 6
    exams = [write_exam(f"exam{n:03}", f"p{n}", **(HEAD if n == head else ABDOMEN)) for n in range(number)]
    exams[cut].pop(3)
    remove_elements(exams[empty], "Rows", "Columns", "PixelData")
    remove_elements(exams[broken], "PixelData")
    settings = {"folder": str(tmp_path / "clinic"), "port": (port := free_port()), "callers": {"ARCHIVE": "127.0.0.1"}}
    settings |= {"archive": archive[0], "wait_seconds": 1, "device": "cpu"}
    config, said, answers = tmp_path / "clinic.yaml", tmp_path / "said.txt", tmp_path / "clinic" / ANSWERS
    config.write_text(yaml.safe_dump(settings))
    due, kept = {*range(number)} - {cut, head, empty, broken}, archive[1]

    @contextmanager
    def serving(end):
        command = [sys.executable, "-m", "silofl", "serve", str(model), "--config", str(config)]
        with said.open("w") as stream:
            process = subprocess.Popen(command, stdout=stream)
        try:
            until(lambda: "SILOFL answers" in said.read_text(), 1200)
            yield
        finally:
            getattr(process, end)()
            process.wait(timeout=60)

    with serving("kill"):
        for files in exams[:4]:
            send(port, files)
        until(lambda: kept, 1200)
    with serving("terminate"):
        for files in exams[4:]:
            send(port, files)
        # What it is ended over before it has noted that would be sent again.
        until(lambda: len([*answers.glob("*/sent.json")]) == len(due), 1200)
    assert said.read_text().splitlines()[-1] == f"answers: 1 do not use, {len(due)} sent"
    # An answer that the kill came over before it was noted has come twice, under the same UIDs.
    assert sum(len(copies) - 1 for copies in kept.values()) <= 2
    studies = [pydicom.dcmread(files[0]).StudyInstanceUID for files in exams]
    for modality in ("SEG", "SR"):
        came = sorted(data.StudyInstanceUID for data, *_ in kept.values() if data.Modality == modality)
        assert came == sorted(studies[n] for n in due)
    answered = sorted(record["dicom"]["study"] for record in records(tmp_path / "clinic"))
    assert answered == sorted(studies[n] for n in due | {head})
    apart = {path.parent.name: path.name for path in (tmp_path / "clinic" / INCOMPLETE).glob("*/*")}
    assert apart == {CUT: studies[cut], EMPTY: studies[empty], BROKEN: studies[broken]}
