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
from itertools import chain
from pathlib import Path

MARK = b', "hash": "'
TIME = re.compile(rb"(?:\x17\x0d(\d{12})Z|\x18\x0f\d\d(\d{12})Z)")


def check_dossier(folder: Path, noted: str | None = None) -> Iterator[str]:
    """Yield a sentence for each fault of a dossier."""
    try:
        content = json.loads((folder / "dossier.json").read_text(encoding="utf-8"))
        # The digest is of all that stands beside it.
        digest = content.pop("digest")
        tables = {name: [*map(tuple, section["rows"])] for name, section in content["sections"].items()}
        if hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest() != digest:
            yield "dossier.json must have its digest; it was altered"
        if noted and noted != digest:
            yield f"the digest must be the noted one, not {digest}; this is another dossier"
        yield from check_files(folder, content["files"])
        yield from check_page(folder / "dossier.html", content["sections"])
        lines_by_run = {}
        for path in sorted(folder.glob("records/*/egress.jsonl")):
            lines_by_run[path.parent.name] = path.read_bytes().splitlines()
        yield from check_chains(lines_by_run, tables["records"])
        records_by_run = {run: [*map(json.loads, lines)] for run, lines in lines_by_run.items()}
        limits = dict(tables["limits"])
        unmixed = limits["kinds that are never mixed"].split(", ")
        rows: list[tuple] = []
        for run, records in records_by_run.items():
            rows += sum_records(run, records, unmixed)
        yield from check_left(rows, tables["left"])
        yield from check_partners(records_by_run)
        yield from check_limits(folder / "records", records_by_run, limits)
        yield from check_keys(folder / "records", tables["keys"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        yield f"dossier and records must be whole; {type(error).__name__}: {error}"


def check_files(folder: Path, files: dict[str, str]) -> Iterator[str]:
    """Compare the files with their digests."""
    present = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} - {"dossier.json"}
    for name in sorted(files.keys() | present):
        if name not in present:
            yield f"{name} must be in the dossier; it is not there"
        elif name not in files:
            yield f"{name} must be none of the dossier's files; it was added"
        elif hashlib.sha256((folder / name).read_bytes()).hexdigest() != files[name]:
            yield f"{name} must have the digest that dossier.json gives; it was altered"


def check_page(path: Path, sections: dict) -> Iterator[str]:
    """Compare what the page says with dossier.json, letter by letter."""
    shown = {}
    page = path.read_text(encoding="utf-8")
    for name, text in re.findall(r'<section id="(\w*)">(.*?)</section>', page, flags=re.DOTALL):
        # Blanks are the page's own, as tags are.
        shown[name] = "".join(unescape(re.sub("<[^>]*>", "", text)).split())
    for name in sorted(shown.keys() | sections.keys()):
        section = sections.get(name) or dict.fromkeys(("title", "asks", "columns", "rows", "notes"), "")
        texts = [section["title"], "; ".join(section["asks"]), *section["columns"]]
        for row in section["rows"]:
            texts += row
        texts += section["notes"]
        if shown.get(name) != "".join("".join(texts).split()):
            yield f"section {name} of the page must say what dossier.json says; it says something else"


def check_chains(records: dict[str, list[bytes]], rows: list) -> Iterator[str]:
    """Compute the hash of each record again."""
    chains = []
    for run, lines in records.items():
        before = "0" * 64
        for number, line in enumerate(lines, start=1):
            # The hash is of the line up to its own mark; the record after it says it again.
            body, _, end = line.rpartition(MARK)
            digest = hashlib.sha256(body).hexdigest()
            record = json.loads(line)
            if end != digest.encode() + b'"}' or record["before"] != before or record["number"] != number:
                yield f"record {number} of {run} must follow the one before and have its hash; it was altered"
                break
            before = digest
        chains.append((run, str(len(lines)), before))
    listed = sorted(row[:3] for row in rows)
    if sorted(chains) != listed:
        yield f"section records must say {sorted(chains)}, as the records do, not {listed}"


def sum_records(run: str, records: list[dict], unmixed: list[str]) -> Iterator[tuple]:
    """Yield the rows of the section ``left``, from the records."""
    mixed = list_mixed(records)
    asked = {}
    counts: dict[tuple, int] = {}
    sizes: dict[tuple, int] = {}
    for record in records:
        if record.get("sites"):
            asked[record["round"], record["task"]] = record["sites"]
        key = (record["round"], record["task"], record["kind"], record["refused"])
        counts[key] = counts.get(key, 0) + 1
        sizes[key] = sizes.get(key, 0) + record.get("bytes", 0)
    for key, count in counts.items():
        number, task, kind, refused = key
        # What was refused was mixed with nothing; some kinds never are.
        partners = "never" if kind in unmixed else None
        if partners is None and not refused:
            partners = mixed.get(number) or None
        left = "no, refused" if refused else "yes"
        cells = (number, task, kind, left, count, sizes[key], asked.get((number, task)), partners)
        yield (run, *["-" if cell is None else str(cell) for cell in cells])


def list_mixed(records: list[dict]) -> dict[int, int]:
    """Return round -> with how many others an answer was mixed, of the rounds of which a record says it."""
    return dict(record["mixed"] for record in records if record.get("mixed"))


def check_left(wanted: list[tuple], said: list[tuple]) -> Iterator[str]:
    """Compare the rows of the section ``left`` with those that the records give."""
    for row in wanted:
        if row not in said:
            yield f"section left must have the row {row}, as the records do"
    for row in said:
        if row not in wanted:
            yield f"section left has the row {row}, which no record gives"
    # A row may stand there twice.
    if len(wanted) != len(said):
        yield f"section left must have {len(wanted)} rows, not {len(said)}"


def check_partners(parsed: dict[str, list[dict]]) -> Iterator[str]:
    """Compare with how many others an answer was mixed with what the site asked for in it."""
    for run, records in parsed.items():
        asked = {}
        for record in records:
            if "values" in record:
                asked[record["round"]] = record["values"].get("min_partners", 0)
        for number, sites in list_mixed(records).items():
            # The sites that were mixed are the others and this one.
            if 0 < sites <= asked.get(number, 0):
                yield f"round {number} of {run} was mixed of {sites} sites; the site asked for {asked[number]} others"


def check_limits(folder: Path, parsed: dict[str, list[dict]], said: dict[str, str]) -> Iterator[str]:
    """Compare the section ``limits`` with site.yaml, and epsilon with the records."""
    text = (folder / "site.yaml").read_text(encoding="utf-8")
    # Python alone has no YAML; limits are plain values on lines of their own.
    for name, value in re.findall(r"^(\w+):[ ]*([^\s#{\[]+)", text, flags=re.MULTILINE):
        if name in said and not _are_equal(value, said[name]):
            yield f"section limits must say {name} {value}, as site.yaml does, not {said[name]}"
    spent = []
    for record in chain(*parsed.values()):
        metrics = record.get("values", {}).get("metrics")
        # What was refused has spent nothing.
        if not record["refused"] and isinstance(metrics, dict) and isinstance(metrics.get("epsilon"), float):
            spent.append(metrics["epsilon"])
    shown = f"{max(spent):.3g}" if spent else "-"
    if said["epsilon spent"] != shown:
        yield f"section limits must say epsilon spent {shown}, as the records do, not {said['epsilon spent']}"


def _are_equal(written: str, said: str) -> bool:
    # 1e-5 and 0.00001 are one number.
    try:
        return float(written) == float(said)
    except ValueError:
        return written == said


def check_keys(folder: Path, rows: list[tuple]) -> Iterator[str]:
    """Compute fingerprint and end of each certificate again."""
    for name, _, fingerprint, until in rows:
        der = ssl.PEM_cert_to_DER_cert((folder / Path(name).name).read_text())
        # The first two times of a certificate are those of its validity.
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
