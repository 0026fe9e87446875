"""Startup kits on the disk: what kind a folder is, whose it is, and where a workspace keeps its own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from cryptography.x509.oid import NameOID

from silofl.errors import ConfigError

REPOSITORY = Path(__file__).resolve().parents[1]
# The file in a kit's startup/ that says what the kit is -> the kind of kit.
KINDS = {"fed_server.json": "server", "fed_client.json": "hospital", "fed_admin.json": "admin"}


@dataclass(frozen=True)
class Kit:
    """The folder of one participant.

    Attributes:
        folder: Holds ``startup/`` and ``local/``.
        kind: ``server``, ``hospital`` or ``admin``.
    """

    folder: Path
    kind: str

    @property
    def certificate_path(self) -> Path:
        """Return the place of the participant's certificate."""
        return self.folder / "startup" / ("server.crt" if self.kind == "server" else "client.crt")

    @property
    def key_path(self) -> Path:
        """Return the place of the participant's private key."""
        return self.certificate_path.with_suffix(".key")

    @cached_property
    def certificate(self) -> x509.Certificate:
        """Read the participant's certificate."""
        return _certificate(self.certificate_path)

    @cached_property
    def root(self) -> x509.Certificate:
        """Read the certificate of the root that the kit trusts."""
        return _certificate(self.folder / "startup" / "rootCA.pem")

    @cached_property
    def startup(self) -> dict[str, Any]:
        """Read NVFlare's settings of the participant."""
        name = next(name for name, kind in KINDS.items() if kind == self.kind)
        return read_json(self.folder / "startup" / name)

    @property
    def name(self) -> str:
        """Return the participant's name, as its certificate says."""
        return subject_of(self.certificate, NameOID.COMMON_NAME)

    @property
    def org(self) -> str:
        """Return the participant's organisation, as its certificate says."""
        return subject_of(self.certificate, NameOID.ORGANIZATION_NAME)

    @property
    def role(self) -> str:
        """Return the role that the certificate gives; a machine's says nothing, or what kind of machine it is."""
        return subject_of(self.certificate, NameOID.UNSTRUCTURED_NAME)

    @property
    def hosts(self) -> list[str]:
        """Return the names and addresses for which the certificate is good."""
        names = self.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return [str(name.value) for name in names]

    @property
    def address(self) -> tuple[str, int]:
        """Return host and port of the server that the kit connects to, or listens as."""
        if self.kind == "admin":
            return self.startup["admin"]["host"], self.startup["admin"]["port"]
        host, _, port = self.startup["servers"][0]["service"]["target"].rpartition(":")
        # NVFlare writes the server's name there, not its address.
        return self.hosts[0] if self.kind == "server" else host, int(port)


def read_kit(folder: Path) -> Kit:
    """Recognise the kit in a folder.

    Raises:
        ConfigError: The folder is none.
    """
    for name, kind in KINDS.items():
        if (folder / "startup" / name).is_file():
            return Kit(folder, kind)
    raise ConfigError(f"{folder} must be a startup kit with startup/{{{','.join(KINDS)}}}; name another folder")


def find_kits(path: Path) -> list[Kit]:
    """Return the kits in a folder, itself or all below it: server, hospitals, people, each by place.

    Raises:
        ConfigError: There is none.
    """
    kits = [read_kit(place.parent) for place in sorted(path.rglob("startup")) if place.is_dir()]
    if not kits:
        raise ConfigError(f"{path} must hold at least one startup kit; make them with make_kits.py")
    return sorted(kits, key=lambda kit: list(KINDS.values()).index(kit.kind))


def project_folder(workspace: Path) -> Path:
    """Return the folder of the one project of a workspace, which holds project.yml, state/ and the kits.

    Raises:
        ConfigError: There is none, or more than one.
    """
    found = [place.parent.parent for place in workspace.glob("*/state/cert.json")]
    if len(found) != 1:
        raise ConfigError(f"{workspace} must hold one project, not {len(found)}; name the WORKSPACE of make_kits.py")
    return found[0]


def kits_folder(project: Path) -> Path:
    """Return the folder of a project's kits."""
    return project / "prod_00"


def certificates_file(project: Path) -> Path:
    """Return NVFlare's record of a project's certificates; it also holds the root's private key."""
    return project / "state" / "cert.json"


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds keys and values.

    Raises:
        ConfigError: It cannot be read.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} must be a readable JSON file; {_reason(error)}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold keys and values, not {type(values).__name__}")
    return values


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds keys and values.

    Raises:
        ConfigError: It cannot be read.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} must be a readable YAML file; {_reason(error)}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold keys and values, not {type(values).__name__}")
    return values


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write keys and values as JSON."""
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def write_yaml(path: Path, values: dict[str, Any]) -> None:
    """Write keys and values as YAML, in their order."""
    path.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")


def subject_of(certificate: x509.Certificate, attribute: x509.ObjectIdentifier) -> str:
    """Return one part of whom a certificate is for, or nothing."""
    values = certificate.subject.get_attributes_for_oid(attribute)
    return str(values[0].value) if values else ""


def _certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} must be a readable certificate; {_reason(error)}") from None


def _reason(error: Exception) -> str:
    return " ".join(str(getattr(error, "strerror", None) or error).split())
