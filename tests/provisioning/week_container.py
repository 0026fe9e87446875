"""A hospital of the scripted week in a container, by the commands of docs/hospital-it.md, which Podman carries out.

Nothing is pulled. PIP_EXTRA_INDEX_URL names the index that has torch for the CPU, CPU_INDEX of the page; what Podman
needs on a machine beyond the page stands in the file that CONTAINERS_CONF names.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from provisioning.workspace import REPOSITORY
from silofl import __version__
from silofl.flare.kit import Kit
from silofl.flare.one_machine import ask_machines
from silofl_desk.studies.simulation import study_file
from tests.provisioning.week_stage import REGISTERED, Stage, require_that, wait_until

HEADING = "## In a container or a pod"
ACCOUNT = "10001"
KIT = "/var/lib/silofl/kit"
# What nobody in the container may change: its own root, policies, key, images.
FIXED = ("/", f"{KIT}/local", f"{KIT}/startup", "/var/lib/silofl/data")


def find_obstacle(base: str) -> str:
    """Return why no hospital can run in a container here; empty where one can."""
    if shutil.which("podman") is None:
        return "podman is not installed"
    if subprocess.run(["podman", "image", "exists", base], capture_output=True).returncode:
        return f"podman has no image {base}: pull it, or name another one by --base"
    return ""


def read_commands() -> list[str]:
    """Return the page's commands: build the image, run the container, check the site in it."""
    page = (REPOSITORY / "docs" / "hospital-it.md").read_text(encoding="utf-8")
    return page.partition(HEADING)[2].split("```")[1].replace("\\\n", "").strip().splitlines()


def wait_for_silence(kit: Kit) -> None:
    """Wait until the server hears a hospital no more: for a minute, it lets no other machine take its name."""

    def is_silent() -> bool:
        return not (ask_machines(kit) or {}).get(kit.name, {}).get("first")

    wait_until(f"{kit.name} to be heard no more", is_silent)


class Container:
    """A copy of a hospital's kit in a container on this machine's network, where the server is at localhost.

    Use as a context once it is built: entering it starts the site, leaving it removes the container.

    Args:
        stage: The network.
        name: The hospital.
        studies: Whose images it has.
    """

    def __init__(self, stage: Stage, name: str, studies: Sequence[str]) -> None:
        self._stage, self._name, self._studies, folder = stage, name, studies, stage.out / "container"
        self.kit, self.images, self.state = folder / "kit", folder / "images", folder / "state"
        self.box = f"silofl-{stage.port}-{name}"
        self._words = {
            "docker": "podman",
            "python:3.11-slim@sha256:DIGEST": stage.base,
            "CPU_INDEX=CPU_INDEX": 'CPU_INDEX="$PIP_EXTRA_INDEX_URL"',
            f"silofl:{__version__}": "localhost/silofl-week",
            "--name north": f"--network host --name {self.box}",
            "exec north": f"exec {self.box}",
            "IMAGES": shlex.quote(str(self.images)),
            "STATE": shlex.quote(str(self.state)),
        }
        self._commands = [*map(self.fill_in, read_commands())]

    def build(self) -> None:
        """Make what the page asks for, and build the image of the kit."""
        self._fill_folders()
        self._carry_out(self._commands[0])

    def __enter__(self) -> Container:
        """Start the site."""
        try:
            self._start(self._commands[1])
        except BaseException:
            # Python does not call __exit__ where __enter__ fails.
            self.__exit__()
            raise
        return self

    def __exit__(self, *reason: object) -> None:
        """Remove the container, and give its files back to this account."""
        subprocess.run(["podman", "rm", "--force", self.box], capture_output=True)
        self._as_root("chown", "-R", "0", self.kit, self.state)

    def come_back(self) -> None:
        """Stop the container while its site works, and start it again."""
        self._carry_out(f"podman stop {self.box}")
        self._start(f"podman start {self.box}")

    def check(self) -> None:
        """Check the site in its container, what its account may do there, and that nobody there can change a policy."""
        found = json.loads(self._carry_out(f"{self._commands[2]} --json"))
        require_that(found["may_join"], f"site check of {self._name} in its container must say that it may join")
        status = self._inside("cat /proc/self/status")
        for line in (f"Uid:\t{ACCOUNT}\t", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1"):
            require_that(line in status, f"a process in the container must have {line!r} in its status, not {status!r}")
        written = self._inside(
            f"for place in {' '.join(FIXED)}; do touch $place/x 2> /dev/null && echo $place; done; true"
        )
        require_that(not written, f"nothing must be writable in the container at {written.split()}")

    def pause(self, study: str) -> None:
        """Pause a study, as the hospital's IT outside the container."""
        self._as_root("sed", "-i", f"s/^paused: .*/paused: [{study}]/", self.kit / "local" / "site.yaml")

    def find_record(self, study: str, name: str) -> Path:
        """Return a copy of a file that the site keeps of a study's run."""
        target = self._stage.out / "container" / name
        (record,) = self._as_root("find", self.state / study, "-name", name).split()
        target.write_text(self._as_root("cat", record), encoding="utf-8")
        return target

    def _fill_folders(self) -> None:
        """Copy kit and images, which the account of the container owns or reads; the kit gets its first policies."""
        shutil.copytree(self._stage.kit(self._name).folder, self.kit)
        (wheel,) = self.kit.glob("*.whl")
        study = study_file(self._stage.out / "jobs" / self._studies[0])
        self._stage.provisioning("fill-kits", self.kit, "--wheel", wheel, "--policies", "--study", study)
        for one in self._studies:
            shutil.copytree(self._stage.data / self._name, self.images / one)
        self.state.mkdir()
        self._as_root("chmod", "-R", "a+rX", self.images)
        self._as_root("chown", "-R", ACCOUNT, self.kit, self.state)

    def fill_in(self, command: str) -> str:
        """Return a command of the page as Podman takes it here."""
        return re.sub("|".join(map(re.escape, self._words)), lambda word: self._words[word[0]], command)

    def _start(self, command: str) -> None:
        """Start the container, and wait until the server has registered the site."""
        before = self._count_registrations()
        self._carry_out(command)
        wait_until(f"{self._name} to register from its container", lambda: self._count_registrations() > before)

    def _count_registrations(self) -> int:
        done = subprocess.run(["podman", "logs", self.box], capture_output=True, text=True)
        return (done.stdout + done.stderr).count(REGISTERED)

    def _inside(self, script: str) -> str:
        return self._carry_out(f"podman exec {self.box} bash -c {shlex.quote(script)}")

    def _carry_out(self, command: str) -> str:
        return self._stage.carry_out(["bash", "-c", command], cwd=self.kit)

    def _as_root(self, *words: object) -> str:
        """Carry out a command as root, or as who is root for rootless Podman."""
        prefix = [] if os.geteuid() == 0 else ["podman", "unshare"]
        return self._stage.carry_out([*prefix, *map(str, words)])
