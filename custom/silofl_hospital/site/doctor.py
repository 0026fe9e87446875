"""What a report of a fault needs: versions and the machine."""

import argparse
import os
import platform
import shutil

import psutil

from silofl.base.errors import ExitCode
from silofl.command_line.command import WHEELS
from silofl.setup.software import find_installed_version, read_software

GIB = 1 << 30


def run(_: argparse.Namespace) -> int:
    """Print a line for each fact."""
    facts = list_machine_facts()
    # Aligned, because it is pasted into a report as it is.
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name:<{width}}  {value}")
    return ExitCode.COMPLETE


def list_machine_facts() -> dict[str, object]:
    """Return name -> value of what is installed, and of the machine."""
    software = read_software()
    memory = psutil.virtual_memory()
    return {
        "silofl": f"{software.silofl}, files {software.package[:12]}",
        **{name: find_installed_version(name) or "none" for name in WHEELS},
        "Python": software.python,
        "torch": software.torch,
        "NVFlare": software.nvflare,
        "MONAI": find_installed_version("monai") or "none",
        "system": f"{platform.system()} {platform.machine()} {' '.join(platform.libc_ver())}",
        "cores": os.cpu_count(),
        "memory": f"{memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB free",
        "disk": f"{shutil.disk_usage('.').free / GIB:.1f} GiB free here",
        "GPU": _describe_gpus(),
    }


def _describe_gpus() -> str:
    # Imported here, so that the rest is said where torch is broken.
    try:
        import torch
    except (ImportError, OSError) as error:
        return f"unknown, as torch cannot be loaded: {type(error).__name__}"
    gpus = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    return ", ".join(f"{gpu.name} with {gpu.total_memory / GIB:.0f} GiB" for gpu in gpus) or "none"
