import pytest

from silofl.federation.egress_log import EgressLog

RECORD = {"round": 1, "task": "train", "refused": False, "name": "a", "kind": "weights", "purpose": "p", "bytes": 4}


@pytest.fixture
def record(tmp_path):
    """Return the record of a run with four answers."""
    log = EgressLog(tmp_path / "run")
    for number in range(1, 5):
        log.write([RECORD | {"round": number}])
    return log.path


def lines_of(record):
    return record.read_bytes().splitlines(keepends=True)


def last_hash(out):
    return next(line for line in out.splitlines() if line.startswith("last record")).split()[-1]


def test_a_sound_record_says_what_it_cannot_show(silofl, record):
    code, out, _ = silofl("site", "egress-check", record)
    assert code == 0 and out.startswith("4 records, each as it was written")
    assert "cannot show whether records were cut off at the end" in out
    assert silofl("site", "egress-check", record.parent) == (code, out, "")


def test_only_a_noted_hash_shows_a_cut_end(silofl, record):
    noted = last_hash(silofl("site", "egress-check", record)[1])
    EgressLog(record.parent).write([RECORD])
    # A hash is the same in capitals and between the page's quotes.
    code, out, _ = silofl("site", "egress-check", record, "--noted", f" `{noted.upper()}`")
    assert code == 0 and "the noted hash is that of record 4" in out and "number 5" in out
    record.write_bytes(b"".join(lines_of(record)[:2]))
    assert silofl("site", "egress-check", record)[0] == 0
    code, out, _ = silofl("site", "egress-check", record, "--noted", noted)
    assert code == 1 and "none of the 2 sound records has the noted hash" in out


@pytest.mark.parametrize("noted", ["", "record 4", "0" * 63])
def test_an_invalid_hash_and_an_absent_record_are_refused(refused, record, tmp_path, noted):
    # An empty one, as of a script whose file is gone, must not pass as one that was found.
    assert "--noted must be a hash of 64 digits" in refused("site", "egress-check", record, "--noted", noted)
    assert "must be a record of what left a site" in refused("site", "egress-check", tmp_path / "egress.jsonl")


def test_a_line_without_its_end_is_named(silofl, record):
    record.write_bytes(record.read_bytes()[:-1])
    code, out, _ = silofl("site", "egress-check", record)
    assert code == 0 and "a kill cut it off before its answer left, or somebody did" in out
