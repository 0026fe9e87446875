import os
import subprocess
import sys

import psutil
import pytest

from silofl_desk.studies.runs.processes import ProcessTree

pytestmark = pytest.mark.timeout(60)
# A process in a session of its own that tells its number and then waits.
WAITER = 'setsid sh "$WAITER"'
POLITE = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
with open(os.environ["PIDS"], "w") as pipe:
    print(os.getpid(), file=pipe)
signal.sigwait([signal.SIGTERM])
print("politely")
"""


@pytest.fixture
def log(tmp_path):
    return tmp_path / "log.txt"


@pytest.fixture
def start(tmp_path, monkeypatch, log):
    """Start a shell command as a tree, which ends with the test; numbers are told to the pipe $PIDS."""
    (tmp_path / "waiter").write_text('echo $$ > "$PIDS"; exec sleep 300')
    for name in ("pids", "gate"):
        os.mkfifo(tmp_path / name)
    for name in ("waiter", "pids", "gate"):
        monkeypatch.setenv(name.upper(), str(tmp_path / name))
    trees = []

    def run(command):
        trees.append(ProcessTree(["sh", "-c", command], log))
        return trees[-1]

    yield run
    for tree in trees:
        tree.end()


@pytest.fixture
def told(start, tmp_path):
    """Wait until processes have told their numbers, and return them."""
    # Open for both, so that the pipe does not end between two writers.
    with os.fdopen(os.open(tmp_path / "pids", os.O_RDWR), "r") as pipe:
        yield lambda count: [int(pipe.readline()) for _ in range(count)]


def alive(pids):
    # Whoever adopts an ended process may leave it a zombie.
    running = {p.pid for p in psutil.process_iter(["status"]) if p.info["status"] != psutil.STATUS_ZOMBIE}
    return [pid for pid in pids if pid in running]


def test_a_command_ends_with_grandchildren_in_their_own_sessions(start, told):
    tree = start(f"{WAITER} & sh -c '{WAITER} & wait' & wait")
    pids = told(2)
    assert tree.poll() is None and alive(pids) == pids
    assert len({os.getsid(0), *(os.getsid(pid) for pid in pids)}) == 3
    tree.end()
    assert alive(pids) == []
    assert tree.poll() is not None


def test_a_grandchild_that_lost_its_parent_ends_too(start, told, tmp_path):
    tree = start(f'({WAITER} & read line < "$GATE"); exec sleep 300')
    (pid,) = told(1)
    parent = psutil.Process(pid).parent()
    assert tree.poll() is None
    (tmp_path / "gate").write_text("go\n")
    parent.wait(timeout=30)
    assert alive([pid]) == [pid]
    tree.end()
    assert alive([pid]) == []


def test_a_process_is_asked_politely_first(start, told, log, tmp_path):
    (tmp_path / "polite.py").write_text(POLITE)
    tree = start(f'exec "{sys.executable}" -S "{tmp_path}/polite.py"')
    told(1)
    tree.end()
    assert log.read_text() == "politely\n"


ENDED = """
import itertools, os, signal
from silofl_desk.studies.runs.processes import enable_interrupts
signals = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
for number, handler in itertools.product(signals, (signal.SIG_DFL, signal.SIG_IGN)):
    signal.signal(number, handler)
    enable_interrupts()
    try:
        os.kill(os.getpid(), number)
    except KeyboardInterrupt:
        print(number.name, handler.name)
"""


def test_a_signal_that_ends_a_command_is_an_interruption_unless_nohup_ignores_it():
    found = subprocess.run([sys.executable, "-c", ENDED], check=True, capture_output=True, text=True).stdout
    both = [f"{name} {handler}" for name in ("SIGINT", "SIGTERM") for handler in ("SIG_DFL", "SIG_IGN")]
    assert found.splitlines() == [*both, "SIGHUP SIG_DFL"]
