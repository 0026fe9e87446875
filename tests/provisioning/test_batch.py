"""The batch job in which a kit runs on a cluster, as its ``system/silofl.sbatch`` describes it."""

import json
import os
import re
import signal
import subprocess
import time

import pytest

from provisioning.guide import write_guide
from silofl.flare.kit import read_kit


@pytest.fixture
def batch(kits, tmp_path):
    """Start the batch job of `north`, whose site is a script; a stand-in notes what Slurm is asked."""
    kit, asked = kits / "north", tmp_path / "asked"
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "scontrol").write_text(f'#!/bin/bash\necho "$@" >> {asked}\n')
    (tools / "scontrol").chmod(0o755)

    def start(site):
        (kit / "startup" / "sub_start.sh").write_text(site)
        environment = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
        return subprocess.Popen(["bash", "system/silofl.sbatch"], cwd=kit, env=environment)

    return start, asked


def test_a_job_queues_again_when_its_time_is_over(batch, kits):
    start, asked = batch
    job = start("touch started; until [ -e ended ]; do sleep 0.1; done")
    while not (kits / "north" / "started").exists():
        time.sleep(0.05)
    job.send_signal(signal.SIGUSR1)
    while not asked.exists() or not asked.read_text():
        time.sleep(0.05)
    assert asked.read_text() == "requeue 7\n"
    # Slurm ends its processes, and those that are left by a shell that has ended it does not know.
    assert job.poll() is None
    (kits / "north" / "ended").touch()
    assert job.wait(timeout=30) == 0


def directives(kit):
    text = (kit / "system" / "silofl.sbatch").read_text()
    return " ".join(re.findall(r"(?m)^#SBATCH (.*)$", text)).split()


def test_slurm_runs_one_job_of_a_kit_at_a_time(kits):
    found = directives(kits / "north")
    assert {"--dependency=singleton", "--job-name=silofl-north", "--requeue", "--signal=B:USR1@120"} <= {*found}
    assert not (kits / "server" / "system" / "silofl.sbatch").exists()


def test_a_job_asks_for_the_gpus_of_its_site(kits):
    assert not [one for one in directives(kits / "north") if one.startswith("--gpus")]
    path = kits / "north" / "local" / "resources.json"
    resources = json.loads(path.read_text())
    next(one for one in resources["components"] if one["id"] == "resource_manager")["args"]["num_of_gpus"] = 2
    path.write_text(json.dumps(resources))
    write_guide(read_kit(kits / "north"), {"packages": [{"name": "w", "checksum": "c"}], "lock_checksum": "l"})
    assert "--gpus-per-node=2" in directives(kits / "north")
