"""NVFlare's provisioner, run in a temporary folder, so that an interruption leaves the workspace unchanged."""

import copy
import io
import json
import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import rsa
from nvflare.lighter.constants import CtxKey
from nvflare.lighter.impl.cert import CertBuilder
from nvflare.lighter.prov_utils import prepare_builders
from nvflare.lighter.provision import prepare_project
from nvflare.lighter.provisioner import Provisioner
from nvflare.lighter.utils import Identity, generate_cert, serialize_cert, serialize_pri_key

from provisioning.workspace import certificates_file, kits_folder, write_yaml
from silofl.base.errors import ConfigError
from silofl.base.files import read_json
from silofl.base.settings import read_yaml

# A project.yml in NVFlare's own form: name, participants, builders.
Project = dict[str, Any]
# The root's RSA key lasts ten years. NVFlare makes all keys of 2048 bits, which its cipher of
# messages needs of all but the root's.
ROOT_BITS = 3072


@contextmanager
def provision_project(workspace: Path, project: Project, state: Path | None = None) -> Iterator[Path]:
    """Provision a project in a temporary folder, from which the caller moves it to its place.

    Args:
        workspace: The folder of the projects; the new one is on the same disk, readable by its owner only.
        state: The certificates of an earlier provisioning, all of which are used again.

    Yields:
        The new project's folder, with project.yml, state/ and the kits; what is left in it is deleted afterwards.

    Raises:
        ConfigError: NVFlare refuses the project.
    """
    workspace.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=workspace, prefix=".provisioning-") as root:
        folder = Path(root) / str(project.get("name"))
        certificates_file(folder).parent.mkdir(parents=True, mode=0o700)
        if state:
            shutil.copy(state, certificates_file(folder))
        _provision(Path(root), project)
        # NVFlare leaves the root's private key readable by everybody.
        certificates_file(folder).chmod(0o600)
        write_yaml(folder / "project.yml", project)
        yield folder


def _provision(root: Path, project: Project) -> None:
    # NVFlare changes what it is given, so that it gets a copy.
    project = copy.deepcopy(project)
    record = certificates_file(root / str(project.get("name")))
    try:
        builders = prepare_builders(project)
        for builder in builders:
            # A root that is on record is used again: all kits have its certificate.
            if isinstance(builder, CertBuilder) and not record.exists():
                root_pair = _make_root(project["name"], builder.root_valid_days)
                record.write_text(json.dumps(root_pair), encoding="utf-8")
        provisioner = Provisioner(str(root), builders)
        # NVFlare prints the traceback of what it then reports.
        with redirect_stderr(io.StringIO()):
            context = provisioner.provision(prepare_project(project), logger=logging.getLogger("provisioning"))
    except (ValueError, TypeError, KeyError, RuntimeError, ImportError) as error:
        raise ConfigError(
            f"project.yml must be one that NVFlare can provision; {' '.join(str(error).split())}"
        ) from None
    if context.get(CtxKey.BUILD_ERROR):
        raise ConfigError(f"project.yml must be one that NVFlare can provision; {' '.join(context[CtxKey.ERRORS])}")


def _make_root(name: str, days: int) -> dict[str, str]:
    """Return certificate and private key of a new root, as they are in NVFlare's record."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=ROOT_BITS)
    certificate = generate_cert(Identity(name), Identity(name), key, key.public_key(), valid_days=days, ca=True)
    return {
        "root_cert": serialize_cert(certificate).decode("ascii"),
        "root_pri_key": serialize_pri_key(key).decode("ascii"),
    }


def add_participants(project: Path, participants: list[dict[str, Any]]) -> list[Path]:
    """Make kits for further participants; the other kits stay as they are.

    Returns:
        The new kits' folders.

    Raises:
        ConfigError: A kit of that name exists, or NVFlare refuses a participant.
    """
    names = [participant["name"] for participant in participants]
    taken = [name for name in names if (kits_folder(project) / name).exists()]
    if taken:
        raise ConfigError(f"participant {taken[0]!r} must be new in {project}; choose another name")
    settings = read_yaml(project / "project.yml")
    kept = [participant for participant in settings["participants"] if participant["name"] not in names]
    settings["participants"] = kept + participants
    with provision_project(project.parent, settings, certificates_file(project)) as new:
        # The kits come last: an interrupted call can be repeated, because only a kit makes a name taken.
        certificates_file(new).replace(certificates_file(project))
        (new / "project.yml").replace(project / "project.yml")
        return [(kits_folder(new) / name).rename(kits_folder(project) / name) for name in names]


def forget_participant(project: Path, name: str) -> None:
    """Take a participant off the project and off NVFlare's record of keys, so that the name can be given anew."""
    settings = read_yaml(project / "project.yml")
    kept = [participant for participant in settings["participants"] if participant["name"] != name]
    settings["participants"] = kept
    record = read_json(certificates_file(project))
    record.pop(name, None)
    _write_record(project, record)
    write_yaml(project / "project.yml", settings)


def replace_certificate(project: Path, name: str, certificate: str) -> None:
    """Put a renewed certificate on NVFlare's record, so that a later provisioning uses it."""
    record = read_json(certificates_file(project))
    record[name]["cert"] = certificate
    _write_record(project, record)


def _write_record(project: Path, record: dict[str, Any]) -> None:
    # The root's private key is in it: no other account may read it, not for a moment.
    new = certificates_file(project).with_suffix(".new")
    new.unlink(missing_ok=True)
    new.touch(mode=0o600)
    new.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    new.replace(certificates_file(project))
