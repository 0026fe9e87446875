"""What a site installs: the locked packages with their checksums, and the list of them as a CycloneDX SBOM."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from silofl.base.errors import ConfigError
from silofl.base.files import write_json, write_text

LOCK = "requirements.lock"
SBOM = "sbom.json"
WHEELHOUSE = "wheelhouse"
# For a GPU torch brings these along, and for the CPU never: the maker's libraries, and the compiler.
OF_GPU = ("nvidia-", "cuda-", "triton", "pytorch-triton")
# Role of a person -> SiloFL's own packages in the kit: an org_admin uses those of the own hospital's machine.
OF_ALL = ("silofl", "silofl_hospital")
OWN = {"lead": (*OF_ALL, "silofl_desk"), "org_admin": ()}
LINE = re.compile(r"([A-Za-z0-9._-]+)==(\S+) --hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True, order=True)
class Package:
    """One package of a lock.

    Attributes:
        name: As package indexes write it.
        version: Without a local part as ``+cpu``, which the checksum decides.
        sha256: Of the one file that may be installed.
    """

    name: str
    version: str
    sha256: str

    @property
    def line(self) -> str:
        """The package in a file that pip reads."""
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"


def name_package(wheel: Path, checksum: str) -> Package:
    """Return a wheel as a package of a lock.

    Raises:
        ConfigError: It is not named as a wheel is.
    """
    try:
        name, version, _, _ = parse_wheel_filename(wheel.name)
    except InvalidWheelFilename as error:
        raise ConfigError(f"the wheel must be named as pip names it; {error}; build it with build-wheel") from None
    return Package(name, str(version), checksum)


def list_own(role: str) -> tuple[str, ...]:
    """Return the packages of SiloFL's own that a kit installs, by the role in its certificate, if it has one."""
    return OWN.get(role, OF_ALL)


def find_own_wheels(wheel: Path, role: str) -> list[Path]:
    """Return the wheels that a kit gets: silofl's, and those of the same version beside it that a role needs.

    Raises:
        ConfigError: One is not there.
    """
    if not (wheel.suffix == ".whl" and wheel.name.startswith("silofl-") and wheel.is_file()):
        raise ConfigError(f"the wheel must be a file silofl-VERSION-....whl, not {wheel}; build it with build-wheel")
    wheels = [wheel.with_name(wheel.name.replace("silofl", name, 1)) for name in list_own(role)]
    for own_wheel in wheels:
        if not own_wheel.is_file():
            raise ConfigError(
                f"{own_wheel.name} must be beside {wheel}, for the kit of a {role}; it is not there: build all with "
                "build-wheel, and name silofl's with --wheel"
            )
    return wheels


def write_supply(folder: Path, own: Sequence[Package], lock: Path) -> None:
    """Write the lock and the SBOM of an installation: of packages, and of all that a lock installs with them.

    Args:
        folder: Where they go.
        own: The packages, of the first of which the SBOM is.
        lock: The lock of the others; the new one has its first line.

    Raises:
        ConfigError: It is no lock.
    """
    packages = read_lock(lock)
    header = lock.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
    write_text(folder / LOCK, lock_text([*own, *packages], header))
    write_json(folder / SBOM, sbom(own[0], [*own[1:], *packages]))


def digest_file(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_lock(path: Path) -> list[Package]:
    """Read the packages of a lock.

    Raises:
        ConfigError: It is missing, or a line is no package with one version and one checksum.
    """
    if not path.is_file():
        raise ConfigError(f"{path} must exist; it is not there: write it with python -m provisioning lock")
    packages = []
    for line in path.read_text(encoding="utf-8").splitlines():
        match = LINE.fullmatch(line)
        if match:
            packages.append(Package(*match.groups()))
        elif line and not line.startswith("#"):
            raise ConfigError(f"{path.name} must hold NAME==VERSION --hash=sha256:DIGEST, not {line!r}; write it anew")
    return packages


def read_target(path: Path) -> tuple[str, str]:
    """Return the Python that a lock is for, and how much is downloaded, by its first line; empty where not said."""
    header = path.read_text(encoding="utf-8").partition("\n")[0]
    python = re.search(r"Python (3\.\d+)", header)
    size = re.search(r"; (.+) to download", header)
    return python[1] if python else "", size[1] if size else ""


def is_for_gpu(packages: Iterable[Package]) -> bool:
    """Return whether a lock's torch computes on a GPU, by what is installed with it."""
    return any(package.name.startswith(OF_GPU) for package in packages)


def lock_text(packages: Iterable[Package], header: str) -> str:
    """Return the text of a lock."""
    comments = [f"# {line}" for line in header.splitlines()]
    lines = [package.line for package in packages]
    return "".join(f"{line}\n" for line in [*comments, *lines])


def sbom(package: Package, dependencies: Iterable[Package]) -> dict[str, Any]:
    """Return the CycloneDX 1.6 list of a package and of everything that is installed with it."""
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": _component(package) | {"type": "application"}},
        "components": [_component(dependency) for dependency in dependencies],
    }


def _component(package: Package) -> dict[str, Any]:
    purl = f"pkg:pypi/{package.name}@{package.version}"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": package.name,
        "version": package.version,
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": package.sha256}],
    }
