import json
import os
import shutil
import socket
from pathlib import Path

import numpy as np
import pydicom
import pytest
import torch
import yaml
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

from silofl.cli import main

JOBS = Path(__file__).resolve().parents[1] / "jobs"
SHARED = Path(__file__).resolve().parents[2] / "shared"
AXES = np.eye(3)

# What a site computes with by default; more threads only get in each other's way on a busy machine.
torch.set_num_threads(1)


@pytest.fixture
def vectors():
    """Reference numbers of one room, computed in float64 from the papers' formulas."""

    def load(name):
        path = SHARED / "vectors" / f"{name}.npz"
        if not path.is_file():
            pytest.skip(f"no reference numbers at {path.name}")
        return np.load(path)

    return load


@pytest.fixture
def real_data():
    """Folder of one real data set."""

    def find(name):
        path = SHARED / "data" / name
        if not path.is_dir():
            pytest.skip(f"no real data {name}")
        return path

    return find


@pytest.fixture(scope="session")
def free_port():
    """Find a port on which nothing listens, of a range that no other test process takes from meanwhile."""
    # Below the ports that the system gives to the near ends of connections.
    first = 20000 + os.getpid() % 1200 * 10
    ports = iter(range(first, first + 10))

    def find():
        for port in ports:
            with socket.socket() as probe:
                try:
                    probe.bind(("", port))
                except OSError:
                    continue
                return port
        raise RuntimeError(f"a port from {first} to {first + 9} must be free, not all of them in use")

    return find


@pytest.fixture(scope="session")
def windows(tmp_path_factory):
    """Three sites with windows (3, 1, 64) of two movements, slow and fast; every site's sensor has its own offset."""
    root = tmp_path_factory.mktemp("windows")
    for seed, (name, counts) in enumerate({"ann": (28, 24), "bob": (24, 26), "eva": (10, 6)}.items()):
        rng, folder = np.random.default_rng(seed), root / name
        labels = np.repeat([0, 1], counts)
        phase = np.arange(64) * np.where(labels, 0.8, 0.2)[:, None] + rng.uniform(0, 6, (len(labels), 1))
        signal = np.sin(phase)[:, None] * np.ones((1, 3, 1)) + rng.normal(seed, 0.3, (len(labels), 3, 64))
        folder.mkdir()
        np.savez(folder / "windows.npz", windows=signal.astype(np.float32))
        content = {"task": "classification", "labels": {"0": "slow", "1": "fast"}, "split_unit": "recordings"}
        for part, remainder in (("training", 0), ("test", 1)):
            content[part] = [
                {"image": "windows.npz", "index": i, "label": int(label), "patient": name, "recording": f"r{i}"}
                for i, label in enumerate(labels)
                if i % 2 == remainder
            ]
        (folder / "dataset.json").write_text(json.dumps(content))
    return root


@pytest.fixture
def write_windows_job(tmp_path):
    """Write a variant of a job of the repository for `windows`."""

    def write(name, algorithm=None, **changes):
        job = tmp_path / "jobs" / name
        shutil.copytree(JOBS / name, job)
        path = job / "app" / "config" / "study.yaml"
        study = yaml.safe_load(path.read_text()) | {"labels": {0: "slow", 1: "fast"}, "rounds": 4}
        study["training"]["batch_size"] = 4
        study["algorithm"] = (algorithm or study["algorithm"]) | changes
        path.write_text(yaml.safe_dump(study))
        return job

    return write


@pytest.fixture
def write_dicom():
    """Write a volume (X, Y, Z) of 16-bit integers as a CT series; direction's columns are its axes in DICOM's world."""

    def write(folder, volume, direction=AXES, spacing=(0.5, 0.75, 2), origin=(10, 20, 30), skip=()):
        folder.mkdir()
        series, study = generate_uid(), generate_uid()
        for z in range(volume.shape[2]):
            if z in skip:
                continue
            meta = FileMetaDataset()
            meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = CTImageStorage, generate_uid()
            meta.TransferSyntaxUID = ExplicitVRLittleEndian
            data = FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128)
            data.SOPClassUID, data.SOPInstanceUID = CTImageStorage, meta.MediaStorageSOPInstanceUID
            data.SeriesInstanceUID, data.StudyInstanceUID, data.Modality, data.PatientID = series, study, "CT", "p1"
            data.ImagePositionPatient = np.round(origin + direction[:, 2] * spacing[2] * z, 8).tolist()
            data.ImageOrientationPatient = np.round(direction[:, :2].T.ravel(), 8).tolist()
            data.PixelSpacing, data.SliceThickness = [spacing[1], spacing[0]], spacing[2]
            data.InstanceNumber, data.Rows, data.Columns = z + 1, volume.shape[1], volume.shape[0]
            data.SamplesPerPixel, data.PhotometricInterpretation = 1, "MONOCHROME2"
            data.BitsAllocated, data.BitsStored, data.HighBit, data.PixelRepresentation = 16, 16, 15, 1
            data.RescaleSlope, data.RescaleIntercept = 1, 0
            data.PixelData = np.ascontiguousarray(volume[:, :, z].T).tobytes()
            # Names in the wrong order: the position says where a slice lies.
            pydicom.dcmwrite(folder / f"{99 - z}.dcm", data)
        return folder

    return write


@pytest.fixture
def silofl(capsys, monkeypatch, tmp_path):
    """Run a command line in this process, in a folder of the test's own; returns exit code, output and error output."""

    def refuse(*arguments):
        pytest.fail("nothing may be started")

    # A path that should be refused can do no harm there.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("silofl.studies.simulate.ProcessTree", refuse)

    def run(*arguments):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as ending:
            code = ending.code
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def refused(silofl):
    """Run a command line that must be refused: exit code 2 and one sentence on standard error, which is returned."""

    def run(*arguments):
        code, out, error = silofl(*arguments)
        assert (code, out) == (2, "")
        assert error.startswith("silofl") and error.endswith("\n") and error.count("\n") == 1
        assert "Traceback" not in error and "_natural" not in error
        return error

    return run
