"""Relays: what make-kits and check-kits ask of them, and a network on this machine with two hospitals behind one."""

import re
import shutil
import socket
import ssl
import threading
import time
from contextlib import closing, contextmanager, suppress
from copy import copy

import pytest
import yaml
from nvflare.fuel.f3.communicator import Communicator
from nvflare.fuel.f3.drivers.connector_info import Mode
from nvflare.fuel.f3.endpoint import Endpoint, EndpointMonitor, EndpointState

from provisioning.__main__ import main
from provisioning.fill_kits import Contents, fill_kit
from provisioning.make_kits import make_kits, make_project
from provisioning.network import Network
from provisioning.relays import GUARDED, SCRIPT, UNGUARDED
from provisioning.workspace import PROJECT, find_kits, kits_folder
from silofl.base.errors import ConfigError
from silofl.cli import main as silofl
from silofl.federation.ledger import read_ledger
from silofl.federation.results import read_results
from silofl.flare.kit import read_kit
from silofl.hospital.network import shake_hands
from silofl_desk.phantoms.phantoms import make_phantoms
from tests.provisioning.conftest import replace_in, set_floor
from tests.provisioning.test_network import (
    LIMIT_S,
    SITES,
    assert_same_models,
    hospital_of,
    hostile,
    result_of,
    small_job,
)

BEHIND = ("north", "south")
FOLDER = "0c9d3e0e-4d5b-4b53-8f4e-9b6c2a1f7d88"


def project_with(path, hub=None, site=None, port=8102):
    """Write a project.yml with a relay on this machine, and two of its three hospitals behind it."""
    project = yaml.safe_load(PROJECT.read_text())
    listens = {"default_host": "localhost", "port": port}
    relay = {"name": "hub", "type": "relay", "org": "region", "listening_host": listens} | (hub or {})
    for participant in project["participants"]:
        if participant["name"] in BEHIND:
            participant["connect_to"] = copy(site or {"name": "hub"})
    project["participants"].append(relay)
    path.write_text(yaml.safe_dump(project))
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory, wheel):
    root = tmp_path_factory.mktemp("made")
    project, workspace = project_with(root / "project.yml"), root / "workspace"
    assert main(["make-kits", str(project), str(workspace), "--host", "localhost", "--wheel", str(wheel)]) == 0
    return workspace


@pytest.fixture
def workspace(made, tmp_path):
    return shutil.copytree(made, tmp_path / "workspace")


@pytest.fixture
def hub(workspace):
    return workspace / "silofl" / "prod_00" / "hub"


def test_kits_of_a_network_with_a_relay_are_right(workspace, capsys):
    assert main(["check-kits", str(workspace)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "relay hub region: 359 days left" and lines[-1] == "all is right"
    # A relay decides of nobody's rights.
    assert any(line.startswith("lead@study.example.org may") and "submit_job everywhere" in line for line in lines)


def test_a_relays_kit_holds_what_its_install_md_names(hub, wheel):
    page = (hub / "INSTALL.md").read_text()
    for part in ("**localhost**, port **8102**", "**localhost**, port **8002**", wheel.name, "startup/server.key"):
        assert part in page
    names = {path.relative_to(hub).as_posix() for path in hub.rglob("*") if path.is_file()}
    assert {wheel.name, "requirements.lock", "sbom.json", "SHA256SUMS"} <= names
    assert not any(name.endswith(("resources.json", "authorization.json", "site.yaml")) for name in names)
    # start.sh, which the page has people call, runs it.
    assert (hub / SCRIPT).stat().st_mode & 0o100


def test_a_hospital_behind_a_relay_is_told_of_the_relay_alone(hub):
    kit, beside = read_kit(hub.parent / "north"), read_kit(hub.parent / "east")
    assert (kit.is_behind_relay, kit.address.port, kit.address.identity) == (True, 8102, "hub")
    assert (beside.is_behind_relay, beside.address.port, beside.address.identity) == (False, 8002, "server")
    assert "port **8102**" in (kit.folder / "INSTALL.md").read_text()
    assert "tcp dport 8102" in (kit.folder / "system" / "silofl-firewall.nft").read_text()
    # NVFlare's check would ask for the server.
    assert not any("server" in name.lower() for name in kit.preflight())


def test_a_second_call_changes_nothing_and_a_renewal_both_certificates(workspace, hub, wheel, files_of, tmp_path):
    before = files_of(workspace)
    arguments = ["make-kits", str(project_with(tmp_path / "project.yml")), str(workspace), "--host", "localhost"]
    assert main([*arguments, "--wheel", str(wheel)]) == 0
    assert files_of(workspace) == before
    assert main(["renew-kit", str(workspace), "hub"]) == 0
    after = files_of(hub)
    changed = {path.as_posix() for path in after if after[path] != before[hub.relative_to(workspace) / path]}
    assert changed == {"startup/client.crt", "startup/server.crt"}
    assert main(["add-hospital", str(workspace), "west", "west_hospital"]) == 0
    assert main(["check-kits", str(workspace)]) == 0


@pytest.mark.parametrize(
    ("name", "old", "new", "sentence"),
    [
        ("hub/local/comm_config.json", '"mtls"', '"clear"', "connection_security in local/comm_config.json must be 'm"),
        ("hub/local/comm_config.json", '"http"', '"tcp"', "scheme in local/comm_config.json must be 'http', not 'tcp'"),
        ("hub/startup/fed_relay.json", '"mtls"', '"None"', "connection_security must be 'mtls', not 'None'"),
        (f"hub/{SCRIPT}", GUARDED, UNGUARDED, f"{SCRIPT} must start {GUARDED}, which keeps sites from one another"),
        ("north/local/relay__resources.json", '"mtls"', '"clear"', "connection_security must be 'mtls', not 'clear'"),
    ],
)
def test_what_opens_a_line_is_found(hub, capsys, name, old, new, sentence):
    replace_in(hub.parent / name, old, new)
    assert main(["check-kits", str(hub.parent / name.split("/")[0])]) == 1
    assert f"FAILED {name.split('/')[0]}: {sentence}" in capsys.readouterr().out


def test_a_certificate_that_a_relay_shows_must_be_of_the_root_and_have_its_key(hub, capsys):
    for name in ("server.crt", "server.key"):
        shutil.copy(hub.parent / "server" / "startup" / name, hub / "startup" / name)
    (hub / "startup" / "server.key").chmod(0o644)
    assert main(["check-kits", str(hub)]) == 1
    assert "FAILED hub: startup/server.key must be readable by its owner only" in capsys.readouterr().out
    shutil.copy(hub / "startup" / "client.crt", hub / "startup" / "server.crt")
    assert main(["check-kits", str(hub)]) == 1
    assert "startup/server.key must be the key of startup/server.crt" in capsys.readouterr().out


def test_a_start_script_that_was_put_back_is_mended_by_fill_kits(hub, wheel):
    replace_in(hub / SCRIPT, GUARDED, UNGUARDED)
    assert main(["fill-kits", str(hub), "--wheel", str(wheel)]) == 0
    assert main(["check-kits", str(hub)]) == 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"hub": {"listening_host": {"port": 8102}}}, "must give relay 'hub' a listening_host with default_host and"),
        ({"hub": {"listening_host": "localhost"}}, "must give relay 'hub' a listening_host with default_host and port"),
        ({"hub": {"connect_to": {"name": "other"}}}, "must have relay 'hub' connect to the server, not to {'name': 'o"),
        ({"hub": {"connect_to": "localhost"}}, "must have relay 'hub' connect to the server, not to 'localhost'"),
        ({"hub": {"connect_to": {"connection_security": "tls"}}}, "connection_security of 'hub' at 'mtls', not 'tls'"),
        (
            {"hub": {"listening_host": {"default_host": "localhost", "port": 8102, "scheme": "tcp"}}},
            "scheme of 'hub' at 'http', not 'tcp'",
        ),
        ({"site": "hub"}, "must have 'north' connect to {name: hub}, not to 'hub', which NVFlare takes for another"),
        ({"site": {"name": "hub", "connection_security": "clear"}}, "must leave connection_security of 'north' at 'm"),
        ({"hub": {"listenin_host": {}}}, "must not have the key 'listenin_host' at 'hub'.*did you mean 'listening_ho"),
    ],
)
def test_a_relay_that_would_not_be_safe_is_refused(tmp_path, options, sentence):
    pattern = sentence if ".*" in sentence else re.escape(sentence)
    with pytest.raises(ConfigError, match=pattern):
        make_project(project_with(tmp_path / "project.yml", **options))


# --- a network


class Recorder:
    """A line that keeps all that passes it, in both directions.

    Args:
        port: Where it listens on this machine.
        target: The port to which it leads.
    """

    def __init__(self, port, target):
        self.target, self.streams = target, []
        self.listener = socket.create_server(("localhost", port))
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self.listener.close()

    def _accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("localhost", self.target))
            except OSError:
                near.close()
                continue
            for source, sink in ((near, far), (far, near)):
                kept = bytearray()
                self.streams.append(kept)
                threading.Thread(target=self._copy, args=(source, sink, kept), daemon=True).start()

    @staticmethod
    def _copy(source, sink, kept):
        with suppress(OSError):
            while part := source.recv(2**16):
                kept += part
                sink.sendall(part)
        for end in (source, sink):
            # Also wakes the other direction, which waits for it.
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def find_records(stream):
    """Return the types and versions of the TLS records of a stream, the last of which may be cut."""
    found, place = set(), 0
    while place + 5 <= len(stream):
        found.add((stream[place], stream[place + 1]))
        place += 5 + int.from_bytes(stream[place + 3 : place + 5], "big")
    return found


@pytest.fixture(scope="module")
def relayed(tmp_path_factory, wheel, free_port):
    """A network that two of three hospitals reach by way of a relay, and the line to the relay."""
    root, port, way = tmp_path_factory.mktemp("relayed"), free_port(), free_port()
    data = make_phantoms(root / "data", seed=7, patients=dict.fromkeys(SITES, 10))
    project = project_with(root / "project.yml", site={"name": "hub", "port": way}, port=port)
    folder = make_kits(make_project(project, "localhost", free_port()), root / "workspace")
    for kit in find_kits(kits_folder(folder)):
        fill_kit(kit, Contents(wheel, data_root=data))
        # Of ten patients two validate, whose scores decide which round is the best.
        set_floor(kit, 2)
    with closing(Recorder(way, port)) as line, Network(folder, root / "logs") as network:
        yield network, line, data


@pytest.mark.slow
def test_a_study_behind_a_relay_comes_to_the_very_weights_of_a_simulation_and_nothing_goes_in_clear(relayed, tmp_path):
    network, line, data = relayed
    job = small_job(tmp_path / "job", "harmofl_phantoms")
    number, status = network.run_job(job, LIMIT_S)
    here = result_of(network, number, tmp_path / "results")
    results = read_results(here)
    assert (status, results.status, set(results.sites)) == ("FINISHED:COMPLETED", "COMPLETE", {*SITES})
    assert silofl(["simulate", str(job), "--data", str(data), "--out", str(tmp_path / "alone"), "--alone"]) == 0
    assert_same_models(here, tmp_path / "alone")
    # All of both hospitals' models came this way: records of TLS, 20 to 23, of versions 3.x alone.
    assert len(line.streams) >= 4 and sum(map(len, line.streams)) > 1e6
    for stream in line.streams:
        assert find_records(stream) <= {(kind, 3) for kind in (20, 21, 22, 23)}
        assert b"north" not in stream and b"cn__" not in stream
    assert main(["check-kits", str(network.project.parent)]) == 0


@pytest.mark.slow
def test_a_relay_that_is_started_again_ends_no_study_and_its_sites_take_part_in_the_next_job(relayed, tmp_path):
    network, _, _ = relayed
    job = small_job(tmp_path / "job", "fedavg_phantoms", rounds=8)
    study = job / "app" / "config" / "study.yaml"
    federation = {"sites": 3, "min_sites": 1, "max_missed_rounds": 8, "task_timeout_s": 20}
    study.write_text(yaml.safe_dump(yaml.safe_load(study.read_text()) | {"federation": federation, "guard": False}))
    # What both sites behind the relay miss is left to east, whose answer must then count without theirs.
    replace_in(hospital_of(network, "east").folder / "local" / "site.yaml", "min_partners: 1", "min_partners: 0")
    (hub,) = network.relays
    # The relay ends after a round, and is started again at once, or after the next one but one.
    left, ended = {2: 2, 4: 6}, []

    def has_ended(number):
        return re.search(f" round +{number}/8 ", (network.logs / "server.txt").read_text(errors="replace"))

    def restart():
        if not left or not has_ended(first := min(left)):
            return
        if first not in ended:
            network.kill(hub.name)
            ended.append(first)
        if has_ended(left[first]):
            network.start(hub)
            del left[first]

    number, status = network.run_job(job, LIMIT_S, restart)
    ledger = read_ledger(result_of(network, number, tmp_path / "results"))
    # What was under way to or from a site may be lost, which then asks again after minutes.
    assert (status, left, len(ledger)) == ("FINISHED:COMPLETED", {}, 8)
    assert ledger[5].answered == ["east"]
    assert all("east" in one.answered and {*one.missed} <= {*BEHIND} and one.seconds < 60 for one in ledger)
    number, status = network.run_job(small_job(tmp_path / "next", "fedavg_phantoms"), LIMIT_S)
    here = result_of(network, number, tmp_path / "after")
    assert (status, read_results(here).status) == ("FINISHED:COMPLETED", "COMPLETE")
    assert [one.answered for one in read_ledger(here)] == [[*SITES]] * 2


def talk(port, words, context=None):
    """Say something to a port of this machine, and return what comes back; empty where the line is closed."""
    try:
        with socket.create_connection(("localhost", port), 5) as line:
            with context.wrap_socket(line) if context else line as talker:
                talker.sendall(words)
                return talker.recv(4096)
    except (ConnectionResetError, ssl.SSLError):
        return b""


@pytest.mark.slow
def test_the_relays_port_takes_nobody_without_a_certificate_of_the_root(relayed, tmp_path):
    network, line, _ = relayed
    north = hospital_of(network, "north")
    with socket.create_connection(("localhost", line.target)):
        # One that stays silent keeps out nobody.
        assert shake_hands(north).server == "hub"
    page = b"GET /f3 HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
    assert talk(line.target, page, north.tls()).startswith(b"HTTP/1.1")
    for words in (page, b"hello\n" * 100):
        # At the most an alert of TLS.
        assert talk(line.target, words)[:1] in (b"", b"\x15")
    strangers = kits_folder(make_kits(make_project(PROJECT, "localhost"), tmp_path / "other"))
    stranger = read_kit(strangers / "north")
    bare, foreign = (ssl.create_default_context(cafile=str(north.folder / "startup/rootCA.pem")) for _ in range(2))
    foreign.load_cert_chain(stranger.certificate_path, stranger.key_path)
    for context in (bare, foreign):
        context.check_hostname = False
        assert talk(line.target, page, context) == b""
    with (
        socket.create_connection(("localhost", line.target)) as bare_line,
        pytest.raises(ssl.SSLCertVerificationError, match="self-signed certificate in certificate chain"),
    ):
        stranger.tls().wrap_socket(bare_line)


class Arrival(EndpointMonitor):
    def __init__(self):
        self.has_come = threading.Event()

    def state_change(self, endpoint):
        if endpoint.state == EndpointState.READY:
            self.has_come.set()


@contextmanager
def connected_as(name, kit, port):
    """Connect as the cell of some name, with a kit's certificate, until the other end has answered."""
    startup, arrival = kit.folder / "startup", Arrival()
    files = {"ca_cert": "rootCA.pem", "client_cert": "client.crt", "client_key": "client.key"}
    communicator = Communicator(Endpoint(name, conn_props={key: str(startup / file) for key, file in files.items()}))
    communicator.register_monitor(arrival)
    communicator.add_connector(f"https://localhost:{port}", Mode.ACTIVE, True)
    communicator.start()
    try:
        # NVFlare answers before it looks at the name.
        assert arrival.has_come.wait(20)
        yield
    finally:
        communicator.stop()


def says(log, words, seconds, count=1):
    """Return whether a log says some words so often within so many seconds."""
    deadline = time.monotonic() + seconds
    while not (found := log.read_text().count(words) >= count) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


@pytest.mark.slow
def test_nobody_connects_under_the_name_of_another(relayed):
    """Relay and server judge a message by the line on which it comes."""
    network, line, _ = relayed
    east = hospital_of(network, "east")
    for kit, port, own, others in (
        ("hub", line.target, "hub.east", ("hub.north", "server", "server.x")),
        ("server", east.address.port, "east.x", ("hub", "hub.north", "server.x")),
    ):
        log = network.logs / f"{kit}.txt"
        for name in others:
            with connected_as(name, east, port):
                assert says(log, f"authenticated as 'east' but claimed endpoint '{name}' requires", 20), name
        with connected_as(own, east, port):
            assert not says(log, f"claimed endpoint '{own}'", 1)


@pytest.mark.slow
def test_a_hospital_commands_no_other_behind_the_same_relay(relayed, tmp_path):
    """NVFlare's own relay passes it on: see tests/flare/test_relay.py."""
    network, *_ = relayed
    kits = {kit.name: kit.folder for kit in network.hospitals}
    (kits["south"] / FOLDER).mkdir()
    with hostile(network, "north", "Passing"):
        network.run_job(small_job(tmp_path / "job", "fedavg_phantoms", rounds=1), LIMIT_S)
        assert (kits["north"] / "local" / "custom" / "sent").is_file()
    assert (kits["south"] / FOLDER).is_dir()
    said = (network.logs / "hub.txt").read_text()
    for origin in (r"hub\.north\.\S+", "server"):
        assert re.search(
            f"a message of 'hub.north' was refused: channel 'admin', .* from '{origin}' to 'hub.south'", said
        )
