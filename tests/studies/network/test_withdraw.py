import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from silofl.base.errors import ConfigError
from silofl.base.files import write_json
from silofl.command_line.cli import main
from silofl_desk.studies.network.withdraw import sign_list
from silofl_hospital.inference import withdrawn
from silofl_hospital.inference.withdrawn import FILE, ROOT, Withdrawn, check_not_withdrawn

MODEL, OTHER = "a" * 64, "b" * 64


def make_certificate(name, role, issuer=None, issuer_key=None):
    """Return a certificate and its key, signed by another or by itself."""
    key, now = rsa.generate_private_key(65537, 2048), datetime.now(UTC)
    attributes = [(NameOID.COMMON_NAME, name)] + ([(NameOID.UNSTRUCTURED_NAME, role)] if role else [])
    subject = x509.Name([x509.NameAttribute(*one) for one in attributes])
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer.subject if issuer else subject)
    builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(days=400)).not_valid_after(now + timedelta(days=400))
    return builder.sign(issuer_key or key, SHA256()), key


def write_pem(path, certificate):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(certificate.public_bytes(Encoding.PEM))


@pytest.fixture(scope="module")
def network():
    """A root, and the certificates of a lead and a hospital that it signed, each with its key."""
    root, root_key = make_certificate("network", None)
    people = {role: make_certificate(name, role, root, root_key) for name, role in (("kim", "lead"), ("east", "site"))}
    return SimpleNamespace(root=root, **people)


@pytest.fixture
def kit(network, tmp_path):
    """The kit of a lead, as provisioning makes it."""
    certificate, key = network.lead
    folder = tmp_path / "kit" / "startup"
    write_pem(folder / "rootCA.pem", network.root)
    write_pem(folder / "client.crt", certificate)
    (folder / "client.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (folder / "fed_admin.json").write_text(json.dumps({"admin": {"host": "localhost", "port": 8003}}))
    return tmp_path / "kit"


@pytest.fixture
def clinic(network, tmp_path):
    """Return the folder of a super model that has the root certificate beside it."""
    write_pem(tmp_path / "clinic" / ROOT, network.root)
    return tmp_path / "clinic" / "supermodel"


def write_list(clinic, who, models, number=1):
    certificate, key = who
    listed = Withdrawn(datetime.now(UTC).date().isoformat(), models, number)
    content = sign_list(listed, certificate.public_bytes(Encoding.PEM), key)
    (clinic.parent / FILE).write_text(json.dumps(content))
    return content


def test_a_lead_withdraws_a_model_and_later_another_and_the_list_names_both(kit, clinic, capsys):
    place = clinic.parent / FILE
    assert main(["withdraw", MODEL, "--kit", str(kit), "--reason", "misses cysts", "--list", str(place)]) == 0
    assert main(["withdraw", OTHER, "--kit", str(kit), "--list", str(place)]) == 0
    assert "names 2 withdrawn models" in capsys.readouterr().out
    with pytest.raises(ConfigError, match=f"{MODEL[:16]} is withdrawn, .*'misses cysts'"):
        check_not_withdrawn(clinic, MODEL)
    with pytest.raises(ConfigError, match="'not said'"):
        check_not_withdrawn(clinic, OTHER)
    assert check_not_withdrawn(clinic, "c" * 64)
    assert main(["withdraw", "abc", "--kit", str(kit), "--list", str(place)]) == 2
    assert "must be a fingerprint of 64 digits" in capsys.readouterr().err


def test_a_withdrawn_model_answers_no_more_with_statistics_of_a_clinic(kit, clinic):
    write_json(clinic / "model.json", {"facts": {"home_statistics": {"images": 16, "of": MODEL}}})
    assert main(["withdraw", MODEL, "--kit", str(kit), "--list", str(clinic.parent / FILE)]) == 0
    with pytest.raises(ConfigError, match=f"{MODEL[:16]} is withdrawn"):
        check_not_withdrawn(clinic, OTHER)


def test_a_model_that_a_lead_takes_from_the_list_answers_again_and_the_list_before_is_refused(kit, clinic, capsys):
    place = clinic.parent / FILE
    withdraw = ["withdraw", "--kit", str(kit), "--list", str(place)]
    assert main([*withdraw, MODEL, OTHER]) == 0
    before = place.read_text()
    with pytest.raises(ConfigError, match="is withdrawn"):
        check_not_withdrawn(clinic, MODEL)
    assert main([*withdraw, MODEL, "--undo"]) == 0
    assert "names 1 withdrawn model;" in capsys.readouterr().out
    assert check_not_withdrawn(clinic, MODEL)
    with pytest.raises(ConfigError, match="is withdrawn"):
        check_not_withdrawn(clinic, OTHER)
    assert main([*withdraw, MODEL, "--undo"]) == 2
    assert f"Model {MODEL} is not on {place}" in capsys.readouterr().err
    # Whoever puts it back, as it is or with a number of his own.
    place.write_text(before)
    with pytest.raises(ConfigError, match=f"{FILE} is number 1, and number 2 was here before"):
        check_not_withdrawn(clinic, "c" * 64)
    forged = json.loads(before)
    forged["content"] = forged["content"].replace('"number": 1', '"number": 3')
    place.write_text(json.dumps(forged))
    with pytest.raises(ConfigError, match="is signed by no lead of the network"):
        check_not_withdrawn(clinic, "c" * 64)


@pytest.mark.parametrize("text", ["[]", '{"content": 3}', '{"content": "{}"}', '{"content": "{\\"models\\": 3}"}'])
def test_a_file_that_is_no_list_is_not_written_over(kit, tmp_path, capsys, text):
    place = tmp_path / "other.json"
    place.write_text(text)
    assert main(["withdraw", MODEL, "--kit", str(kit), "--list", str(place)]) == 2
    assert "is no list that withdraw wrote" in capsys.readouterr().err and place.read_text() == text


def test_without_list_and_root_nothing_is_checked_and_one_without_the_other_is_refused(network, clinic, tmp_path):
    assert not check_not_withdrawn(tmp_path / "elsewhere" / "supermodel", MODEL)
    with pytest.raises(ConfigError, match=f"{FILE} is missing beside {ROOT}"):
        check_not_withdrawn(clinic, MODEL)
    write_list(clinic, network.lead, {})
    (clinic.parent / ROOT).unlink()
    with pytest.raises(ConfigError, match=f"{ROOT} is missing beside {FILE}"):
        check_not_withdrawn(clinic, MODEL)


def test_a_forged_list_is_refused(network, clinic):
    # a hospital has a certificate of the same root, and is no lead
    write_list(clinic, network.site, {})
    with pytest.raises(ConfigError, match="is signed by no lead of the network"):
        check_not_withdrawn(clinic, MODEL)
    write_list(clinic, make_certificate("kim", "lead"), {})
    with pytest.raises(ConfigError, match="is signed by no lead of the network"):
        check_not_withdrawn(clinic, MODEL)
    content = write_list(clinic, network.lead, {MODEL: "misses cysts"})
    (clinic.parent / FILE).write_text(json.dumps(content | {"content": content["content"].replace(MODEL, OTHER)}))
    with pytest.raises(ConfigError, match="is signed by no lead of the network"):
        check_not_withdrawn(clinic, MODEL)


def test_a_list_that_somebody_kept_back_for_long_is_refused(network, clinic, monkeypatch):
    write_list(clinic, network.lead, {})

    class Later(datetime):
        @classmethod
        def now(cls, zone=None):
            return datetime.now(zone) + timedelta(days=93)

    monkeypatch.setattr(withdrawn, "datetime", Later)
    with pytest.raises(ConfigError, match="is older than 92 days"):
        check_not_withdrawn(clinic, MODEL)


@pytest.mark.parametrize("text", ["{}", "[]", '{"content": "{}", "certificate": "x", "signature": "zz"}'])
def test_a_list_that_cannot_be_read_is_refused(clinic, text):
    (clinic.parent / FILE).write_text(text)
    with pytest.raises(ConfigError, match=f"{FILE} or {ROOT} is damaged"):
        check_not_withdrawn(clinic, MODEL)
