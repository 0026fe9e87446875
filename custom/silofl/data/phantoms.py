"""Simulated hospitals with small abdominal volumes, a liver-like organ and lesions, and a different scanner each.

With them a study can be tried from end to end without patient data. Every file follows from (seed, site, patient).
"""

import gzip
import hashlib
import json
import os
from pathlib import Path

import nibabel as nib
import numpy as np

from silofl.data.anatomy import LESION_LABEL, ORGAN_LABEL, draw_anatomy, labels_of
from silofl.data.scanner import Scanner, scan
from silofl.errors import ConfigError, DataError
from silofl.files import read_json

LABELS = {ORGAN_LABEL: "organ", LESION_LABEL: "lesion"}
SITES = ("north", "east", "south", "west")
UNSEEN_SITE = "coast"
MARKER = "phantoms.json"
# To be raised when the files change, so that those of an older version are not taken for them.
VERSION = 2
PATIENTS = {"north": 14, "east": 12, "south": 10, "west": 9, UNSEEN_SITE: 11}
FEWEST_PATIENTS = 6
SLICES = (6, 10)
SCANNERS = {
    "north": Scanner((128, 128), (2.6, 2.6, 7.0), noise=0.030, blur_mm=1.6, bias=0.20, bias_degrees=200, gain=1000),
    "east": Scanner(
        (112, 112),
        (3.0, 3.0, 8.0),
        noise=0.036,
        blur_mm=2.0,
        bias=0.45,
        bias_degrees=-60,
        gamma=0.75,
        gain=4000,
        offset=64,
    ),
    "south": Scanner(
        (96, 96), (3.4, 3.4, 7.0), noise=0.035, blur_mm=1.8, bias=0.20, bias_degrees=90, gain=2000, is_reversed=True
    ),
    "west": Scanner(
        (120, 120),
        (2.8, 2.8, 6.0),
        noise=0.025,
        blur_mm=1.3,
        bias=0.55,
        bias_degrees=30,
        gamma=1.45,
        gain=600,
        offset=20,
    ),
    UNSEEN_SITE: Scanner(
        (112, 112),
        (2.9, 2.9, 7.0),
        noise=0.042,
        blur_mm=2.2,
        bias=0.35,
        bias_degrees=140,
        gamma=1.2,
        gain=2800,
        offset=100,
    ),
}


def make_phantoms(target: Path, seed: int = 0, patients: dict[str, int] | None = None) -> Path:
    """Make the simulated hospitals under `target`, one folder with dataset.json a site, unless they are there already.

    Args:
        target: folder that holds or will hold the sites' folders.
        seed: 0 or more; the same seed gives the same files.
        patients: the sites to make and how many patients each has, at least 6; `PATIENTS` if None.

    Returns:
        `target`.

    Raises:
        ConfigError: if the seed is negative, a site has no scanner or has too few patients.
        DataError: if `target` holds simulated hospitals of another seed, version or number of patients, or other data
            under a site's name.
    """
    patients = PATIENTS if patients is None else patients
    _check_request(seed, patients)
    wanted = {"seed": seed, "version": VERSION, "patients": patients}
    marker = target / MARKER
    if marker.exists():
        _check_held(target, read_json(marker), wanted)
        if _is_complete(target, patients):
            return target
    for site, count in patients.items():
        _make_site(target / site, seed, count)
    # The marker comes last: without it, an interrupted call is repeated.
    _write_json(marker, wanted)
    return target


def is_phantoms(folder: Path) -> bool:
    """Return whether a folder of sites holds simulated hospitals, of which `UNSEEN_SITE` never trains."""
    return (folder / MARKER).is_file()


def split_patients(names: list[str], rng: np.random.Generator) -> dict[str, list[str]]:
    """Deal patients into training (about half), validation (at least 2) and test (at least 3), each into one part."""
    shuffled = [str(name) for name in rng.permutation(names)]
    num_validation, num_test = max(2, len(names) // 5), max(3, len(names) // 4)
    parts = {
        "training": shuffled[num_validation + num_test :],
        "validation": shuffled[:num_validation],
        "test": shuffled[num_validation : num_validation + num_test],
    }
    return {part: sorted(members) for part, members in parts.items()}


def _check_request(seed: int, patients: dict[str, int]) -> None:
    if seed < 0:
        raise ConfigError(f"seed must be 0 or more, not {seed}")
    if not patients:
        raise ConfigError("patients must name at least one site, not none")
    for site, count in patients.items():
        if site not in SCANNERS:
            raise ConfigError(f"a simulated site must be one of {sorted(SCANNERS)}, not {site!r}")
        if count < FEWEST_PATIENTS:
            raise ConfigError(f"site {site!r} must have at least {FEWEST_PATIENTS} patients, not {count}")


def _check_held(target: Path, held: dict[str, object], wanted: dict[str, object]) -> None:
    for key, value in wanted.items():
        if held.get(key) != value:
            raise DataError(
                f"{target} must hold simulated hospitals of {key} {value}, not {held.get(key)}; "
                "ask for what it holds, choose another folder or remove this one"
            )


def _check_free(folder: Path) -> None:
    manifest = folder / "dataset.json"
    if manifest.exists() and f'"patient": "{folder.name}_' not in manifest.read_text():
        raise DataError(f"{folder} must be free for a simulated site, not hold other data; choose another folder")


def _is_complete(target: Path, patients: dict[str, int]) -> bool:
    files = [target / site / "dataset.json" for site in patients]
    for site, count in patients.items():
        records = map(_record, _names(site, count))
        files += [target / site / record[kind] for record in records for kind in ("image", "label")]
    return all(file.exists() for file in files)


def _make_site(folder: Path, seed: int, count: int) -> None:
    _check_free(folder)
    for kind in ("images", "labels"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    names = _names(folder.name, count)
    for name in names:
        _make_patient(folder, name, _generator(seed, folder.name, name))
    parts = split_patients(names, _generator(seed, folder.name, "split"))
    records = {part: [_record(name) for name in members] for part, members in parts.items()}
    labels = {str(number): name for number, name in LABELS.items()}
    _write_json(folder / "dataset.json", {"task": "segmentation", "labels": labels, **records})


def _make_patient(folder: Path, name: str, rng: np.random.Generator) -> None:
    scanner = SCANNERS[folder.name]
    num_slices = int(rng.integers(*SLICES, endpoint=True))
    tissue = draw_anatomy(rng, scanner.grid(num_slices))
    volumes = {"image": scan(rng, tissue, scanner), "label": labels_of(tissue)}
    for kind, volume in volumes.items():
        nifti = nib.Nifti1Image(volume, scanner.grid(num_slices).affine)
        nifti.set_qform(nifti.affine, code="scanner")
        nifti.header.set_xyzt_units("mm")
        # Without mtime=0 gzip would write the time into the file, which must follow from the seed alone.
        _write(folder / _record(name)[kind], gzip.compress(nifti.to_bytes(), compresslevel=1, mtime=0))


def _names(site: str, count: int) -> list[str]:
    return [f"{site}_{number:02d}" for number in range(1, count + 1)]


def _record(name: str) -> dict[str, str]:
    return {"image": f"images/{name}.nii.gz", "label": f"labels/{name}.nii.gz", "patient": name, "case": name}


def _generator(seed: int, *names: str) -> np.random.Generator:
    # One generator a patient: more patients, or fewer sites, leave the others' files as they are.
    digest = hashlib.sha256("/".join(names).encode()).digest()
    return np.random.default_rng(np.random.SeedSequence([seed, int.from_bytes(digest)]))


def _write_json(path: Path, content: dict[str, object]) -> None:
    _write(path, json.dumps(content, indent=1).encode())


def _write(path: Path, content: bytes) -> None:
    """Replace a file at once, so that another process making the same hospitals never reads half of one."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_bytes(content)
    os.replace(part, path)
