"""What a report of a fault needs: versions, machine, and of a study what names nobody, as no path does."""

import argparse
import os
import platform
import shutil
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import psutil
from pydantic import BaseModel

from silofl.base.errors import ExitCode
from silofl.base.settings import flatten_keys, numbers_in
from silofl.command import WHEELS
from silofl.setup.software import find_installed_version, read_software
from silofl.study import Study, load_study

GIB = 1 << 30


def run(options: argparse.Namespace) -> int:
    """Print a line for each fact."""
    facts = list_machine_facts()
    facts |= describe_study(load_study(options.study)) if options.study else {}
    for name, value in facts.items():
        print(f"{name:<{max(map(len, facts))}}  {value}")
    return ExitCode.COMPLETE


def list_machine_facts() -> dict[str, object]:
    """Return name -> value of what is installed, and of the machine."""
    software, memory = read_software(), psutil.virtual_memory()
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


def describe_study(study: Study) -> dict[str, object]:
    """Return a study's digest and what it sets: numbers and the program's words, of all else how much it is."""
    # All values of the algorithm are such: its recipe has checked them.
    algorithm = flatten_keys({"algorithm": study.algorithm.model_dump()})
    return {"study": study.digest[:12], **dict(_describe_keys(study, "")), **dict(algorithm)}


def _describe_keys(section: BaseModel, prefix: str) -> Iterator[tuple[str, object]]:
    for key in sorted(section.model_fields_set - {"algorithm"}):
        value, kind = getattr(section, key), type(section).model_fields[key].annotation
        if isinstance(value, BaseModel):
            yield from _describe_keys(value, f"{prefix}{key}.")
        elif isinstance(value, dict) or (isinstance(value, tuple) and len(numbers_in(value)) < len(value)):
            yield f"{prefix}{key}", f"{len(value)} given"
        else:
            yield f"{prefix}{key}", "given" if isinstance(value, str) and value not in _list_words(kind) else value


def _list_words(kind: Any) -> set[str]:  # noqa: ANN401 - a type
    """Return the words among which a value may be."""
    return {*get_args(kind)} if get_origin(kind) is Literal else set().union(*map(_list_words, get_args(kind)))


def _describe_gpus() -> str:
    # Here, so that the rest is said where torch is broken.
    try:
        import torch
    except (ImportError, OSError) as error:
        return f"unknown, as torch cannot be loaded: {type(error).__name__}"
    found = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return ", ".join(f"{one.name} with {one.total_memory / GIB:.0f} GiB" for one in found) or "none"
