"""Simulated hospitals with small abdominal volumes, a liver-like organ and lesions, and a different scanner each.

With them a study can be tried from end to end without patient data. There are three sets: `SLICED`, few thick slices in
one contrast for networks of 2D images, `UNLIKE_SIZES`, the same with one large and one small hospital, and `VOLUMES`,
coarse whole volumes in two contrasts for networks in 3D. Every file follows from (seed, set, site, patient).
"""

import gzip
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from silofl.base.errors import DataError
from silofl.base.files import read_json
from silofl.core.mixing import limit_threads
from silofl.data.progress import track_slow_progress
from silofl_desk.phantoms.anatomy import LESION_LABEL, ORGAN_LABEL, draw_anatomy, label_tissue
from silofl_desk.phantoms.scanner import SIGNAL_T1, Scanner, scan

LABELS = {ORGAN_LABEL: "organ", LESION_LABEL: "lesion"}
SITES = ("north", "east", "south", "west")
UNSEEN_SITE = "coast"
# To be raised when the files change, so that those of an older version are not taken for them.
VERSION = 3
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


@dataclass(frozen=True)
class PhantomSet:
    """A set of simulated hospitals.

    Attributes:
        marker: the file that tells a folder of them.
        patients: site -> how many it has, where nobody asks for another number.
        slices: the fewest and the most of a volume.
        matrices: site -> its volumes' rows and columns and their spacing in mm; those of its scanner where not given.
        has_contrasts: whether each patient has a T1- and a T2-weighted image on one grid, or one image.
        further: part -> how many patients each site has there besides, where nobody asks for another number.
    """

    marker: str
    patients: Mapping[str, int]
    slices: tuple[int, int]
    matrices: Mapping[str, tuple[tuple[int, int], tuple[float, float, float]]]
    has_contrasts: bool = False
    further: Mapping[str, int] = field(default_factory=dict)

    def scanners(self, site: str) -> dict[str, Scanner]:
        """Return a site's scanner by the name of the contrast; of its only image the name is empty."""
        scanner = SCANNERS[site]
        if site in self.matrices:
            matrix, spacing = self.matrices[site]
            scanner = replace(scanner, matrix=matrix, spacing_mm=spacing)
        return {"T1": replace(scanner, signal=SIGNAL_T1), "T2": scanner} if self.has_contrasts else {"": scanner}


# A site's own patients give three to its test and two to its validation, too few for a verdict, or a choice.
SLICED = PhantomSet(
    "phantoms.json",
    {"north": 14, "east": 12, "south": 10, "west": 9, UNSEEN_SITE: 11},
    (6, 10),
    matrices={},
    further={"test": 17, "validation": 4},
)
# Hospitals of unlike size: after the test and the validation 11, 8, 5 and 3 patients are left for training.
SIZES = {"north": 18, "east": 13, "south": 10, "west": 8, UNSEEN_SITE: 8}
UNLIKE_SIZES = replace(SLICED, marker="phantoms_of_unlike_sizes.json", patients=SIZES)
VOLUMES = PhantomSet(
    "phantom_volumes.json",
    {"north": 12, "east": 11, "south": 10, "west": 9, UNSEEN_SITE: 9},
    (20, 28),
    matrices={
        "north": ((64, 52), (5.0, 5.0, 5.0)),
        "east": ((58, 48), (5.4, 5.4, 6.0)),
        "south": ((52, 44), (6.0, 6.0, 5.0)),
        "west": ((60, 50), (5.2, 5.2, 5.5)),
        UNSEEN_SITE: ((56, 48), (5.6, 5.6, 5.0)),
    },
    has_contrasts=True,
)
PATIENTS = SLICED.patients


def make_phantoms(
    target: Path, seed: int = 0, patients: Mapping[str, int] | None = None, kind: PhantomSet = SLICED
) -> Path:
    """Make the simulated hospitals under `target`, one folder with dataset.json a site, unless they are there already.

    Args:
        target: folder that holds or will hold the sites' folders.
        seed: 0 or more; the same seed gives the same files.
        patients: the sites to make and how many patients each has, at least 6; if None the set's own, with its further
            test and validation patients.

    Returns:
        `target`.

    Raises:
        DataError: if `target` holds simulated hospitals of another seed, version or number of patients, or other data
            under a site's name.
    """
    further = dict(kind.further) if patients is None else {}
    patients = dict(kind.patients if patients is None else patients)
    wanted = {"seed": seed, "version": VERSION, "patients": patients, "further": further}
    marker = target / kind.marker
    if marker.exists():
        check_marker(target, read_json(marker), wanted)
        if _is_complete(target, {site: count + sum(further.values()) for site, count in patients.items()}, kind):
            return target
    # On several threads such small products take five times as long, most of it in waiting for one another.
    with limit_threads():
        for site, count in patients.items():
            _make_site(target / site, seed, count, further, kind)
    # The marker comes last: without it, an interrupted call is repeated.
    _write_json(marker, wanted)
    return target


def is_phantoms(folder: Path) -> bool:
    """Return whether a folder of sites holds sliced hospitals, of which `UNSEEN_SITE` never trains."""
    return any((folder / kind.marker).is_file() for kind in (SLICED, UNLIKE_SIZES))


def deal_patients(names: list[str], rng: np.random.Generator) -> dict[str, list[str]]:
    """Deal patients into training (about half), validation (at least 2) and test (at least 3), each into one part."""
    shuffled = [str(name) for name in rng.permutation(names)]
    num_validation = max(2, len(names) // 5)
    num_held_out = num_validation + max(3, len(names) // 4)
    return {
        "training": sorted(shuffled[num_held_out:]),
        "validation": sorted(shuffled[:num_validation]),
        "test": sorted(shuffled[num_validation:num_held_out]),
    }


def check_marker(target: Path, held: Mapping[str, object], wanted: Mapping[str, object]) -> None:
    """Refuse a folder of simulated hospitals that were made otherwise.

    Raises:
        DataError: A value of `wanted` is another in what the folder's marker holds.
    """
    for key, value in wanted.items():
        if held.get(key) != value:
            raise DataError(
                f"{target} holds simulated hospitals of {key} {held.get(key)} and not of {value}; "
                "ask for what it holds, choose another folder or remove this one"
            )


def check_free(folder: Path) -> None:
    """Refuse a site's folder with other data than a simulated site's.

    Raises:
        DataError: Its dataset.json names other patients.
    """
    manifest = folder / "dataset.json"
    if manifest.exists() and f'"patient": "{folder.name}_' not in manifest.read_text():
        raise DataError(f"{folder} holds other data than a simulated site's; choose another folder")


def _is_complete(target: Path, patients: Mapping[str, int], kind: PhantomSet) -> bool:
    files = [target / site / "dataset.json" for site in patients]
    for site, count in patients.items():
        for name in _patient_names(site, count):
            files += [target / site / path for path in (*_image_paths(name, kind), _label_path(name))]
    return all(file.exists() for file in files)


def _make_site(folder: Path, seed: int, count: int, further: Mapping[str, int], kind: PhantomSet) -> None:
    check_free(folder)
    for subfolder in ("images", "labels"):
        (folder / subfolder).mkdir(parents=True, exist_ok=True)
    # The sliced set came first: its files follow from site and patient alone.
    names = _patient_names(folder.name, count + sum(further.values()))
    origin = () if kind.marker == SLICED.marker else (kind.marker,)
    for name in track_slow_progress(names, len(names), f"making the scans of {folder.name}", "patients"):
        _make_patient(folder, name, seed_generator(seed, *origin, folder.name, name), kind)
    parts = deal_patients(names[:count], seed_generator(seed, *origin, folder.name, "split"))
    further_names = iter(names[count:])
    for part, number in further.items():
        parts[part] += islice(further_names, number)
    manifest: dict[str, object] = {"task": "segmentation"}
    manifest["labels"] = {str(number): name for number, name in LABELS.items()}
    if kind.has_contrasts:
        manifest["channel_names"] = [*kind.scanners(folder.name)]
    for part, members in parts.items():
        manifest[part] = [_build_record(name, kind) for name in members]
    _write_json(folder / "dataset.json", manifest)


def _make_patient(folder: Path, name: str, rng: np.random.Generator, kind: PhantomSet) -> None:
    # Here, because it takes a third of a second to import, and most runs find their data made.
    from nibabel import Nifti1Image

    scanners = kind.scanners(folder.name)
    grid = next(iter(scanners.values())).grid(int(rng.integers(*kind.slices, endpoint=True)))
    tissue = draw_anatomy(rng, grid)
    volumes = [*(scan(rng, tissue, scanner) for scanner in scanners.values()), label_tissue(tissue)]
    for path, volume in zip((*_image_paths(name, kind), _label_path(name)), volumes, strict=True):
        nifti: Any = Nifti1Image(volume, grid.affine)  # type: ignore[no-untyped-call]  # of nibabel
        nifti.set_qform(nifti.affine, code="scanner")
        nifti.header.set_xyzt_units("mm")
        # Without mtime=0 gzip would write the time into the file, which must follow from the seed alone.
        _replace_file(folder / path, gzip.compress(nifti.to_bytes(), compresslevel=1, mtime=0))


def _patient_names(site: str, count: int) -> list[str]:
    return [f"{site}_{number:02d}" for number in range(1, count + 1)]


def _image_paths(name: str, kind: PhantomSet) -> list[str]:
    if not kind.has_contrasts:
        return [f"images/{name}.nii.gz"]
    return [f"images/{name}_{contrast}.nii.gz" for contrast in ("T1", "T2")]


def _label_path(name: str) -> str:
    return f"labels/{name}.nii.gz"


def _build_record(name: str, kind: PhantomSet) -> dict[str, object]:
    images = _image_paths(name, kind)
    return {
        "image": images if kind.has_contrasts else images[0],
        "label": _label_path(name),
        "patient": name,
        "case": name,
    }


def seed_generator(seed: int, *names: str) -> np.random.Generator:
    """Return the generator of what is named: one a patient, so that more patients, or fewer sites, change no other."""
    digest = hashlib.sha256("/".join(names).encode()).digest()
    return np.random.default_rng(np.random.SeedSequence([seed, int.from_bytes(digest)]))


def _write_json(path: Path, content: dict[str, object]) -> None:
    _replace_file(path, json.dumps(content, indent=1).encode())


def _replace_file(path: Path, content: bytes) -> None:
    """Replace a file at once, so that another process making the same hospitals never reads half of one."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_bytes(content)
    os.replace(part, path)
