"""Checks of the connection to the server: name, port, certificates and TLS."""

import errno
import ssl
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from aiohttp import ClientError
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from silofl.flare.kit import DAYS_TO_WARN, Kit
from silofl.flare.one_machine import ask_machines
from silofl.flare.proxy import ProxyError, open_line, read_proxy
from silofl_hospital.site.candidate import Candidate, Participant
from silofl_hospital.site.finding import Finding, expect, failed, ok, warning
from silofl_hospital.site.machine import FIREWALL

TIMEOUT_S = 5
RENEW = "ask for the kit to be renewed (renew-kit)"
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
    """

    server: str
    protocol: str


def check_certificate(candidate: Participant) -> Finding:
    """Check that the kit's key and certificate are a pair, and how long its certificates are valid."""
    try:
        # Loading both into one context compares the key with the certificate.
        candidate.kit.tls()
    except OSError as error:
        # An error of ssl has a reason, one of the system has strerror.
        reason = getattr(error, "reason", None) or error.strerror
        return failed(f"the kit's key and certificate are no whole pair ({reason}); ask for a new kit")
    if candidate.kit.is_key_exposed:
        return failed(
            f"other accounts can read startup/{candidate.kit.key_path.name}, and take part in this one's place; chmod "
            f"600 {candidate.kit.key_path}"
        )
    kit = candidate.kit
    now = datetime.now(UTC)
    return judge_validity((kit.valid_from, kit.valid_until), now)


def judge_validity(validity: tuple[datetime, datetime], now: datetime) -> Finding:
    """Judge the days until the first of the kit's certificates expires.

    Args:
        validity: When the last of them becomes valid, and when the first of them expires.
        now: The time at which they must be valid.
    """
    what = "the kit's certificates"
    since, until = validity
    days = (until - now).days
    facts: dict[str, Any] = {"days_left": days, "valid_from": since.isoformat(), "valid_until": until.isoformat()}
    if now < since:
        return failed(
            f"{what} hold from {since:%Y-%m-%d %H:%M} UTC on, and it is {now:%Y-%m-%d %H:%M} by this machine's clock; "
            f"set the clock by NTP where it is wrong, or {RENEW}",
            **facts,
        )
    if until < now:
        return failed(f"{what} ended on {until:%Y-%m-%d}; {RENEW}", **facts)
    return expect(
        days >= DAYS_TO_WARN,
        f"{what}: valid for {days} more days, until {until:%Y-%m-%d}",
        f"{what} hold for {days} days, fewer than {DAYS_TO_WARN}, until {until:%Y-%m-%d}; {RENEW}",
        is_serious=False,
        **facts,
    )


def check_server(candidate: Candidate) -> Finding:
    """Check that the server's port is open, through the site's proxy where it has one."""
    host = candidate.kit.address.host
    port = candidate.kit.address.port
    proxy = read_proxy(candidate.kit.folder)
    try:
        open_line(candidate.kit, TIMEOUT_S).close()
    except ProxyError as error:
        return failed(
            f"the proxy {error.filename} does not let this machine connect to {host}:{port}, and answers "
            f"{error.strerror!r}; ask the network people to allow CONNECT there (for 407: write "
            "http://USER:PASSWORD@HOST:PORT), or the study lead whether the server runs"
        )
    except OSError as error:
        # A proxy looks the server's name up itself.
        target = f"the server {host}:{port}" if proxy is None else f"the proxy {proxy.address}"
        return failed(
            f"{target} cannot be reached ({error.strerror or 'no answer in time'}). Correct its name or address, open "
            f"the way to it in the firewall (after a change: systemctl restart {FIREWALL}), or ask the study lead "
            "whether the server runs. A proxy is named in local/site.yaml, as proxy: http://HOST:PORT"
        )
    through = "" if proxy is None else f" through the proxy {proxy.address}"
    return ok(f"the server {host}:{port} is reachable{through}", host=host, port=port)


def check_tls(candidate: Candidate) -> Finding:
    """Check that site and server accept each other's certificate."""
    address = candidate.kit.address
    if address.security == "clear":
        return warning(
            "connection_security must be 'mtls', not 'clear': models travel unprotected; ask for another kit"
        )
    try:
        handshake = shake_hands(candidate.kit)
    except ssl.SSLCertVerificationError as error:
        stranger = _foreign_issuer(candidate.kit)
        if stranger is None:
            return failed(
                f"the kit's root does not confirm the server's certificate ({error.verify_message}); call the lead"
            )
        return failed(
            f"the server's certificate is signed by {stranger!r} instead of the kit's root: something between here and "
            "the server answers in its place, as TLS inspection does; ask the network people to exempt "
            f"{address.host}:{address.port} from it. Where nothing inspects, it is another network's server: call the "
            "lead",
            issuer=stranger,
        )
    except OSError as error:
        reason = getattr(error, "reason", None) or error.strerror or "no answer in time"
        return failed(
            f"the server refuses the kit's certificate, and answers {reason!r}; ask for a kit of the same project"
        )
    return expect(
        handshake.server == address.identity,
        f"site and {handshake.server!r} accept each other over {handshake.protocol}",
        f"the server is {handshake.server!r} by its certificate, and {address.identity!r} by the kit; call the lead",
        protocol=handshake.protocol,
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
    context = kit.tls()
    host = host or kit.address.host
    # The certificate is only looked at: it may be that of whoever stands in between.
    context.verify_mode = ssl.CERT_NONE
    with (
        open_line(kit, TIMEOUT_S, host) as line,
        context.wrap_socket(line, server_hostname=host) as secured,
    ):
        return secured.getpeercert(binary_form=True) or b""


def check_one_machine(candidate: Candidate) -> Finding:
    """Check that no other machine is connected, or has tried to be, with a copy of this kit."""
    name = candidate.kit.name
    answer = None
    # Other checks say whether the server is there.
    with suppress(OSError, ClientError):
        answer = ask_machines(candidate.kit)
    if answer is None:
        return ok("the server does not say which machines are connected, as one with older software")
    machines = answer.get(name, {})
    heard = machines.get("first")
    second = machines.get("second")
    if heard and not machines["is_here"]:
        return failed(
            f"{name} runs on another machine too, {heard}, from which the server hears it; stop it there or delete "
            "this copy of the kit",
            first=heard,
        )
    if second:
        return warning(
            f"{name} runs on a second machine at {second} too, which the server refused {machines['seconds'] / 60:.0f} "
            "minutes ago; stop it there, or tell the study lead if it is not yours",
            second=second,
        )
    return ok(f"no other machine is connected as {name}")


def shake_hands(kit: Kit) -> Handshake:
    """Shake hands with the server over TLS and wait for an answer to a first request.

    Raises:
        OSError: One side refuses the other, or the server is not there.
    """
    context = kit.tls()
    address = kit.address
    if address.scheme == "grpc":
        context.set_alpn_protocols(["h2"])
    with (
        open_line(kit, TIMEOUT_S) as line,
        context.wrap_socket(line, server_hostname=address.host) as secured,
    ):
        certificate: dict[str, Any] = secured.getpeercert() or {}
        names: dict[str, str] = {}
        for part in certificate["subject"]:
            names.update(part)
        protocol = str(secured.version())
        # In TLS 1.3 the handshake ends here before the server has checked the site's certificate: only its answer to
        # a request shows that it accepts it.
        secured.sendall(GREETINGS.get(address.scheme, b"").replace(b"%s", address.host.encode()))
        _await_reply(secured)
        return Handshake(names.get("commonName", ""), protocol)


def _await_reply(secured: ssl.SSLSocket) -> None:
    # Where the server stays silent all is well, since a refusal comes at once.
    with suppress(TimeoutError):
        if not secured.recv(4096):
            raise ConnectionResetError(errno.ECONNRESET, "the line was closed without an answer")
