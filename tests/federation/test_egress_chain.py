import hashlib
import json

import pytest

from silofl.federation.egress_chain import Link, check_chain, seal_record

ZEROS = "0" * 64


def chain(count):
    """Return the lines of some records, the first of which is of round 1."""
    lines, last = [], Link()
    for number in range(1, count + 1):
        line, last = seal_record({"round": number, "name": "a"}, last)
        lines.append(line)
    return lines


def test_record_holds_number_hash_before_and_own_hash():
    first, second = chain(2)
    # By hand: the SHA-256 of the line's text up to the key "hash".
    text = f'{{"number": 1, "round": 1, "name": "a", "before": "{ZEROS}"'
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert first.decode() == f'{text}, "hash": "{digest}"}}\n'
    assert json.loads(second)["before"] == digest and json.loads(second)["number"] == 2


def test_written_records_are_sound_and_none_are_too():
    lines = chain(5)
    verdict = check_chain(b"".join(lines))
    assert verdict.fault is None and not verdict.is_torn
    assert verdict.last == Link(5, json.loads(lines[-1])["hash"])
    assert (check_chain(b"").fault, check_chain(b"").last) == (None, Link(0, ZEROS))


@pytest.mark.parametrize(("place", "bit"), [(1, 1), (3, 4), (5, 32)])
def test_any_altered_byte_is_found_in_its_record(place, bit):
    lines = chain(5)
    for i in range(len(lines[place - 1]) - 1):
        line = bytearray(lines[place - 1])
        line[i] ^= bit
        # A byte that becomes the end of a line makes two of one; the first of the two is the altered one.
        fault = check_chain(b"".join([*lines[: place - 1], bytes(line), *lines[place:]])).fault
        assert fault and fault.startswith(f"record {place} "), (i, fault)


@pytest.mark.parametrize(("gone", "place"), [([1], 2), ([3], 4), ([2, 3, 4], 5)])
def test_removed_records_are_found_by_the_one_after_them(gone, place):
    lines = [line for number, line in enumerate(chain(5), start=1) if number not in gone]
    fault = check_chain(b"".join(lines)).fault
    assert fault == f"record {place} follows record {gone[0] - 1}: one was removed, added or replaced"


def test_inserted_or_replaced_record_is_found():
    lines = chain(5)
    false, _ = seal_record({"round": 9, "name": "b"}, check_chain(b"".join(lines[:2])).last)
    inserted, repeated, replaced = (
        check_chain(b"".join([*lines[:2], *others])).fault
        for others in ([false, *lines[2:]], [lines[1], *lines[2:]], [false, *lines[3:]])
    )
    assert inserted.startswith("record 3 follows record 3")
    assert repeated.startswith("record 2 follows record 2")
    assert replaced.startswith("record 4 follows record 3")


def test_a_line_without_its_end_is_no_record():
    lines = chain(3)
    verdict = check_chain(b"".join(lines)[:-5])
    assert (verdict.fault, verdict.is_torn, verdict.last.number) == (None, True, 2)


@pytest.mark.parametrize("body", [b'{"a": 1', b"[1", b'{"number": "x", "before": ""', b"7"])
def test_line_without_record_is_altered_despite_its_hash(body):
    line = body + b', "hash": "' + hashlib.sha256(body).hexdigest().encode() + b'"}\n'
    assert check_chain(line).fault == "record 1 was altered"
