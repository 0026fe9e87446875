"""A federation small enough to be run many times: two phantom hospitals, tiny images, a tiny network."""

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import nibabel
import numpy as np
import psutil
import pytest
import torch
import yaml

from silofl.command_line.cli import main
from silofl.flare.components import name_components
from silofl_desk.phantoms.phantoms import make_phantoms

from ..conftest import set_umask

JOBS = Path(__file__).resolve().parents[2] / "jobs"
LIMIT_S = 540


def silofl(*arguments, check=True, **options):
    """Run the command line as a person would; returns the finished process."""
    command = [sys.executable, "-m", "silofl", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, **options)
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done


def carried_out(*arguments):
    """Run the command line in this process, which has loaded the libraries already; returns its standard output."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main([str(argument) for argument in arguments]) == 0, out.getvalue()
    return out.getvalue()


def find_super_model(run):
    """Return a run's super model: the server's, or that of a site where each has its own."""
    return run / "supermodel" if (run / "supermodel").is_dir() else next(run.rglob("supermodel"))


def predicted(models, scan, like, out):
    """Predict a case, {contrast: file}, whose label map must lie on the grid of a file; returns its numbers."""
    carried_out("predict", models, ",".join(f"{name}={path}" for name, path in scan.items()), "--out", out)
    (path,) = out.rglob("*_labels.nii.gz")
    found, wanted = nibabel.load(path), nibabel.load(like)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found.affine, wanted.affine, atol=1e-4)
    return np.asarray(found.dataobj)


def weights(run):
    """Read the last model of a run."""
    return torch.load(run / "model" / "last.pt", weights_only=True)


def same(left, right):
    """Return whether two models are equal bit by bit."""
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.fixture(autouse=True)
def decoding():
    """Decode files in the decoders' process, as sites do."""


@pytest.fixture(scope="session")
def phantoms(tmp_path_factory):
    return make_phantoms(tmp_path_factory.mktemp("phantoms") / "data", seed=7, patients={"north": 6, "south": 6})


def write_small_job(job, name="harmofl_phantoms", **changes):
    """Write a tiny variant of a job of the repository."""
    shutil.copytree(JOBS / name, job)
    path = job / "app" / "config" / "study.yaml"
    study = yaml.safe_load(path.read_text())
    study["data"]["transforms"] = [{"Resize": {"spatial_size": [32, 32]}}]
    study["model"]["features"] = [8, 8, 8, 8, 8, 8]
    study |= {"rounds": 3, "baseline_comparison": False} | changes
    path.write_text(yaml.safe_dump(study))
    name_components(path.parent, study["algorithm"]["name"])
    return job


@pytest.fixture(scope="session")
def small_job(tmp_path_factory):
    return write_small_job(tmp_path_factory.mktemp("jobs") / "job")


@pytest.fixture(scope="session")
def finished(tmp_path_factory, phantoms, small_job):
    """One uninterrupted run of the small job, by the least careful account, and what it printed."""
    run = tmp_path_factory.mktemp("runs") / "finished"
    with set_umask():
        said = carried_out("simulate", small_job, "--data", phantoms, "--out", run, "--cache", run.parent / "cache")
    return run, said


class Federation:
    """A simulation in the background, to be interrupted."""

    def __init__(self, *arguments, python=sys.executable):
        command = [python, "-m", "silofl", *map(str, arguments)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.seen = {}

    def descendants(self):
        with contextlib.suppress(psutil.NoSuchProcess):
            self.seen |= {p.pid: p for p in psutil.Process(self.process.pid).children(recursive=True)}
        return list(self.seen.values())

    def is_alive(self):
        self.descendants()
        return self.process.poll() is None

    def wait_for_rounds(self, run, number):
        deadline = time.monotonic() + LIMIT_S
        while finished_rounds(run) < number:
            assert self.is_alive() and time.monotonic() < deadline, "the run ended too early"
            time.sleep(0.05)

    def site_process(self, name):
        """Return the process that does a site's work."""
        self.descendants()
        # The process that decodes its files lies in the same folder.
        own = [p for p in self.alive() if "decoder_process.py" not in " ".join(p.cmdline())]
        (found,) = [p for p in own if Path(p.cwd()).name == name]
        return found

    def kill_all(self):
        """What a power cut does."""
        for process in [psutil.Process(self.process.pid), *self.descendants()]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait(timeout=30)

    def interrupt(self):
        os.kill(self.process.pid, signal.SIGINT)

    def alive(self):
        return [p for p in self.seen.values() if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def finished_rounds(run):
    path = run / "ledger.json"
    return len(json.loads(path.read_text())) if path.is_file() else 0


@pytest.fixture
def federation():
    started = []

    def start(*arguments, **options):
        started.append(Federation(*arguments, **options))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.kill_all()
