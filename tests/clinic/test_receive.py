import pytest
import yaml

from silofl.base.settings import load_settings
from silofl_clinic.exams import Inbox
from silofl_clinic.settings import Clinic


@pytest.fixture
def config(tmp_path):
    def write(**settings):
        content = {"folder": str(tmp_path / "clinic"), "port": 0, "callers": {"ARCHIVE": "127.0.0.1"}} | settings
        (tmp_path / "clinic.yaml").write_text(yaml.safe_dump(content))
        return tmp_path / "clinic.yaml"

    return write


def test_each_exam_is_named_with_what_became_of_it(silofl, config, write_exam, monkeypatch):
    settings = config(wait_seconds=0)
    inbox = Inbox(load_settings(Clinic, settings))
    for path in (*write_exam("a"), *write_exam("b")[:2], *write_exam("c")[3:]):
        inbox.add(path.read_bytes())

    def stop(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr("silofl_clinic.receive.time.sleep", stop)
    code, out, error = silofl("receive", "--config", settings)
    assert (code, error) == (0, "")
    head, *lines, end = out.splitlines()
    assert head.startswith("SILOFL takes exams at 127.0.0.1:") and head.endswith("/clinic")
    assert len(lines) == 3 and all(line.startswith("exam 1.2.826") and line.endswith(": whole") for line in lines)
    assert end == "3 whole"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"callers": {"ARCHIVE": "archive.hospital"}}, "callers.ARCHIVE must be"),
        ({"callers": {"A NAME THAT IS TOO LONG": "10.0.0.7"}}, "must be"),
        ({"prot": 11112}, "prot"),
        ({"archive": {"ae_title": "A", "address": "10.0.0.7", "port": 104000}}, "archive.port must be"),
    ],
)
def test_wrong_settings_are_said_in_one_sentence(refused, config, settings, sentence):
    assert sentence in refused("receive", "--config", config(**settings))
