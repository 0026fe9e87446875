"""Runs to be hindered: three tiny hospitals, three rounds of HarmoFL, whose sites keep BatchNorm and an amplitude."""

import json
import time
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest
import torch
import yaml

from silofl.federation.ledger import FILE

from ..end_to_end.conftest import write_small_job
from .started import start

# For a busy machine: a run that hangs does so for ever.
LIMIT_S = 300
ROUNDS = 3


def silofl(*arguments, fault=None):
    """Run a command line in a process of its own; one that hangs is a failure. Returns its exit code and output."""
    with NamedTemporaryFile() as output:
        process = start(arguments, output.name, fault)
        try:
            process.join(LIMIT_S)
            said = Path(output.name).read_text()
            assert process.exitcode is not None, f"it must end within {LIMIT_S} s: {said}"
            return process.exitcode, said
        finally:
            process.kill()


def wait_for(is_there, process):
    """Wait for something that a process does."""
    deadline = time.monotonic() + LIMIT_S
    while not is_there():
        assert process.is_alive() and time.monotonic() < deadline
        time.sleep(0.01)


def ledger(run):
    """Return the records of the finished rounds."""
    return json.loads((run / FILE).read_text()) if (run / FILE).is_file() else []


def results(run):
    """Return the result."""
    return json.loads((run / "results.json").read_text())


def weights(run):
    """Return the models that the server wrote, and in a simulation those that the sites keep."""
    files = [*sorted((run / "model").glob("*.pt")), *sorted(run.glob("sites/*/*/supermodel/weights/*.pt"))]
    return {path.name: torch.load(path, weights_only=True) for path in files}


def is_alike(left, right):
    """Return whether two runs left the very same tensors."""
    return (
        bool(left)
        and left.keys() <= right.keys()
        and all(
            left[file].keys() == right[file].keys()
            and all(torch.equal(left[file][n], right[file][n]) for n in left[file])
            for file in left
        )
    )


def undisturbed(run, job, data):
    """Carry out a run in one process that nothing happens to; returns its folder."""
    code, said = silofl("simulate", job, "--data", data, "--out", run, "--in-process")
    assert code == 0, said
    return run


def timeless(records):
    """Return a ledger without what differs between two runs of the same study."""
    unlike = ("started_at", "seconds")
    return [{key: value for key, value in record.items() if key not in unlike} for record in records]


def tested(run):
    """Return each site's test, without what hospitals of a network withhold as being of too few patients."""
    left_out = ("withheld", "surface", "labels")
    sites = results(run)["sites"]
    return {site: {key: one[key] for key in one if key not in left_out} for site, one in sites.items()}


def check_end(run, whole, before=()):
    """Check that a run went on to the end that it would have had, and lost none of the rounds of `before`."""
    assert results(run)["status"] == "COMPLETE" and results(run)["reasons"] == []
    now = ledger(run)
    # The records themselves, their times included: none of these rounds was carried out again. The next round's task
    # brings a round's validation, and whether it is the best so far.
    for old, new in zip(before, now, strict=False):
        marks = ("validation", "is_best")
        judged = {} if old["validation"] else {key: new[key] for key in marks if key in new}
        assert new == old | judged
    assert timeless(now) == timeless(ledger(whole))
    assert [record["round"] for record in now] == list(range(1, len(now) + 1)) and len(now) >= len(before)
    assert tested(run) == tested(whole)
    assert is_alike(weights(run), weights(whole))
    # What the sites keep lies in the folder of a simulation only.
    assert not (run / "sites").is_dir() or weights(run).keys() == weights(whole).keys()
    assert sorted(path for path in run.rglob("*.tmp")) == []


@pytest.fixture(scope="session")
def job(tmp_path_factory):
    """Write a small job of HarmoFL for `site_data`."""
    job = write_small_job(tmp_path_factory.mktemp("jobs") / "job", labels={1: "blob"}, rounds=ROUNDS)
    path = job / "app" / "config" / "study.yaml"
    study = yaml.safe_load(path.read_text())
    study["model"]["features"] = [4] * 6
    study["training"]["batch_size"] = 2
    path.write_text(yaml.safe_dump(study))
    return job


@pytest.fixture(scope="session")
def whole(tmp_path_factory, job, site_data):
    """Carry out a run in one process that nothing happens to."""
    return undisturbed(tmp_path_factory.mktemp("runs") / "whole", job, site_data)
