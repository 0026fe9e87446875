"""A provisioned network on this machine: a server and three hospitals over mutual TLS, each from its own kit."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import fill_kits
import make_kits
import psutil
import pytest
import renew_kit
import torch
import yaml
from checks import check_kit
from kits import certificates_file, find_kits, kits_folder, read_kit
from namespaces import Namespaces, are_possible
from network import Network
from nvflare.fuel.hci.client import file_transfer
from nvflare.lighter.utils import serialize_cert

from silofl.cli import main
from silofl.data.phantoms import make_phantoms
from silofl.studies.processes import ProcessTree

ROOT = Path(__file__).resolve().parents[2]
SITES = ("east", "north", "south")
LIMIT_S = 300


@pytest.fixture(scope="module")
def phantoms(tmp_path_factory):
    # Enough for each hospital to have the 20 training examples below which no amplitude and no statistics leave it.
    return make_phantoms(tmp_path_factory.mktemp("network") / "data", seed=7, patients=dict.fromkeys(SITES, 9))


@pytest.fixture(scope="module")
def network(tmp_path_factory, wheel, phantoms):
    root, is_apart = tmp_path_factory.mktemp("network"), are_possible()
    host = Namespaces.server_address if is_apart else "localhost"
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    project = make_kits.make_project(ROOT / "provisioning" / "project.yml", host, port)
    project["participants"].append({"name": "guest@example.org", "type": "admin", "org": "study", "role": "member"})
    folder = make_kits.make_kits(project, root / "workspace")
    for kit in find_kits(kits_folder(folder)):
        fill_kits.fill_kit(kit, fill_kits.Contents(wheel, data_root=phantoms))
    with ExitStack() as stack:
        # Each hospital on a network of its own where this account may make one.
        spaces = stack.enter_context(Namespaces(SITES)) if is_apart else None
        yield stack.enter_context(Network(folder, root / "logs", spaces))
    left = [p for p in psutil.process_iter(["cmdline"]) if str(root) in " ".join(p.info["cmdline"] or [])]
    assert left == []
    with socket.socket() as probe:
        probe.settimeout(1)
        assert probe.connect_ex((host, port)) != 0


def small_job(folder, name, rounds=2):
    """Write a variant of a job of the repository that trains in seconds."""
    shutil.copytree(ROOT / "jobs" / name, folder)
    path = folder / "app" / "config" / "study.yaml"
    study = yaml.safe_load(path.read_text()) | {"rounds": rounds}
    study["data"]["transforms"] = [{"Resize": {"spatial_size": [32, 32]}}]
    study["model"]["features"] = [8, 8, 8, 8, 8, 8]
    path.write_text(yaml.safe_dump(study))
    return folder


def result_of(network, number, target):
    (path,) = network.download(number, target).rglob("results.json")
    return path.parent


def tensors_of(run):
    files = [path for name in ("model", "supermodel") for path in sorted((run / name).rglob("*.pt"))]
    return {str(path.relative_to(run)): torch.load(path, weights_only=True) for path in files}


@pytest.mark.parametrize("name", ["harmofl_phantoms", "fedsm_phantoms", "adafed_phantoms"])
def test_a_job_comes_to_the_very_weights_of_a_simulation(network, phantoms, tmp_path, name):
    job = small_job(tmp_path / name, name)
    number, status = network.run_job(job, LIMIT_S)
    assert status == "FINISHED:COMPLETED"
    here = result_of(network, number, tmp_path / "results")
    assert main(["simulate", str(job), "--data", str(phantoms), "--out", str(tmp_path / "alone"), "--alone"]) == 0
    ours, theirs = tensors_of(here), tensors_of(tmp_path / "alone")
    assert ours.keys() == theirs.keys() != set()
    for file, tensors in theirs.items():
        assert tensors.keys() == ours[file].keys()
        assert all(torch.equal(tensor, ours[file][key]) for key, tensor in tensors.items()), file
    results = [json.loads((run / "results.json").read_text()) for run in (here, tmp_path / "alone")]
    assert results[0]["sites"] == results[1]["sites"] and results[0]["status"] == "COMPLETE"
    for site in SITES:
        (own,) = (phantoms / ".silofl" / name / site).glob("*/supermodel/weights")
        names = {"fedsm_phantoms": {"global", "selector", *SITES}}.get(name, {site})
        assert {path.stem for path in own.iterdir()} == names
    assert main(["report", str(here)]) == 0


def test_each_hospital_writes_down_what_left_it(network, phantoms, tmp_path):
    name = "fedavg_phantoms"
    number, _ = network.run_job(small_job(tmp_path / name, name, rounds=1), LIMIT_S)
    ledger = json.loads((result_of(network, number, tmp_path / "results") / "ledger.json").read_text())
    for site in SITES:
        (path,) = (phantoms / ".silofl" / name / site).glob("*/egress.jsonl")
        records = [json.loads(line) for line in path.read_text().splitlines()]
        assert sum(record.get("bytes", 0) for record in records) == ledger[0]["bytes_from"][site]
        assert {record["kind"] for record in records} == {"weights", "batchnorm", "numbers"}
        assert not any(record["refused"] for record in records)
        assert "what the round's training changed" in path.with_suffix(".md").read_text()


def test_the_console_and_the_command_submit_as_the_api_does(network, tmp_path):
    lead = network.kit_of("lead")
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    small_job(lead.folder / "transfer" / "by_console", "fedavg_phantoms", rounds=1)
    console = subprocess.run(
        ["bash", str(lead.folder / "startup" / "fl_admin.sh")],
        input=f"{lead.name}\nsubmit_job by_console\nbye\n",
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=environment,
    )
    assert "Submitted job" in console.stdout, console.stdout + console.stderr
    job = small_job(tmp_path / "by_command", "fedavg_phantoms", rounds=1)
    arguments = ["--format", "json", "job", "submit", "-j", str(job), "--startup-kit", str(lead.folder / "startup")]
    command = subprocess.run(
        [sys.executable, "-m", "nvflare.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=environment,
    )
    assert command.returncode == 0, command.stdout + command.stderr
    assert network.wait_for_jobs(2, LIMIT_S) == {"FINISHED:COMPLETED"}


# --- what is refused, in the words that the guide gives


def detail_of(network, number):
    with network.session() as session:
        return session.get_job_meta(number)["job_deploy_detail"]


def log_of(network, name):
    return (network.logs / f"{name}.txt").read_text()


def test_a_job_that_brings_code_is_refused(network, tmp_path):
    job = small_job(tmp_path / "job", "fedavg_phantoms")
    (job / "app" / "custom").mkdir()
    (job / "app" / "custom" / "code.py").write_text("print(1)")
    number, status = network.run_job(job, LIMIT_S)
    assert status == "FINISHED:FAILED_TO_RUN" and "BYOC not permitted" in " ".join(detail_of(network, number))


def test_a_job_that_names_a_class_outside_the_allow_list_is_refused_by_the_hospitals(network, tmp_path):
    job = small_job(tmp_path / "job", "fedavg_phantoms")
    path = job / "app" / "config" / "config_fed_client.json"
    config = json.loads(path.read_text())
    name = "nvflare.app_opt.pt.file_model_persistor.PTFileModelPersistor"
    path.write_text(json.dumps(config | {"components": [{"id": "x", "path": name, "args": {}}]}))
    _, status = network.run_job(job, LIMIT_S)
    assert status == "FINISHED:ABNORMAL"
    said = "".join(log_of(network, site) for site in SITES)
    assert f"Component '{name}' at config path 'components.#1' is not in allow_list" in said


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
        (
            lambda folder: change(folder / "app" / "config" / "study.yaml"),
            "app app does not pass signature verification",
        ),
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


def test_kits_of_another_root_and_with_an_expired_certificate_do_not_connect(network, tmp_path, wheel, phantoms):
    host, port = network.hospitals[0].address
    project = make_kits.make_project(ROOT / "provisioning" / "project.yml", host, port)
    other = read_kit(kits_folder(make_kits.make_kits(project, tmp_path / "other")) / "north")
    assert "certificate verify failed: self-signed certificate in certificate chain" in attempt(other, tmp_path)

    kept = json.loads(certificates_file(network.project).read_text())
    for name in ("startup", "local"):
        shutil.copytree(network.hospitals[0].folder / name, tmp_path / "old" / name)
    old = read_kit(tmp_path / "old")
    expired = renew_kit.renewed(old, kept["root_pri_key"], datetime.now(UTC) - timedelta(days=400))
    old.certificate_path.write_bytes(serialize_cert(expired))
    before = log_of(network, "server").count("SSL north] is created")
    # NVFlare says nothing at either side: the site is not there, and that is all.
    attempt(old, tmp_path, seconds=20)
    assert log_of(network, "server").count("SSL north] is created") == before
    old = read_kit(old.folder)
    findings = check_kit(old, old.root, {"server": set(), "client": set()}, datetime.now(UTC))
    assert any(found.is_failure and "certificate must be valid" in found.text for found in findings)


def attempt(kit, folder, seconds=60):
    """Start a hospital's kit until it has failed once, or for so long; return what it says."""
    log = folder / f"{kit.folder.parent.name}.txt"
    tree = ProcessTree(["bash", str(kit.folder / "startup" / "sub_start.sh"), "--once"], log)
    try:
        deadline = time.monotonic() + seconds
        while "failed with exception" not in log.read_text() and time.monotonic() < deadline:
            time.sleep(0.5)
    finally:
        tree.end()
    return log.read_text()


def test_a_study_that_fails_is_no_completed_job_and_its_reason_is_downloaded(network, tmp_path):
    job = small_job(tmp_path / "fails", "fedavg_phantoms", rounds=1)
    path = job / "app" / "config" / "study.yaml"
    study = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(study | {"labels": {1: "something else"}, "name": "fails"}))
    number, status = network.run_job(job, LIMIT_S)
    assert status != "FINISHED:COMPLETED"
    results = json.loads((result_of(network, number, tmp_path / "results") / "results.json").read_text())
    assert results["status"] == "FAILED" and "the site's data have a fault" in results["reasons"][0]
