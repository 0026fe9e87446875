import itertools
from contextlib import nullcontext
from types import SimpleNamespace

import pydicom
import pytest
import yaml
from pynetdicom import build_context

from silofl.base.errors import ConfigError, DataError
from silofl_clinic.archive import find_study
from silofl_clinic.exams import EXAMS
from silofl_clinic.fetch import read_exams


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("patient\np1\n", "list.csv has no column accession, or no row"),
        ("accession\n", "list.csv has no column accession, or no row"),
        ("accession\na\n \n*\n", "line [34] of list.csv names no accession but '.*'; correct it"),
    ],
)
def test_a_list_must_name_accessions(tmp_path, text, sentence):
    (tmp_path / "list.csv").write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        read_exams(tmp_path / "list.csv")


def test_a_list_may_name_patients(tmp_path):
    (tmp_path / "list.csv").write_text("accession,patient\na1, p1\na2,\n")
    assert read_exams(tmp_path / "list.csv") == [("a1", "p1"), ("a2", "")]


@pytest.fixture
def configure(tmp_path):
    """Write clinic.yaml for an archive on this machine; returns its path."""

    def write(archive, port, **settings):
        content = {"folder": str(tmp_path / "clinic"), "port": port, "archive": archive, **settings}
        (tmp_path / "clinic.yaml").write_text(yaml.safe_dump(content))
        return tmp_path / "clinic.yaml"

    return write


@pytest.fixture
def asked(configure, free_port):
    """Run an archive that has some exams and sends them on by C-MOVE; returns its settings, exams and failures."""
    from pynetdicom import AE, evt
    from pynetdicom.sop_class import (
        CTImageStorage,
        StudyRootQueryRetrieveInformationModelFind,
        StudyRootQueryRetrieveInformationModelMove,
    )

    exams, withheld, back = {}, set(), free_port()

    def find(event):
        for path in exams.get(event.identifier.AccessionNumber, ())[:1]:
            data, answer = pydicom.dcmread(path), pydicom.Dataset()
            answer.StudyInstanceUID, answer.PatientID = data.StudyInstanceUID, data.PatientID
            answer.NumberOfStudyRelatedInstances = str(len(exams[event.identifier.AccessionNumber]))
            yield 0xFF00, answer

    def move(event):
        data = []
        for path in itertools.chain(*exams.values()):
            file = pydicom.dcmread(path)
            if path not in withheld and file.StudyInstanceUID == event.identifier.StudyInstanceUID:
                data.append(file)
        yield "127.0.0.1", back, {"contexts": [build_context(CTImageStorage)]}
        yield len(data)
        for file in data:
            yield 0xFF00, file

    entity = AE(ae_title="ARCHIVE")
    for context in (StudyRootQueryRetrieveInformationModelFind, StudyRootQueryRetrieveInformationModelMove):
        entity.add_supported_context(context)
    handlers = [(evt.EVT_C_FIND, find), (evt.EVT_C_MOVE, move)]
    server = entity.start_server(("127.0.0.1", 0), block=False, evt_handlers=handlers)
    port = server.server_address[1]
    yield configure({"ae_title": "ARCHIVE", "address": "127.0.0.1", "port": port}, back), exams, withheld
    server.shutdown()


def test_exams_of_a_list_come_until_they_are_whole(asked, write_exam, silofl, tmp_path):
    config, exams, withheld = asked
    exams |= {name: write_exam(name, f"p{name}") for name in ("a", "b", "c")}
    # The last slice: nothing but the archive's own count tells that it is missing.
    withheld.add(exams["b"][-1])
    (tmp_path / "list.csv").write_text("accession,patient\na,pa\nb,\nc,px\nd,\n")
    command = ("fetch", "--config", config, "--list", tmp_path / "list.csv")
    code, out, _ = silofl(*command)
    counted = "4 asked for: 1 cut, 1 not-found, 1 other-patient, 1 whole\n"
    assert code == 3 and out.startswith(f"a: whole\nb: cut\nc: other-patient\nd: not-found\n{counted}")
    assert out.endswith("clinic: 1 whole, apart: 1 cut\n")
    withheld.clear()
    del exams["a"][1:]
    code, out, _ = silofl(*command)
    # Not even asked for again: of the first exam the archive has one file now.
    assert "a: whole\nb: whole\n" in out and out.endswith("clinic: 2 whole\n")
    assert len([*(tmp_path / "clinic" / EXAMS).rglob("*.dcm")]) == 12


@pytest.mark.parametrize("uid", ["..", "../exams", ".", "1.2/..", "", "1" * 65])
def test_an_exam_that_is_named_by_a_path_is_refused(uid, make_clinic, monkeypatch):
    status, answer = pydicom.Dataset(), pydicom.Dataset()
    status.Status = 0xFF00
    with pydicom.config.disable_value_validation():
        answer.StudyInstanceUID = uid
    to = SimpleNamespace(send_c_find=lambda *_: [(status, answer)])
    monkeypatch.setattr("silofl_clinic.archive.connect", lambda *_: nullcontext(to))
    with pytest.raises(DataError, match="which names a study, series or instance, is no UID"):
        find_study(make_clinic(), "a")


def test_an_archive_that_is_away_is_named_in_one_sentence(refused, configure, tmp_path):
    config = configure({"ae_title": "PACS", "address": "127.0.0.1", "port": 1}, 0)
    (tmp_path / "list.csv").write_text("accession\na\n")
    command = ("fetch", "--config", config, "--list", tmp_path / "list.csv")
    assert "archive PACS takes no connection at 127.0.0.1:1 (it did not answer); have it know" in refused(*command)
