"""A site's startup kit, as ``nvflare provision`` writes it: who the site is, and where its server is."""

from __future__ import annotations

import json
import ssl
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from nvflare.lighter.utils import cert_to_dict, load_crt
from nvflare.tool.package_checker.check_rule import CHECK_PASSED
from nvflare.tool.package_checker.client_package_checker import ClientPackageChecker

from silofl.errors import ConfigError

# Of validity that is left.
DAYS_TO_WARN = 30
REMEDY = "give the folder that nvflare provision wrote for the site"


@dataclass(frozen=True)
class Kit:
    """A site's startup kit.

    Attributes:
        folder: The kit.
        site: The site's name, as its certificate says it.
        host: The server's name.
        port: The server's port.
        scheme: ``http``, ``grpc`` or ``tcp``.
        security: ``mtls``, ``tls`` or ``clear``.
        server: The name in the server's certificate.
        valid_from: When the site's and the root's certificate have both begun to hold.
        valid_until: When the first of them ends.
    """

    folder: Path
    site: str
    host: str
    port: int
    scheme: str
    security: str
    server: str
    valid_from: datetime
    valid_until: datetime

    def local(self, name: str) -> tuple[str, dict[str, Any]]:
        """Return the name and content of a file of ``local/``, or of the default that stands in for it.

        Raises:
            ConfigError: Neither is there, or it is no JSON object.
        """
        for found in (name, f"{name}.default"):
            path = self.folder / "local" / found
            if path.is_file():
                return found, _read(path)
        raise ConfigError(f"the kit must have local/{name} or its default; neither is there: {REMEDY}")

    def tls(self) -> ssl.SSLContext:
        """Return how NVFlare itself speaks to the server: the project's root alone is trusted, the name is not asked.

        Raises:
            OSError: The kit's key or certificate is missing, broken, or not of one pair.
        """
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(self.folder / "startup/rootCA.pem"))
        context.check_hostname = False
        if self.security == "mtls":
            context.load_cert_chain(self.folder / "startup/client.crt", self.folder / "startup/client.key")
        return context

    def preflight(self) -> dict[str, str | None]:
        """Return NVFlare's own preflight checks by name, each with the problem that it found and the remedy, or None.

        Its trial start is left out: it would end a client that already runs.
        """
        checker = ClientPackageChecker()
        checker.init(str(self.folder))
        results = {rule.name: rule(checker.package_path, data=None) for rule in checker.rules}
        return {
            name: None if result.problem == CHECK_PASSED else f"{result.problem!r}; {result.solution}"
            for name, result in results.items()
        }


def read_kit(folder: Path) -> Kit:
    """Read a site's startup kit.

    Raises:
        ConfigError: The folder is no kit of a site, or a part of it is broken.
    """
    config = _read(folder / "startup" / "fed_client.json")
    own, root = (_certificate(folder / "startup" / name) for name in ("client.crt", "rootCA.pem"))
    try:
        server, client = config["servers"][0], config["client"]
        service = server["service"]
        host, port = service["target"].rsplit(":", 1)
        return Kit(
            folder,
            cert_to_dict(own)["subject"]["commonName"],
            host,
            int(port),
            service.get("scheme", "grpc"),
            client.get("connection_security", "mtls"),
            server.get("identity", host),
            max(own.not_valid_before_utc, root.not_valid_before_utc),
            min(own.not_valid_after_utc, root.not_valid_after_utc),
        )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        raise ConfigError(f"fed_client.json must name a server as host:port; it does not: {REMEDY}") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} must exist; it is not there: {REMEDY}") from None
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold a JSON object; it does not: {REMEDY}")
    return content


def _certificate(path: Path) -> Any:  # noqa: ANN401 - an x509.Certificate of NVFlare's own dependency
    try:
        return load_crt(path)
    except FileNotFoundError:
        raise ConfigError(f"{path} must exist; it is not there: {REMEDY}") from None
    except ValueError:
        raise ConfigError(f"{path} must hold a certificate; it does not: {REMEDY}") from None
