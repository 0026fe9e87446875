"""Who is let in: one machine for each kit, a second one is refused while the first is heard; none that is blocked.

NVFlare 2.9 lets the newest connection of a name displace the one before, and drops the older registration with it: a
copy of a hospital's kit puts the true one out, without a line in its log. Here the server keeps the first. A
process that was cut off comes back at once, by the number that it draws at its start; so does one whose kit is that of
a process that has ended. Anybody else waits until the first was silent for a minute.
"""

import asyncio
import hashlib
import logging
import os
import secrets
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

from aiohttp import ClientSession, ClientTimeout, web
from nvflare.fuel.f3.connection import BytesAlike
from nvflare.fuel.f3.drivers import aio_http_driver
from nvflare.fuel.f3.drivers.aio_http_driver import WS_PATH
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.sfm.conn_manager import ConnManager, Mode
from nvflare.fuel.f3.sfm.constants import HandshakeKeys, Types
from nvflare.fuel.f3.sfm.prefix import Prefix
from nvflare.fuel.f3.sfm.sfm_conn import SfmConnection

from silofl.base.errors import ConfigError, ExitCode
from silofl.flare.blocked import BlockList
from silofl.flare.kit import Kit
from silofl.flare.nvflare_patches import replace_connections, replace_driver
from silofl.flare.proxy import describe_proxy

# Six of the heartbeats that a site sends.
HEARD_S = 60.0
# What a handshake says besides what NVFlare's does: who connects; in its answer, that it was refused, or its
# certificate is blocked. And the question of `ask_machines`, which connects nobody.
PROCESS, PLACE, REFUSED, BLOCKED = "silofl.process", "silofl.place", "silofl.refused", "silofl.blocked"
ASK, ANSWER = "silofl.ask", "silofl.answer"
IS_BLOCKED = "the server has blocked the certificate of this kit and does not let %s in; ask the study lead"
# Of a message, where NVFlare sends large ones in parts of 1 MiB; by a blocked certificate, whose handshake is read.
MOST_BYTES, MOST_BYTES_BLOCKED = 1 << 26, 1 << 16
# A refused machine ends by itself before; one with older software would stay.
CLOSE_S = 5.0
ANSWER_S = 5.0
_NUMBER = secrets.token_hex(16)

logger = logging.getLogger(__name__)


def find_place(kit: Path) -> str:
    """Return a digest by which a server knows a kit's folder again, in a container too, and a copy of it from it."""
    with suppress(OSError):
        certificate = (kit / "startup" / "rootCA.pem").stat()
        return hashlib.sha256(f"{certificate.st_ino} {certificate.st_ctime_ns}".encode()).hexdigest()
    return ""


@dataclass(frozen=True)
class _Machine:
    """Who connects: the number of its process, its place, and its line to this one."""

    process: str | None
    place: str | None
    line: SfmConnection

    @property
    def address(self) -> str:
        """Its address without the port, as it is seen from here."""
        address = self.line.conn.get_conn_properties().get(DriverParams.PEER_ADDR.value, "an unknown address")
        return str(address).rpartition(":")[0] or str(address)


class OneMachine(ConnManager):
    """NVFlare's manager of connections, which refuses blocked certificates, and a second machine under a name."""

    def __init__(self, local_endpoint: Endpoint, *options: object) -> None:
        super().__init__(local_endpoint, *options)
        local_endpoint.properties |= {PROCESS: _NUMBER, PLACE: find_place(Path.cwd())}
        self._machines: dict[str, _Machine] = {}
        # Name -> the address that was refused last, and when.
        self._refused: dict[str, tuple[str, float]] = {}
        self._turned_away: WeakSet[SfmConnection] = WeakSet()
        self._deciding = threading.Lock()
        self._blocked = BlockList(Path.cwd())

    def process_frame_task(self, sfm_conn: SfmConnection, frame: BytesAlike) -> None:
        """Take a frame, unless it comes by a blocked certificate, whose line is closed."""
        is_listener = sfm_conn.conn.connector.mode == Mode.PASSIVE
        serial = find_serial(getattr(sfm_conn.conn, "websocket", None)) if is_listener else None
        try:
            name = self._blocked.find(serial) if serial else None
        except ConfigError:
            # Nobody is let in, nor sent away for good: the list may be half written.
            return
        if name is None:
            super().process_frame_task(sfm_conn, frame)
        elif sfm_conn not in self._turned_away:
            self._turned_away.add(sfm_conn)
            logger.warning("%s was refused: certificate %s is blocked", name, serial)
            self._reply(sfm_conn, BLOCKED, name)

    def update_endpoint(self, sfm_conn: SfmConnection, data: dict[str, Any]) -> None:
        """Take a handshake, or refuse it; a process that is refused ends here."""
        name = data.get(HandshakeKeys.ENDPOINT_NAME, "")
        is_listener = sfm_conn.conn.connector.mode == Mode.PASSIVE
        if not is_listener and REFUSED in data:
            end_refused(self.local_endpoint.name, data[REFUSED])
        if not is_listener and BLOCKED in data:
            end_blocked(self.local_endpoint.name)
        owner = sfm_conn.conn.get_conn_properties().get(DriverParams.PEER_CN.value)
        if is_listener and owner and ASK in data:
            self._reply(sfm_conn, ANSWER, self._describe(owner, data.get(PLACE)))
            return
        # The processes of a site's jobs have names below its own. Without certificates a name proves nothing.
        if is_listener and name.rpartition(".")[2] == owner:
            new = _Machine(data.get(PROCESS), data.get(PLACE), sfm_conn)
            holder = self._decide(name, new)
            if holder is not None:
                logger.warning("%s at %s was refused: it is connected from %s", name, new.address, holder.address)
                self._reply(sfm_conn, REFUSED, holder.address)
                return
        super().update_endpoint(sfm_conn, data)

    def _decide(self, name: str, new: _Machine) -> _Machine | None:
        """Let a machine in, or return the one that has its name."""
        with self._deciding:
            holder = self._machines.get(name, new)
            if holder.process == new.process or not self._is_heard(holder, new.place):
                self._machines[name] = new
                return None
            self._refused[name] = (new.address, time.time())
            return holder

    def _is_heard(self, machine: _Machine, place: str | None) -> bool:
        """Return whether a machine still has its name, when one at some place asks for it."""
        is_connected = machine.line.get_name() in self.sfm_conns
        is_recent = time.time() - machine.line.last_activity < HEARD_S
        return is_recent and (is_connected or machine.place != place)

    def _describe(self, owner: str, place: str | None) -> dict[str, dict[str, Any]]:
        """Return the machines that are connected and refused, of all sites for a person, of itself for a site."""
        machines: dict[str, dict[str, Any]] = {}
        with self._deciding:
            for name, machine in self._machines.items():
                site = name.rpartition(".")[2]
                if site == owner or "@" in owner:
                    second, at = self._refused.get(name, (None, 0.0))
                    is_heard = self._is_heard(machine, None)
                    state = {"first": machine.address if is_heard else None, "is_here": machine.place == place}
                    machines[site] = state | {"second": second, "seconds": time.time() - at}
        return machines

    def _reply(self, line: SfmConnection, key: str, value: object) -> None:
        line.send_dict(Types.READY, 1, {HandshakeKeys.ENDPOINT_NAME: self.local_endpoint.name, key: value})
        timer = threading.Timer(CLOSE_S, line.conn.close)
        timer.daemon = True
        timer.start()


class Listener(aio_http_driver.AioHttpDriver):
    """NVFlare's driver of kits, which takes no compressed message and no very long one.

    NVFlare's own (fuel/f3/drivers/aio_http_driver.py) takes messages of 2 GiB, to which 2 MB unpack before it is known
    whose they are.
    """

    def __init__(self) -> None:
        super().__init__()
        self._blocked = BlockList(Path.cwd())

    async def _websocket_handler(self, request: web.Request) -> web.StreamResponse:
        try:
            name = self._blocked.find(find_serial(request))
        except ConfigError:
            raise web.HTTPServiceUnavailable from None
        most = MOST_BYTES if name is None else MOST_BYTES_BLOCKED
        line = web.WebSocketResponse(max_msg_size=most, compress=False)
        await line.prepare(request)
        await self._connection_handler(line)
        return line


def refuse_second_machines() -> None:
    """Have this process's connections, from the next cell on, be those of one machine for each name."""
    replace_connections(OneMachine)
    replace_driver(Listener)


def find_serial(line: web.Request | web.WebSocketResponse | None) -> str | None:
    """Return the serial number of the certificate by which somebody has connected; None where the driver has none."""
    shown = line.get_extra_info("peercert") if line is not None else None
    return shown["serialNumber"].lstrip("0") if shown else None


def end_blocked(name: str) -> None:
    """End this process, whose certificate the server has blocked."""
    logger.error(IS_BLOCKED, name)
    os._exit(ExitCode.FAILED)


def end_refused(name: str, address: str) -> None:
    """End this process, which the server has refused because it hears another one under the name."""
    logger.error(
        "%s runs on another machine too: the server hears it from %s; stop it there or delete this "
        "copy of the kit (after a crash of this machine, start again in a minute)",
        *(name, address),
    )
    # NVFlare would try to connect for ever, in threads of its own.
    os._exit(ExitCode.FAILED)


def ask_machines(kit: Kit) -> dict[str, dict[str, Any]] | None:
    """Ask the server which machines are connected and were refused: of this site, or of all for a person's kit.

    Returns:
        Site -> ``first``, the address from which it is heard, or None; ``is_here``, whether by this kit on this
        machine; ``second``, the address that was refused last, or None; ``seconds`` since then. None where it is not
        said, as by older software.

    Raises:
        ConfigError: The kit's certificate is blocked.
        OSError: It cannot be reached; so aiohttp's ClientError.
    """
    if (kit.address.scheme, kit.address.security) != ("http", "mtls"):
        return None
    frames: list[bytes] = []
    # Older software takes it for the process of a job.
    asking = Endpoint(f"{kit.name}.ask", {ASK: True, PLACE: find_place(kit.folder)})
    SfmConnection(SimpleNamespace(name=asking.name, send_frame=frames.append), asking).send_handshake(Types.HELLO)
    return asyncio.run(_exchange(kit, frames[0]))


async def _exchange(kit: Kit, question: bytes) -> dict[str, dict[str, Any]] | None:
    url = f"wss://{kit.address.host}:{kit.address.port}/{WS_PATH}"
    limit = ClientTimeout(total=None, connect=ANSWER_S)
    way = describe_proxy(kit.folder)
    async with ClientSession(timeout=limit) as session, session.ws_connect(url, ssl=kit.tls(), **way) as line:
        await line.send_bytes(question)
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                # The first frame is NVFlare's own answer.
                async for frame in line:
                    payload = ConnManager.get_dict_payload(Prefix.from_bytes(frame.data), frame.data)
                    if BLOCKED in payload:
                        raise ConfigError(IS_BLOCKED % kit.name)
                    if ANSWER in payload:
                        answer: dict[str, dict[str, Any]] = payload[ANSWER]
                        return answer
    return None
