"""Connections of a DICOM receiver: from known addresses alone, and no message is waited for without end."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, cast

from pynetdicom import evt
from pynetdicom.transport import AssociationSocket, ThreadedAssociationServer

# Bytes of a message before an association. A request for 128 kinds of images in four codings each has 18 KiB.
MOST_BYTES_BEFORE = 1 << 16


class Acceptor(ThreadedAssociationServer):
    """Takes connections from some addresses.

    Args:
        addresses: IP addresses; connections from others are ended at once.
        refuse: Called with each other address.
        seconds: Within which a connection must have an association, and within which a message of one must come.
    """

    def __init__(
        self,
        *arguments: Any,  # noqa: ANN401 (pynetdicom's own)
        addresses: Collection[str],
        refuse: Callable[[str], None],
        seconds: tuple[float, float],
        **options: Any,  # noqa: ANN401 (pynetdicom's own)
    ) -> None:
        super().__init__(*arguments, **options)
        self._addresses = addresses
        self._refuse = refuse
        self._seconds = seconds
        self.bind(evt.EVT_CONN_OPEN, self._limit_reading)
        self.bind(evt.EVT_CONN_CLOSE, _stop_waiting)

    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        """Return the next connection, and its address.

        Raises:
            ConnectionRefusedError: It comes from another address; socketserver goes on with the next one.
        """
        connection, address = cast(socket.socket, self.socket).accept()
        if address[0] not in self._addresses:
            connection.close()
            self._refuse(address[0])
            raise ConnectionRefusedError
        if self.ssl_context:
            # The handshake comes with the first bytes that are read: here all other connections would wait for it.
            connection = self.ssl_context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, address

    def _limit_reading(self, event: evt.Event) -> None:
        wire = event.assoc.dul.socket
        seconds_before, seconds = self._seconds
        wire.socket.settimeout(seconds)
        # pynetdicom reads as many bytes as a message states, and waits anew for each of them.
        wire.recv = partial(_read, wire, time.monotonic() + seconds_before, seconds)


def _read(wire: AssociationSocket, end: float, seconds: float, count: int) -> bytearray:
    """Read the next bytes of a message; fewer if the other side ends the connection.

    Args:
        end: Time of the monotonic clock at which a connection must have an association.
        seconds: Seconds within which the bytes must come once there is one.

    Raises:
        OSError: They are more than a message may have, or do not come in time.
    """
    # These are set before the other side hears that there is an association.
    has_association = bool(wire.assoc.accepted_contexts)
    most = wire.assoc.ae.maximum_pdu_size if has_association else MOST_BYTES_BEFORE
    if count > most:
        raise OSError("a message is too long")
    if has_association:
        end = time.monotonic() + seconds
    connection = wire.socket
    content = bytearray()
    try:
        while len(content) < count:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError
            connection.settimeout(left)
            piece = connection.recv(count - len(content))
            if not piece:
                break
            content += piece
    finally:
        connection.settimeout(seconds)
    return content


def _stop_waiting(event: evt.Event) -> None:
    """Free the place of a connection that ended before its request, for which pynetdicom would wait on."""
    if event.assoc.requestor.primitive is None:
        event.assoc.dul.to_user_queue.put(None)
