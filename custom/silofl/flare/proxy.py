"""The way to the server through a hospital's HTTP proxy, by CONNECT, as ``proxy`` of ``local/site.yaml`` names it.

NVFlare 2.9's driver uses no proxy. Of the line, TLS included, a proxy sees the server's name, sizes and times.
"""

import base64
import errno
import logging
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from aiohttp import ClientSession
from nvflare.fuel.f3.drivers import aio_http_driver
from nvflare.fuel.f3.drivers.connector_info import ConnectorInfo
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.drivers.net_utils import get_ssl_context

from silofl.base.errors import ConfigError
from silofl.base.settings import load_settings
from silofl.flare.kit import Kit
from silofl.flare.nvflare_patches import replace_driver
from silofl.setup.site import Site

# Of a proxy's answer, which has no body, as much is read.
MOST_BYTES = 65536

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Proxy:
    """An HTTP proxy.

    Attributes:
        host: Its host.
        port: Its port.
        headers: What it is told besides the server's name: the account by which it lets this machine through, if any.
    """

    host: str
    port: int
    headers: dict[str, str]

    @property
    def address(self) -> str:
        """Where it is, without the account."""
        return _join(self.host, self.port)


class ProxyError(OSError):
    """A proxy does not let this machine through; ``strerror`` is its answer, ``filename`` its address."""


class ProxiedDriver(aio_http_driver.AioHttpDriver):
    """NVFlare's driver of kits, whose lines go through a proxy; ``options`` are as `describe_proxy` returns them."""

    options: ClassVar[dict[str, Any]] = {}

    def connect(self, connector: ConnectorInfo) -> None:
        """Connect, and handle what comes until the line ends."""
        self.connector = connector
        self.ssl_context = get_ssl_context(connector.params, False)
        self.aio_context.run_coro(self._run_line(connector.params)).result()

    async def _run_line(self, params: dict[str, Any]) -> None:
        scheme = "wss" if self.ssl_context else "ws"
        address = _join(params[DriverParams.HOST.value], int(params[DriverParams.PORT.value]))
        url = f"{scheme}://{address}/{aio_http_driver.WS_PATH}"
        async with (
            ClientSession() as session,
            session.ws_connect(url, ssl=self.ssl_context or True, **self.options) as line,
        ):
            await self._connection_handler(line)


def read_proxy(kit: Path) -> Proxy | None:
    """Return the proxy that a kit's site.yaml names; None where it names none, or there is no site.yaml.

    Raises:
        ConfigError: site.yaml is wrong.
    """
    settings = kit / "local" / "site.yaml"
    named = load_settings(Site, settings).proxy if settings.is_file() else None
    if named is None:
        return None
    url = urlsplit(named)
    headers = {}
    if url.username:
        account = base64.b64encode(f"{unquote(url.username)}:{unquote(url.password or '')}".encode()).decode()
        headers["Proxy-Authorization"] = f"Basic {account}"
    return Proxy(str(url.hostname), int(url.port or 0), headers)


def use_proxy(kit: Path) -> None:
    """Have this process, from its next connection on, reach the server through the proxy of a kit's site.yaml."""
    try:
        options = describe_proxy(kit)
    except ConfigError as error:
        # The site starts, refuses every study, and says why.
        logger.error("the server is reached without a proxy; %s", error)
        return
    if options:
        ProxiedDriver.options = options
        replace_driver(ProxiedDriver)


def describe_proxy(kit: Path) -> dict[str, Any]:
    """Return what aiohttp must know of a kit's proxy to connect; nothing where it has none.

    Raises:
        ConfigError: As `read_proxy`.
    """
    proxy = read_proxy(kit)
    return {"proxy": f"http://{proxy.address}", "proxy_headers": proxy.headers} if proxy else {}


def open_line(kit: Kit, seconds: float, host: str = "") -> socket.socket:
    """Connect to a kit's server, through its proxy where it has one.

    Args:
        seconds: For each step.
        host: In place of the server's own.

    Raises:
        ConfigError: As `read_proxy`.
        ProxyError: The proxy refuses.
        OSError: Nothing answers.
    """
    server = host or kit.address.host
    port = kit.address.port
    proxy = read_proxy(kit.folder)
    if proxy is None:
        return socket.create_connection((server, port), seconds)
    line = socket.create_connection((proxy.host, proxy.port), seconds)
    try:
        target = _join(server, port)
        head = [f"CONNECT {target} HTTP/1.1", *(f"{key}: {value}" for key, value in proxy.headers.items())]
        line.sendall("\r\n".join([*head, f"Host: {target}", "", ""]).encode())
        _, _, status = _receive_head(line).partition(" ")
        if not status.startswith("2"):
            raise ProxyError(errno.EACCES, status or "nothing that is HTTP", proxy.address)
    except OSError:
        line.close()
        raise
    return line


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _receive_head(line: socket.socket) -> str:
    """Return the first line of a proxy's answer; not a byte is taken of what follows its head: that is the server's."""
    head = b""
    while not head.endswith(b"\r\n\r\n") and len(head) < MOST_BYTES and (byte := line.recv(1)):
        head += byte
    return head.split(b"\r\n")[0].decode("latin-1")
