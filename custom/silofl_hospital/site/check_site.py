"""``silofl site check``: all checks of a site, ordered so that each can rely on those before it."""

import argparse
import json
import os
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from silofl.base.errors import ConfigError, ExitCode, SiloFLError, suggest_nearest
from silofl.base.options import make_console
from silofl.parts.answer import public_reason
from silofl_hospital.site.candidate import Candidate, read_candidate
from silofl_hospital.site.finding import Finding, failed

# Check -> its function below `silofl_hospital.site`, imported in its turn: some need torch, which takes seconds.
CHECKS = {
    "versions": "machine:check_versions",
    "folder": "machine:check_folder",
    "study": "policy:check_pin",
    "paused": "policy:check_pause",
    "classes": "policy:check_classes",
    "job_files": "policy:check_job_files",
    "byoc": "policy:check_brought_code",
    "rights": "policy:check_rights",
    "egress": "policy:check_egress",
    "partners": "policy:check_partners",
    "logs": "policy:check_logs",
    "packages": "policy:check_packages",
    "disk": "resources:check_disk",
    "gpu": "resources:check_gpu",
    "firewall": "machine:check_firewall",
    "certificate": "network:check_certificate",
    "server": "network:check_server",
    "tls": "network:check_tls",
    "one_machine": "network:check_one_machine",
    "data": "data:check_data",
    "privacy": "trial:check_privacy",
    "training": "trial:check_training",
    "leaving": "trial:check_leaving",
}
# A check that can find out nothing where one of others has failed -> those others.
WAITS_FOR = {
    "disk": ("packages",),
    "tls": ("certificate", "server"),
    "one_machine": ("tls",),
    "data": ("packages",),
    "privacy": ("data",),
    "training": ("data",),
    "leaving": ("data", "egress"),
}
LOG = "check-site.txt"
STYLES = {"ok": "green", "warning": "yellow", "failed": "red"}


@dataclass(frozen=True)
class Checkup:
    """The answers to a site's checks.

    Attributes:
        study: The study's name.
        answers: Check -> answer, without those that were skipped.
        log: The site's own file with the full reasons, which may name cases; None where there is none.
        skipped: The checks that were left out, of which nothing is known.
    """

    site: str
    study: str
    answers: dict[str, Finding]
    log: Path | None
    skipped: tuple[str, ...] = ()

    @property
    def may_join(self) -> bool:
        """Whether nothing that was checked failed."""
        return all(answer.status != "failed" for answer in self.answers.values())

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "site": self.site,
            "study": self.study,
            "may_join": self.may_join,
            "skipped": list(self.skipped),
            "checks": list_answers(self.answers),
            "log": str(self.log) if self.log else None,
        }


def run(options: argparse.Namespace) -> int:
    """Print the answers to all checks; the exit code is 0 only where the site may join, and no strict check warns."""
    _check_names("--strict", options.strict)
    candidate = read_candidate(options.kit, options.study, options.site_config)
    checkup = check_site(candidate, options.skip)
    warned = []
    for name in options.strict:
        if name in checkup.answers and checkup.answers[name].status == "warning":
            warned.append(name)
    if options.json:
        print(json.dumps(checkup.as_dict(), indent=1))
    else:
        console = make_console(options)
        print_checkup(checkup, console)
        if warned:
            console.print(f"exit code 1, as --strict asks of a warning of {', '.join(warned)}", markup=False)
    return ExitCode.COMPLETE if checkup.may_join and not warned else ExitCode.FAILED


def check_site(candidate: Candidate, skipped: Collection[str] = ()) -> Checkup:
    """Carry out all checks but those that are skipped.

    What could name a case, a patient or a file of the data goes to ``check-site.txt`` in the kit, for this account
    alone, and nowhere else.

    Raises:
        ConfigError: A check to skip is not known, or none is left.
    """
    _check_names("--skip", skipped)
    if not CHECKS.keys() - {*skipped}:
        raise ConfigError("--skip names all checks; leave one out")
    answers: dict[str, Finding] = {}
    reasons: list[str] = []
    for name, function in CHECKS.items():
        if name in skipped:
            continue
        if needs := _failed_before(name, answers):
            answers[name] = failed(f"{name} waits for {needs[0]}, which failed; put that right and check again")
        else:
            answers[name] = _answer_check(name, function, candidate, reasons)
    log = _write_log(candidate.kit.folder / LOG, reasons)
    left_out = tuple(name for name in CHECKS if name in skipped)
    return Checkup(candidate.kit.name, candidate.study.name, answers, log, left_out)


def list_answers(answers: Mapping[str, Finding]) -> list[dict[str, Any]]:
    """Return answers as plain values, each with the name of its check."""
    return [{"check": name, **asdict(answer)} for name, answer in answers.items()]


def print_answers(answers: Mapping[str, Finding], console: Console) -> None:
    """Print answers as a table."""
    # Folded, not cut off: the study's digest is compared letter by letter.
    table = Table("check", "status", Column("finding", overflow="fold"), box=SIMPLE_HEAD)
    for name, answer in answers.items():
        table.add_row(name, Text(answer.status, STYLES[answer.status]), Text(answer.sentence))
    console.print(table, soft_wrap=False)


def print_checkup(checkup: Checkup, console: Console) -> None:
    """Print the answers as a table, and whether the site may join."""
    print_answers(checkup.answers, console)
    study = checkup.answers.get("study")
    if study and "sha256" in study.facts:
        # On a line of its own, to be copied whole.
        console.print(f"digest of study {checkup.study}:\n{study.facts['sha256']}", markup=False, soft_wrap=True)
    if checkup.log:
        console.print(f"The full reasons, for this account alone: {checkup.log}", markup=False)
    # A check that waits for another one is no fault of its own.
    wrong = []
    for name, answer in checkup.answers.items():
        if answer.status == "failed" and not _failed_before(name, checkup.answers):
            wrong.append(name)
    if wrong:
        verdict = f"must not join study {checkup.study} yet: {', '.join(wrong)}"
    elif checkup.skipped:
        verdict = f"may join {checkup.study}, as far as it was checked; not checked: {', '.join(checkup.skipped)}"
    else:
        verdict = f"may join {checkup.study}"
    console.print(f"Site {checkup.site} {verdict}", markup=False)


def _check_names(option: str, given: Collection[str]) -> None:
    for name in given:
        if name not in CHECKS:
            raise ConfigError(
                f"{option} must be among {', '.join(CHECKS)}, not {name!r}{suggest_nearest(name, CHECKS)}"
            )


def _failed_before(name: str, answers: Mapping[str, Finding]) -> list[str]:
    """Return which checks have failed that a check waits for."""
    return [need for need in WAITS_FOR.get(name, ()) if need in answers and answers[need].status == "failed"]


def _answer_check(name: str, function: str, candidate: Candidate, reasons: list[str]) -> Finding:
    try:
        check: Callable[[Candidate], Finding] = resolve_name(f"silofl_hospital.site.{function}")
        return check(candidate)
    except Exception as error:  # whatever a check meets is an answer, and the other checks go on
        # The traceback of an error that nobody foresaw is for whoever mends it.
        reason = error if isinstance(error, SiloFLError) else "".join(traceback.format_exception(error))
        reasons.append(f"{name}: {reason}")
        return failed(public_reason(error, f"{LOG} in the kit"))


def _write_log(path: Path, reasons: list[str]) -> Path | None:
    # An older file is always removed: its reasons may hold no more.
    path.unlink(missing_ok=True)
    if not reasons:
        return None
    # O_EXCL: a file or link that another account has put here meanwhile must not receive the names of cases.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
        stream.write("\n".join(reasons) + "\n")
    return path
