"""A provisioned network on this machine: a server and three hospitals over mutual TLS, each from its own kit."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import fill_kits
import make_kits
import psutil
import pytest
import torch
import yaml
from kits import find_kits, kits_folder
from network import Network

from silofl.cli import main
from silofl.data.phantoms import make_phantoms

ROOT = Path(__file__).resolve().parents[2]
SITES = ("east", "north", "south")
LIMIT_S = 300


@pytest.fixture(scope="module")
def phantoms(tmp_path_factory):
    # Enough for each hospital to have the 20 training examples below which no amplitude and no statistics leave it.
    return make_phantoms(tmp_path_factory.mktemp("network") / "data", seed=7, patients=dict.fromkeys(SITES, 9))


@pytest.fixture(scope="module")
def network(tmp_path_factory, wheel, phantoms):
    root = tmp_path_factory.mktemp("network")
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    project = make_kits.make_project(ROOT / "provisioning" / "project.yml", "localhost", port)
    project["participants"].append({"name": "guest@example.org", "type": "admin", "org": "study", "role": "member"})
    folder = make_kits.make_kits(project, root / "workspace")
    for kit in find_kits(kits_folder(folder)):
        fill_kits.fill_kit(kit, fill_kits.Contents(wheel, data_root=phantoms))
    with Network(folder, root / "logs") as running:
        yield running
    left = [p for p in psutil.process_iter(["cmdline"]) if str(root) in " ".join(p.info["cmdline"] or [])]
    assert left == []
    with socket.socket() as probe:
        assert probe.connect_ex(("localhost", port)) != 0


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
