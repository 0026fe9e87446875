"""NVFlare's simulator as a process of its own, which ends with everything it started when its parent is gone."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time

import psutil


def main() -> int:
    """Run one job; arguments: job folder, workspace, site names, number of threads."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job")
    parser.add_argument("workspace")
    parser.add_argument("sites")
    parser.add_argument("threads", type=int)
    arguments = parser.parse_args()
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    from nvflare.private.fed.app.simulator.simulator_runner import SimulatorRunner

    runner = SimulatorRunner(
        arguments.job, arguments.workspace, clients=arguments.sites, threads=arguments.threads, log_config="concise"
    )
    return runner.run()


def _end_with(parent: int) -> None:
    """Kill all descendants and this process once it has another parent: nobody is left to end them."""
    while os.getppid() == parent:
        time.sleep(0.5)
    for process in psutil.Process().children(recursive=True):
        process.kill()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
