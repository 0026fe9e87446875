"""Checks of the connection to the server: name, port, certificates, TLS, clock, and NVFlare's preflight check."""

from __future__ import annotations

import errno
import socket
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from silofl.flare.kit import DAYS_TO_WARN, Kit
from silofl.hospital.candidate import Candidate
from silofl.hospital.finding import Finding, failed, ok, warning

TIMEOUT_S = 5
CLOCK_WARNING_S, CLOCK_FAILURE_S = 30, 300
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


def certificate(candidate: Candidate) -> Finding:
    """Check that the kit's key and certificate are a pair, and how long its certificates are valid."""
    try:
        candidate.kit.tls()
    except OSError as error:
        # An error of ssl has a reason, one of the system has strerror.
        reason = getattr(error, "reason", None) or error.strerror
        return failed(f"the kit's key and certificate must be a whole pair, not broken ({reason}); ask for a new kit")
    return validity(candidate.kit.valid_until, datetime.now(UTC))


def validity(until: datetime, now: datetime) -> Finding:
    """Judge the days until a certificate expires."""
    days = (until - now).days
    facts = {"days_left": days, "valid_until": until.isoformat()}
    if until < now:
        return failed(
            f"the kit's certificates must hold today; they ended on {until:%Y-%m-%d}: ask for a new kit", **facts
        )
    if days < DAYS_TO_WARN:
        return warning(
            f"the kit's certificates must hold {DAYS_TO_WARN} days or more, not {days}; ask for a new kit", **facts
        )
    return ok(f"the kit's certificates hold for {days} more days, until {until:%Y-%m-%d}", **facts)


def server(candidate: Candidate) -> Finding:
    """Check that the server's name can be resolved and that its port is open."""
    host, port = candidate.kit.address.host, candidate.kit.address.port
    try:
        socket.getaddrinfo(host, port)
    except OSError:
        return failed(f"the server's name {host} must be known to this network; it is not: add it to DNS or /etc/hosts")
    try:
        socket.create_connection((host, port), TIMEOUT_S).close()
    except OSError as error:
        reason = error.strerror or "no answer in time"
        return failed(
            f"the server {host}:{port} must be reachable, not {reason!r}; open this way out in the firewall, or ask "
            "the study lead whether it runs"
        )
    return ok(f"the server {host}:{port} is reachable", host=host, port=port)


def tls(candidate: Candidate) -> Finding:
    """Check that site and server accept each other's certificate."""
    address = candidate.kit.address
    if address.security == "clear":
        return warning(
            "connection_security must be 'mtls', not 'clear': models travel unprotected; ask for another kit"
        )
    try:
        found = shake_hands(candidate.kit)
    except ssl.SSLCertVerificationError as error:
        return failed(
            f"the server's certificate must be signed by the kit's root; {error.verify_message}: call the lead"
        )
    except OSError as error:
        reason = getattr(error, "reason", None) or error.strerror or "no answer in time"
        return failed(
            f"the server must accept the kit's certificate, not answer {reason!r}; ask for a kit of the same project"
        )
    if found.server != address.identity:
        return failed(
            f"the server must be {address.identity!r}, not {found.server!r}, as its certificate says: call the lead"
        )
    return ok(f"site and {found.server!r} accept each other over {found.protocol}", protocol=found.protocol)


def clock(candidate: Candidate) -> Finding:
    """Compare this machine's clock with the server's, or else with the certificates' validity."""
    now = datetime.now(UTC)
    try:
        date = shake_hands(candidate.kit).date if candidate.kit.address.security != "clear" else None
    except OSError:
        date = None
    if date is not None:
        return agreement((datetime.now(UTC) - date).total_seconds())
    if not candidate.kit.valid_from <= now <= candidate.kit.valid_until:
        return failed(f"the clock must lie within the certificates' validity, not at {now:%Y-%m-%d %H:%M} UTC; set it")
    return ok("the clock lies within the certificates' validity; the server tells no time to compare it with")


def agreement(seconds: float) -> Finding:
    """Judge a difference to the server's clock.

    Args:
        seconds: How far this machine's clock is ahead.
    """
    facts = {"seconds_ahead": round(seconds)}
    if abs(seconds) < CLOCK_WARNING_S:
        return ok(f"the clock agrees with the server's within {CLOCK_WARNING_S} seconds", **facts)
    sentence = f"the clock must agree with the server's, not be {seconds:+.0f} seconds off; set it by NTP"
    return failed(sentence, **facts) if abs(seconds) > CLOCK_FAILURE_S else warning(sentence, **facts)


def preflight(candidate: Candidate) -> Finding:
    """Run NVFlare's preflight checks."""
    problems = candidate.kit.preflight()
    for name, problem in problems.items():
        if problem is not None:
            return failed(f"NVFlare's check {name!r} must pass, not say {problem}")
    return ok(f"NVFlare's own check passes: {', '.join(problems)}")


def shake_hands(kit: Kit) -> Handshake:
    """Shake hands with the server over TLS and wait for an answer to a first request.

    Raises:
        OSError: One side refuses the other, or the server is not there.
    """
    context, address = kit.tls(), kit.address
    if address.scheme == "grpc":
        context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((address.host, address.port), TIMEOUT_S) as line,
        context.wrap_socket(line, server_hostname=address.host) as secured,
    ):
        names = dict(pair for part in secured.getpeercert()["subject"] for pair in part)
        protocol = str(secured.version())
        # In TLS 1.3 the handshake ends here before the server has checked the site's certificate: only its answer to
        # a request shows that it accepts it.
        secured.sendall(GREETINGS.get(address.scheme, b"").replace(b"%s", address.host.encode()))
        return Handshake(names.get("commonName", ""), protocol, _date(_answer(secured)))


def _answer(secured: ssl.SSLSocket) -> bytes:
    """Return the first bytes of the server's answer; none where it stays silent, since a refusal comes at once.

    Raises:
        OSError: The server refuses, or hangs up.
    """
    try:
        answer = secured.recv(4096)
    except TimeoutError:
        return b""
    if not answer:
        raise ConnectionResetError(errno.ECONNRESET, "the line was closed without an answer")
    return answer


def _date(answer: bytes) -> datetime | None:
    for line in answer.decode("latin-1").splitlines():
        if line.lower().startswith("date:"):
            try:
                return parsedate_to_datetime(line[5:].strip()).astimezone(UTC)
            except ValueError:
                return None
    return None
