"""Breaches of a dossier, most of them with digests made anew."""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from provisioning.check_dossier import check_dossier
from silofl.federation.egress_log import EgressLog

from ..hospital.conftest import candidate, federation, kit, pictures, study_file  # noqa: F401 - fixtures
from ..hospital.test_dossier import RUN, dossier, site  # noqa: F401 - fixtures

CHECKER = Path(__file__).parents[2] / "provisioning" / "check_dossier.py"
RECORD = f"records/{RUN}/egress.jsonl"


def seal(folder):
    """Give dossier.json the digests of what the folder now holds, as whoever can write to it can."""
    content = json.loads((folder / "dossier.json").read_text())
    content.pop("digest")
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != "dossier.json"]
    content["files"] = {path.relative_to(folder).as_posix(): digest(path.read_bytes()) for path in paths}
    said = content | {"digest": digest(json.dumps(content, sort_keys=True).encode())}
    (folder / "dossier.json").write_text(json.dumps(said))


def digest(content):
    return hashlib.sha256(content).hexdigest()


def edit(name, old, new, is_sealed=True):
    """Return a breach that replaces a text of a file by a regular expression, the first only."""

    def breach(folder):
        text = (folder / name).read_text()
        changed = re.sub(old, new, text, count=1)
        assert changed != text, "the breach must change something"
        (folder / name).write_text(changed)
        if is_sealed:
            seal(folder)

    return breach


def both(place, old, new):
    """Return a breach that changes a cell in dossier.json and on the page, and gives both new digests."""

    def breach(folder):
        content = json.loads((folder / "dossier.json").read_text())
        rows = content["sections"][place]["rows"]
        row, column = next((row, column) for row in rows for column, cell in enumerate(row) if re.fullmatch(old, cell))
        number = rows.index(row)
        before = row[column]
        row[column] = new
        (folder / "dossier.json").write_text(json.dumps(content))
        page = (folder / "dossier.html").read_text()
        head, section, rest = page.partition(f'<section id="{place}">')
        body, row_mark, after = rest.partition("<tbody>")
        shown = after.split("<tr>")
        shown[number + 1] = re.sub(rf">{re.escape(before)}<", f">{new}<", shown[number + 1], count=1)
        (folder / "dossier.html").write_text(head + section + body + row_mark + "<tr>".join(shown))
        seal(folder)

    return breach


def lines(change, is_chained=False):
    """Return a breach that changes the lines of the record, with a whole new chain if asked for."""

    def breach(folder):
        path = folder / RECORD
        found = change(path.read_bytes().splitlines(keepends=True))
        if is_chained:
            records = [json.loads(line) for line in found]
            path.unlink()
            log = EgressLog(path.parent)
            log.write(
                [{k: v for k, v in one.items() if k not in ("number", "time", "before", "hash")} for one in records]
            )
            (path.parent / "lock").unlink()
        else:
            path.write_bytes(b"".join(found))
        seal(folder)

    return breach


def changed(line, **values):
    return json.dumps(json.loads(line) | values).encode() + b"\n"


def swap_certificate(folder):
    (folder / "records" / "client.crt").write_bytes((folder / "records" / "rootCA.pem").read_bytes())
    seal(folder)


BREACHES = {
    # Of the record of what left.
    "a number in the record": (edit(RECORD, '"round": 2', '"round": 1'), "record 3 of .* it was altered"),
    "a reason in the record": (edit(RECORD, "the site refuses", "the site accepts"), "it was altered"),
    "a line twice": (lines(lambda found: [*found[:3], found[2], *found[3:]]), "record 4 of"),
    "two lines in another order": (lines(lambda found: [found[1], found[0], *found[2:]]), "record 1 of"),
    "more bytes, in a new chain": (
        lines(lambda found: [changed(found[0], bytes=9999), *found[1:]], is_chained=True),
        "must have the row .*'9999'",
    ),
    "the record is gone from the list too": (
        lambda folder: ((folder / RECORD).unlink(), seal(folder)),
        "section left has the row",
    ),
    "more sites asked": (both("left", "3", "30"), "section left has the row"),
    "a stricter limit": (both("limits", r"8\.0", "1.0"), "max_epsilon 8"),
    "a word on the page alone": (edit("dossier.html", "cannot be taken out", "can be taken out"), "section kept of"),
    "a line less": (lines(lambda found: found[:2] + found[3:]), "record 3 of"),
    "a cut end": (lines(lambda found: found[:-1]), "section records must say"),
    "an end that was cut in a new chain": (
        lines(lambda found: found[:-1], is_chained=True),
        "section left has the row",
    ),
    "a refusal that is none, in a new chain": (
        lines(lambda found: [*found[:2], *(changed(one, refused=False) for one in found[2:4]), *found[4:]], True),
        r"section left must have the row .*'2', 'train', 'weights', 'yes'",
    ),
    "mixed with one more, in a new chain": (
        lines(lambda found: [*found[:-1], changed(found[-1], mixed=[3, 4])], is_chained=True),
        "must have the row .*'4'",
    ),
    "the record is gone": (lambda folder: (folder / RECORD).unlink(), f"{RECORD} must be in the dossier"),
    # Of what the page and dossier.json say.
    "fewer bytes": (both("left", "24", "12"), "section left must have the row .*'24'"),
    "a refusal as if it had left": (both("left", "no, refused", "yes"), "section left has the row"),
    "a lower epsilon": (both("limits", r"1\.25", "0.25"), "epsilon spent 1.25"),
    "a larger min_partners": (both("limits", "1", "5"), "min_partners 1, as site.yaml does"),
    "another last hash": (both("records", "[0-9a-f]{64}", "0" * 64), "section records must say"),
    "another fingerprint": (both("keys", "[0-9a-f]{64}", "0" * 64), "must have the fingerprint of startup/client.crt"),
    "a later end of a certificate": (both("keys", r"20\d\d-\d\d-\d\d", "2099-01-01"), "until when startup/client.crt"),
    "a number on the page alone": (edit("dossier.html", r">24<", ">23<"), "section left of the page"),
    # Of the files beside them.
    "a policy": (
        edit("records/site.yaml", "min_patients: 3", "min_patients: 30"),
        "min_patients 30, as site.yaml does",
    ),
    "a certificate": (swap_certificate, "fingerprint of startup/client.crt"),
    "a file more": (lambda folder: (folder / "records" / "more").write_text("x"), "records/more must be none of"),
    "a new dossier": (both("processing", "any lead.*", "one lead"), "the digest must be the noted one"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BREACHES)
def test_a_breach_is_named_though_all_digests_were_made_anew(dossier, name):  # noqa: F811
    folder, _ = dossier
    noted, (breach, sentence) = json.loads((folder / "dossier.json").read_text())["digest"], BREACHES[name]
    assert list(check_dossier(folder, noted)) == []
    breach(folder)
    faults = list(check_dossier(folder, noted))
    assert any(re.search(sentence, fault) for fault in faults), faults
    # As an officer calls it, without SiloFL in reach.
    done = subprocess.run([sys.executable, "-I", CHECKER, folder, noted], capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (1, faults, "")


def test_what_is_no_dossier_is_said_in_one_sentence(tmp_path):
    (fault,) = check_dossier(tmp_path)
    assert fault.startswith("dossier and records must be whole; FileNotFoundError")
    (tmp_path / "dossier.json").write_text("[]")
    (fault,) = check_dossier(tmp_path)
    assert fault.startswith("dossier and records must be whole")
    done = subprocess.run([sys.executable, "-I", CHECKER], capture_output=True, text=True)
    assert done.returncode == 1 and "python3 check_dossier.py FOLDER [DIGEST]" in done.stderr
    assert len(CHECKER.read_text().splitlines()) <= 200


def test_the_checker_comes_with_a_hospitals_kit_and_its_checksum(kits):
    assert (kits / "north" / "docs" / CHECKER.name).read_bytes() == CHECKER.read_bytes()
    line = f"{digest(CHECKER.read_bytes())}  docs/{CHECKER.name}\n"
    assert line in (kits / "north" / "SHA256SUMS").read_text()
