"""Checks of what a study takes of the site's machine: disk and GPU."""

import os
import shutil

import torch

from silofl.base.errors import ConfigError
from silofl.federation.needs import GIB, site_disk_bytes
from silofl.flare.policy import count_job_gpus
from silofl.training.device import choose_device
from silofl_hospital.site.candidate import Candidate
from silofl_hospital.site.finding import Finding, expect, failed, ok
from silofl_hospital.site.machine import is_writable

MIB = 1 << 20


def check_disk(candidate: Candidate) -> Finding:
    """Compare the free space for the site's state with what the study needs; decoded images come on top."""
    need = site_disk_bytes(candidate.study, candidate.num_sites)
    for folder in (candidate.cache_folder, candidate.state_folder):
        # The folder may not exist yet; the first existing one above it is on the same disk.
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        if not is_writable(existing):
            return failed(f"this account cannot write in {folder}; grant it, or name another")
    # The state folder came last in the loop.
    free = shutil.disk_usage(existing).free
    return expect(
        need <= free,
        f"the disk has room for {need / MIB:,.1f} MiB of state",
        f"the disk of {folder} has {free / MIB:,.1f} MiB free, less than the {need / MIB:,.1f} that the study needs; "
        "make room, or name another",
        state_bytes=need,
    )


def check_gpu(candidate: Candidate) -> Finding:
    """Name the device that the site will use, with its free memory; NVFlare must not promise jobs more than there is.

    Raises:
        ConfigError: The site has no resources.json, or it cannot be read.
    """
    wanted = candidate.settings.device or candidate.study.device
    promised = count_job_gpus(candidate.kit)
    present = torch.cuda.device_count()
    if promised > present:
        return failed(
            f"num_of_gpus in local/resources.json must be at most the {present} GPUs of this machine, not {promised}: "
            "NVFlare would not start; correct it",
            num_of_gpus=promised,
        )
    try:
        device = choose_device(wanted)
    except ConfigError as error:
        return failed(str(error))
    if device.type == "cpu":
        return ok(f"device {wanted!r} is the CPU here, with {os.cpu_count()} cores", device="cpu")
    # A broken driver shows only where the GPU is asked for something.
    try:
        name = torch.cuda.get_device_name()
        free, total = torch.cuda.mem_get_info()
    except RuntimeError as error:
        return failed(explain_gpu_fault(error))
    return ok(f"{name} has {free / GIB:.1f} of {total / GIB:.1f} GiB free", device=name, free_bytes=free)


def explain_gpu_fault(error: RuntimeError) -> str:
    """Return what is wrong with a GPU by torch's error, and what to do; raise the error where it is another's."""
    if isinstance(error, torch.OutOfMemoryError):
        return "the GPU has no room for a training step. End what else runs on it (nvidia-smi), or use smaller batches"
    if "CUDA" not in str(error) and "cuDNN" not in str(error):
        raise error
    return (
        "the GPU cannot be used: another process has it, or its driver has failed. See nvidia-smi and dmesg, end the "
        "process or restart the machine, or set device: cpu"
    )
