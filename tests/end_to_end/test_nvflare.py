"""NVFlare's own commands, as jobs/README.md has them: its simulator and its POC, from nothing to a result."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest
import yaml
from nvflare.tool.poc.poc_commands import gen_project_config_file

from silofl.federation.results import read_results

from .conftest import JOBS, LIMIT_S, same, weights

NVFLARE = Path(sys.executable).with_name("nvflare")
# What the tests have in the place of the page's four hospitals.
FEWER = {"east,north,south,west": "north,south", "east north south west": "north south", "-t 4": "-t 2"}


def nvflare(*arguments, check=True, **options):
    """Run a command of NVFlare as a person would; returns the finished process."""
    command = [str(NVFLARE), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, **options)
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done


def read_page(heading):
    """Return the commands of a section of jobs/README.md, in their order and with their comments."""
    page = (JOBS / "README.md").read_text(encoding="utf-8")
    section = re.search(rf"^## {heading}.*?(?=^## )", page, flags=re.MULTILINE | re.DOTALL)[0]
    return "".join(re.findall(r"^```\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL)).splitlines()


@pytest.fixture
def give(tmp_path, phantoms, small_job):
    """Return a function that gives a command of the page as its reader does, with a smaller job and two hospitals."""
    shutil.copytree(small_job, tmp_path / "jobs" / "harmofl_phantoms")

    def give_one(command, environment=os.environ, said="", **names):
        for name, value in (FEWER | names).items():
            command = command.replace(name, value)
        # The page's hospitals are made at first use, these are there.
        command = re.sub(r"silofl prepare [^#]*", rf"\g<0> --data {phantoms} ", command)
        places = dict(environment) | {"PATH": f"{NVFLARE.parent}:{os.environ['PATH']}"}
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, env=places, input=said, capture_output=True, text=True, timeout=LIMIT_S
        )
        assert done.returncode == 0, command + done.stdout + done.stderr
        return done.stdout + done.stderr

    return give_one


@pytest.mark.slow
@pytest.mark.parametrize(
    ("clients", "sites"), [("-c east,north,south,west", {"north", "south"}), ("-n 2", {"site-1", "site-2"})]
)
def test_the_pages_commands_run_nvflares_simulator(finished, tmp_path, give, clients, sites):
    prepare, simulate, report = read_page("NVFlare's simulator")
    give(prepare)
    give(simulate.replace("-c east,north,south,west", clients))
    (file,) = (tmp_path / "workspace-results").glob("*/results.json")
    run, results = file.parent, read_results(file.parent)
    assert results.status == "COMPLETE" and {*results.sites} == sites
    # The training's random numbers are those of a site's name.
    assert same(weights(finished[0]), weights(run)) == ({*results.sites} == {"north", "south"})
    give(report, RUN=run.name)
    assert (run / "report.html").is_file()


@pytest.mark.slow
def test_an_unprepared_workspace_is_told_its_remedy(tmp_path):
    done = nvflare("simulator", JOBS / "harmofl_phantoms", "-w", "ws", "-n", "2", "-t", "2", check=False, cwd=tmp_path)
    assert done.returncode != 0
    (line,) = [line for line in done.stdout.splitlines() if "FL server execution exception" in line]
    assert "is not in allow_list" in line and "'needs': 'silofl prepare WORKSPACE JOB before nvflare simulator" in line


class Poc:
    """A POC in folders and at a port of its own; what of it still runs at the end is ended."""

    def __init__(self, folder):
        self.workspace = folder / "poc"
        (folder / "home").mkdir()
        self.environment = os.environ | {"HOME": str(folder / "home"), "NVFLARE_POC_WORKSPACE": str(self.workspace)}
        self.folder = folder

    def move_port(self):
        """Have NVFlare make the workspace again, with a port that nobody else has."""
        self.change_port(self.workspace / "project.yml", self.folder)
        project = self.folder / "project.yml"
        nvflare("poc", "prepare", "--force", "-i", project, env=self.environment, cwd=self.folder)

    def change_port(self, project, target):
        """Write a project with a port that nobody else has into a folder."""
        content = yaml.safe_load(Path(project).read_text())
        server = next(one for one in content["participants"] if one["type"] == "server")
        with socket.socket() as probe:
            probe.bind(("localhost", 0))
            server["fed_learn_port"] = probe.getsockname()[1]
        (target / "project.yml").write_text(yaml.safe_dump(content))

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
def test_the_pages_commands_run_a_poc_from_nothing_to_its_download(poc, give, finished):
    make, prepare, start, submit, show, wait, log, download, report, console, stop = read_page("POC")
    give_one = partial(give, environment=poc.environment)
    give_one(make)
    poc.move_port()
    give_one(prepare)
    give_one(start)
    try:
        (number,) = re.findall(r"job_id: (\S+)", give_one(submit))
        assert number in give_one(show)
        assert "FINISHED:COMPLETED" in give_one(wait, ID=number)
        assert "round   3/3  loss" in give_one(log, ID=number)
        give_one(download, ID=number)
        give_one(report, ID=number)
        said = "\n".join([*console.partition("console: ")[2].split(", "), ""])
        answer = give_one(console, said=said)
        assert "Registered clients: 2" in answer and number in answer
    finally:
        stopped = give_one(stop)
    assert "POC system stopped" in stopped
    run = poc.folder / "downloads" / number / "workspace" / "silofl"
    assert read_results(run).status == "COMPLETE" and (run / "report.html").is_file()
    assert same(weights(finished[0]), weights(run))
    # Nothing is written outside the workspace but what a person downloads.
    (kept,) = (poc.workspace / "results").glob("*/results.json")
    assert json.loads(kept.read_text()) == json.loads((run / "results.json").read_text())


RECIPE = """
import sys, silofl
from nvflare.recipe import PocEnv
from silofl.recipes import HarmoFLRecipe

environment = PocEnv(clients=["north", "south"], extra={"login_timeout": 60})
run = HarmoFLRecipe(sys.argv[1], data=sys.argv[2]).execute(environment)
found = run.get_result(clean_up=False)
assert silofl.read_results(found).status == "COMPLETE", run.get_status()
print(f"result: {found}")
"""


@pytest.mark.slow
def test_a_recipe_makes_prepares_and_starts_a_poc_and_stops_it_with_the_result(poc, phantoms, small_job, finished):
    poc.workspace.mkdir()
    poc.change_port(gen_project_config_file(str(poc.workspace)), poc.workspace)
    command = [sys.executable, "-c", RECIPE, str(small_job), str(phantoms)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, env=poc.environment, cwd=poc.folder, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # NVFlare's start scripts look every five seconds whether their program has ended.
    _, running = psutil.wait_procs(poc.processes(), timeout=60)
    assert running == []
    run = Path(re.search(r"result: (.+)", done.stdout)[1]) / "workspace" / "silofl"
    assert same(weights(finished[0]), weights(run))
