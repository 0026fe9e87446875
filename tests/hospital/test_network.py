import shutil
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from nvflare.lighter.utils import load_private_key

from silofl.base.files import read_json
from silofl.flare.kit import read_certificate
from silofl_hospital.site import network

from ..proxy import run_proxy
from .conftest import change_site


@pytest.fixture
def port(candidate):
    return candidate().kit.address.port


def test_site_and_server_of_one_project_accept_each_other(candidate, serve, federation, port):
    with serve(federation, port):
        answers = [check(candidate()) for check in (network.check_server, network.check_tls)]
    assert [answer.status for answer in answers] == ["ok"] * 2
    assert "'localhost' accept each other over TLSv1.3" in answers[1].sentence


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


def test_tls_inspection_is_named_with_its_issuer(candidate, serve, impostor, port):
    gateway = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Clinic Web Gateway CA")])
    with serve(impostor(gateway, ec.generate_private_key(ec.SECP256R1())), port):
        answer = network.check_tls(candidate())
    assert answer.status == "failed" and answer.facts == {"issuer": "CN=Clinic Web Gateway CA"}
    assert (
        "by 'CN=Clinic Web Gateway CA' instead of the kit's root: something between here and the server answers"
        in answer.sentence
    )
    assert f"ask the network people to exempt localhost:{port} from it" in answer.sentence


def test_a_gateway_with_the_roots_name_is_found(candidate, serve, impostor, port):
    root = candidate().kit.root
    with serve(impostor(root.subject, ec.generate_private_key(ec.SECP256R1())), port):
        answer = network.check_tls(candidate())
    assert answer.status == "failed" and "another root of this name" in answer.sentence


def test_an_expired_certificate_is_no_inspection(candidate, serve, federation, impostor, port):
    root = candidate().kit.root
    key = load_private_key(read_json(federation.parent / "state" / "cert.json")["root_pri_key"])
    with serve(impostor(root.subject, key, ends=timedelta(days=-1)), port):
        answer = network.check_tls(candidate())
    assert answer.status == "failed" and "(certificate has expired); call the lead" in answer.sentence


def test_a_faulty_proxy_is_told_apart_from_the_server(candidate, kit, port):
    with run_proxy("403 Forbidden") as (proxy, _):
        change_site(kit, proxy=f"http://reader:secret@localhost:{proxy}")
        refused = network.check_server(candidate())
    absent = network.check_server(candidate())
    change_site(kit, proxy="http://proxy.invalid:3128")
    unknown = network.check_server(candidate())
    assert [answer.status for answer in (refused, absent, unknown)] == ["failed"] * 3
    said = f"localhost:{proxy} does not let this machine connect to localhost:{port}, and answers '403 Forbidden'"
    assert said in refused.sentence and "secret" not in refused.sentence
    assert f"the proxy localhost:{proxy} cannot be reached (Connection refused)" in absent.sentence
    assert "the proxy proxy.invalid:3128 cannot be reached" in unknown.sentence


def test_a_server_of_another_project_is_not_trusted(candidate, kit, serve, federation, strangers, port):
    with serve(strangers, port):
        answer = network.check_tls(candidate())
    assert answer.status == "failed" and "another root of this name" in answer.sentence
    for name in ("client.crt", "client.key"):
        shutil.copy(strangers / "north" / "startup" / name, kit / "startup" / name)
    with serve(federation, port):
        answer = network.check_tls(candidate())
    assert answer.status == "failed" and "refuses the kit's certificate" in answer.sentence


def test_a_server_by_another_name_is_told(candidate, kit, serve, federation, port):
    path = kit / "startup" / "fed_client.json"
    path.write_text(path.read_text().replace('"identity": "localhost"', '"identity": "elsewhere"'))
    with serve(federation, port):
        answer = network.check_tls(candidate())
    assert answer.status == "failed" and "'localhost' by its certificate, and 'elsewhere' by the kit" in answer.sentence


def test_a_stopped_server_and_an_unknown_name_are_named(candidate, kit, port):
    answer = network.check_server(candidate())
    assert answer.status == "failed" and f"localhost:{port} cannot be reached (Connection refused)" in answer.sentence
    path = kit / "startup" / "fed_client.json"
    path.write_text(path.read_text().replace('"target": "localhost', '"target": "nowhere.invalid'))
    answer = network.check_server(candidate())
    assert answer.status == "failed" and "nowhere.invalid" in answer.sentence


@pytest.mark.parametrize(
    ("since", "days", "status"),
    [(-9, 31, "ok"), (-9, 29, "warning"), (-9, 0.5, "warning"), (-9, -1, "failed"), (0.1, 360, "failed")],
)
def test_certificates_are_judged_by_their_days(since, days, status):
    now = datetime(2030, 1, 1, tzinfo=UTC)
    validity = (now + timedelta(days=since), now + timedelta(days=days))
    assert network.judge_validity(validity, now).status == status


def test_a_key_of_another_certificate_is_refused(candidate, kit, strangers):
    assert network.check_certificate(candidate()).status == "ok"
    shutil.copy(strangers / "north" / "startup" / "client.key", kit / "startup" / "client.key")
    answer = network.check_certificate(candidate())
    assert answer.status == "failed" and "are no whole pair" in answer.sentence
