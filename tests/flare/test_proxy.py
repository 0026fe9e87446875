"""The way through a hospital's proxy, to servers and proxies on this machine."""

import logging
import socket
import threading
from contextlib import suppress
from types import SimpleNamespace

import pytest
from nvflare.fuel.f3.drivers import aio_http_driver

from silofl.base.errors import ConfigError
from silofl.flare.proxy import ProxyError, open_line, read_proxy, use_proxy

from ..proxy import run_proxy


@pytest.fixture
def site(tmp_path):
    """Write a kit's site.yaml; returns the kit's folder."""
    (tmp_path / "local").mkdir()

    def write(proxy):
        named = f"proxy: {proxy}\n" if proxy else ""
        (tmp_path / "local" / "site.yaml").write_text(f"data: /data\nstate_dir: /state\n{named}")
        return tmp_path

    return write


@pytest.fixture
def server():
    """The address of a server that speaks first, as no proxy may take for its own answer what the server says."""
    listener = socket.create_server(("localhost", 0))

    def greet():
        with suppress(OSError):
            line, _ = listener.accept()
            with line:
                line.sendall(b"\r\n\r\nhello")

    thread = threading.Thread(target=greet, daemon=True)
    thread.start()
    yield SimpleNamespace(host="localhost", port=listener.getsockname()[1])
    # Only shutdown wakes a thread that waits in accept.
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(timeout=10)


def receive_all(line):
    with line:
        return b"".join(iter(lambda: line.recv(64), b""))


def test_line_goes_through_proxy_and_keeps_every_byte(site, server):
    with run_proxy() as (port, heads):
        kit = SimpleNamespace(folder=site(f"http://localhost:{port}"), address=server)
        assert receive_all(open_line(kit, 5)) == b"\r\n\r\nhello"
    target = f"localhost:{server.port}"
    assert heads == [f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n"]


def test_a_line_is_direct_where_no_proxy_is_named(site, server):
    assert receive_all(open_line(SimpleNamespace(folder=site(None), address=server), 5)) == b"\r\n\r\nhello"


def test_the_proxy_gets_the_account_that_it_asks_for(site, server):
    with run_proxy() as (port, heads):
        kit = SimpleNamespace(folder=site(f"http://reader:p%40ss@localhost:{port}"), address=server)
        open_line(kit, 5).close()
    # base64 of reader:p@ss
    assert "\r\nProxy-Authorization: Basic cmVhZGVyOnBAc3M=\r\n" in heads[0]


@pytest.mark.parametrize("status", ["403 Forbidden", "407 Proxy Authentication Required"])
def test_a_proxy_that_lets_nobody_through_is_quoted(site, server, status):
    with run_proxy(status) as (port, _), pytest.raises(ProxyError) as caught:
        open_line(SimpleNamespace(folder=site(f"http://a:secret@localhost:{port}"), address=server), 5)
    assert (caught.value.strerror, caught.value.filename) == (status, f"localhost:{port}")


def test_a_port_that_is_no_proxy_is_told(site, server):
    kit = SimpleNamespace(folder=site(f"http://localhost:{server.port}"), address=server)
    with pytest.raises(ProxyError, match="nothing that is HTTP"):
        open_line(kit, 5)


@pytest.mark.parametrize(
    "named",
    ["proxy:3128", "https://proxy:3128", "http://proxy", "http://a:secret@proxy:0", "http://proxy:70000", "http://:1"],
)
def test_a_proxy_that_is_none_is_refused_without_its_password(site, named):
    with pytest.raises(ConfigError, match="proxy is not in the form http://HOST:PORT or") as caught:
        read_proxy(site(named))
    assert "secret" not in str(caught.value)


def test_site_starts_with_wrong_settings_and_says_so(site, monkeypatch, caplog):
    known = aio_http_driver.AioHttpDriver
    monkeypatch.setattr(aio_http_driver, "AioHttpDriver", known)
    with caplog.at_level(logging.ERROR):
        use_proxy(site("proxy.example.org"))
    assert aio_http_driver.AioHttpDriver is known
    assert "without a proxy; " in caplog.text and "http://HOST:PORT" in caplog.text
