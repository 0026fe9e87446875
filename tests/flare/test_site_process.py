import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from silofl_desk.flare.site_process import SiteProcess, start_importing

COMMAND = [sys.executable, "-m", "nvflare.private.fed.app.simulator.simulator_worker"]


@pytest.fixture
def started():
    """Start a site's process; none of them may stay behind."""
    processes = []

    def start(*arguments):
        start_importing()
        processes.append(SiteProcess([*COMMAND, *map(str, arguments)], shell=False, env=dict(os.environ)))
        return processes[-1]

    yield start
    for one in processes:
        one.kill()


def wait_for(is_so, seconds=60):
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_site_works_in_own_session_and_folder(started, tmp_path, free_port):
    options = {"-o": tmp_path, "--logging_config": "concise", "--client": "east", "--token": "t", "--port": free_port()}
    options |= {"--parent_pid": os.getpid(), "--decomposer_module": "None"}
    site = started(*(word for option in options.items() for word in option))
    with pytest.raises(subprocess.TimeoutExpired):
        site.wait(timeout=0.1)
    assert site.poll() is None and site.returncode is None
    (found,) = [p for p in psutil.Process().children(recursive=True) if p.pid == site._process.pid]
    wait_for(lambda: Path(found.cwd()) == tmp_path)
    assert os.getsid(found.pid) == found.pid
    site.terminate()
    site.wait(timeout=10)
    assert site.poll() == site.returncode == -15
