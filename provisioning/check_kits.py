"""Check kits before they are handed out, and again while they are in use.

    python -m provisioning check-kits WORKSPACE_OR_KIT... [--json] [--jobs DIR]

Folders: NVFlare can start there. Certificates: all under one root, begun, and days left. Keys: one in each kit, the
root's only in ``state/`` of a workspace. Software: the wheel and lock that were handed out, for the site's device.
Policies: signed jobs required, every class of the jobs allowed, durable stores at the server. Who may do what.
Exit code 0: all is right, or expires within 30 days; 1: something must be put right; 2: nothing to check.
"""

import argparse
import json
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import Any

from cryptography import x509

from provisioning.checks import SIDES, Finding, check_kit, days_left, find_private_keys, read_job_classes
from provisioning.workspace import REPOSITORY, certificates_file, find_kits
from silofl.base.errors import ExitCode, suggest_nearest
from silofl.base.files import read_json
from silofl.flare.kit import Kit
from silofl.flare.policy import Rights, read_site_rights

RIGHTS = ("submit_job", "byoc", "manage_job", "download_job", "get_job_log", "view", "operate", "shell_commands")


def check_folders(paths: list[Path], jobs: Path, now: datetime) -> dict[str, Any]:
    """Check all kits in some folders.

    Args:
        paths: Kits, or folders of kits.
        jobs: Folder of the job folders whose classes must be allowed.
        now: The time at which certificates must be valid.

    Returns:
        ``kits``, ``rights`` of people, and ``findings``.

    Raises:
        ConfigError: A folder holds no kit, or a kit cannot be read.
    """
    kits: list[Kit] = []
    for path in paths:
        kits += find_kits(path)
    root = _find_root(paths, kits)
    classes = read_job_classes(jobs)
    findings: list[Finding] = []
    for kit in kits:
        findings += check_kit(kit, root, classes, now)
    for path in paths:
        findings += _find_stray_keys(path, kits)
    sites = {kit.name: read_site_rights(kit) for kit in kits if kit.kind in SIDES}
    # Sites decide of people's rights: without a site's kit nothing is known of them.
    people = [kit for kit in kits if kit.kind == "admin" and sites]
    findings += _find_unknown_roles(people, sites)
    return {
        "kits": [_kit_facts(kit, now) for kit in kits],
        "rights": _collect_rights(people, sites),
        "findings": [asdict(finding) for finding in findings],
        "is_right": not any(finding.is_failure for finding in findings),
    }


def _find_unknown_roles(people: list[Kit], sites: Mapping[str, Rights]) -> Iterator[Finding]:
    # A role that no site knows is in the certificate, and gives its person no right.
    roles = sorted(set[str]().union(*(rights.roles for rights in sites.values())))
    for person in people:
        if roles and person.role not in roles:
            text = (
                f"the role must be one that a local/authorization.json names, {', '.join(roles)}, not "
                f"{person.role!r}{suggest_nearest(person.role, roles)}; correct project.yml and make the kits anew"
            )
            yield Finding(person.name, True, text)


def _collect_rights(people: list[Kit], sites: Mapping[str, Rights]) -> dict[str, dict[str, list[str]]]:
    """Return person -> right -> sites at which the person has the right for their own jobs."""
    collected: dict[str, dict[str, list[str]]] = {}
    for person in people:
        held = collected[person.name] = {right: [] for right in RIGHTS}
        for right, holding_sites in held.items():
            for site, rights in sites.items():
                if rights.has(right, person.name, person.org, person.role):
                    holding_sites.append(site)
    return collected


def _find_root(paths: list[Path], kits: list[Kit]) -> x509.Certificate:
    """Return the root certificate in the provisioner's record, or else the one that most kits have."""
    for path in paths:
        for record in path.glob("*/state/cert.json"):
            return x509.load_pem_x509_certificate(read_json(record)["root_cert"].encode())
    return Counter(kit.root for kit in kits).most_common(1)[0][0]


def _kit_facts(kit: Kit, now: datetime) -> dict[str, Any]:
    return {
        "name": kit.name,
        "kind": kit.kind,
        "org": kit.org,
        "role": kit.role if kit.kind == "admin" else None,
        "expires": kit.valid_until.isoformat(),
        "days_left": days_left(kit, now),
    }


def _find_stray_keys(path: Path, kits: list[Kit]) -> Iterator[Finding]:
    # Outside the kits only the provisioner's record may hold private keys, for its owner.
    for key in find_private_keys(path):
        if any(key.is_relative_to(kit.folder) for kit in kits):
            continue
        if key != certificates_file(key.parent.parent):
            text = "must not hold a private key outside kits and state/; move it to where it belongs"
        elif key.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            command = f"chmod 600 {quote(str(key))}"
            text = f"must be readable by its owner only, for it holds the root's private key; call: {command}"
        else:
            continue
        yield Finding(str(key), True, text)


def _report_lines(report: dict[str, Any]) -> list[str]:
    lines = []
    for kit in report["kits"]:
        who = " ".join(filter(None, (kit["kind"], kit["name"], kit["org"], kit["role"])))
        lines.append(f"{who}: {kit['days_left']} days left")
    everywhere = [kit["name"] for kit in report["kits"] if kit["kind"] in SIDES]
    for person, rights in report["rights"].items():
        held = [f"{right} {_places_text(sites, everywhere)}" for right, sites in rights.items() if sites]
        lines.append(f"{person} may, with own jobs: {'; '.join(held) or 'nothing'}")
    for finding in report["findings"]:
        lines.append(f"{'FAILED' if finding['is_failure'] else 'warning'} {finding['where']}: {finding['text']}")
    return [*lines, "all is right" if report["is_right"] else "not all is right"]


def _places_text(sites: list[str], everywhere: list[str]) -> str:
    return "everywhere" if sites == everywhere else f"at {', '.join(sites)}"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``check-kits``."""
    parser.add_argument("paths", type=Path, nargs="+", metavar="WORKSPACE_OR_KIT", help="kit, or folder of kits")
    parser.add_argument("--jobs", type=Path, default=REPOSITORY / "jobs", metavar="DIR", help="folder of job folders")
    parser.add_argument("--json", action="store_true", help="the report as JSON")


def run(options: argparse.Namespace) -> int:
    """Check kits and print the findings; the exit code is 0 only where nothing must be corrected."""
    report = check_folders(options.paths, options.jobs, datetime.now(UTC))
    print(json.dumps(report, indent=1) if options.json else "\n".join(_report_lines(report)))
    return ExitCode.COMPLETE if report["is_right"] else ExitCode.FAILED
