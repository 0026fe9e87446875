"""Start a command and end it with all its descendants; NVFlare's workers leave its process group."""

import contextlib
import signal
import subprocess
from pathlib import Path

import psutil

from silofl.base.files import open_own
from silofl.parent import make_child_environment

GRACE_S = 3.0


def enable_interrupts() -> None:
    """Let SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt, so that every command says how to go on.

    A shell that starts a command in the background ignores SIGINT; who has SIGHUP ignored, as nohup has, wants that.
    """
    signals = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signals.append(signal.SIGHUP)
    for number in signals:
        signal.signal(number, signal.default_int_handler)


class ProcessTree:
    """A command with all its descendants; one of SiloFL's ends with this process.

    Args:
        log: Where standard output and error go, appended. Without one they are this process's own, and the command
            waits for what `tell` gives it.
    """

    def __init__(self, command: list[str], log: Path | None = None) -> None:
        # The command has a session of its own: Ctrl-C reaches only this process, which then ends the tree in order.
        with contextlib.nullcontext() if log is None else open_own(log, "ab") as stream:
            self._root = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if log is None else subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
                # Nobody is left to end it in order where this process is killed.
                env=make_child_environment(),
            )
        self._seen: dict[int, psutil.Process] = {}

    def tell(self, text: str) -> None:
        """Give the command its input, and no more after it; one that has ended does not hear it."""
        stream = self._root.stdin
        if stream is not None:
            with contextlib.suppress(BrokenPipeError), stream:
                stream.write(text.encode())

    def poll(self) -> int | None:
        """Remember the living descendants; return the exit code once the command has ended."""
        # They must be found while the command lives: the children of an ended process belong to init.
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self._root.pid).children(recursive=True):
                self._seen[process.pid] = process
        return self._root.poll()

    def kill(self) -> None:
        """End the command and every remembered descendant at once, by SIGKILL."""
        self.poll()
        for process in self._seen.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._root.kill()
        self._root.wait(timeout=GRACE_S)

    def end(self) -> None:
        """End the command and every remembered descendant, within seconds, by SIGTERM and then by SIGKILL."""
        self.poll()
        # is_running compares starting times too: an ended process's number may belong to a stranger by now.
        processes = [process for process in self._seen.values() if process.is_running()]
        with contextlib.suppress(psutil.NoSuchProcess):
            processes.append(psutil.Process(self._root.pid))
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        _, alive = psutil.wait_procs(processes, timeout=GRACE_S)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, timeout=GRACE_S)
        self._root.wait(timeout=GRACE_S)
