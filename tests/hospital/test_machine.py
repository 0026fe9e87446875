import dataclasses
import shutil
import sys
from collections import namedtuple
from importlib.metadata import version
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from silofl import __version__
from silofl_hospital.site import machine, resources, trial
from tests.conftest import change_json

from .conftest import change_site

Usage = namedtuple("Usage", "total used free")


def lock(*pins):
    return "# of the kit\n" + "".join(f"{pin} --hash=sha256:{'0' * 64}\n" for pin in pins)


def test_a_site_is_held_to_the_locks_versions(candidate, kit):
    here = f"torch=={version('torch').partition('+')[0]}"
    (kit / "requirements.lock").write_text(lock(here, f"silofl=={__version__}"))
    answer = machine.check_versions(candidate())
    assert answer.status == "ok" and "as the kit's requirements.lock says" in answer.sentence
    assert answer.facts["torch"] == version("torch")
    # In the wheel's range, and another than the one that was reviewed.
    (kit / "requirements.lock").write_text(lock(here, "numpy==2.4.99"))
    answer = machine.check_versions(candidate())
    assert answer.status == "failed"
    assert f"differ from the kit's requirements.lock, numpy {version('numpy')}; install" in answer.sentence
    for line in ("numpy 2", "-r others.txt"):
        (kit / "requirements.lock").write_text(line)
        answer = machine.check_versions(candidate())
        assert answer.status == "failed" and "requirements.lock has a line other than NAME==VERSION" in answer.sentence


def test_nvflare_keeps_the_paths_of_kit_and_python(candidate, kit, monkeypatch):
    assert machine.check_folder(candidate()).status == "ok"
    moved = dataclasses.replace(candidate().kit, folder=kit.rename(kit.with_name("My Kit")))
    answer = machine.check_folder(SimpleNamespace(kit=moved))
    assert answer.status == "failed" and "the path of the kit must have no ' '" in answer.sentence
    monkeypatch.setattr(sys, "executable", "/opt/it's/bin/python")
    moved = dataclasses.replace(moved, folder=moved.folder.rename(kit))
    answer = machine.check_folder(SimpleNamespace(kit=moved))
    assert answer.status == "failed" and 'the path of Python must have no "\'"' in answer.sentence


def test_a_package_of_another_version_or_of_none_is_named(candidate, kit, monkeypatch):
    (kit / "requirements.lock").unlink()
    assert machine.check_versions(candidate()).status == "warning"
    (kit / "requirements.lock").write_text(lock(f"monai=={version('monai')}", "nothing-like-it==1.0"))
    assert "nothing-like-it none; " in machine.check_versions(candidate()).sentence
    monkeypatch.setattr(machine, "find_installed_version", lambda name: "0.1")
    assert "monai 0.1, nothing-like-it 0.1; " in machine.check_versions(candidate()).sentence


def test_a_disk_without_room_for_the_state_is_named(candidate, monkeypatch):
    assert resources.check_disk(candidate()).status == "ok"
    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage(1, 1, 1000))
    answer = resources.check_disk(candidate())
    assert answer.status == "failed" and "has 0.0" in answer.sentence


# The last is forbidden; no account can write into a file or what the kernel shows.
@pytest.mark.parametrize("place", ["/proc/silofl", "/dev/null/state", "{data}/dataset.json/state", "{data}"])
def test_a_folder_that_cannot_be_written_is_named(candidate, kit, pictures, monkeypatch, place):
    change_site(kit, state_dir=place.format(data=pictures))
    if place == "{data}":
        monkeypatch.setattr(machine.tempfile, "TemporaryFile", Mock(side_effect=PermissionError))
    answer = resources.check_disk(candidate())
    assert answer.status == "failed" and "this account cannot write in" in answer.sentence


def test_gpus_are_asked_for_and_promised_as_present(candidate, kit, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resources.check_gpu(candidate()).facts == {"device": "cpu"}
    answer = resources.check_gpu(candidate(device="cuda"))
    assert answer.status == "failed" and "without a usable GPU, not 'cuda'" in answer.sentence
    manager = {"id": "resource_manager", "path": "GPUResourceManager", "args": {"num_of_gpus": 2}}
    change_json(kit / "local" / "resources.json", components=[manager])
    for count, status in ((1, "failed"), (2, "ok")):
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        answer = resources.check_gpu(candidate())
        assert answer.status == status
        assert ("at most the 1 GPUs of this machine, not 2" in answer.sentence) == (count == 1)


GONE = "CUDA error: unspecified launch failure"


@pytest.fixture
def stand_in(monkeypatch):
    """A GPU that is said to be there, with 2 of 8 GiB free."""
    monkeypatch.setattr(resources, "choose_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2 << 30, 8 << 30))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Stand-in 8")


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (RuntimeError(GONE), "another process has it, or its driver has failed. See nvidia-smi"),
        (torch.OutOfMemoryError("CUDA out of memory"), "the GPU has no room for a training step"),
    ],
)
def test_a_gpu_that_fails_in_a_training_step_is_named(candidate, stand_in, monkeypatch, error, sentence):
    def fail(*_):
        raise error

    assert resources.check_gpu(candidate()).sentence == "Stand-in 8 has 2.0 of 8.0 GiB free"
    monkeypatch.setattr(trial, "measure_cost", fail)
    answer = trial.check_training(candidate())
    assert answer.status == "failed" and sentence in answer.sentence
    monkeypatch.setattr(torch.cuda, "mem_get_info", fail)
    assert sentence in resources.check_gpu(candidate()).sentence


def test_another_error_is_no_fault_of_the_gpu(candidate, monkeypatch):
    def fail(*_):
        raise RuntimeError("sizes of tensors must match")

    monkeypatch.setattr(trial, "measure_cost", fail)
    with pytest.raises(RuntimeError, match="sizes of tensors"):
        trial.check_training(candidate())
