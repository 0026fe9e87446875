"""NVFlare's own commands, as jobs/README.md has them: its simulator and its POC, from nothing to a result."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import yaml

from silofl.federation.results import read_results

from .conftest import JOBS, LIMIT_S, same, silofl, weights

NVFLARE = Path(sys.executable).with_name("nvflare")


def nvflare(*arguments, check=True, **options):
    """Run a command of NVFlare as a person would; returns the finished process."""
    command = [str(NVFLARE), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, **options)
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture
def run_plainly(tmp_path, phantoms, small_job):
    """Prepare a workspace and run the small job there by NVFlare's simulator; returns the folder of the result."""

    def run(*sites):
        silofl("prepare", "ws", small_job, "--data", phantoms, cwd=tmp_path)
        nvflare("simulator", small_job, "-w", "ws", *sites, "-t", "2", cwd=tmp_path)
        (result,) = (tmp_path / "ws-results").glob("*/results.json")
        return result.parent

    return run


@pytest.mark.slow
def test_nvflares_simulator_runs_a_prepared_job_to_the_weights_of_simulate(finished, run_plainly):
    run = run_plainly("-c", "north,south")
    assert read_results(run).status == "COMPLETE"
    assert same(weights(finished[0]), weights(run))


@pytest.mark.slow
def test_nvflares_simulator_may_number_the_sites(run_plainly):
    results = read_results(run_plainly("-n", "2"))
    assert results.status == "COMPLETE" and {*results.sites} == {"site-1", "site-2"}


@pytest.mark.slow
def test_an_unprepared_workspace_is_told_its_remedy(tmp_path):
    done = nvflare("simulator", JOBS / "harmofl_phantoms", "-w", "ws", "-n", "2", "-t", "2", check=False, cwd=tmp_path)
    assert done.returncode != 0
    (line,) = [line for line in done.stdout.splitlines() if "FL server execution exception" in line]
    assert "is not in allow_list" in line and "'needs': \"silofl prepare" in line


class Poc:
    """A POC in folders and at a port of its own; what of it still runs at the end is ended."""

    def __init__(self, folder):
        self.workspace = folder / "poc"
        (folder / "home").mkdir()
        self.environment = os.environ | {"HOME": str(folder / "home"), "NVFLARE_POC_WORKSPACE": str(self.workspace)}
        self.folder = folder

    def nvflare(self, *arguments, **options):
        return nvflare(*arguments, env=self.environment, cwd=self.folder, **options)

    def prepare(self, *sites):
        """Make the workspace by NVFlare, then again with a port that nobody else has."""
        self.nvflare("poc", "prepare", "-c", *sites)
        project = yaml.safe_load((self.workspace / "project.yml").read_text())
        server = next(one for one in project["participants"] if one["type"] == "server")
        with socket.socket() as probe:
            probe.bind(("localhost", 0))
            server["fed_learn_port"] = probe.getsockname()[1]
        (self.folder / "project.yml").write_text(yaml.safe_dump(project))
        self.nvflare("poc", "prepare", "--force", "-i", self.folder / "project.yml")

    def processes(self):
        """Return what runs from the workspace."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            if any(str(self.workspace) in word for word in process.info["cmdline"] or ()):
                found.append(process)
        return found

    def end(self):
        """End what still runs."""
        for process in self.processes():
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue


@pytest.fixture
def poc(tmp_path):
    made = Poc(tmp_path)
    yield made
    made.end()


@pytest.mark.slow
def test_a_poc_runs_a_job_from_nothing_to_its_download(poc, phantoms, small_job, finished):
    poc.prepare("north", "south")
    silofl("prepare", "--poc", small_job, "--data", phantoms, env=poc.environment, cwd=poc.folder)
    poc.nvflare("poc", "start")
    try:
        submitted = poc.nvflare("job", "submit", "-j", small_job)
        (number,) = re.findall(r"job_id: (\S+)", submitted.stdout)
        assert "FINISHED:COMPLETED" in poc.nvflare("job", "wait", number, "--timeout", "400").stdout
        assert re.search(rf"{number} .*FINISHED:COMPLETED", poc.nvflare("job", "list").stdout)
        assert "round   3/3  loss" in poc.nvflare("job", "logs", number).stdout
        console = poc.nvflare("poc", "start", "-p", "admin@nvidia.com", input="check_status server\nlist_jobs\nbye\n")
        assert "Registered clients: 2" in console.stdout and number in console.stdout
        poc.nvflare("job", "download", number, "-o", "downloaded")
    finally:
        stopped = poc.nvflare("poc", "stop")
    assert "POC system stopped" in stopped.stdout + stopped.stderr
    run = poc.folder / "downloaded" / number / "workspace" / "silofl"
    assert read_results(run).status == "COMPLETE"
    assert same(weights(finished[0]), weights(run))
    # Nothing is written outside the workspace but what a person downloads.
    (kept,) = (poc.workspace / "results").glob("*/results.json")
    assert json.loads(kept.read_text()) == json.loads((run / "results.json").read_text())
