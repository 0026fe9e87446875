"""NVFlare's own commands, as jobs/README.md has them: its simulator, from nothing to a result."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from silofl.federation.results import read_results

from .conftest import JOBS, LIMIT_S, same, weights

NVFLARE = Path(sys.executable).with_name("nvflare")
# What the tests have in the place of the page's four hospitals.
FEWER = {"east,north,south,west": "north,south", "-t 4": "-t 2"}


def read_page(heading):
    """Return the commands of a section of jobs/README.md, in their order and with their comments."""
    page = (JOBS / "README.md").read_text(encoding="utf-8")
    section = re.search(rf"^## {heading}.*?(?=^## )", page, flags=re.MULTILINE | re.DOTALL)[0]
    return "".join(re.findall(r"^```\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL)).splitlines()


@pytest.fixture
def give(tmp_path, phantoms, small_job):
    """Return a function that gives a command of the page as its reader does, with a smaller job and two hospitals."""
    shutil.copytree(small_job, tmp_path / "jobs" / "harmofl_phantoms")

    def give_one(command, **names):
        for name, value in (FEWER | names).items():
            command = command.replace(name, value)
        # The page's hospitals are made at first use, these are there.
        command = re.sub(r"silofl prepare [^#]*", rf"\g<0> --data {phantoms} ", command)
        places = os.environ | {"PATH": f"{NVFLARE.parent}:{os.environ['PATH']}"}
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, env=places, capture_output=True, text=True, timeout=LIMIT_S
        )
        assert done.returncode == 0, command + done.stdout + done.stderr
        return done.stdout + done.stderr

    return give_one


@pytest.mark.slow
def test_the_pages_commands_run_nvflares_simulator(finished, tmp_path, give):
    prepare, simulate, report = read_page("NVFlare's simulator")
    give(prepare)
    give(simulate)
    (file,) = (tmp_path / "workspace-results").glob("*/results.json")
    run, results = file.parent, read_results(file.parent)
    assert results.status == "COMPLETE" and {*results.sites} == {"north", "south"}
    assert same(weights(finished[0]), weights(run))
    give(report, RUN=run.name)
    assert (run / "report.html").is_file()
