"""Certificates that a server lets in no more, by their serial numbers: of people who left, and of kits that were lost.

NVFlare 2.9 has no such list: whoever has a key whose certificate holds is let in, and a session is made anew from what
the server has signed before. Here the server reads its list again while it runs, at each frame that comes.
"""

import logging
import time
from pathlib import Path
from typing import Any

from cryptography import x509

from silofl.base.errors import ConfigError
from silofl.base.files import read_json

logger = logging.getLogger(__name__)
# In a kit.
FILE = "local/blocked.json"
# How long an answer is good: so much later a certificate that was put on the list is out.
FRESH_S = 1.0


def format_serial(certificate: x509.Certificate) -> str:
    """Return a certificate's serial number as the list has it."""
    return f"{certificate.serial_number:X}"


def read_blocked(path: Path) -> dict[str, str]:
    """Return serial number -> the name in the certificate; nothing where there is no list.

    Raises:
        ConfigError: It is no such list.
    """
    names: dict[str, Any] = read_json(path, absent={})
    if not all(isinstance(name, str) for name in names.values()):
        raise ConfigError(f"{path.name} is not an object of serial numbers and names; take the one of remove-kit")
    return names


class BlockList:
    """The list of this machine, as it is now.

    Args:
        kit: The folder of its kit.
    """

    def __init__(self, kit: Path) -> None:
        self._path = kit / FILE
        self._read_at = -FRESH_S
        self._known: dict[str, str] = {}
        self._fault: ConfigError | None = None

    def find(self, serial: str | None) -> str | None:
        """Return the name for which a serial number is blocked, None for one that is not.

        Raises:
            ConfigError: The list cannot be read: nobody is let in until it can.
        """
        return self._read().get(serial or "")

    def find_signer(self, path: Path) -> str | None:
        """Return the name of who signed with the first certificate of a file, where that is blocked; errors as `find`.

        One that cannot be read is blocked as well, where any is: it could be that one.
        """
        if not self._read():
            return None
        try:
            (signer, *_) = x509.load_pem_x509_certificates(path.read_bytes())
        except ValueError:
            return "a certificate that cannot be read"
        return self.find(format_serial(signer))

    def _read(self) -> dict[str, str]:
        if time.monotonic() - self._read_at >= FRESH_S:
            self._read_at = time.monotonic()
            self._fault = None
            try:
                self._known = read_blocked(self._path)
            except ConfigError as fault:
                logger.error("%s; until then nobody is let in", fault)
                self._fault = fault
        if self._fault:
            raise self._fault
        return self._known
