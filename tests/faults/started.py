"""A command line in a process of its own, in which something happens at one point; the package knows nothing of it."""

import functools
import importlib
import itertools
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context

from silofl.command_line.cli import main

# Their imports are the better part of a small run; a fork has them, and nothing else of this process.
CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["tests.faults.started", "silofl_desk.studies.runs.simulate", "silofl_desk.studies.runs.resume"]
)


def kill():
    """End this process as a power cut does."""
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Fault:
    """What happens before or after one call of a function, named module:name, of those that name a file."""

    target: str
    call: int = 1
    moment: str = "before"
    action: Callable[[], None] = kill
    file: str = ""

    def install(self):
        """Put it in place in this process."""
        module, _, path = self.target.partition(":")
        place = importlib.import_module(module)
        *outer, last = path.split(".")
        place = functools.reduce(getattr, outer, place)
        function, calls = getattr(place, last), itertools.count(1)

        @functools.wraps(function)
        def hindered(*arguments, **options):
            is_counted = any(self.file in str(one) for one in arguments) or not self.file
            moment = self.moment if is_counted and next(calls) == self.call else None
            if moment == "before":
                self.action()
            result = function(*arguments, **options)
            if moment == "after":
                self.action()
            return result

        # getattr has unbound a class method, and wraps calls it as it was.
        setattr(place, last, staticmethod(hindered) if hasattr(function, "__self__") else hindered)


def start(arguments, output, fault=None):
    """Start a command line; its output goes to a file."""
    process = CONTEXT.Process(target=_run, args=([str(a) for a in arguments], str(output), fault))
    process.start()
    return process


def _run(arguments, output, fault):
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    if fault:
        fault.install()
    sys.exit(main(arguments))
