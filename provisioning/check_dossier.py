"""Check a dossier of a site against the records in it, with Python alone: python3 check_dossier.py FOLDER [DIGEST].

It needs no package. DIGEST is the dossier's, as it was noted when that was made: who can write the folder can write a
whole new one too. It prints a line for each fault; the exit code is 1 with any, else 0.
"""

import hashlib
import json
import re
import ssl
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path

MARK = b', "hash": "'
TIME = re.compile(rb"(?:\x17\x0d(\d{12})Z|\x18\x0f\d\d(\d{12})Z)")


def check_dossier(folder: Path, noted: str | None = None) -> Iterator[str]:
    """Yield a sentence for each fault of a dossier."""
    try:
        content = json.loads((folder / "dossier.json").read_text(encoding="utf-8"))
        digest, sections, files = content.pop("digest"), content["sections"], content["files"]
        tables = {place: [*map(tuple, one["rows"])] for place, one in sections.items()}
        if hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest() != digest:
            yield "dossier.json must have its digest; it was altered"
        if noted and noted != digest:
            yield f"the digest must be the noted one, not {digest}; this is another dossier"
        yield from check_files(folder, files)
        yield from check_page(folder / "dossier.html", sections)
        runs = {path.parent.name: path for path in sorted(folder.glob("records/*/egress.jsonl"))}
        records = {run: path.read_bytes().splitlines() for run, path in runs.items()}
        yield from check_chains(records, tables["records"])
        parsed = {run: [json.loads(line) for line in lines] for run, lines in records.items()}
        unmixed = dict(tables["limits"])["kinds that are never mixed"].split(", ")
        rows = [row for run, found in parsed.items() for row in sum_records(run, found, unmixed)]
        yield from check_left(rows, tables["left"])
        yield from check_partners(parsed)
        yield from check_limits(folder / "records", parsed, dict(tables["limits"]))
        yield from check_keys(folder / "records", tables["keys"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        yield f"dossier and records must be whole; {type(error).__name__}: {error}"


def check_files(folder: Path, files: dict[str, str]) -> Iterator[str]:
    """Compare the files with their digests."""
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} - {"dossier.json"}
    yield from (f"{name} must be in the dossier; it is not there" for name in sorted(files.keys() - there))
    yield from (f"{name} must be none of the dossier's files; it was added" for name in sorted(there - files.keys()))
    for name in sorted(there & files.keys()):
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != files[name]:
            yield f"{name} must have the digest that dossier.json gives; it was altered"


def check_page(path: Path, sections: dict) -> Iterator[str]:
    """Compare what the page says with dossier.json, letter by letter."""
    found = re.findall(r'<section id="(\w*)">(.*?)</section>', path.read_text(encoding="utf-8"), flags=re.DOTALL)
    shown = {place: "".join(unescape(re.sub("<[^>]*>", "", text)).split()) for place, text in found}
    for place in sorted(shown.keys() | sections.keys()):
        one = sections.get(place) or dict.fromkeys(("title", "asks", "columns", "rows", "notes"), "")
        cells = [cell for row in one["rows"] for cell in row]
        texts = [one["title"], "; ".join(one["asks"]), *one["columns"], *cells, *one["notes"]]
        if shown.get(place) != "".join("".join(texts).split()):
            yield f"section {place} of the page must say what dossier.json says; it says something else"


def check_chains(records: dict[str, list[bytes]], rows: list) -> Iterator[str]:
    """Compute the hash of each record again."""
    found = []
    for run, lines in records.items():
        before = "0" * 64
        for number, line in enumerate(lines, start=1):
            body, _, end = line.rpartition(MARK)
            record, own = json.loads(line), hashlib.sha256(body).hexdigest()
            if end != own.encode() + b'"}' or record["before"] != before or record["number"] != number:
                yield f"record {number} of {run} must follow the one before and have its hash; it was altered"
                break
            before = own
        found.append((run, str(len(lines)), before))
    if sorted(found) != sorted(row[:3] for row in rows):
        yield f"section records must say {sorted(found)}, as the records do, not {sorted(row[:3] for row in rows)}"


def sum_records(run: str, records: list[dict], unmixed: list[str]) -> Iterator[tuple]:
    """Yield the rows of the section ``left``, from the records."""
    mixed = dict(one["mixed"] for one in records if one.get("mixed"))
    asked = {(one["round"], one["task"]): one["sites"] for one in records if one.get("sites")}
    sums: dict[tuple, list[int]] = {}
    for one in records:
        total = sums.setdefault((one["round"], one["task"], one["kind"], one["refused"]), [0, 0])
        total[:] = total[0] + 1, total[1] + one.get("bytes", 0)
    for (number, task, kind, refused), (count, size) in sums.items():
        partners = "never" if kind in unmixed else None if refused else mixed.get(number) or None
        left, sites = "no, refused" if refused else "yes", asked.get((number, task))
        cells = (number, task, kind, left, count, size, sites, partners)
        yield (run, *("-" if cell is None else str(cell) for cell in cells))


def check_left(wanted: list[tuple], said: list[tuple]) -> Iterator[str]:
    """Compare the rows of the section ``left`` with those that the records give."""
    yield from (f"section left must have the row {row}, as the records do" for row in wanted if row not in said)
    yield from (f"section left has the row {row}, which no record gives" for row in said if row not in wanted)
    if len(wanted) != len(said):
        yield f"section left must have {len(wanted)} rows, not {len(said)}"


def check_partners(parsed: dict[str, list[dict]]) -> Iterator[str]:
    """Compare with how many others an answer was mixed with what the site asked for in it."""
    for run, records in parsed.items():
        mixed = dict(one["mixed"] for one in records if one.get("mixed"))
        asked = {one["round"]: one["values"].get("min_partners", 0) for one in records if "values" in one}
        for number, sites in mixed.items():
            if 0 < sites <= asked.get(number, 0):
                yield f"round {number} of {run} was mixed of {sites} sites; the site asked for {asked[number]} others"


def check_limits(folder: Path, parsed: dict[str, list[dict]], said: dict[str, str]) -> Iterator[str]:
    """Compare the section ``limits`` with site.yaml, and epsilon with the records."""
    text = (folder / "site.yaml").read_text(encoding="utf-8")
    for name, known in re.findall(r"^(\w+):[ ]*([^\s#{\[]+)", text, flags=re.MULTILINE):
        if name in said and not _are_equal(known, said[name]):
            yield f"section limits must say {name} {known}, as site.yaml does, not {said[name]}"
    values = [one.get("values", {}).get("metrics") for found in parsed.values() for one in found if not one["refused"]]
    spent = [one["epsilon"] for one in values if isinstance(one, dict) and isinstance(one.get("epsilon"), float)]
    shown = f"{max(spent):.3g}" if spent else "-"
    if said["epsilon spent"] != shown:
        yield f"section limits must say epsilon spent {shown}, as the records do, not {said['epsilon spent']}"


def _are_equal(one: str, other: str) -> bool:
    try:
        return float(one) == float(other)
    except ValueError:
        return one == other


def check_keys(folder: Path, rows: list[tuple]) -> Iterator[str]:
    """Compute fingerprint and end of each certificate again."""
    for name, _, fingerprint, until in rows:
        der = ssl.PEM_cert_to_DER_cert((folder / Path(name).name).read_text())
        end = max(short or long for short, long in TIME.findall(der)[:2]).decode()
        if hashlib.sha256(der).hexdigest() != fingerprint:
            yield f"section keys must have the fingerprint of {name}; it has another"
        if until != f"20{end[:2]}-{end[2:4]}-{end[4:6]}":
            yield f"section keys must say until when {name} is valid, not {until}"


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    faults = list(check_dossier(Path(sys.argv[1]), *sys.argv[2:]))
    print("\n".join(faults) or "the page, dossier.json and the records agree")
    sys.exit(bool(faults))
