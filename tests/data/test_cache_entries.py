import subprocess
import sys

import numpy as np
import pytest

from silofl.data.cache import load_or_prepare
from silofl.data.cache_entries import CacheSource, list_entries, protect_entries, prune
from silofl.data.parts import PreparedCase

OLD, NEW = CacheSource("/data/north", "old"), CacheSource("/data/north", "new")
OTHER = CacheSource("/data/south", "old")


def name(letter):
    return letter * 32


def cases():
    for part in ("training", "test"):
        yield part, PreparedCase(part, "p", np.ones((2, 1, 4, 4), np.float32), np.ones((2, 4, 4), np.uint8), (0, 1))


@pytest.fixture
def cache(tmp_path):
    """A cache folder with an entry of older and one of the present data of a site, and one of another site's."""
    for letter, source in (("a", OLD), ("b", NEW), ("c", OTHER)):
        load_or_prepare(tmp_path, name(letter), cases, source)
    return tmp_path


def names(cache):
    return "".join(path.name[0] for path in list_entries(cache))


def test_only_older_states_of_the_same_data_are_removed(cache):
    load_or_prepare(cache, name("d"), cases, NEW)
    assert prune(cache, NEW) == 1 and names(cache) == "bcd"
    assert prune(cache, NEW) == 0 and names(cache) == "bcd"


def test_entries_of_older_versions_and_unfinished_ones_go_too(cache):
    (cache / name("c") / "source.json").unlink()
    (cache / f".{name('e')}-x1y2").mkdir()
    (cache / f".{name('e')}-x1y2" / "training_images").write_bytes(b"images")
    prune(cache, NEW)
    assert {path.name for path in cache.iterdir()} == {name("b"), "lock"}


def test_nothing_is_touched_that_is_no_entry(cache, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "scan.nii").write_text("x")
    (cache / name("f")).symlink_to(outside)
    (cache / "notes").mkdir()
    (cache / "0123").mkdir()
    prune(cache, NEW)
    assert (outside / "scan.nii").exists() and (cache / "notes").is_dir() and (cache / "0123").is_dir()


HOLD = """
import sys
from pathlib import Path
from silofl.data.cache_entries import protect_entries
with protect_entries(Path(sys.argv[1])):
    print("used", flush=True)
    sys.stdin.read()
"""


def test_nothing_is_removed_while_another_job_uses_an_entry(cache):
    command = [sys.executable, "-c", HOLD, str(cache)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "used\n"
        # Two jobs may use it at once.
        with protect_entries(cache):
            assert prune(cache, NEW) == 0 and names(cache) == "abc"
        other.stdin.close()
    assert prune(cache, NEW) == 1 and names(cache) == "bc"
