"""Carry out a command in a process of its own, and find out whether it loaded torch."""

import subprocess
import sys

CODE = """
import os, sys
class Stop:
    def find_spec(name, *_):
        if name == "torch":
            print("torch was loaded", file=sys.stderr, flush=True)
            os._exit(99)
sys.meta_path.insert(0, Stop)
sys.argv = ["silofl", *sys.argv[1:]]
from silofl.command_line.cli import main
sys.exit(main())
"""


def run_without_torch(*arguments, folder):
    """Return the exit code of a command and what it printed; code 99 where it asked for torch."""
    words = [sys.executable, "-c", CODE, *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=folder)
    return done.returncode, done.stdout + done.stderr
