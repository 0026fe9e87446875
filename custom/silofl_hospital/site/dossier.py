"""``silofl site dossier``: answer what a privacy or security officer asks of one study at this site.

The folder holds ``dossier.html``, the same as ``dossier.json``, and in ``records/`` the files that both are made from.
``check_dossier.py`` of the kit compares all three, without SiloFL.
"""

import argparse
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import Any

from cryptography.hazmat.primitives.hashes import SHA256

from silofl.base.errors import ConfigError, ExitCode, SiloFLError
from silofl.base.files import copy_file, fill_folder, is_free, write_json
from silofl.base.options import make_console
from silofl.base.settings import read_yaml
from silofl.data.manifest import PARTS
from silofl.federation.egress import NUMBERS, REASON, Gate
from silofl.federation.egress_chain import check_chain
from silofl.federation.egress_log import FILE, read_spent_epsilon
from silofl.flare.kit import Kit
from silofl.flare.policy import read_class_policy, read_site_rights, streams_logs
from silofl.setup.software import read_software
from silofl_hospital.report.page import Page, make_items, make_note, make_section, make_table, write_page
from silofl_hospital.report.tables import TextTable, print_lines
from silofl_hospital.site.candidate import Candidate, read_candidate
from silofl_hospital.site.forget import find_kept
from silofl_hospital.site.kept import find_runs

Row = tuple[str, ...]
SOUND = "as it was written"
LIMITS = ("min_patients", "min_partners", "max_epsilon", "max_delta", "privacy_unit", "skip_unreadable", "keep_days")
RIGHTS = ("submit_job", "byoc", "download_job", "abort_job", "restart", "shutdown", "shell_commands")
FORMAT = 1
PAGE = "dossier.html"
CONTENT = "dossier.json"
RECORDS = "records"
QUESTIONS = "dossier.yaml"
# These files of the kit decide: public ones, and what the site has decided.
DECIDING = (
    *("startup/client.crt", "startup/rootCA.pem", "local/site.yaml", "local/privacy.json"),
    *("local/resources.json", "local/authorization.json", "requirements.lock", "sbom.json"),
)
LEGAL = "No legal opinion: what the program cannot know is for the hospital to say."


def run(options: argparse.Namespace) -> int:
    """Write the dossier, and print its digest; the exit code is 1 where a record is not as it was written."""
    if not is_free(options.out):
        raise ConfigError(f"--out must be a new folder, not {options.out}, which holds something; name another")
    candidate = read_candidate(options.kit, options.study, options.site_config)
    runs = {}
    for run in find_runs(candidate.settings, candidate.study.name, candidate.kit.name):
        if (run / FILE).is_file():
            runs[run.name] = run
    if not runs:
        raise ConfigError(
            f"study {candidate.study.name!r} has no run with {FILE} in {candidate.state_folder}; take part first, or "
            "name another study"
        )
    with fill_folder(options.out) as folder:
        digests = _copy_records(folder / RECORDS, options, runs)
        rows = list_rows(candidate, runs, digests)
        digest = _write_dossier(folder, candidate, rows)
    lines = [f"page: {options.out / PAGE}", f"digest of the dossier, to be noted elsewhere: {digest}"]
    faults = [f"run {row[0]}: {row[-1]}" for row in rows["records"] if row[-1] != SOUND]
    print_lines([*lines, *faults], make_console())
    return ExitCode.FAILED if faults else ExitCode.COMPLETE


def _copy_records(folder: Path, options: argparse.Namespace, runs: Mapping[str, Path]) -> dict[str, str]:
    """Copy the files that the dossier is made from, and return file of the kit -> SHA-256."""
    folder.mkdir()
    digests = {}
    for name in DECIDING:
        path = options.kit / name
        if name == "local/site.yaml" and options.site_config:
            path = options.site_config
        if path.is_file():
            copy_file(path, folder / path.name)
            digests[name] = _digest(folder / path.name)
    copy_file(options.study, folder / "study.yaml")
    for name, run in runs.items():
        (folder / name).mkdir()
        copy_file(run / FILE, folder / name / FILE)
    return digests


def _write_dossier(folder: Path, candidate: Candidate, rows: Mapping[str, list[Row]]) -> str:
    site = candidate.kit.name
    study = candidate.study.name
    made = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    questions = read_yaml(Path(__file__).with_name(QUESTIONS))
    sections = []
    content = {}
    for name, question in questions.items():
        section = {"columns": ["what", "answer"], "notes": []} | question | {"rows": rows[name]}
        table = TextTable(tuple(section["columns"]), tuple(section["rows"]), num_text=len(section["columns"]))
        blocks = make_note("; ".join(section["asks"])), make_table(table), make_items(section["notes"], "note")
        sections.append(make_section(name, name, section["title"], *blocks))
        content[name] = section
    title = f"Dossier of {site}, study {study}"
    write_page(folder / PAGE, Page(title, "SiloFL", sections, LEGAL, subtitle=(made,), is_wide=True))
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            files[path.relative_to(folder).as_posix()] = _digest(path)
    dossier = {"format": FORMAT, "site": site, "study": study, "made": made, "sections": content, "files": files}
    # The kit's check_dossier.py computes the digest in this very way.
    digest = hashlib.sha256(json.dumps(dossier, sort_keys=True).encode()).hexdigest()
    write_json(folder / CONTENT, dossier | {"digest": digest})
    return digest


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def list_rows(
    candidate: Candidate,
    runs: Mapping[str, Path],
    digests: Mapping[str, str],
) -> dict[str, list[Row]]:
    """Return section -> its rows.

    Args:
        runs: Run -> the site's folder of it.
        digests: File of the kit -> its SHA-256.
    """
    gate = Gate.of(candidate.study, candidate.settings)
    unmixed = sorted({NUMBERS, REASON, *(kind.name for kind in gate.kinds if not kind.is_mixed)})
    rows: dict[str, list[Row]] = {"processing": [*_describe_processing(candidate)], "left": [], "records": []}
    spent = []
    for run, folder in sorted(runs.items()):
        content = (folder / FILE).read_bytes()
        verdict = check_chain(content)
        # What follows the first fault proves nothing.
        records = [json.loads(line) for line in content.splitlines()[: len(verdict.links)]]
        rows["left"] += _sum_records(run, records, unmixed)
        rows["records"].append((run, str(verdict.last.number), verdict.last.hash, verdict.fault or SOUND))
        spent += [epsilon for record in records if (epsilon := read_spent_epsilon(record))]
    rows["risk"] = sorted(gate.risks.items())
    rows["limits"] = [
        *_describe_limits(candidate),
        ("epsilon spent", f"{max(spent):.3g}" if spent else "-"),
        ("kinds that are never mixed", ", ".join(unmixed)),
    ]
    rows["kept"] = [*_describe_kept(candidate)]
    rows["rights"] = [*_describe_rights(candidate.kit)]
    rows["keys"] = [*_describe_certificates(candidate.kit)]
    rows["software"] = []
    for name, text in read_software():
        rows["software"].append(("SHA-256 of silofl" if name == "package" else name, text))
    rows["software"] += [(f"SHA-256 of {name}", digest) for name, digest in digests.items()]
    return rows


def _describe_processing(candidate: Candidate) -> Iterator[Row]:
    study = candidate.study
    pins = candidate.settings.studies
    yield "study", f"{study.name}, with digest {study.digest}"
    yield "submitted by", pins[study.name].lead if study.name in pins else "any lead: site.yaml does not pin the study"
    yield "task", f"{study.task} of {', '.join(study.labels.values())}"
    yield "method", f"{study.algorithm.name}, {study.length}"
    if study.rounds:
        yield "what others get", f"{study.recipe.delivered}; the server itself sees every update"
    for part in PARTS:
        yield f"patients in {part}", _count_patients(candidate, part)


def _count_patients(candidate: Candidate, name: str) -> str:
    try:
        part = getattr(candidate.data, name)
    except SiloFLError:
        # The reason may name a case.
        return "the data cannot be read: site check says why"
    return "not all are known" if None in part.patients else str(part.num_patients)


def _sum_records(run: str, records: Sequence[Mapping[str, Any]], unmixed: Sequence[str]) -> Iterator[Row]:
    """Return what left in each round by kind, and of how many sites the server says that it asked and mixed them."""
    mixed: dict[int, int] = {}
    asked = {}
    sums: dict[tuple[Any, ...], list[int]] = {}
    for record in records:
        if record.get("mixed"):
            number, partners = record["mixed"]
            mixed[number] = partners
        if record.get("sites"):
            asked[record["round"], record["task"]] = record["sites"]
        key = record["round"], record["task"], record["kind"], record["refused"]
        sums.setdefault(key, []).append(record.get("bytes", 0))
    for (number, task, kind, is_refused), sizes in sums.items():
        if kind in unmixed:
            shown = "never"
        elif is_refused or not mixed.get(number):
            shown = "-"
        else:
            shown = str(mixed[number])
        left = "no, refused" if is_refused else "yes"
        sites = str(asked.get((number, task), "-"))
        yield run, str(number), task, kind, left, str(len(sizes)), str(sum(sizes)), sites, shown


def _describe_limits(candidate: Candidate) -> Iterator[Row]:
    site = candidate.settings
    study = candidate.study
    for key in LIMITS:
        value = getattr(site, key)
        yield key, "not set" if value is None else str(value)
    yield "may_leave", "all that a study sends" if site.may_leave is None else ", ".join(site.may_leave) or "nothing"
    yield "paused", "yes" if study.name in site.paused else "no"
    yield "differential privacy", "none" if study.promise is None else "delta {:g} for each {}".format(*study.promise)
    yield "log goes to the server", "yes: allow_log_streaming" if streams_logs(candidate.kit) else "never"


def _describe_kept(candidate: Candidate) -> Iterator[Row]:
    site = candidate.settings
    study = candidate.study.name
    for folder, (files, size) in find_kept(site, study, candidate.kit.name).folders.items():
        yield str(folder), f"{files} files, {size} bytes", f"silofl site forget {quote(study)}"
    days = "for ever: keep_days is not set" if site.keep_days is None else f"{site.keep_days} days"
    yield "job folders and full logs in the kit", days, "silofl site prune"
    yield "one patient in all of these", "until erased", "silofl site forget --patient ID"
    yield "images and dataset.json", "as the hospital says", "the hospital"


def _describe_rights(kit: Kit) -> Iterator[Row]:
    rights = read_site_rights(kit)
    for role in rights.roles:
        has = [right for right in RIGHTS if rights.has(right, "somebody", "another", role)]
        yield f"{role} of another organisation, with own jobs", ", ".join(has) or f"none of {', '.join(RIGHTS)}"
    yield "a job", read_class_policy(kit).gap or "name classes of an allow list; it brings no code"


def _describe_certificates(kit: Kit) -> Iterator[Row]:
    for name, certificate in (("startup/client.crt", kit.certificate), ("startup/rootCA.pem", kit.root)):
        key = certificate.public_key()
        algorithm = f"{type(key).__name__.removesuffix('PublicKey').strip('_')} {getattr(key, 'key_size', '')}".strip()
        yield name, algorithm, certificate.fingerprint(SHA256()).hex(), f"{certificate.not_valid_after_utc:%Y-%m-%d}"
