"""Turn a kit into what Docker starts with a container of its own for each job, with ``nvflare deploy prepare``.

    python -m provisioning prepare-containers KIT OUT --docker-socket --image IMAGE [--data FOLDER --state FOLDER]

A kit runs in one container, or one pod, as it is: its ``system/`` has what is needed. Here the process that talks to
the network starts further containers, for which it needs the machine's Docker socket. What the site decided stays: the
studies that it takes part in, its pins.
"""

import argparse
import copy
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvflare.tool.deploy.deploy_common import WORKSPACE_MOUNT_PATH

from provisioning.workspace import write_yaml
from silofl.base.errors import ConfigError, ExitCode
from silofl.base.files import read_json, write_json
from silofl.base.settings import load_settings, read_yaml
from silofl.flare.kit import WHOSE, Kit, read_kit
from silofl.setup.site import Site

# NVFlare mounts a data set of a study at /data/<study>/<data set>, and jobs that name no study belong to this one.
MOUNTS = "/data/default"
IMAGES = f"{MOUNTS}/images/{{study}}"
LAUNCHER = "docker_launcher"


@dataclass(frozen=True)
class Container:
    """The container in which a kit runs.

    Attributes:
        image: Of the machine's process and of its jobs; holds NVFlare, SiloFL and the package ``docker``.
        data: The folder of a hospital's images, mounted read-only.
        state: The folder in which a hospital's own state is kept.
    """

    image: str
    data: str | None = None
    state: str | None = None


def prepare_kit(kit: Kit, out: Path, container: Container) -> None:
    """Write the prepared copy of a kit; the kit itself stays as it is.

    Raises:
        ConfigError: NVFlare refuses it, its site.yaml is wrong, or a hospital's data or state is missing.
    """
    if kit.kind == "admin":
        raise ConfigError(
            f"{kit.folder} must be the kit of a server or a hospital, not of {WHOSE[kit.kind]}; run it as it is"
        )
    if kit.kind == "hospital" and not (container.data and container.state):
        raise ConfigError(f"hospital {kit.name!r} must have data and state in its container; give --data and --state")
    with tempfile.TemporaryDirectory() as scratch:
        copied = read_kit(Path(shutil.copytree(kit.folder, Path(scratch) / kit.folder.name)))
        _put_settings(copied, container)
        settings = {"runtime": "docker", "parent": {"docker_image": container.image}, "job_launcher": {}}
        write_yaml(Path(scratch) / "container.yaml", settings)
        module = ["-m", "nvflare.cli", "deploy", "prepare"]
        command = [sys.executable, *module, str(copied.folder), "--config", f"{scratch}/container.yaml"]
        done = subprocess.run([*command, "--output", str(out.resolve())], capture_output=True, text=True)
    if done.returncode:
        reason = " ".join((done.stderr or done.stdout).split())
        raise ConfigError(f"{kit.folder} must be a kit that NVFlare can prepare; {reason}")
    _put_launcher(out / "local" / "resources.json.default")
    for key in (out / "startup").glob("*.key"):
        # NVFlare leaves its copies readable by everybody.
        key.chmod(0o600)


def _put_launcher(path: Path) -> None:
    # SiloFL's launcher takes no image that a job names.
    resources = read_json(path)
    for part in resources["components"]:
        if part["id"] == LAUNCHER:
            part["path"] = f"silofl.flare.launchers.{part['path'].rpartition('.')[2]}"
    write_json(path, resources)


def _put_settings(kit: Kit, container: Container) -> None:
    """Keep the kit's policies through the preparation, and point its settings to folders in the container."""
    local = kit.folder / "local"
    # NVFlare starts from the default and deletes the site's own file, with its class allow list.
    if (local / "resources.json").is_file():
        shutil.copyfile(local / "resources.json", local / "resources.json.default")
    study: dict[str, Any] = {"container": {"image": container.image}}
    if kit.kind == "hospital":
        study["datasets"] = {
            "images": {"source": container.data, "mode": "ro"},
            "state": {"source": container.state, "mode": "rw"},
        }
        load_settings(Site, local / "site.yaml")
        write_yaml(local / "site.yaml", _move_folders(read_yaml(local / "site.yaml")))
    else:
        changed = {"run_dir": f"{WORKSPACE_MOUNT_PATH}/runs/{{study}}/{{run}}"}
        write_yaml(local / "server.yaml", read_yaml(local / "server.yaml") | changed)
    write_yaml(local / "study_runtime.yaml", {"format_version": 2, "studies": {"default": study}})


def _move_folders(settings: dict[str, Any]) -> dict[str, Any]:
    moved = copy.deepcopy(settings)
    # Without one of its own, a site's cache is beside its state.
    moved.pop("cache_dir", None)
    moved["state_dir"] = f"{MOUNTS}/state/{{study}}"
    # A site that names folders by study takes part in these only, as before.
    moved["data"] = dict.fromkeys(moved["data"], IMAGES) if isinstance(moved["data"], dict) else IMAGES
    for pin in (moved.get("studies") or {}).values():
        # A pin without a folder has that of `data`, which is the same now.
        if pin.get("data"):
            pin["data"] = IMAGES
    return moved


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``prepare-containers``."""
    parser.add_argument("kit", type=Path, metavar="KIT", help="folder of a server's or a hospital's kit")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder for the prepared copy")
    socket = "hand this machine's Docker socket to the process that talks to the network, which is root here by it"
    parser.add_argument("--docker-socket", action="store_true", help=socket)
    image = "with NVFlare, SiloFL and the package docker; system/Dockerfile of a kit makes one without the last"
    parser.add_argument("--image", required=True, help=image)
    parser.add_argument("--data", metavar="FOLDER", help="a hospital's images: a folder for each study, called like it")
    parser.add_argument("--state", metavar="FOLDER", help="of a hospital's own state")


def run(options: argparse.Namespace) -> int:
    """Write the prepared copy of one kit."""
    if not options.docker_socket:
        raise ConfigError(
            "--docker-socket must be given, by which the process that talks to the network is root on this machine; "
            f"{options.kit / 'system' / 'Dockerfile'} makes one container for it and its jobs, which needs no socket"
        )
    kit = read_kit(options.kit)
    prepare_kit(kit, options.out, Container(options.image, options.data, options.state))
    if not re.search("@sha256:[0-9a-f]{64}$", options.image):
        print(f"warning: {options.image} must end in @sha256:DIGEST to name the same image tomorrow; it does not")
    print(f"start with: {options.out / 'startup' / 'start_docker.sh'}")
    return ExitCode.COMPLETE
