"""A process that another one of SiloFL's has started ends with it, whatever ended that one."""

import os
import threading
import time

import psutil

# This variable of the environment holds the number of the process that started this one.
VARIABLE = "SILOFL_PARENT"
POLL_S = 0.5


def make_child_environment() -> dict[str, str]:
    """Return the environment of a process that is to end with this one."""
    return os.environ | {VARIABLE: str(os.getpid())}


def end_with_parent() -> None:
    """From now on end this process, with all its descendants, once the one that started it is gone.

    Nothing where no process of SiloFL's has started it. Linux could send a signal, but at the end of a parent's thread.
    """
    # The variable is taken out, because what this process starts has another parent.
    parent = os.environ.pop(VARIABLE, None)
    if parent is not None:
        threading.Thread(target=_end_after, args=(int(parent),), daemon=True).start()


def _end_after(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_S)
    for process in psutil.Process().children(recursive=True):
        process.kill()
    # sys.exit would end this thread alone.
    os._exit(1)
