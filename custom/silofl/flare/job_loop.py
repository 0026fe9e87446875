"""The server's loop that starts jobs goes on after an error, and a file in the kit says whether it does.

NVFlare 2.9 (private/fed/server/job_runner.py) starts jobs in a thread that an error ends for good, as when no further
file can be opened: the server runs on, and all later jobs wait for ever. So does its thread that ends jobs.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from silofl.base.errors import ExitCode, error_text
from silofl.base.files import open_own
from silofl.flare.nvflare_patches import replace_job_threads

logger = logging.getLogger(__name__)
# In the kit: empty while jobs are started, else the error. Its time is that of the last look for jobs.
HEALTH = "jobs.fl"
# How often it is written while a hospital is connected, without which NVFlare looks for no jobs.
EVERY_S = 10.0
# So many errors in a row, about one a second, end the process. After a loop that ran so long they are counted anew.
MOST_FAILURES, STEADY_S = 60, 60.0


class JobLoop:
    """Keeps NVFlare's threads that start and end jobs alive.

    Args:
        runner: NVFlare's JobRunner, before it runs.
        manager: NVFlare's manager of jobs, which the loop asks in each pass.
        kit: The server's kit.
    """

    def __init__(self, runner: Any, manager: Any, kit: Path) -> None:  # noqa: ANN401 - of NVFlare
        self._runner = runner
        # It stays open: where no file can be opened, this must still be said.
        self._health = open_own(kit / HEALTH, "w")
        self._written_at = 0.0
        self._has_failed = False
        self._ends_jobs = threading.Lock()
        start = runner.run
        finish = runner._job_complete_process
        list_jobs = manager.get_jobs_to_schedule

        def note_pass(*arguments: object) -> object:
            jobs = list_jobs(*arguments)
            # Where the pass before came to its end.
            if not self._has_failed and time.monotonic() - self._written_at > EVERY_S:
                self._write("")
            self._has_failed = False
            return jobs

        def finish_once(*arguments: object) -> None:
            # Each start of the loop begins such a thread.
            if self._ends_jobs.acquire(blocking=False):
                self._repeat(finish, arguments, "ended")

        replace_job_threads(
            runner,
            manager,
            start_jobs=lambda context: self._repeat(start, (context,), "started"),
            end_jobs=finish_once,
            list_jobs=note_pass,
        )

    def _repeat(self, loop: Callable[..., object], arguments: tuple[object, ...], what: str) -> None:
        """Run a loop of NVFlare until it is to stop, anew after each error."""
        failures = 0
        while not self._runner.ask_to_stop:
            began = time.monotonic()
            try:
                loop(*arguments)
                return
            except Exception as error:  # whatever NVFlare or the system raises
                self._has_failed = True
                failures = failures + 1 if time.monotonic() - began < STEADY_S else 1
                fault = f"jobs cannot be {what}: {error_text(error)}"
                logger.error("%s; it is tried again", fault)
                self._write(fault)
            # Running jobs would end with the process.
            if failures >= MOST_FAILURES and not self._runner.running_jobs:
                os._exit(ExitCode.FAILED)
            time.sleep(1)

    def _write(self, fault: str) -> None:
        self._written_at = time.monotonic()
        try:
            self._health.seek(0)
            self._health.truncate()
            self._health.write(fault)
            self._health.flush()
            os.utime(self._health.fileno())
        except OSError as error:
            logger.error("%s cannot be written: %s", HEALTH, error.strerror)
