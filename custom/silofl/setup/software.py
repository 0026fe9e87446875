"""What a machine of a study runs: the versions that it says of itself, and what of them must be the same everywhere."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

from pydantic import Field, Strict

import silofl
from silofl.base.bundled_jobs import JOBS
from silofl.base.errors import ConfigError
from silofl.base.settings import SHA256, Section

Version = Annotated[str, Strict(), Field(pattern=r"^[0-9A-Za-z.+!-]{1,40}$")]
Digest = Annotated[str, Strict(), Field(pattern=SHA256)]


class Software(Section):
    """The software of one machine.

    Attributes:
        silofl: The package's version.
        package: SHA-256 of the package's files as they are installed, which one changed letter changes; but for the
            bundled jobs, which run nowhere by themselves.
        nvflare: NVFlare's version.
        torch: Torch's.
        python: Python's.
    """

    silofl: Version
    package: Digest
    nvflare: Version
    torch: Version
    python: Version

    def check_compatible(self, other: Software, name: str) -> None:
        """Refuse to work together with another machine's software.

        Versions of silofl that differ in their last number alone work together: what travels and what is kept mean
        the same.

        Args:
            other: Of the other machine.

        Raises:
            ConfigError: The versions of silofl differ in more than that.
        """
        if _release(self.silofl) != _release(other.silofl):
            raise ConfigError(
                f"{name} runs silofl {other.silofl}, and this machine {_release(self.silofl)}; install the same wheel "
                "at all sites and the server"
            )

    def differences(self, other: Software) -> list[str]:
        """Return in words how another machine's software differs from this one, where it may."""
        differences = []
        for name in ("silofl", "nvflare", "torch", "python"):
            if getattr(other, name) != getattr(self, name):
                differences.append(f"{name} {getattr(other, name)} instead of {getattr(self, name)}")
        # Other versions have other files anyway.
        if self.silofl == other.silofl and self.package != other.package:
            differences.append(
                f"other files of silofl {self.silofl} ({other.package[:12]} instead of {self.package[:12]})"
            )
        return differences


@cache
def read_software() -> Software:
    """Return what this machine runs, with its package's files as they are at the first call."""
    return Software(
        silofl=silofl.__version__,
        package=digest_package(Path(silofl.__file__).parent),
        nvflare=find_installed_version("nvflare") or "none",
        torch=find_installed_version("torch") or "none",
        python=platform.python_version(),
    )


def digest_package(package: Path) -> str:
    """Return the SHA-256 of a package's files but its jobs, each by its name below the package and its content."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        # Python writes its compiled files itself, and they differ from machine to machine.
        if not path.is_file() or path.suffix == ".pyc" or path.is_relative_to(package / JOBS.name):
            continue
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{path.relative_to(package).as_posix()} {content}\n".encode())
    return digest.hexdigest()


def _release(number: str) -> str:
    # Versions that differ in their last number only work together.
    return ".".join(number.split(".")[:2])


def find_installed_version(name: str) -> str | None:
    """Return the version of an installed package; None where it is not installed."""
    # A site needs neither nvflare nor torch for some commands.
    try:
        return version(name)
    except PackageNotFoundError:
        return None
