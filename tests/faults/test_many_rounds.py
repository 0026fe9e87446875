"""Two hundred tiny rounds: neither files nor memory grow with their number."""

import gc

import numpy as np
import psutil
import pytest

from silofl_desk.studies.runs.in_process import run_in_process

from .conftest import ledger

pytestmark = pytest.mark.faults

ROUNDS = 200
SITES = ("east", "west")


def count_files(folder):
    """Return the number of files in a folder, however deep."""
    return sum(path.is_file() for path in folder.rglob("*"))


def check_memory(by_round, most=1.05):
    """Check that memory does not grow by more than 5 % from round 130 to the last one, by medians of ten rounds."""
    early, late = np.median(by_round[130:140]), np.median(by_round[-10:])
    print(f"MiB: round 10 {by_round[9] / 2**20:.1f}, round 130 {early / 2**20:.1f}, round 200 {late / 2**20:.1f}")
    assert late < most * early


def test_in_one_process_files_and_memory_stay_the_same(tmp_path, settings_in, make_study):
    study = make_study(rounds=ROUNDS, name="fedbn", model={"features": [2] * 6}, training={"batch_size": 8})
    files, memory = [], []

    def measure():
        gc.collect()
        files.append(count_files(tmp_path))
        memory.append(psutil.Process().memory_info().rss)

    settings = settings_in(tmp_path / "sites")
    run_in_process(study, tmp_path, SITES, settings, None, measure)
    assert [record["answered"] for record in ledger(tmp_path)] == [list(SITES)] * ROUNDS
    # A site keeps the best round's state too, unless it is one of the last three.
    assert max(files[10:ROUNDS]) - min(files[10:ROUNDS]) <= len(SITES), files
    check_memory(memory[:ROUNDS])
