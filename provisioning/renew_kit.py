"""Renew the certificate of one kit under the same root; no other kit is touched.

    python -m provisioning renew-kit WORKSPACE NAME

The key stays, so that only the certificate travels, and it is no secret: it replaces one file at the site.
"""

import argparse
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import NameOID
from nvflare.lighter.impl.cert import DEFAULT_CERT_VALID_DAYS
from nvflare.lighter.utils import Identity, generate_cert, load_private_key, serialize_cert

from provisioning.provisioner import replace_certificate
from provisioning.workspace import certificates_file, kits_folder, project_folder
from silofl.base.errors import ConfigError, ExitCode
from silofl.base.files import read_json, write_atomically
from silofl.flare.kit import Kit, hosts, read_kit, subject


def make_renewed_certificate(kit: Kit, root_key: str, now: datetime) -> x509.Certificate:
    """Return a new certificate for the kit's key, valid from now and at most as long as the root's.

    Args:
        kit: The kit, whose certificate has name, organisation and role.
        root_key: The root's private key, as PEM.
        now: The first moment at which it is valid.

    Raises:
        ConfigError: The root has expired.
    """
    end = kit.root.not_valid_after_utc
    if end <= now:
        raise ConfigError(f"the root certificate must be valid, not expired on {end:%Y-%m-%d}; make new kits for all")
    names = hosts(kit.certificate)
    return generate_cert(
        Identity(kit.name, kit.org, kit.role),
        Identity(subject(kit.root, NameOID.COMMON_NAME)),
        load_private_key(root_key),
        kit.certificate.public_key(),
        server_default_host=names[0],
        server_additional_hosts=names[1:],
        not_valid_before=now,
        not_valid_after=min(end, now + timedelta(days=DEFAULT_CERT_VALID_DAYS)),
    )


def renew(project: Path, name: str) -> Kit:
    """Write a kit's renewed certificate into the kit and NVFlare's record.

    Raises:
        ConfigError: The kit is not there, or the root has expired.
    """
    kit = read_kit(kits_folder(project) / name)
    record = read_json(certificates_file(project))
    now = datetime.now(UTC)
    certificate = serialize_cert(make_renewed_certificate(kit, record["root_pri_key"], now))
    replace_certificate(project, kit.name, certificate.decode("ascii"))
    write_atomically(kit.certificate_path, lambda stream: stream.write(certificate))
    return read_kit(kit.folder)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``renew-kit``."""
    parser.add_argument("workspace", type=Path, metavar="WORKSPACE", help="that make-kits wrote")
    parser.add_argument("name", metavar="NAME", help="of the kit, as north")


def run(options: argparse.Namespace) -> int:
    """Renew the certificate of one kit."""
    kit = renew(project_folder(options.workspace), options.name)
    print(f"{kit.kind} {kit.name}: valid to {kit.certificate.not_valid_after_utc:%Y-%m-%d}")
    path = kit.certificate_path
    print(f"hand out {path}; it replaces startup/{path.name}, then restart")
    return ExitCode.COMPLETE
