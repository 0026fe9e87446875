import shutil
import threading
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import WSServerHandshakeError
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from nvflare.fuel.f3.drivers import aio_http_driver
from nvflare.fuel.f3.drivers.connector_info import ConnectorInfo, Mode
from nvflare.lighter.utils import load_private_key

from silofl.base.files import read_json
from silofl.flare.kit import read_certificate
from silofl.flare.proxy import use_proxy
from silofl_hospital.site import network

from ..proxy import run_proxy
from .conftest import change_site


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    """The machine on which tests run may have a proxy of its own."""
    for name in network.PROXIES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def port(candidate):
    return candidate().kit.address.port


def test_site_and_server_of_one_project_accept_each_other(candidate, serve, federation, port):
    with serve(federation, port):
        answers = [check(candidate()) for check in (network.check_server, network.check_tls, network.check_clock)]
    assert [answer.status for answer in answers] == ["ok"] * 3
    assert "'localhost' accept each other over TLSv1.3" in answers[1].sentence
    assert abs(answers[2].facts["seconds_ahead"]) < network.CLOCK_WARNING_S


@pytest.fixture
def impostor(federation, tmp_path):
    """Make kits whose server shows a certificate in the server's name that others, or the root itself, signed."""

    def make(issuer, signer, ends=timedelta(days=9)):
        startup, key = tmp_path / "impostor" / "localhost" / "startup", ec.generate_private_key(ec.SECP256R1())
        startup.mkdir(parents=True)
        shutil.copy(federation / "localhost" / "startup" / "rootCA.pem", startup)
        subject, now = read_certificate(federation / "localhost" / "startup" / "server.crt").subject, datetime.now(UTC)
        builder = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(days=99)).not_valid_after(now + ends)
        (startup / "server.crt").write_bytes(builder.sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM))
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (startup / "server.key").write_bytes(private)
        return startup.parents[1]

    return make


def test_an_inspection_of_tls_in_between_is_named_with_its_issuer(candidate, serve, impostor, port):
    gateway = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Clinic Web Gateway CA")])
    with serve(impostor(gateway, ec.generate_private_key(ec.SECP256R1())), port):
        answer = network.check_tls(candidate())
    assert answer.status == "failed" and answer.facts == {"issuer": "CN=Clinic Web Gateway CA"}
    assert "not by 'CN=Clinic Web Gateway CA': something between here and the server answers" in answer.sentence
    assert f"ask the network people to exempt localhost:{port} from it" in answer.sentence


def test_a_gateway_that_takes_the_roots_own_name_is_found_by_its_signature(candidate, serve, impostor, port):
    root = candidate().kit.root
    with serve(impostor(root.subject, ec.generate_private_key(ec.SECP256R1())), port):
        answer = network.check_tls(candidate())
    assert answer.status == "failed" and "another root of this name" in answer.sentence


def test_a_certificate_of_the_own_root_that_has_ended_is_no_inspection(candidate, serve, federation, impostor, port):
    root = candidate().kit.root
    key = load_private_key(read_json(federation.parent / "state" / "cert.json")["root_pri_key"])
    with serve(impostor(root.subject, key, ends=timedelta(days=-1)), port):
        answer = network.check_tls(candidate())
    assert answer.status == "failed" and "certificate has expired: call the lead" in answer.sentence


def test_a_proxy_that_a_site_does_not_use_is_named_where_the_server_is_out_of_reach(candidate, monkeypatch):
    monkeypatch.setenv("ALL_PROXY", "http://reader:secret@proxy.example.org:3128")
    answer = network.check_server(candidate())
    assert answer.status == "failed" and "ALL_PROXY is set, but a site does not read it" in answer.sentence
    assert "name the proxy in local/site.yaml, as proxy: http://HOST:PORT" in answer.sentence
    assert "secret" not in answer.sentence and "proxy.example.org" not in answer.sentence


def dial(kit, port):
    """Have NVFlare's driver connect, as a site does."""
    files = {"ca_cert": "rootCA.pem", "client_cert": "client.crt", "client_key": "client.key"}
    params = {key: str(kit / "startup" / name) for key, name in files.items()}
    params |= {"scheme": "https", "host": "localhost", "port": port, "secure": True}
    driver = aio_http_driver.AioHttpDriver()
    connector = ConnectorInfo("site", driver, params, Mode.ACTIVE, 0, 0, False, threading.Event())
    # The server here speaks TLS with the kit's root, and no WebSocket: nobody else would answer so.
    with pytest.raises(WSServerHandshakeError, match="404"):
        driver.connect(connector)


def test_a_site_reaches_the_server_by_its_proxy_alone(candidate, monkeypatch, serve, federation, kit, port):
    monkeypatch.setattr(aio_http_driver, "AioHttpDriver", aio_http_driver.AioHttpDriver)
    checks = (network.check_server, network.check_tls, network.check_clock, network.check_certificate)
    with serve(federation, port), run_proxy() as (proxy, heads):
        change_site(kit, proxy=f"http://localhost:{proxy}")
        answers = [check(candidate()) for check in checks]
        assert len(heads) == len(checks)
        use_proxy(kit)
        dial(kit, port)
    assert [answer.status for answer in answers] == ["ok"] * len(checks)
    assert f"is reachable through the proxy localhost:{proxy}" in answers[0].sentence
    assert {head.split()[1] for head in heads} == {f"localhost:{port}"} and len(heads) == len(checks) + 1


def test_a_proxy_that_refuses_or_is_not_there_is_told_apart_from_the_server(candidate, kit, port):
    with run_proxy("403 Forbidden") as (proxy, _):
        change_site(kit, proxy=f"http://reader:secret@localhost:{proxy}")
        refused = network.check_server(candidate())
    absent = network.check_server(candidate())
    change_site(kit, proxy="http://proxy.invalid:3128")
    unknown = network.check_server(candidate())
    assert [answer.status for answer in (refused, absent, unknown)] == ["failed"] * 3
    said = f"the proxy localhost:{proxy} must let this machine connect to localhost:{port}, not answer '403 Forbidden'"
    assert said in refused.sentence and "secret" not in refused.sentence
    assert f"the proxy localhost:{proxy} cannot be reached (Connection refused)" in absent.sentence
    assert "the proxy proxy.invalid:3128 cannot be reached" in unknown.sentence


def test_a_server_of_another_project_is_not_trusted_and_refuses_the_site(
    candidate, kit, serve, federation, strangers, port
):
    with serve(strangers, port):
        answer = network.check_tls(candidate())
    assert answer.status == "failed" and "must be signed by the kit's root" in answer.sentence
    for name in ("client.crt", "client.key"):
        shutil.copy(strangers / "north" / "startup" / name, kit / "startup" / name)
    with serve(federation, port):
        answer = network.check_tls(candidate())
    assert answer.status == "failed" and "must accept the kit's certificate" in answer.sentence


def test_a_server_by_another_name_is_told(candidate, kit, serve, federation, port):
    path = kit / "startup" / "fed_client.json"
    path.write_text(path.read_text().replace('"identity": "localhost"', '"identity": "elsewhere"'))
    with serve(federation, port):
        answer = network.check_tls(candidate())
    assert answer.status == "failed" and "must be 'elsewhere', not 'localhost'" in answer.sentence


def test_a_clock_that_is_off_is_told_by_the_servers(candidate, serve, federation, port):
    with serve(federation, port, ahead_s=3600):
        answer = network.check_clock(candidate())
    assert answer.status == "failed" and answer.facts["seconds_ahead"] == pytest.approx(-3600, abs=20)


@pytest.mark.parametrize(
    ("seconds", "status"), [(0, "ok"), (-29, "ok"), (31, "warning"), (-299, "warning"), (301, "failed")]
)
def test_half_a_minute_is_worth_a_look_and_five_minutes_are_too_much(seconds, status):
    assert network.judge_clock(seconds).status == status


def test_a_server_that_does_not_run_is_named_and_a_name_that_nobody_knows(candidate, kit, port):
    answer = network.check_server(candidate())
    assert answer.status == "failed" and f"localhost:{port} cannot be reached (Connection refused)" in answer.sentence
    answer = network.check_clock(candidate())
    assert answer.status == "ok" and "gives no time" in answer.sentence
    path = kit / "startup" / "fed_client.json"
    path.write_text(path.read_text().replace('"target": "localhost', '"target": "nowhere.invalid'))
    answer = network.check_server(candidate())
    assert answer.status == "failed" and "nowhere.invalid" in answer.sentence


@pytest.mark.parametrize(("days", "status"), [(31, "ok"), (29, "warning"), (0.5, "warning"), (-1, "failed")])
def test_certificates_that_end_soon_are_worth_a_look_and_ended_ones_are_refused(days, status):
    now = datetime(2030, 1, 1, tzinfo=UTC)
    validity = (now - timedelta(days=9), now + timedelta(days=days))
    assert network.judge_validity("certificates", "ask", validity, now).status == status


@pytest.fixture
def begins_later(kit, federation):
    """Sign the kit's certificate anew, as a machine does whose clock is two hours ahead; returns when it begins."""
    path, since = kit / "startup" / "client.crt", datetime.now(UTC).replace(microsecond=0) + timedelta(hours=2)
    old, until = read_certificate(path), since + timedelta(days=360)
    key = load_private_key(read_json(federation.parent / "state" / "cert.json")["root_pri_key"])
    names = (old.issuer, old.subject, old.public_key(), old.serial_number)
    builder = x509.CertificateBuilder(*names).not_valid_before(since).not_valid_after(until)
    path.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    return since


def test_a_certificate_that_begins_later_is_refused_with_its_first_moment(candidate, begins_later):
    answer = network.check_certificate(candidate())
    assert answer.status == "failed" and f"valid from {begins_later:%Y-%m-%d %H:%M}" in answer.sentence


def test_the_servers_certificate_with_whose_end_every_site_stops_is_looked_at(
    candidate, serve, federation, impostor, port
):
    root, end = candidate().kit.root, datetime.now(UTC) + timedelta(days=29)
    key = load_private_key(read_json(federation.parent / "state" / "cert.json")["root_pri_key"])
    with serve(impostor(root.subject, key, ends=timedelta(days=29)), port):
        answer = network.check_certificate(candidate())
    assert (
        answer.status == "warning"
        and f"the server's certificate must hold 30 days or more, not 28, until {end:%Y-%m-%d}" in answer.sentence
    )
    assert answer.facts["days_left"] > 300 and answer.facts["server_valid_until"][:10] == f"{end:%Y-%m-%d}"


def test_of_a_server_that_is_away_or_another_networks_no_certificate_is_judged(candidate, serve, strangers, port):
    with serve(strangers, port):
        answers = [network.check_certificate(candidate())]
    answers.append(network.check_certificate(candidate()))
    for answer in answers:
        assert answer.status == "ok" and "server" not in answer.sentence


def test_a_key_of_another_certificate_is_refused(candidate, kit, strangers):
    assert network.check_certificate(candidate()).status == "ok"
    shutil.copy(strangers / "north" / "startup" / "client.key", kit / "startup" / "client.key")
    answer = network.check_certificate(candidate())
    assert answer.status == "failed" and "must be a whole pair" in answer.sentence
