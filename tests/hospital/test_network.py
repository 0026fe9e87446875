import shutil
from datetime import UTC, datetime, timedelta

import pytest

from silofl.hospital import network


@pytest.fixture
def port(candidate):
    return candidate().kit.address.port


def test_site_and_server_of_one_project_accept_each_other(candidate, serve, federation, port):
    with serve(federation, port):
        answers = [check(candidate()) for check in (network.server, network.tls, network.clock, network.preflight)]
    assert [answer.status for answer in answers] == ["ok"] * 4
    assert "'localhost' accept each other over TLSv1.3" in answers[1].sentence
    assert abs(answers[2].facts["seconds_ahead"]) < network.CLOCK_WARNING_S


def test_a_server_of_another_project_is_not_trusted(candidate, serve, strangers, port):
    with serve(strangers, port):
        answer = network.tls(candidate())
    assert answer.status == "failed" and "must be signed by the kit's root" in answer.sentence


def test_a_site_of_another_project_is_refused_by_the_server(candidate, kit, serve, federation, strangers, port):
    for name in ("client.crt", "client.key"):
        shutil.copy(strangers / "north" / "startup" / name, kit / "startup" / name)
    with serve(federation, port):
        answer = network.tls(candidate())
    assert answer.status == "failed" and "must accept the kit's certificate" in answer.sentence


def test_a_server_by_another_name_is_told(candidate, kit, serve, federation, port):
    path = kit / "startup" / "fed_client.json"
    path.write_text(path.read_text().replace('"identity": "localhost"', '"identity": "elsewhere"'))
    with serve(federation, port):
        answer = network.tls(candidate())
    assert answer.status == "failed" and "must be 'elsewhere', not 'localhost'" in answer.sentence


def test_a_clock_that_is_off_is_told_by_the_servers(candidate, serve, federation, port):
    with serve(federation, port, ahead_s=3600):
        answer = network.clock(candidate())
    assert answer.status == "failed" and answer.facts["seconds_ahead"] == pytest.approx(-3600, abs=20)


@pytest.mark.parametrize(
    ("seconds", "status"), [(0, "ok"), (-29, "ok"), (31, "warning"), (-299, "warning"), (301, "failed")]
)
def test_half_a_minute_is_worth_a_look_and_five_minutes_are_too_much(seconds, status):
    assert network.agreement(seconds).status == status


def test_without_a_server_the_clock_is_held_against_the_certificates(candidate):
    assert network.clock(candidate()).status == "ok"


def test_a_server_that_does_not_run_is_named(candidate, port):
    answer = network.server(candidate())
    assert answer.status == "failed" and f"localhost:{port} must be reachable" in answer.sentence
    assert network.preflight(candidate()).status == "failed"


def test_a_name_that_nobody_knows_is_told_apart_from_a_closed_port(candidate, kit):
    path = kit / "startup" / "fed_client.json"
    path.write_text(path.read_text().replace('"target": "localhost', '"target": "nowhere.invalid'))
    answer = network.server(candidate())
    assert answer.status == "failed" and "nowhere.invalid must be known to this network" in answer.sentence


@pytest.mark.parametrize(("days", "status"), [(31, "ok"), (29, "warning"), (0.5, "warning"), (-1, "failed")])
def test_certificates_that_end_soon_are_worth_a_look_and_ended_ones_are_refused(days, status):
    now = datetime(2030, 1, 1, tzinfo=UTC)
    assert network.validity(now + timedelta(days=days), now).status == status


def test_a_key_of_another_certificate_is_refused(candidate, kit, strangers):
    assert network.certificate(candidate()).status == "ok"
    shutil.copy(strangers / "north" / "startup" / "client.key", kit / "startup" / "client.key")
    answer = network.certificate(candidate())
    assert answer.status == "failed" and "must be a whole pair" in answer.sentence
