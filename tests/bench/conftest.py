"""The scripts of bench/, with a main that takes a command line; the others are tried by test_bench.py."""

import sys
from pathlib import Path

import pytest

from ..studies.conftest import phantoms  # noqa: F401

# Behind all others: their names are short.
sys.path.append(str(Path(__file__).parents[2] / "bench"))


@pytest.fixture
def refused_script(script):
    """Run a script that must refuse its command line in one sentence, which is returned."""

    def run(main, *arguments):
        code, out, error = script(main, *arguments)
        assert (code, out, error.count("\n")) == (2, "", 1)
        return error

    return run
