"""``silofl site dossier``: answer what a privacy or security officer asks of one study at this site.

The folder holds ``dossier.html``, the same as ``dossier.json``, and in ``records/`` the files that both are made from.
``check_dossier.py`` of the kit compares all three, without SiloFL.
"""

import argparse
import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from silofl.base.errors import ConfigError, ExitCode
from silofl.base.files import copy_file, fill_folder, is_free, write_json
from silofl.base.options import make_console
from silofl.base.settings import read_yaml
from silofl.federation.egress_log import FILE
from silofl.hospital.candidate import Candidate, read_candidate
from silofl.hospital.dossier_rows import SOUND, Row, list_rows
from silofl.hospital.kept import find_runs
from silofl.report.page import Page, make_items, make_note, make_section, make_table, write_page
from silofl.report.tables import TextTable, print_lines

FORMAT, PAGE, CONTENT, RECORDS, QUESTIONS = 1, "dossier.html", "dossier.json", "records", "dossier.yaml"
# Files of the kit that decide: public ones, and what the site has decided.
DECIDING: tuple[str, ...] = ("startup/client.crt", "startup/rootCA.pem", "local/site.yaml", "local/privacy.json")
DECIDING += ("local/resources.json", "local/authorization.json", "requirements.lock", "sbom.json")
LEGAL = "No legal opinion: what the program cannot know is for the hospital to say."


def run(options: argparse.Namespace) -> int:
    """Write the dossier, and print its digest; the exit code is 1 where a record is not as it was written."""
    if not is_free(options.out):
        raise ConfigError(f"--out must be a new folder, not {options.out}, which holds something; name another")
    candidate = read_candidate(options.kit, options.study, options.site_config)
    found = find_runs(candidate.settings, candidate.study.name, candidate.kit.name)
    runs = {run.name: run for run in found if (run / FILE).is_file()}
    if not runs:
        raise ConfigError(
            f"study {candidate.study.name!r} must have a run with {FILE} in {candidate.state_folder}; there is none: "
            "take part first, or name another study"
        )
    with fill_folder(options.out) as folder:
        digests = _copy_records(folder / RECORDS, options, runs)
        rows = list_rows(candidate, runs, digests)
        digest = _write_dossier(folder, candidate, rows)
    lines = [f"page: {options.out / PAGE}", f"digest of the dossier, to be noted elsewhere: {digest}"]
    faults = [f"run {run}: {fault}" for run, _, _, fault in rows["records"] if fault != SOUND]
    print_lines([*lines, *faults], make_console())
    return ExitCode.FAILED if faults else ExitCode.COMPLETE


def _copy_records(folder: Path, options: argparse.Namespace, runs: Mapping[str, Path]) -> dict[str, str]:
    """Copy the files that the dossier is made from, and return file of the kit -> SHA-256."""
    kit = {name: options.kit / name for name in DECIDING}
    kit["local/site.yaml"] = options.site_config or kit["local/site.yaml"]
    kit = {name: path for name, path in kit.items() if path.is_file()}
    copies = {Path(name).name: path for name, path in kit.items()} | {"study.yaml": options.study}
    copies |= {f"{name}/{FILE}": run / FILE for name, run in runs.items()}
    for name, path in copies.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        copy_file(path, folder / name)
    return {name: _digest(folder / Path(name).name) for name in kit}


def _write_dossier(folder: Path, candidate: Candidate, rows: Mapping[str, list[Row]]) -> str:
    """Write page and content, and return the content's digest."""
    site, study, made = candidate.kit.name, candidate.study.name, f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    questions, sections, content = read_yaml(Path(__file__).with_name(QUESTIONS)), [], {}
    for place, question in questions.items():
        one = {"columns": ["what", "answer"], "notes": []} | question | {"rows": rows[place]}
        table = TextTable(tuple(one["columns"]), tuple(one["rows"]), num_text=len(one["columns"]))
        blocks = make_note("; ".join(one["asks"])), make_table(table), make_items(one["notes"], "note")
        sections.append(make_section(place, place, one["title"], *blocks))
        content[place] = one
    title = f"Dossier of {site}, study {study}"
    write_page(folder / PAGE, Page(title, "SiloFL", sections, LEGAL, subtitle=(made,), is_wide=True))
    files = {path.relative_to(folder).as_posix(): _digest(path) for path in sorted(folder.rglob("*")) if path.is_file()}
    said = {"format": FORMAT, "site": site, "study": study, "made": made, "sections": content, "files": files}
    digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
    write_json(folder / CONTENT, said | {"digest": digest})
    return digest


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
