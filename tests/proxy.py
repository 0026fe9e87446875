"""An HTTP proxy on this machine that knows CONNECT alone, as a hospital has one."""

import socket
import threading
from contextlib import contextmanager, suppress


def _pump(source, target):
    with suppress(OSError):
        while block := source.recv(65536):
            target.sendall(block)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def _serve(client, heads, status, inspector):
    head = b""
    while not head.endswith(b"\r\n\r\n") and (block := client.recv(4096)):
        head += block
    if not head:
        return
    heads.append(head.decode())
    if not status.startswith("2"):
        client.sendall(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())
        return
    host, _, port = head.split()[1].decode().rpartition(":")
    with socket.create_connection(inspector or (host.strip("[]"), int(port))) as server:
        client.sendall(f"HTTP/1.1 {status}\r\nVia: clinic\r\n\r\n".encode())
        back = threading.Thread(target=_pump, args=(server, client), daemon=True)
        back.start()
        _pump(client, server)
        back.join(timeout=10)


def _serve_and_close(client, *options):
    with client, suppress(OSError):
        _serve(client, *options)


@contextmanager
def run_proxy(status="200 Connection established", inspector=None):
    """Yield a proxy's port, and the heads of the requests that it gets.

    Args:
        status: What it answers; nobody is let through where it begins with another digit than 2.
        inspector: Address to which it connects in place of the one that is asked for.
    """
    heads, listener = [], socket.create_server(("localhost", 0))

    def accept():
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=_serve_and_close, args=(client, heads, status, inspector), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1], heads
    finally:
        # Only shutdown wakes the thread that waits in accept.
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(timeout=10)
