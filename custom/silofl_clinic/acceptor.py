"""Connections of a DICOM receiver: from known addresses alone, and no message is waited for without end."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from pynetdicom import evt
from pynetdicom.transport import AssociationSocket, ThreadedAssociationServer

# A message before an association may have so many bytes: a request for 128 kinds of images in four codings has 18 KiB.
MOST_BYTES_BEFORE = 1 << 16


class Acceptor(ThreadedAssociationServer):
    """Takes connections from the addresses that a function admits, and ends others at once."""

    def __init__(self, *arguments: Any, admit: Callable[[str], bool], **options: Any) -> None:  # noqa: ANN401
        super().__init__(*arguments, **options)
        self._admit = admit
        self.bind(evt.EVT_CONN_OPEN, _limit_reading)
        self.bind(evt.EVT_CONN_CLOSE, _stop_waiting)

    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        """Return the next connection, and its address.

        Raises:
            ConnectionRefusedError: It is not admitted; socketserver goes on with the next one.
        """
        connection, address = cast(socket.socket, self.socket).accept()
        if not self._admit(address[0]):
            connection.close()
            raise ConnectionRefusedError
        if self.ssl_context:
            # The handshake comes with the first bytes that are read: here all other connections would wait for it.
            connection = self.ssl_context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, address


def _limit_reading(event: evt.Event) -> None:
    # By pynetdicom's types a connection may lack its socket and its timeouts; an open one has them.
    wire: Any = event.assoc.dul.socket
    wire.socket.settimeout(wire.assoc.network_timeout)
    # pynetdicom reads as many bytes as a message states, and waits anew for each of them.
    wire.recv = partial(_read, wire, time.monotonic() + wire.assoc.acse_timeout)


def _read(wire: AssociationSocket, end: float, count: int) -> bytearray:
    """Read the next bytes of a message; fewer if the other side ends the connection.

    Args:
        end: Time of the monotonic clock at which a connection must have an association. Once it has one, each message
            has as many seconds as a network may be silent.

    Raises:
        OSError: They are more than a message may have, or do not come in time.
    """
    association: Any = wire.assoc
    connection = cast(socket.socket, wire.socket)
    most = MOST_BYTES_BEFORE
    # The contexts are set before the other side hears that there is an association.
    if association.accepted_contexts:
        most = association.ae.maximum_pdu_size
        end = time.monotonic() + association.network_timeout
    if count > most:
        raise OSError("a message is too long")
    content = bytearray()
    # The time that is left is set before each piece: a sender of one byte a minute would never run into a timeout.
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
        connection.settimeout(association.network_timeout)
    return content


def _stop_waiting(event: evt.Event) -> None:
    """Free the place of a connection that ended before its request, for which pynetdicom would wait on."""
    if event.assoc.requestor.primitive is None:
        event.assoc.dul.to_user_queue.put(None)
