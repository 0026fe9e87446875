"""Checks of the connection to the server: name, port, certificates, TLS, clock and line."""

import errno
import os
import ssl
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from aiohttp import ClientError
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from silofl.flare.kit import DAYS_TO_WARN, Address, Kit
from silofl.flare.one_machine import ask_machines
from silofl.flare.proxy import ProxyError, open_line, read_proxy
from silofl_hospital.site.candidate import Candidate, Participant
from silofl_hospital.site.finding import Finding, expect, failed, ok, warning
from silofl_hospital.site.machine import FIREWALL

TIMEOUT_S = 5
RENEW = "ask for the kit to be renewed (renew-kit)"
# From best to worst.
STATUSES = ("ok", "warning", "failed")
CLOCK_WARNING_S, CLOCK_FAILURE_S = 30, 300
# Programs look for a proxy under these names; a site at none of them.
PROXIES = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
# Scheme -> bytes that make such a server answer: a request for a page, or HTTP/2's connection preface.
GREETINGS = {
    "http": b"GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n",
    "grpc": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
}


@dataclass(frozen=True)
class Handshake:
    """What a TLS handshake with the server shows.

    Attributes:
        server: The name in the server's certificate; empty without TLS.
        protocol: TLS version.
        date: The server's clock; None where its answer has no date.
    """

    server: str
    protocol: str
    date: datetime | None


def check_certificate(candidate: Participant) -> Finding:
    """Check that the kit's key and certificate are a pair, and how long its certificates and the server's are valid."""
    try:
        candidate.kit.tls()
    except OSError as error:
        # An error of ssl has a reason, one of the system has strerror.
        reason = getattr(error, "reason", None) or error.strerror
        return failed(f"the kit's key and certificate must be a whole pair, not broken ({reason}); ask for a new kit")
    if candidate.kit.is_key_exposed:
        return failed(
            f"startup/{candidate.kit.key_path.name} must be readable by its owner only, since whoever reads it can "
            f"take part in its place; other accounts can: chmod 600 {candidate.kit.key_path}"
        )
    kit, now = candidate.kit, datetime.now(UTC)
    own = judge_validity("the kit's certificates", RENEW, (kit.valid_from, kit.valid_until), now)
    server = _judge_server(kit, now)
    if server is None:
        return own
    worst = max(own, server, key=lambda answer: STATUSES.index(answer.status))
    return replace(worst, facts=own.facts | {f"server_{name}": value for name, value in server.facts.items()})


def judge_validity(what: str, remedy: str, validity: tuple[datetime, datetime], now: datetime) -> Finding:
    """Judge the days until the first of some certificates expires.

    Args:
        what: Words for the certificates.
        remedy: What to do where they do not hold, or not for long.
        validity: When the last of them becomes valid, and when the first of them expires.
        now: The time at which they must be valid.
    """
    since, until = validity
    days = (until - now).days
    facts: dict[str, Any] = {"days_left": days, "valid_from": since.isoformat(), "valid_until": until.isoformat()}
    if now < since:
        return failed(
            f"{what} must hold now, not be valid from {since:%Y-%m-%d %H:%M} UTC on, when it is {now:%Y-%m-%d %H:%M} "
            f"by this machine's clock; set the clock by NTP where it is wrong, or {remedy}",
            **facts,
        )
    if until < now:
        return failed(f"{what} must hold today, not have ended on {until:%Y-%m-%d}; {remedy}", **facts)
    return expect(
        days >= DAYS_TO_WARN,
        f"{what}: valid for {days} more days, until {until:%Y-%m-%d}",
        f"{what} must hold {DAYS_TO_WARN} days or more, not {days}, until {until:%Y-%m-%d}; {remedy}",
        is_serious=False,
        **facts,
    )


def _judge_server(kit: Kit, now: datetime) -> Finding | None:
    """Judge the certificate at the server's address; None where none of this network's is shown."""
    if kit.address.security == "clear":
        return None
    try:
        shown = x509.load_der_x509_certificate(fetch_certificate(kit))
        shown.verify_directly_issued_by(kit.root)
    except (OSError, ValueError, TypeError, InvalidSignature):
        # Why there is none is for the checks of server and TLS.
        return None
    validity = (shown.not_valid_before_utc, shown.not_valid_after_utc)
    return judge_validity("the server's certificate", "tell the study lead, as every site stops with it", validity, now)


def check_server(candidate: Candidate) -> Finding:
    """Check that the server's port is open, through the site's proxy where it has one."""
    host, port = candidate.kit.address.host, candidate.kit.address.port
    proxy = read_proxy(candidate.kit.folder)
    try:
        open_line(candidate.kit, TIMEOUT_S).close()
    except ProxyError as error:
        return failed(
            f"the proxy {error.filename} must let this machine connect to {host}:{port}, not answer "
            f"{error.strerror!r}; ask the network people to allow CONNECT there (for 407: write "
            "http://USER:PASSWORD@HOST:PORT), or the study lead whether the server runs"
        )
    except OSError as error:
        # A proxy looks the server's name up itself.
        target = f"the server {host}:{port}" if proxy is None else f"the proxy {proxy.address}"
        return failed(
            f"{target} cannot be reached ({error.strerror or 'no answer in time'}). Correct its name or address, open "
            f"the way to it in the firewall (after a change: systemctl restart {FIREWALL}), or ask the study lead "
            f"whether the server runs{_proxy_advice(candidate.kit.address)}"
        )
    through = "" if proxy is None else f" through the proxy {proxy.address}"
    return ok(f"the server {host}:{port} is reachable{through}", host=host, port=port)


def _proxy_advice(address: Address) -> str:
    """Return what to do where the environment names a proxy, which a site does not read; empty where it names none."""
    name = next((name for name in PROXIES if os.environ.get(name)), None)
    # gRPC's own driver does use the proxy.
    if name is None or address.scheme == "grpc":
        return ""
    return (
        f". {name} is set, but a site does not read it: name the proxy in local/site.yaml, as proxy: http://HOST:PORT"
    )


def check_tls(candidate: Candidate) -> Finding:
    """Check that site and server accept each other's certificate."""
    address = candidate.kit.address
    if address.security == "clear":
        return warning(
            "connection_security must be 'mtls', not 'clear': models travel unprotected; ask for another kit"
        )
    try:
        found = shake_hands(candidate.kit)
    except ssl.SSLCertVerificationError as error:
        stranger = _foreign_issuer(candidate.kit)
        if stranger is None:
            return failed(
                f"the server's certificate must be signed by the kit's root; {error.verify_message}: call the lead"
            )
        return failed(
            f"the server's certificate must be signed by the kit's root, not by {stranger!r}: something between here "
            "and the server answers in its place, as TLS inspection does; ask the network people to exempt "
            f"{address.host}:{address.port} from it. Where nothing inspects, it is another network's server: call the "
            "lead",
            issuer=stranger,
        )
    except OSError as error:
        reason = getattr(error, "reason", None) or error.strerror or "no answer in time"
        return failed(
            f"the server must accept the kit's certificate, not answer {reason!r}; ask for a kit of the same project"
        )
    return expect(
        found.server == address.identity,
        f"site and {found.server!r} accept each other over {found.protocol}",
        f"the server must be {address.identity!r}, not {found.server!r}, as its certificate says: call the lead",
        protocol=found.protocol,
    )


def _foreign_issuer(kit: Kit) -> str | None:
    """Return who issued the certificate at the server's address; None where the kit's root did, or none is shown."""
    try:
        shown = x509.load_der_x509_certificate(fetch_certificate(kit))
    except (OSError, ValueError):
        return None
    issuer = shown.issuer.rfc4514_string()
    try:
        shown.verify_directly_issued_by(kit.root)
    except (InvalidSignature, ValueError, TypeError):
        # Another network's root may have the name of this one.
        return f"{issuer}, another root of this name" if shown.issuer == kit.root.subject else issuer
    return None


def fetch_certificate(kit: Kit, host: str = "") -> bytes:
    """Return the certificate that is shown at the server's address, trusted or not; nothing is sent to its owner.

    Args:
        host: In place of the address's own.

    Returns:
        In DER; nothing where none is shown.

    Raises:
        OSError: Nothing answers there, or not by TLS.
    """
    context, host = kit.tls(), host or kit.address.host
    context.verify_mode = ssl.CERT_NONE
    with (
        open_line(kit, TIMEOUT_S, host) as line,
        context.wrap_socket(line, server_hostname=host) as secured,
    ):
        return secured.getpeercert(binary_form=True) or b""


def check_one_machine(candidate: Candidate) -> Finding:
    """Check that no other machine is connected, or has tried to be, with a copy of this kit."""
    name, answer = candidate.kit.name, None
    # Whether the server is there, other checks say.
    with suppress(OSError, ClientError):
        answer = ask_machines(candidate.kit)
    if answer is None:
        return ok("the server does not say which machines are connected, as one with older software")
    found = answer.get(name, {})
    first, second = found.get("first"), found.get("second")
    if first and not found["is_here"]:
        return failed(
            f"{name} must run on one machine, not on this one too: the server hears it from {first}; stop it there or "
            "delete this copy of the kit",
            first=first,
        )
    if second:
        return warning(
            f"{name} must run on one machine, not on a second one at {second}, which the server refused "
            f"{found['seconds'] / 60:.0f} minutes ago; stop it there, or tell the study lead where it is none of yours",
            second=second,
        )
    return ok(f"no other machine is connected as {name}")


def check_clock(candidate: Candidate) -> Finding:
    """Compare this machine's clock with the server's."""
    try:
        date = shake_hands(candidate.kit).date if candidate.kit.address.security != "clear" else None
    except OSError:
        date = None
    if date is None:
        return ok("the server gives no time to compare the clock with")
    return judge_clock((datetime.now(UTC) - date).total_seconds())


def judge_clock(seconds: float) -> Finding:
    """Judge a difference to the server's clock.

    Args:
        seconds: How far this machine's clock is ahead.
    """
    return expect(
        abs(seconds) < CLOCK_WARNING_S,
        f"the clock agrees with the server's within {CLOCK_WARNING_S} seconds",
        f"the clock must agree with the server's, not be {seconds:+.0f} seconds off; set it by NTP",
        is_serious=abs(seconds) > CLOCK_FAILURE_S,
        seconds_ahead=round(seconds),
    )


def shake_hands(kit: Kit) -> Handshake:
    """Shake hands with the server over TLS and wait for an answer to a first request.

    Raises:
        OSError: One side refuses the other, or the server is not there.
    """
    context, address = kit.tls(), kit.address
    if address.scheme == "grpc":
        context.set_alpn_protocols(["h2"])
    with (
        open_line(kit, TIMEOUT_S) as line,
        context.wrap_socket(line, server_hostname=address.host) as secured,
    ):
        certificate: dict[str, Any] = secured.getpeercert() or {}
        names = dict(pair for part in certificate["subject"] for pair in part)
        protocol = str(secured.version())
        # In TLS 1.3 the handshake ends here before the server has checked the site's certificate: only its answer to
        # a request shows that it accepts it.
        secured.sendall(GREETINGS.get(address.scheme, b"").replace(b"%s", address.host.encode()))
        return Handshake(names.get("commonName", ""), protocol, _read_date(_receive_reply(secured)))


def _receive_reply(secured: ssl.SSLSocket) -> bytes:
    """Return the first bytes of the server's answer; none where it stays silent, since a refusal comes at once."""
    try:
        answer = secured.recv(4096)
    except TimeoutError:
        return b""
    if not answer:
        raise ConnectionResetError(errno.ECONNRESET, "the line was closed without an answer")
    return answer


def _read_date(answer: bytes) -> datetime | None:
    for line in answer.decode("latin-1").splitlines():
        if line.lower().startswith("date:"):
            try:
                return parsedate_to_datetime(line[5:].strip()).astimezone(UTC)
            except ValueError:
                return None
    return None
