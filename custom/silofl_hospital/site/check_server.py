"""``silofl server check``: whether the server's machine can serve its network, before it starts and while it runs."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import socket
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding

from silofl.base.errors import ExitCode, SiloFLError
from silofl.base.options import make_console
from silofl.base.settings import load_settings
from silofl.federation.needs import GIB
from silofl.flare.job_loop import HEALTH
from silofl.flare.kit import Kit, read_kit
from silofl.flare.policy import list_replaced
from silofl.flare.stores import is_volatile, read_stores
from silofl.setup.site import Server
from silofl_hospital.site import machine, network, policy
from silofl_hospital.site.check_site import list_answers, print_answers
from silofl_hospital.site.finding import Finding, expect, failed, ok

# Below it a run of many hospitals, or NVFlare's logs, may fill a disk within days.
LEAST_FREE = 5 * GIB
# The server looks for jobs each second while a hospital is connected, and writes so each ten.
MOST_SILENT_S = 120


@dataclass(frozen=True)
class ServerMachine:
    """The server's machine.

    Attributes:
        kit: Its startup kit.
        stores: What keeps jobs and results -> its folder.
    """

    kit: Kit
    stores: dict[str, Path]


def run(options: argparse.Namespace) -> int:
    """Print the answers to all checks; the exit code is 0 only where none failed and the certificate holds for long."""
    kit = read_kit(options.kit, ("server",))
    settings = load_settings(Server, kit.folder / "local" / "server.yaml")
    snapshots, jobs = read_stores(kit.local("resources.json")[1])
    # run_dir may end in a folder for each job, which is made when the job begins.
    runs = Path(re.split(r"[{$]", settings.run_dir)[0])
    server = ServerMachine(kit, {"snapshots": Path(snapshots), "jobs": Path(jobs), "results": runs})
    answers = {name: _answer_check(check, server) for name, check in CHECKS.items()}
    wrong = [name for name, answer in answers.items() if answer.status == "failed"]
    # A service that checks once a week is heard of only where it fails.
    if answers["certificate"].status == "warning":
        wrong.append("certificate")
    if options.json:
        content = {"server": kit.name, "may_serve": not wrong, "checks": list_answers(answers)}
        print(json.dumps(content, indent=1))
    else:
        console = make_console(options)
        print_answers(answers, console)
        verdict = f"needs a hand: {', '.join(wrong)}" if wrong else "can serve its network"
        console.print(f"Server {kit.name} {verdict}", markup=False)
    return ExitCode.FAILED if wrong else ExitCode.COMPLETE


def _answer_check(check: Callable[[ServerMachine], Finding], server: ServerMachine) -> Finding:
    try:
        return check(server)
    except (OSError, SiloFLError) as error:
        return failed(str(error))


def check_components(server: ServerMachine) -> Finding:
    """Check that SiloFL's components stand in the place of NVFlare's where those would do harm."""
    replaced = "; ".join(list_replaced(server.kit))
    return expect(not replaced, "local/resources.json has SiloFL's components in place of NVFlare's", replaced)


def check_folders(server: ServerMachine) -> Finding:
    """Check that jobs and results lie in folders that are there, last, and can be written."""
    for what, folder in server.stores.items():
        if is_volatile(str(folder)):
            return failed(f"the folder of {what}, {folder}, is lost at a restart of the machine; name another")
        if not folder.is_dir():
            return failed(f"the folder of {what} is missing; install -d -m 700 {folder}")
        if not machine.is_writable(folder):
            return failed(
                f"the folder of {what}, {folder}, cannot be written by this account; give it to the account that runs "
                "NVFlare, and check as that account"
            )
    return ok(f"jobs and results lie below {', '.join(sorted({*map(str, server.stores.values())}))}")


def check_modes(server: ServerMachine) -> Finding:
    """Check that no other account can read models, results or the kit."""
    folders = sorted({*server.stores.values(), server.kit.folder})
    num_files = 0
    num_exposed = 0
    for folder in folders:
        for path in folder.rglob("*"):
            # The mode of a link says nothing of what it leads to.
            if path.is_file() and not path.is_symlink():
                num_files += 1
                num_exposed += bool(path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO))
    return expect(
        not num_exposed,
        f"all {num_files} files of kit, jobs and results are for this account alone",
        f"{num_exposed} of {num_files} files that the server keeps are open to other accounts; start it with umask "
        f"077, as startup/start.sh of a filled kit does, and call: chmod -R go= {' '.join(map(str, folders))}",
        exposed=num_exposed,
    )


def check_disk(server: ServerMachine) -> Finding:
    """Compare what is free with what logs and results need for some time."""
    folders = [folder for folder in server.stores.values() if folder.is_dir()]
    if not folders:
        return failed("the folders of jobs and results are missing; create them first")
    free, folder = min((shutil.disk_usage(folder).free, folder) for folder in folders)
    fine = f"{free / GIB:.1f} GiB are free at {folder}"
    return expect(
        free >= LEAST_FREE,
        fine,
        f"{fine}, less than the {LEAST_FREE / GIB:.0f} GiB that jobs, results and logs need; make room, since a full "
        "disk ends every run",
        is_serious=False,
        free_bytes=free,
    )


def check_port(server: ServerMachine) -> Finding:
    """Check that the port is this server's, or free for it; NVFlare would retry for ever."""
    port = server.kit.address.port
    shown = b""
    try:
        with socket.socket() as trial:
            # A port whose last line has just ended counts as free, as for the server itself.
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(("", port))
        return ok(f"port {port} is free: the server does not run")
    except PermissionError:
        return failed(
            f"port {port} is closed to this account; as root: echo net.ipv4.ip_unprivileged_port_start={port} > "
            "/etc/sysctl.d/50-silofl.conf; sysctl --system"
        )
    except OSError:
        # The port is in use, be it by the server itself.
        with suppress(OSError):
            shown = network.fetch_certificate(server.kit, "localhost")
    return expect(
        shown == server.kit.certificate.public_bytes(Encoding.DER),
        f"the server runs, and shows the kit's certificate at port {port}",
        f"port {port} shows another certificate than the kit's, or none; restart the server where the certificate was "
        "renewed, or end the other program, which ss -ltnp names",
    )


def check_jobs(server: ServerMachine) -> Finding:
    """Check that the server starts jobs, as it has written into its kit."""
    health = server.kit.folder / HEALTH
    if not health.is_file():
        return ok("the server has not run here yet")
    if fault := health.read_text(encoding="utf-8"):
        return failed(f"the server starts no jobs ({fault}); mend that, and restart the server where it stays")
    minutes = (time.time() - health.stat().st_mtime) / 60
    return expect(
        60 * minutes <= MOST_SILENT_S,
        f"the server has looked for jobs to start within the last {MOST_SILENT_S // 60} minutes",
        f"the server has looked for no job to start for {minutes:.0f} minutes: it does not run, no hospital is "
        "connected, or it hangs; restart it where a hospital is connected",
        is_serious=False,
    )


CHECKS: dict[str, Callable[[ServerMachine], Finding]] = {
    "versions": machine.check_versions,
    "folder": machine.check_folder,
    "classes": policy.check_classes,
    "job_files": policy.check_job_files,
    "components": check_components,
    "folders": check_folders,
    "modes": check_modes,
    "disk": check_disk,
    "firewall": machine.check_firewall,
    "certificate": network.check_certificate,
    "port": check_port,
    "jobs": check_jobs,
}
