"""NVFlare's startup kits: their owner, certificates and policies, and the address of their server."""

import os
import ssl
import stat
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, get_args

from cryptography import x509
from cryptography.x509.oid import NameOID

from silofl.base.errors import ConfigError
from silofl.base.files import read_json

Kind = Literal["server", "hospital", "admin"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# Kind of kit -> the file in startup/ that only this kind has.
SETTINGS: dict[Kind, str] = {"server": "fed_server.json", "hospital": "fed_client.json", "admin": "fed_admin.json"}
WHOSE: dict[Kind, str] = {"server": "the server", "hospital": "a hospital", "admin": "a person"}
# A certificate with fewer days left is reported: renewing a kit involves two institutions.
DAYS_TO_WARN = 30
REMEDY = "give the folder that was provisioned"


@dataclass(frozen=True)
class Address:
    """Where a participant connects to the server, and where the server itself listens.

    Attributes:
        host: Its host.
        port: Its one port.
        scheme: ``http``, ``grpc`` or ``tcp``.
        security: ``mtls``, ``tls`` or ``clear``.
        identity: The name in its certificate.
    """

    host: str
    port: int
    scheme: str
    security: str
    identity: str


@dataclass(frozen=True)
class Kit:
    """The startup kit of one participant, as read from its folder.

    Attributes:
        folder: Holds ``startup/`` and ``local/``.
        kind: ``server``, ``hospital``, or ``admin`` for a person.
        certificate: The participant's certificate.
        root: The certificate of the root that the participant trusts.
        address: Where the server is.
        requires_signed_jobs: Whether a job without a signature is refused.
    """

    folder: Path
    kind: Kind
    certificate: x509.Certificate
    root: x509.Certificate
    address: Address
    requires_signed_jobs: bool

    @property
    def name(self) -> str:
        """The participant's name."""
        return subject(self.certificate, NameOID.COMMON_NAME)

    @property
    def org(self) -> str:
        """The participant's organisation."""
        return subject(self.certificate, NameOID.ORGANIZATION_NAME)

    @property
    def role(self) -> str:
        """The role of a person; for a machine its kind, or nothing."""
        return subject(self.certificate, NameOID.UNSTRUCTURED_NAME)

    @property
    def certificate_path(self) -> Path:
        """Where the participant's certificate is."""
        return _certificate_path(self.folder, self.kind)

    @property
    def key_path(self) -> Path:
        """Where the participant's private key is."""
        return self.certificate_path.with_suffix(".key")

    @property
    def is_key_exposed(self) -> bool:
        """Whether other accounts of the machine may read, write or run the private key."""
        return is_exposed(self.key_path)

    @property
    def valid_from(self) -> datetime:
        """When the last of the participant's and the root's certificates becomes valid."""
        return max(self.root.not_valid_before_utc, self.certificate.not_valid_before_utc)

    @property
    def valid_until(self) -> datetime:
        """When the first of these certificates expires."""
        return min(self.root.not_valid_after_utc, self.certificate.not_valid_after_utc)

    @property
    def ends_with_root(self) -> bool:
        """Whether it is the root that expires first, under which no certificate can be renewed beyond."""
        return self.valid_until == self.root.not_valid_after_utc

    def local(self, name: str) -> tuple[str, dict[str, Any]]:
        """Return the name and content of a policy in ``local/``, or of the default that NVFlare reads in its absence.

        Raises:
            ConfigError: Neither is there, or it is no JSON object.
        """
        for present in (name, f"{name}.default"):
            path = self.folder / "local" / present
            if path.is_file():
                return present, read_json(path)
        raise ConfigError(f"{self.folder} has neither local/{name} nor its default; {REMEDY}")

    def tls(self) -> ssl.SSLContext:
        """Return the TLS settings that NVFlare uses: only the project's root is trusted, the host name is not checked.

        Raises:
            OSError: The kit's key or certificate is missing, broken, or not of one pair.
        """
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(self.folder / "startup/rootCA.pem"))
        context.check_hostname = False
        # Python 3.13 asks certificates for extensions that NVFlare's own connections do without.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if self.address.security == "mtls":
            context.load_cert_chain(self.certificate_path, self.key_path)
        return context


def read_kit(folder: Path, kinds: tuple[Kind, ...] = KINDS) -> Kit:
    """Read a startup kit.

    Args:
        folder: Holds ``startup/`` and ``local/``.
        kinds: The kinds that the kit may be of.

    Raises:
        ConfigError: The folder is no such kit, or a part of it is broken.
    """
    for party in kinds:
        path = folder / "startup" / SETTINGS[party]
        if path.is_file():
            return _read_kit(folder, party, read_json(path))
    for party in KINDS:
        if (folder / "startup" / SETTINGS[party]).is_file():
            wanted = " or ".join(map(WHOSE.__getitem__, kinds))
            raise ConfigError(f"{folder} must be the kit of {wanted}, not of {WHOSE[party]}; take another")
    if folder.name == "startup" and any((folder / name).is_file() for name in SETTINGS.values()):
        raise ConfigError(f"{folder} must be a kit, not the startup folder in it; name {folder.parent}")
    names = " or ".join(map(SETTINGS.__getitem__, kinds))
    raise ConfigError(f"{folder / 'startup'} has no {names}; {REMEDY}")


def _read_kit(folder: Path, kind: Kind, settings: dict[str, Any]) -> Kit:
    certificate = read_certificate(_certificate_path(folder, kind))
    root = read_certificate(folder / "startup" / "rootCA.pem")
    try:
        address = _read_address(kind, settings, certificate)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, x509.ExtensionNotFound):
        raise ConfigError(f"{SETTINGS[kind]} names no server as host:port; {REMEDY}") from None
    return Kit(folder, kind, certificate, root, address, settings.get("require_signed_jobs") is True)


def _read_address(kind: Kind, settings: dict[str, Any], certificate: x509.Certificate) -> Address:
    if kind == "admin":
        admin = settings["admin"]
        return Address(
            host=admin["host"],
            port=int(admin["port"]),
            scheme=admin.get("scheme", "grpc"),
            security=admin.get("connection_security", "mtls"),
            identity=admin.get("server_identity", admin["host"]),
        )
    server = settings["servers"][0]
    host, port = server["service"]["target"].rsplit(":", 1)
    security = (server if kind == "server" else settings["client"]).get("connection_security", "mtls")
    identity = server.get("identity", host)
    if kind == "server":
        # NVFlare writes the server's name as its own target, not its address.
        identity = subject(certificate, NameOID.COMMON_NAME)
        host = hosts(certificate)[0]
    return Address(host, int(port), server["service"].get("scheme", "grpc"), security, identity)


def is_exposed(key: Path) -> bool:
    """Return whether other accounts of the machine may read, write or run a private key."""
    if not key.is_file():
        return False
    status = key.stat()
    # Kubernetes lends a secret to an account by a group of its own, to be read.
    is_lent = status.st_uid != os.geteuid() and status.st_gid in os.getgroups()
    return bool(status.st_mode & (stat.S_IRWXG | stat.S_IRWXO) & ~(stat.S_IRGRP if is_lent else 0))


def read_certificate(path: Path) -> x509.Certificate:
    """Read a certificate.

    Raises:
        ConfigError: The file is missing or no certificate.
    """
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except FileNotFoundError:
        raise ConfigError(f"{path} is missing; {REMEDY}") from None
    except ValueError:
        raise ConfigError(f"{path} holds no certificate; ask the study lead to renew it") from None


def subject(certificate: x509.Certificate, attribute: x509.ObjectIdentifier) -> str:
    """Return one attribute of a certificate's subject, empty where it has none."""
    values = certificate.subject.get_attributes_for_oid(attribute)
    return str(values[0].value) if values else ""


def hosts(certificate: x509.Certificate) -> list[str]:
    """Return the host names and addresses for which a certificate is valid."""
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def _certificate_path(folder: Path, kind: Kind) -> Path:
    return folder / "startup" / ("server.crt" if kind == "server" else "client.crt")
