"""A provisioned network on this machine: a server and three hospitals over mutual TLS, each from its own kit."""

import json
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch
import yaml
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.shareable import Shareable
from nvflare.fuel.f3.cellnet.registry import Registry
from nvflare.fuel.f3.communicator import Communicator
from nvflare.fuel.f3.drivers.connector_info import Mode
from nvflare.fuel.f3.endpoint import Endpoint, EndpointMonitor, EndpointState
from nvflare.fuel.hci.client import file_transfer
from nvflare.lighter.utils import serialize_cert
from nvflare.private.admin_defs import Message
from nvflare.private.defs import CellChannel, CellMessageHeaderKeys, RequestHeader, SysCommandTopic, new_cell_message
from nvflare.recipe import ProdEnv
from nvflare.widgets.fed_event import FED_EVENT_TOPIC, FedEventHeader

import silofl
from provisioning.checks import check_kit
from provisioning.fill_kits import Contents, fill_kit
from provisioning.make_kits import make_kits, make_project
from provisioning.namespaces import Namespaces, are_possible
from provisioning.network import Network, start_command
from provisioning.renew_kit import make_renewed_certificate
from provisioning.workspace import PROJECT, REPOSITORY, certificates_file, find_kits, kits_folder
from silofl.base.errors import ConfigError
from silofl.base.files import read_json
from silofl.command_line.cli import main
from silofl.federation.egress_chain import check_chain
from silofl.federation.ledger import read_ledger
from silofl.federation.results import read_results
from silofl.flare.kit import read_kit
from silofl.flare.one_machine import ask_machines
from silofl.recipes import HarmoFLRecipe
from silofl.study import load_study
from silofl_desk.phantoms.phantoms import make_phantoms
from silofl_desk.studies.runs.processes import ProcessTree
from silofl_desk.studies.runs.simulation import study_file
from silofl_hospital.site.network import shake_hands
from tests.conftest import list_records

from ..conftest import readable_by_others, set_umask
from .conftest import set_floor

pytestmark = pytest.mark.long

SITES = ("east", "north", "south")
LIMIT_S = 300
OTHER_LEAD = "other@study.example.org"


@pytest.fixture(scope="module")
def phantoms(tmp_path_factory):
    return make_phantoms(tmp_path_factory.mktemp("network") / "data", seed=7, patients=dict.fromkeys(SITES, 10))


@pytest.fixture(scope="module")
def network(tmp_path_factory, wheel, phantoms, free_port):
    root, port = tmp_path_factory.mktemp("network"), free_port()
    people = (("guest@example.org", "member"), (OTHER_LEAD, "lead"))
    with ExitStack() as stack:
        # Each hospital on a network of its own where this account may make one.
        spaces = stack.enter_context(Namespaces(SITES)) if are_possible() else None
        host = spaces.server_address if spaces else "localhost"
        project = make_project(PROJECT, host, port)
        project["participants"] += [
            {"name": name, "type": "admin", "org": "study", "role": role} for name, role in people
        ]
        # As the command does; whoever starts the kits has the usual umask.
        with set_umask(0o077):
            folder = make_kits(project, root / "workspace")
            for kit in find_kits(kits_folder(folder)):
                fill_kit(kit, Contents(wheel, data_root=phantoms))
                # Of ten patients two validate, whose scores decide which round is the best.
                set_floor(kit, 2)
        with set_umask(0o022):
            yield stack.enter_context(Network(folder, root / "logs", spaces))
    assert {path.suffix for place in (root, phantoms / ".silofl") for path in readable_by_others(place)} <= {".sh"}
    left = [p for p in psutil.process_iter(["cmdline"]) if str(root) in " ".join(p.info["cmdline"] or [])]
    assert left == []
    # Only where nothing listens on it any more is the port given out again.
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("", port))


def test_a_used_port_is_refused_before_anything_starts(tmp_path, free_port):
    with socket.create_server(("localhost", free_port())) as other:
        port = other.getsockname()[1]
        folder = make_kits(make_project(PROJECT, "localhost", port), tmp_path / "workspace")
        with pytest.raises(ConfigError, match=f"port {port} of this machine must be free"), Network(folder, tmp_path):
            pass
    assert list(tmp_path.glob("*.txt")) == []


def small_job(folder, name, rounds=2):
    """Write a variant of a job of the repository that trains in seconds."""
    shutil.copytree(REPOSITORY / "jobs" / name, folder)
    path = folder / "app" / "config" / "study.yaml"
    study = yaml.safe_load(path.read_text()) | {"rounds": rounds}
    study["data"]["transforms"] = [{"Resize": {"spatial_size": [32, 32]}}]
    study["model"]["features"] = [8, 8, 8, 8, 8, 8]
    path.write_text(yaml.safe_dump(study))
    return folder


@contextmanager
def rewritten(path, content):
    """Have a file hold other bytes or another text meanwhile."""
    before = path.read_bytes()
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    try:
        yield
    finally:
        path.write_bytes(before)


def hospital_of(network, name):
    return next(kit for kit in network.hospitals if kit.name == name)


def result_of(network, number, target, person="lead"):
    (path,) = network.download(number, target, person).rglob("results.json")
    return path.parent


def tensors_of(run):
    files = [path for name in ("model", "supermodel") for path in sorted((run / name).rglob("*.pt"))]
    return {str(path.relative_to(run)): torch.load(path, weights_only=True) for path in files}


def assert_same_models(run, other):
    ours, theirs = tensors_of(run), tensors_of(other)
    assert ours.keys() == theirs.keys() != set()
    for file, tensors in theirs.items():
        assert tensors.keys() == ours[file].keys()
        assert all(torch.equal(tensor, ours[file][key]) for key, tensor in tensors.items()), file


SLOW = [pytest.param(f"{name}_phantoms", marks=pytest.mark.slow) for name in ("fedsm", "adafed")]


@pytest.fixture
def end_jobs(network):
    """Ask the running jobs to end, past the server; returns a function that does, and what came back.

    NVFlare takes the word of anybody with a kit that a job has failed, and fires whatever event is sent to it.
    """
    answers, event = [], Shareable()
    event.set_peer_props({ReservedKey.IDENTITY_NAME: "north"})
    for name, value in ((FedEventHeader.TIMESTAMP, 1.0), (FedEventHeader.EVENT_TYPE, EventType.FATAL_SYSTEM_ERROR)):
        event.set_header(name, value)

    def end():
        with network.session(OTHER_LEAD) as session:
            for number in [job["job_id"] for job in session.list_jobs() if job["status"] == "RUNNING"]:
                job = {CellMessageHeaderKeys.JOB_ID: number}
                for topic, data in (("get_clients", {}), ("update_run_status", {"execution_error": True})):
                    channel = CellChannel.SERVER_PARENT_LISTENER
                    answers.append(command(session, "server", channel, topic, data, **job))
                target = f"server.{number}"
                answers.append(command(session, target, CellChannel.AUX_COMMUNICATION, FED_EVENT_TOPIC, event))

    return end, answers


@pytest.mark.parametrize("name", ["harmofl_phantoms", *SLOW])
def test_a_networks_job_has_the_weights_of_a_simulation(network, phantoms, end_jobs, tmp_path, name):
    job, (end, answers) = small_job(tmp_path / name, name), end_jobs
    number, status = network.run_job(job, LIMIT_S, end)
    assert status == "FINISHED:COMPLETED"
    assert answers and all(answer is None for answer in answers)
    here = result_of(network, number, tmp_path / "results")
    assert main(["simulate", str(job), "--data", str(phantoms), "--out", str(tmp_path / "alone"), "--in-process"]) == 0
    assert_same_models(here, tmp_path / "alone")
    results = [json.loads((run / "results.json").read_text()) for run in (here, tmp_path / "alone")]
    # A site of the network withholds numbers of fewer than two patients.
    values = [{site: one["value"] for site, one in result["sites"].items()} for result in results]
    assert values[0] == values[1] and results[0]["status"] == "COMPLETE"
    for site in SITES:
        (own,) = (phantoms / ".silofl" / name / site).glob("*/supermodel/weights")
        names = {"fedsm_phantoms": {"global", "selector", *SITES}}.get(name, {site})
        assert {path.stem for path in own.iterdir()} == names
    assert main(["report", str(here)]) == 0


@pytest.mark.slow
def test_a_network_carries_out_a_recipe(network, phantoms, tmp_path):
    lead, job = network.find_kit("lead"), small_job(tmp_path / "job", "harmofl_phantoms", rounds=3)
    # A connection on a busy machine takes longer than NVFlare's own five seconds.
    environment = ProdEnv(str(lead.folder), username=lead.name, login_timeout=60)
    run = HarmoFLRecipe(job, rounds=1).execute(environment)
    found = silofl.read_results(run.get_result())
    assert run.get_status() == "FINISHED:COMPLETED" and found.status == "COMPLETE"
    alone = ["simulate", str(job), "--data", str(phantoms), "--out", str(tmp_path / "alone"), "--in-process"]
    assert main([*alone, "--rounds", "1"]) == 0
    assert found.sites == silofl.read_results(tmp_path / "alone").sites


@pytest.fixture
def all_tests(phantoms):
    """Let a hospital have nothing but test cases, as one that trained no model; it gets its own parts back."""
    with ExitStack() as stack:

        def change(site):
            path = phantoms / site / "dataset.json"
            content = json.loads(path.read_text())
            content |= {"training": [], "validation": [], "test": list_records(content)}
            stack.enter_context(rewritten(path, json.dumps(content)))

        yield change


@pytest.mark.slow
def test_a_hospital_that_did_not_train_tests_the_model(network, phantoms, all_tests, tmp_path):
    trained, job = tmp_path / "trained", tmp_path / "job"
    two = ["--data", str(phantoms), "--sites", "east,north", "--in-process", "--out", str(trained)]
    assert main(["simulate", str(small_job(tmp_path / "small", "fedavg_phantoms")), *two]) == 0
    assert main(["evaluation-job", str(trained / "supermodel"), "--out", str(job)]) == 0
    all_tests("south")
    for site in ("east", "north"):
        set_floor(hospital_of(network, site), 5)
    number, status = network.run_job(job, LIMIT_S)
    run = result_of(network, number, tmp_path / "results")
    for site in ("east", "north"):
        set_floor(hospital_of(network, site), 2)
    results, found = read_results(run), read_json(run / "evaluations.json")
    # Of the others' ten patients few are for tests: below the 5 that scores must come from.
    few = "the site lets evaluation leave only from 5 patients or more; it has fewer"
    assert status == "FINISHED:COMPLETED" and results.status == "INCOMPLETE"
    assert results.reasons == tuple(f"site {site} did not test the model ({few})" for site in ("east", "north"))
    assert [*found["sites"]] == ["south"] and found["sites"]["south"]["num_cases"] == 10
    assert results.values["south"] == found["sites"]["south"]["scores"][""]["dice"]["value"]
    records = {}
    for site in SITES:
        (path,) = (phantoms / ".silofl" / "fedavg_phantoms-evaluation" / site).glob("*/egress.jsonl")
        records[site] = [json.loads(line) for line in path.read_text().splitlines()]
    assert [record["kind"] for record in records["south"]] == ["evaluation", "numbers"]
    # Named but not sent by the two others: what was refused, and the reason that left in its place.
    assert [record["kind"] for record in records["east"]][-1] == "reason"
    assert main(["report", str(run)]) == 0
    page = (run / "report.html").read_text()
    assert "What hospitals say" in page and few in page and "nothing was trained" in page
    # the hospital's own evaluation, at its desk
    desk = ["evaluate", str(trained / "supermodel"), str(phantoms / "south"), "--out", str(tmp_path / "desk")]
    assert main(desk) == 0
    assert (
        read_json(tmp_path / "desk" / "evaluation.json")["scores"][""]["dice"]
        == found["sites"]["south"]["scores"][""]["dice"]
    )


@pytest.fixture
def named_job(tmp_path):
    """Write a job that names its hospitals, and goes to all that are connected."""

    def write(*names, rounds=1, **federation):
        job = small_job(tmp_path / "named", "fedavg_phantoms", rounds)
        content = yaml.safe_load(study_file(job).read_text())
        settings = {"sites": [*names], "min_sites": 2, "join_timeout_s": 5} | federation
        study_file(job).write_text(yaml.safe_dump(content | {"federation": settings}))
        return job

    return write


@pytest.mark.slow
def test_a_rehearsal_leaves_only_its_record(network, phantoms, named_job, tmp_path, capsys):
    lead, job = network.find_kit("lead").folder, named_job("east", "north", "south", "west", rounds=5)
    state, servers = phantoms / ".silofl" / "fedavg_phantoms", phantoms / ".silofl" / "server"
    kept = lambda: {path for folder in (state, servers / "runs") for path in folder.rglob("*") if path.is_file()}  # noqa: E731
    before, broken = kept(), phantoms / "north" / "dataset.json"
    with rewritten(broken, "{}"):
        code = main(["run", str(job), "--kit", str(lead), "--rehearse", "--json"])
    said = capsys.readouterr()
    reports = json.loads(said.out)
    assert code == 3 and [*reports] == ["east", "north", "south", "west"]
    assert "the site's data have a fault" in reports["north"]["faults"][0]
    assert reports["west"]["faults"] == ["west was not connected"]
    for site in ("east", "south"):
        assert reports[site]["faults"] == [] and reports[site]["bytes_to"] == reports[site]["bytes_from"] > 0
        assert 0 < reports[site]["round_seconds"] < 60
    new = {path for path in kept() - before if "cache" not in path.parts}
    assert {path.name for path in new} == {"egress.jsonl", "lock"}
    for path in (path for path in new if path.suffix == ".jsonl"):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        arrays = [record for record in records if record["kind"] in ("weights", "batchnorm")]
        site = path.parts[-3]
        assert path.parent.name.startswith("rehearsal-")
        assert sum(record["bytes"] for record in arrays) == (reports[site]["bytes_from"] or 0)
        assert all("back unchanged in a rehearsal" in record["purpose"] for record in arrays)
        assert check_chain(path.read_bytes()).fault is None


@pytest.mark.slow
def test_a_job_for_one_hospital_makes_no_model(network, phantoms, tmp_path):
    job = small_job(tmp_path / "alone", "fedavg_phantoms")
    path, meta = study_file(job), read_json(job / "meta.json")
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"federation": {"min_sites": 1, "sites": 1}}))
    (job / "meta.json").write_text(json.dumps(meta | {"deploy_map": {"app": ["server", "south"]}, "min_clients": 1}))
    number, status = network.run_job(job, LIMIT_S)
    run = result_of(network, number, tmp_path / "results")
    results = read_results(run)
    assert status != "FINISHED:COMPLETED" and results.status == "FAILED"
    assert "site 'south' must have at least 1 other site in the round, not 0, as min_partners" in results.reasons[0]
    assert not (run / "model").exists() and not (run / "supermodel").exists()
    record = phantoms / ".silofl" / "fedavg_phantoms" / "south" / results.run / "egress.jsonl"
    left = [json.loads(line) for line in record.read_text().splitlines()]
    assert {one["kind"] for one in left} == {"numbers"} and {one["sites"] for one in left} == {1}


@pytest.mark.slow
def test_runs_and_pinned_studies_belong_to_their_lead(network, phantoms, tmp_path):
    name = "fedavg_phantoms"
    job = small_job(tmp_path / "own", name, rounds=1)
    number, _ = network.run_job(job, LIMIT_S)
    run = read_json(result_of(network, number, tmp_path / "own_results") / "results.json")["run"]
    folder = phantoms / ".silofl" / "server" / "runs" / name / run
    assert read_json(folder / "lead.json") == {"lead": network.find_kit("lead").name}
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    continued = small_job(tmp_path / "continued", name, rounds=2)
    path = study_file(continued)
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"continue_run": run}))
    number, status = network.run_job(continued, LIMIT_S, person=OTHER_LEAD)
    got = result_of(network, number, tmp_path / "stolen", OTHER_LEAD)
    assert status != "FINISHED:COMPLETED" and [path.name for path in got.iterdir()] == ["results.json"]
    assert "that its own lead began" in read_json(got / "results.json")["reasons"][0]
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before

    site, ledgers = hospital_of(network, "north").folder / "local" / "site.yaml", []
    pin = {name: {"sha256": load_study(study_file(job)).digest, "lead": network.find_kit("lead").name}}
    with rewritten(site, yaml.safe_dump(yaml.safe_load(site.read_text()) | {"studies": pin})):
        for person in ("lead", OTHER_LEAD):
            number, _ = network.run_job(job, LIMIT_S, person=person)
            results = result_of(network, number, tmp_path / person, person)
            ledgers.append(json.loads((results / "ledger.json").read_text())[0])
    assert set(ledgers[0]["answered"]) == {*SITES}
    assert set(ledgers[1]["answered"]) == {*SITES} - {"north"}
    assert f"not by {OTHER_LEAD}" in ledgers[1]["failed"]["north"]


@pytest.mark.slow
def test_a_job_without_one_hospital_of_its_study_trains_nowhere(network, tmp_path):
    """Two jobs of one study, one with and one without it, would give that hospital's own model."""
    job = small_job(tmp_path / "job", "fedavg_phantoms", rounds=1)
    path = study_file(job)
    study = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(study | {"federation": {"sites": [*SITES], "min_sites": 2}}))
    (job / "meta.json").write_text(
        json.dumps(read_json(job / "meta.json") | {"deploy_map": {"app": ["server", "east", "north"]}})
    )
    number, status = network.run_job(job, LIMIT_S)
    assert status != "FINISHED:COMPLETED"
    network.download(number, tmp_path / "results")
    assert list((tmp_path / "results").rglob("ledger.json")) == []


@pytest.mark.slow
def test_a_file_damaged_later_costs_only_its_case(network, phantoms, tmp_path):
    job, kit = small_job(tmp_path / "job", "fedavg_phantoms"), hospital_of(network, "south")
    settings, folder = kit.folder / "local" / "site.yaml", phantoms / "south"
    image = folder / read_json(folder / "dataset.json")["training"][0]["image"]
    with rewritten(settings, yaml.safe_dump(yaml.safe_load(settings.read_text()) | {"skip_unreadable": 0.1})):
        checked = ["site", "check", "--kit", str(kit.folder), "--study", str(study_file(job))]
        subprocess.run([sys.executable, "-m", "silofl", *checked], check=True)
        with rewritten(image, image.read_bytes()[: image.stat().st_size // 2]):
            number, status = network.run_job(job, LIMIT_S)
    run = result_of(network, number, tmp_path / "results")
    assert (status, read_results(run).status) == ("FINISHED:COMPLETED", "COMPLETE")
    ledger = read_ledger(run)
    assert "site 'south' leaves out cases that cannot be read: 1 damaged" in ledger[0].notes
    for found in ledger:
        assert found.failed == {}
        assert found.examples["south"] < found.examples["north"] and sorted(found.answered) == [*SITES]
    assert image.stem not in (run / "ledger.json").read_text()


HOSTILE = """
import os
import re
import signal
from pathlib import Path

from nvflare.apis.filter import Filter
from nvflare.apis.fl_exception import UnsafeJobError
from nvflare.fuel.f3.cellnet.registry import Registry
from nvflare.private.admin_defs import Message
from nvflare.private.defs import AUTH_CLIENT_NAME_FOR_SJ, CellMessageHeaderKeys, new_cell_message


class Unsafe(Filter):
    def process(self, shareable, fl_ctx):
        raise UnsafeJobError("this job is not safe")


class Dying(Filter):
    def process(self, shareable, fl_ctx):
        os.kill(os.getpid(), signal.SIGKILL)


class Replaying(Filter):
    # Has south delete a job's folder, in the name of the process that commands this job.

    seen = {}

    def process(self, shareable, fl_ctx):
        core = fl_ctx.get_engine().get_cell().core_cell
        if not core.in_filter_reg.reg:
            core.add_incoming_filter("*", "*", self.listen)
        if self.seen:
            own, core.out_req_filter_reg = core.out_req_filter_reg, Registry()
            command = Message("train.delete_run", "")
            command.set_header("job_id", "0c9d3e0e-4d5b-4b53-8f4e-9b6c2a1f7d88")
            core.send_request("admin", command.topic, "south", new_cell_message(self.seen, command), 3)
            core.out_req_filter_reg = own
            Path(__file__).with_name("sent").touch()

    def listen(self, message):
        if message.get_header(CellMessageHeaderKeys.CLIENT_NAME) == AUTH_CLIENT_NAME_FOR_SJ:
            names = ("CLIENT_NAME", "TOKEN", "TOKEN_SIGNATURE", "SSID")
            self.seen |= {key: message.get_header(key) for key in (getattr(CellMessageHeaderKeys, n) for n in names)}
"""


@contextmanager
def hostile(network, name, filter_name):
    """Give a hospital a filter of its own making, before the one that it is to have."""
    local = hospital_of(network, name).folder / "local"
    policy, settings = (read_json(local / file) for file in ("privacy.json", "resources.json"))
    for scope in policy["scopes"]:
        scope["task_result_filters"].insert(0, {"path": f"hostile.{filter_name}", "direction": "out"})
    settings["class_allow_list"].append(f"hostile.{filter_name}")
    (local / "custom").mkdir()
    (local / "custom" / "hostile.py").write_text(HOSTILE)
    try:
        with (
            rewritten(local / "privacy.json", json.dumps(policy)),
            rewritten(local / "resources.json", json.dumps(settings)),
        ):
            yield
    finally:
        shutil.rmtree(local / "custom")


@contextmanager
def no_class_allowed(network, name):
    """Have a hospital let no class run."""
    resources = hospital_of(network, name).folder / "local" / "resources.json"
    with rewritten(resources, json.dumps(read_json(resources) | {"class_allow_list": []})):
        yield


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (no_class_allowed, "its process for this job could not begin"),
        (partial(hostile, filter_name="Unsafe"), "UNSAFE_JOB"),
    ],
)
def test_a_hospital_that_fails_costs_only_its_own_answers(network, tmp_path, fault, said):
    """NVFlare ends a job for everybody at one site's answer UNSAFE_JOB, or where its process cannot begin."""
    with fault(network, "north"):
        number, status = network.run_job(small_job(tmp_path / "job", "fedavg_phantoms"), LIMIT_S)
    results = read_results(result_of(network, number, tmp_path / "results"))
    assert (status, results.status) == ("FINISHED:COMPLETED", "INCOMPLETE")
    assert any("north" in reason and said in reason for reason in results.reasons)


@pytest.mark.slow
def test_a_dying_process_ends_one_job_at_most(network, tmp_path, lead_command):
    """NVFlare ends a job for everybody where one site reports that its process has failed."""
    job = small_job(tmp_path / "job", "fedavg_phantoms")
    # The server keeps for a day in which jobs a site's process has failed, for the tests to come too.
    (job / "meta.json").write_text(json.dumps(read_json(job / "meta.json") | {"name": "dying"}))
    with hostile(network, "north", "Dying"):
        code, said = lead_command(job, tmp_path / "out").finish()
    assert code == 3, said
    assert said.count("going on by itself") == 1
    assert "stopped: the process of site 'north', whose own log says why, failed after round 0 of 2" in said
    results = read_results(tmp_path / "out")
    assert results.status == "INCOMPLETE"
    assert any("north" in reason and "failed twice in a day" in reason for reason in results.reasons), results.reasons


# Which messages a server passes on is the test of its filter, in flare/.
@pytest.mark.slow
def test_a_hospital_cannot_command_another(network, tmp_path):
    """NVFlare's server takes a message for whose name and token it bears, and each hospital of a job gets both."""
    kits = {kit.name: kit.folder for kit in network.hospitals}
    folder = kits["south"] / "0c9d3e0e-4d5b-4b53-8f4e-9b6c2a1f7d88"
    folder.mkdir()
    try:
        with hostile(network, "north", "Replaying"):
            network.run_job(small_job(tmp_path / "job", "fedavg_phantoms", rounds=3), LIMIT_S)
            assert (kits["north"] / "local" / "custom" / "sent").is_file()
        assert folder.is_dir()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
def test_nobody_connects_under_the_name_of_another(network):
    """The server judges a message by the line on which it comes."""
    east = hospital_of(network, "east")
    log = network.logs / "server.txt"
    for name in ("north", "north.x", "server.x"):
        with connected_as(name, east, east.address.port):
            assert says(log, f"authenticated as 'east' but claimed endpoint '{name}' requires", 20), name
    with connected_as("east.x", east, east.address.port):
        assert not says(log, "claimed endpoint 'east.x'", 1)


# --- what is refused, in the words that the guide gives


def detail_of(network, number):
    with network.session() as session:
        return session.get_job_meta(number)["job_deploy_detail"]


def log_of(network, name):
    return (network.logs / f"{name}.txt").read_text()


def test_a_job_that_brings_code_is_refused(network, tmp_path):
    job = small_job(tmp_path / "job", "fedavg_phantoms")
    (job / "app" / "custom").mkdir()
    (job / "app" / "custom" / "code.py").write_text("{}")
    number, status = network.run_job(job, LIMIT_S)
    assert status == "FINISHED:FAILED_TO_RUN"
    assert "server: a job of SiloFL must hold config_fed_client.json" in " ".join(detail_of(network, number))


@pytest.mark.parametrize("values", [{"job_id": "local"}, {"min_clients": "2"}])
def test_a_job_that_stops_the_scheduler_is_not_taken(network, tmp_path, values):
    job = small_job(tmp_path / "job", "fedavg_phantoms")
    meta = read_json(job / "meta.json") | values
    (job / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(Exception, match="meta.json of (the job has job_id|a job must have a whole number)"):
        network.run_job(job, LIMIT_S)
    kits = kits_folder(network.project)
    assert all((kits / name / "local" / "authorization.json").is_file() for name in ("server", *SITES))


def test_a_job_cannot_have_anybody_run_a_shell(network, tmp_path):
    """NVFlare calls any attribute of any module below an entry of the list that is no class, with a job's args."""
    name, marks = "silofl_desk.studies.runs.processes.ProcessTree", tmp_path / "marks"
    marks.mkdir()
    for side in ("server", "client"):
        job = small_job(tmp_path / side, "fedavg_phantoms")
        # Every other hospital would start a process that says the same.
        meta = read_json(job / "meta.json") | {"deploy_map": {"app": ["server", "north"]}, "min_clients": 1}
        (job / "meta.json").write_text(json.dumps(meta))
        study = yaml.safe_load(study_file(job).read_text()) | {"federation": {"min_sites": 1, "sites": 1}}
        study_file(job).write_text(yaml.safe_dump(study))
        path = job / "app" / "config" / f"config_fed_{side}.json"
        config, mark = json.loads(path.read_text()), f"{marks}/{side}-$$"
        log = {"template": str(tmp_path / "log.txt"), "study": "", "site": ""}
        shell = {
            "command": ["/bin/sh", "-c", f"touch {mark}"],
            "log": {"path": "silofl.setup.site._fill_template", "args": log},
        }
        config.setdefault("components", []).append({"id": "x", "path": name, "args": shell})
        path.write_text(json.dumps(config))
        network.run_job(job, LIMIT_S)
    assert list(marks.iterdir()) == []
    for site in ("server", "north"):
        refusals = [line for line in log_of(network, site).splitlines() if f"Component '{name}' at config path" in line]
        assert any("is not in allow_list" in line for line in refusals), site


def command(session, target, channel, topic, payload, **headers):
    """Send a message past the admin console, with no more than the person's kit; returns what came back."""
    # An attacker's own end believes every answer.
    session.api.cell.core_cell.in_filter_reg = Registry()
    message = new_cell_message(headers, payload)
    reply = session.api.cell.send_request(
        target=target, channel=channel, topic=topic, request=message, timeout=3, optional=True
    )
    return reply.payload


@pytest.mark.parametrize("person", ["lead", "member"])
def test_nobody_commands_a_hospital_past_the_server(network, phantoms, person):
    """NVFlare's server passes any message on, and a hospital asks for no rights unless the message says so."""
    delete = Message("train.delete_run", "")
    delete.set_header(RequestHeader.JOB_ID, "local")
    kit = hospital_of(network, "north")
    with network.session(person) as session:
        for message in (Message(SysCommandTopic.SHELL, f"cat {phantoms}/north/dataset.json"), delete):
            assert command(session, "north", CellChannel.CLIENT_MAIN, message.topic, message) is None
        assert command(session, "server", "_net_manager", "process_info", None) is None
    assert (kit.folder / "local" / "site.yaml").is_file()
    assert "a message was refused: channel 'admin', topic 'sys.shell'" in log_of(network, "server")


def change(path):
    path.write_text(path.read_text() + "\n")


def test_a_member_may_not_submit(network, tmp_path):
    job = small_job(tmp_path / "job", "fedavg_phantoms")
    with (
        network.session("member") as session,
        pytest.raises(Exception, match="user 'guest@example.org' is not authorized for 'submit_job'"),
    ):
        session.submit_job(str(job))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: change(folder / "app" / "config" / "study.yaml"), "app app does not pass signature verif"),
        (lambda folder: [path.unlink() for path in folder.rglob(".__nvfl_*")], "unsigned job rejected"),
    ],
    ids=["changed after it was signed", "without a signature"],
)
def test_a_job_whose_signature_is_not_its_own_is_refused(network, tmp_path, monkeypatch, spoil, message):
    job, sign = small_job(tmp_path / "job", "fedavg_phantoms"), file_transfer.sign_folders

    def sign_and_spoil(folder, *arguments):
        sign(folder, *arguments)
        spoil(Path(folder))

    monkeypatch.setattr(file_transfer, "sign_folders", sign_and_spoil)
    try:
        number, status = network.run_job(job, LIMIT_S)
        said = f"{status} {detail_of(network, number)}"
    except Exception as error:
        said = str(error)
    assert message in said + log_of(network, "server")


@pytest.fixture
def stranger(network, tmp_path):
    """A hospital's kit of the same names and the same server, under another root."""
    address = network.hospitals[0].address
    project = make_project(PROJECT, address.host, address.port)
    return read_kit(kits_folder(make_kits(project, tmp_path / "other")) / "north")


@pytest.fixture
def expired(network, tmp_path):
    """A copy of a hospital's own kit, whose certificate has ended."""
    old = network.hospitals[0].folder
    for name in ("startup", "local"):
        shutil.copytree(old / name, tmp_path / "old" / name)
    kit, record = read_kit(tmp_path / "old"), read_json(certificates_file(network.project))
    certificate = make_renewed_certificate(kit, record["root_pri_key"], datetime.now(UTC) - timedelta(days=400))
    kit.certificate_path.write_bytes(serialize_cert(certificate))
    return read_kit(kit.folder)


def test_server_and_hospital_accept_each_other_by_their_own_root(network):
    hospital = network.hospitals[0]
    assert shake_hands(hospital).server == hospital.address.identity == "server"


def test_a_kit_of_another_root_does_not_trust_the_server(stranger):
    with pytest.raises(ssl.SSLCertVerificationError, match="self-signed certificate in certificate chain"):
        shake_hands(stranger)


def test_the_server_refuses_an_expired_certificate(expired):
    with pytest.raises(OSError, match="the line was closed without an answer"):
        shake_hands(expired)
    findings = check_kit(expired, expired.root, {"server": set(), "client": set()}, datetime.now(UTC))
    assert any(finding.is_failure and "certificate must be valid" in finding.text for finding in findings)


# --- a run whose processes are killed


class LeadCommand:
    """``silofl run`` of the study lead, in the background."""

    def __init__(self, network, job, out, *options):
        command = [sys.executable, "-m", "silofl", "run", str(job), "--kit", str(network.find_kit("lead").folder)]
        self.out, self.log = out, out.with_suffix(".txt")
        self.tree = ProcessTree([*command, "--out", str(out), *options], self.log)

    def wait_for_rounds(self, number):
        """Wait until so many rounds have been shown."""
        deadline = time.monotonic() + LIMIT_S
        while len(re.findall(r"\nround +\d+/", self.log.read_text())) < number:
            assert self.tree.poll() is None and time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.1)

    def finish(self):
        """Wait for the command's end; returns its exit code and what it said."""
        deadline = time.monotonic() + LIMIT_S
        while (code := self.tree.poll()) is None:
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.2)
        return code, self.log.read_text()


@pytest.fixture
def lead_command(network):
    started = []

    def start(*arguments):
        started.append(LeadCommand(network, *arguments))
        return started[-1]

    yield start
    for command in started:
        command.tree.end()


def find_job_process(network, name):
    """Return what carries out a participant's part of the running job, and nothing else."""
    kit = str(next(kit for kit in (network.server, *network.hospitals) if kit.name == name).folder)
    module = "runner_process" if name == "server" else "worker_process"
    lines = [(process, " ".join(process.info["cmdline"] or [])) for process in psutil.process_iter(["cmdline"])]
    (process,) = [process for process, line in lines if f".{module}" in line and kit in line]
    return process


@pytest.fixture(scope="module")
def uninterrupted(phantoms, tmp_path_factory):
    """The job whose processes are killed below, and its run without a network."""
    root = tmp_path_factory.mktemp("uninterrupted")
    job = small_job(root / "job", "harmofl_phantoms", rounds=6)
    assert main(["simulate", str(job), "--data", str(phantoms), "--out", str(root / "run"), "--in-process"]) == 0
    return job, root / "run"


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["server", "north"])
def test_a_killed_job_goes_on_to_the_same_weights(network, uninterrupted, lead_command, tmp_path, victim):
    job, whole = uninterrupted
    command = lead_command(job, tmp_path / "out")
    command.wait_for_rounds(2)
    find_job_process(network, victim).kill()
    code, said = command.finish()
    assert code == 0, said
    assert "going on by itself, 1 of 3 times" in said
    results = read_results(command.out)
    assert results.status == "COMPLETE"
    assert load_study(study_file(command.out / "job")).continue_run == results.run
    assert_same_models(command.out, whole)
    assert [line.split("/")[0].split()[-1] for line in said.splitlines() if line.startswith("round ")] == list("123456")


@pytest.mark.slow
def test_a_late_hospital_takes_part_from_the_next_round(network, named_job, lead_command, tmp_path):
    job = named_job("east", "north", "south", rounds=12, may_miss=1)
    meta = read_json(job / "meta.json") | {"deploy_map": {"app": ["server", "east", "north", "south"]}}
    (job / "meta.json").write_text(json.dumps(meta))
    network.kill("south")
    try:
        command = lead_command(job, tmp_path / "out")
        command.wait_for_rounds(1)
    finally:
        network.start(hospital_of(network, "south"))
    code, said = command.finish()
    assert code == 0, said
    first, *_, last = read_ledger(command.out)
    assert "was not connected" in first.failed["south"] and last.answered == ["east", "north", "south"]
    assert read_results(command.out).tests["south"] is not None


@pytest.mark.slow
def test_a_copy_of_a_kit_is_refused(network, lead_command, tmp_path, capsys):
    north, job = hospital_of(network, "north"), small_job(tmp_path / "job", "fedavg_phantoms", rounds=4)
    copy, log = read_kit(Path(shutil.copytree(north.folder, tmp_path / "copy"))), tmp_path / "copy.txt"
    command = lead_command(job, tmp_path / "out")
    command.wait_for_rounds(1)
    second = ProcessTree(start_command(copy), log)
    deadline = time.monotonic() + 60
    while second.poll() is None and time.monotonic() < deadline:
        time.sleep(0.2)
    second.end()
    said = log.read_text()
    assert second.poll() not in (None, 0), said
    assert said.count("north runs on another machine too: the server hears it from") == 1, said
    assert "Traceback" not in said
    skipped = ["--skip", "training,leaving,privacy,data", "--study", str(study_file(job))]
    assert main(["site", "check", "--kit", str(copy.folder), *skipped]) == 1
    assert "stop it there" in " ".join(capsys.readouterr().out.split())
    (job_id,) = re.findall(r"submitted as job (\S+)", command.log.read_text())
    assert main(["watch", job_id, "--kit", str(network.find_kit("lead").folder), "--json"]) == 0
    assert [*json.loads(capsys.readouterr().out)["second_machines"]] == ["north"]
    code, said = command.finish()
    assert code == 0, said
    # A hospital that is ended and started again at its place does not wait.
    restart(network, north)
    assert ask_machines(north)["north"]["is_here"]


def restart(network, kit):
    network.kill(kit.name)
    network.start(kit)
    network._wait(
        f"{kit.name} to connect", lambda: "Successfully registered" in (network.logs / f"{kit.name}.txt").read_text()
    )
