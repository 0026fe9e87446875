"""A DICOM receiver (C-STORE) for the systems that a clinic names, and no other."""

from __future__ import annotations

import logging
import shutil
import ssl
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from silofl.base.errors import ConfigError, DataError
from silofl_clinic.exams import UNFINISHED, Inbox
from silofl_clinic.settings import Clinic

if TYPE_CHECKING:
    from pynetdicom import AE
    from pynetdicom.events import Event, EventHandlerType

# DICOM's answers to a file.
SUCCESS, NOT_ALLOWED, NO_ROOM, NOT_UNDERSTOOD = 0x0000, 0x0124, 0xA700, 0xC000
# DICOM's name of the question whether a system is there (C-ECHO).
VERIFICATION = "1.2.840.10008.1.1"
MIB, GIB = 1 << 20, 1 << 30
MOST_CALLERS_AT_ONCE = 10
# A connection must have an association within the first, and a silent one is ended after the second.
ASSOCIATION_SECONDS, IDLE_SECONDS = 30, 60
# So many addresses that are not allowed are remembered: each takes memory.
MOST_REFUSALS = 1000


class Receiver:
    """Takes files from allowed callers into an inbox, each on the disk before its sender hears of success.

    Attributes:
        refusals: Caller, or address, and reason -> how many of its files, or connections, were refused.
    """

    def __init__(self, clinic: Clinic, inbox: Inbox) -> None:
        self._clinic = clinic
        self._inbox = inbox
        self.refusals: dict[tuple[str, str], int] = defaultdict(int)
        # By association these are the bytes since its last file.
        self._bytes: dict[object, int] = defaultdict(int)

    @contextmanager
    def listen(self) -> Iterator[int]:
        """Take files until the block ends; yields the port, which the system chooses where the setting is 0.

        Raises:
            ConfigError: The address cannot be listened at, or a certificate cannot be read.
        """
        from pydicom.uid import DeflatedExplicitVRLittleEndian
        from pynetdicom import ALL_TRANSFER_SYNTAXES, AllStoragePresentationContexts, evt
        from pynetdicom.pdu import A_ABORT_RQ, A_RELEASE_RQ

        from silofl_clinic.acceptor import Acceptor

        clinic = self._clinic
        if not clinic.allowed:
            raise ConfigError("callers of clinic.yaml is empty; add who may send, as {CT1: 10.0.0.7}, or the archive")
        entity = make_entity(clinic)
        entity.require_called_aet = True
        entity.require_calling_aet = [*clinic.allowed]
        entity.maximum_associations = MOST_CALLERS_AT_ONCE
        entity.acse_timeout = ASSOCIATION_SECONDS
        # A deflated file of some KiB may fill the memory once it is read; whoever has one can send it otherwise.
        syntaxes = [syntax for syntax in ALL_TRANSFER_SYNTAXES if syntax != DeflatedExplicitVRLittleEndian]
        for context in AllStoragePresentationContexts:
            entity.add_supported_context(str(context.abstract_syntax), syntaxes)
        entity.add_supported_context(VERIFICATION)
        handlers: list[EventHandlerType] = [
            (evt.EVT_C_ECHO, lambda event: SUCCESS if self._is_allowed(event) else NOT_ALLOWED),
            (evt.EVT_C_STORE, self._store),
            (evt.EVT_DATA_RECV, self._count_bytes),
            # Before the connection is closed, unlike EVT_RELEASED, which is of another thread.
            (evt.EVT_PDU_RECV, lambda event: self._finish(event) if isinstance(event.pdu, A_RELEASE_RQ) else None),
            (evt.EVT_PDU_SENT, lambda event: self._end_silent(event) if isinstance(event.pdu, A_ABORT_RQ) else None),
            (evt.EVT_CONN_CLOSE, lambda event: self._bytes.pop(event.assoc, None)),
        ]
        try:
            server = entity.make_server(
                (clinic.address, clinic.port),
                ssl_context=make_tls(clinic, is_server=True),
                evt_handlers=handlers,
                server_class=Acceptor,
                admit=self._admit,
            )
        except OSError as error:
            raise ConfigError(
                f"nothing can listen at {clinic.address}:{clinic.port}: the system said {error.strerror!r}; end the "
                "other program, or change address or port of clinic.yaml"
            ) from None
        # The entity's `shutdown` looks for its servers there.
        entity._servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()

    def _admit(self, address: str) -> bool:
        is_known = address in self._clinic.allowed.values()
        if not is_known and len(self.refusals) < MOST_REFUSALS:
            self.refusals[address, "its address is not in callers"] += 1
        return is_known

    def _is_allowed(self, event: Event) -> bool:
        caller = event.assoc.requestor
        return self._clinic.allowed.get(caller.ae_title.strip()) == caller.address

    def _count_bytes(self, event: Event) -> None:
        """End the connection of a caller whose file grows beyond what a file may have."""
        most = self._clinic.most_mib * MIB
        before = self._bytes[event.assoc]
        self._bytes[event.assoc] += len(event.data)
        # Only where the limit is passed: more may be on its way, and one connection is counted once.
        if before <= most < self._bytes[event.assoc]:
            self.refusals[event.assoc.requestor.ae_title, "too large"] += 1
            event.assoc.abort()

    def _store(self, event: Event) -> int:
        caller = event.assoc.requestor.ae_title
        self._bytes[event.assoc] = 0
        if not self._is_allowed(event):
            self.refusals[caller, "not its address"] += 1
            return NOT_ALLOWED
        if shutil.disk_usage(self._clinic.root).free < self._clinic.keep_free_gib * GIB:
            self.refusals[caller, "disk full"] += 1
            return NO_ROOM
        try:
            # Under the lock no exam is put away between the file and the note that it is unfinished.
            with self._inbox.lock:
                folder = self._inbox.add(event.encoded_dataset())
                self._finish(event)
                (folder / UNFINISHED).touch()
                self._inbox.sending[event.assoc] = folder
        except DataError:
            self.refusals[caller, "no DICOM"] += 1
            return NOT_UNDERSTOOD
        except OSError:
            self.refusals[caller, "disk failed"] += 1
            return NO_ROOM
        return SUCCESS

    def _end_silent(self, event: Event) -> None:
        # Who falls silent between two files has heard that all were taken, and sends none again.
        if event.assoc.dul.idle_timer_expired() and not self._bytes[event.assoc]:
            self._finish(event)

    def _finish(self, event: Event) -> None:
        """Hear that a caller has sent all of an exam: it sends another one, or is about to end the connection."""
        with self._inbox.lock:
            if folder := self._inbox.sending.pop(event.assoc, None):
                (folder / UNFINISHED).unlink(missing_ok=True)


def make_entity(clinic: Clinic) -> AE:
    """Return this side of a DICOM connection, whose library says nothing of patients on the screen."""
    from pynetdicom import AE

    logging.getLogger("pynetdicom").setLevel(logging.CRITICAL)
    entity = AE(ae_title=clinic.ae_title)
    entity.maximum_pdu_size = MIB
    entity.acse_timeout = entity.dimse_timeout = entity.network_timeout = IDLE_SECONDS
    return entity


def make_tls(clinic: Clinic, is_server: bool) -> ssl.SSLContext | None:
    """Return how TLS is spoken: both sides show a certificate; None without it.

    Raises:
        ConfigError: A file cannot be read.
    """
    if clinic.tls is None:
        return None
    # A context is named for the other side.
    purpose = ssl.Purpose.CLIENT_AUTH if is_server else ssl.Purpose.SERVER_AUTH
    try:
        context = ssl.create_default_context(purpose, cafile=clinic.tls.authority)
        context.load_cert_chain(clinic.tls.certificate, clinic.tls.key)
    except OSError as error:
        raise ConfigError(
            f"tls of clinic.yaml does not name three PEM files that belong together: the system said "
            f"{error.strerror or str(error)!r}; correct it"
        ) from None
    # Archives are called by their addresses, which certificates seldom name; the authority is the hospital's own.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
