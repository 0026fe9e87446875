"""Which wrong inputs `silofl predict` warns of, and how often it warns of right ones.

python bench/wrong_inputs.py OUT [RUN ...] [--rounds N] [--seed S]

Trains jobs of `RUNS` on simulated abdomens, all of them or those named, at their own rounds without N; the hospital
``coast`` trains in none. Finished runs in OUT are reused. A wrong input is a new patient of each hospital that
`WRONG` changes; right ones are all test cases of the hospitals that trained, and all cases of ``coast``. For each
wrong input the table has how many hospitals' patient is warned of.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import nibabel
import numpy as np
import torch
from numpy.typing import NDArray
from runs import UNSEEN, is_finished, silofl
from scipy.ndimage import gaussian_filter

from silofl.base.errors import DataError
from silofl.data.manifest import read_manifest
from silofl.inference import SuperModel
from silofl.study import Study
from silofl_desk.phantoms.anatomy import Tissue, draw_anatomy
from silofl_desk.phantoms.grid import Grid
from silofl_desk.phantoms.phantoms import SITES, SLICED, VOLUMES, PhantomSet, make_phantoms, seed_generator
from silofl_desk.phantoms.scanner import scan

# Name -> the bundled job, its phantoms, and patients a hospital: of the set's own volumes, two validate, too few to say
# what is usual. The hospitals' local models are not asked.
RUNS = {
    "fedavg": ("fedavg_phantoms", SLICED, None),
    "fedsm": ("fedsm_phantoms", SLICED, None),
    "volumes": ("fedsm_volumes", VOLUMES, dict.fromkeys((*SITES, UNSEEN), 30)),
}


@dataclass(frozen=True)
class Patient:
    """A new patient of a simulated hospital, before the images are taken or after.

    Attributes:
        kind: The set that it belongs to.
        site: The hospital.
        tissue: One `Tissue` a voxel, (X, Y, Z).
        grid: Where the voxels lie.
        images: Contrast -> grey values, (X, Y, Z); empty before they are taken.
        affine: Voxel indices to mm, (4, 4).
    """

    kind: PhantomSet
    site: str
    tissue: NDArray[np.uint8]
    grid: Grid
    images: dict[str, NDArray]
    affine: NDArray[np.float64]

    @classmethod
    def draw(cls, kind: PhantomSet, site: str, number: int) -> Patient:
        """Draw a patient whom no hospital has."""
        rng = seed_generator(number, kind.marker, site, "wrong inputs")
        grid = next(iter(kind.scanners(site).values())).grid(int(rng.integers(*kind.slices, endpoint=True)))
        return cls(kind, site, draw_anatomy(rng, grid), grid, {}, grid.affine)

    def scan(self) -> Patient:
        """Take the images that are not there yet."""
        rng = seed_generator(0, self.site, "scan")
        if self.images:
            return self
        return replace(
            self, images={name: scan(rng, self.tissue, one) for name, one in self.kind.scanners(self.site).items()}
        )

    def map(self, change: Callable[[NDArray], NDArray]) -> Patient:
        """Change all images."""
        taken = self.scan()
        return replace(taken, images={name: change(image) for name, image in taken.images.items()})


Change = Callable[[Patient], Patient]


# --- another body part: tissues


def radius(points: NDArray, centre: tuple[float, ...], radii: tuple[float, ...]) -> NDArray:
    offsets = [(p - c) / r for p, c, r in zip(points, centre, radii, strict=True)]
    return np.sqrt(sum(np.square(one) for one in offsets))


def head(patient: Patient) -> Patient:
    points, tissue = patient.grid.points_mm(), np.zeros_like(patient.tissue)
    level = radius(points, (0, 0, 0), (78, 96, 120))
    for edge, kind in ((1, Tissue.SKIN), (0.95, Tissue.FAT), (0.9, Tissue.BONE), (0.82, Tissue.FLUID)):
        tissue[level < edge] = kind
    brain = level < 0.79
    folds = np.sin(points[0] / 5) * np.sin(points[1] / 6) * np.sin(points[2] / 9)
    tissue[brain] = np.where((level > 0.66) | (folds > 0.4), Tissue.CORTEX, Tissue.LIVER)[brain]
    for side in (-1, 1):
        tissue[radius(points, (14 * side, 0, 5), (8, 28, 18)) < 1] = Tissue.FLUID
    return replace(patient, tissue=tissue)


def chest(patient: Patient) -> Patient:
    points, tissue = patient.grid.points_mm(), patient.tissue.copy()
    inside = (tissue != Tissue.AIR) & (tissue != Tissue.SKIN) & (tissue != Tissue.FAT)
    tissue[inside & (radius(points, (0, 0, 0), (95, 62, 1e5)) < 1)] = Tissue.MUSCLE
    for side in (-1, 1):
        tissue[radius(points, (48 * side, 0, 0), (36, 52, 1e5)) < 1] = Tissue.GAS
    tissue[radius(points, (12, -14, 0), (34, 28, 60)) < 1] = Tissue.VESSEL
    return replace(patient, tissue=tissue)


def legs(patient: Patient) -> Patient:
    points, tissue = patient.grid.points_mm(), np.zeros_like(patient.tissue)
    for side in (-1, 1):
        level = radius(points, (62 * side, 0, 0), (52, 58, 1e5))
        for edge, kind in (
            (1, Tissue.SKIN),
            (0.95, Tissue.FAT),
            (0.8, Tissue.MUSCLE),
            (0.28, Tissue.BONE),
            (0.18, Tissue.MARROW),
        ):
            tissue[level < edge] = kind
    return replace(patient, tissue=tissue)


def bottle(patient: Patient) -> Patient:
    level = radius(patient.grid.points_mm(), (0, 0, 0), (70, 70, 1e5))
    return replace(patient, tissue=np.where(level < 1, Tissue.FLUID, Tissue.AIR).astype(np.uint8))


def is_organ(patient: Patient) -> NDArray[np.bool_]:
    return np.isin(patient.tissue, (Tissue.LIVER, Tissue.LIVER_VESSEL, Tissue.LESION))


def without_organ(patient: Patient) -> Patient:
    """Bowel and fat lie where the organ was."""
    points = patient.grid.points_mm()
    loops = np.sin(points[0] / 7) + np.sin(points[1] / 6) + np.sin(points[2] / 9) > 0
    rest = np.where(loops, Tissue.CONTENT, Tissue.FAT)
    return replace(patient, tissue=np.where(is_organ(patient), rest, patient.tissue).astype(np.uint8))


def two_organs(patient: Patient) -> Patient:
    mirrored, is_body = is_organ(patient)[::-1], ~np.isin(patient.tissue, (Tissue.AIR, Tissue.SKIN))
    return replace(patient, tissue=np.where(mirrored & is_body, Tissue.LIVER, patient.tissue).astype(np.uint8))


def full_of_lesions(patient: Patient) -> Patient:
    points = patient.grid.points_mm()
    spots = np.sin(points[0] / 8) * np.sin(points[1] / 8) * np.sin(points[2] / 10 + 1) > 0.25
    return replace(patient, tissue=np.where(is_organ(patient) & spots, Tissue.LESION, patient.tissue).astype(np.uint8))


# --- another image of the same body


def enhanced(factor: float) -> Change:
    def change(patient: Patient) -> Patient:
        organ = is_organ(patient)
        return patient.map(lambda image: np.where(organ, image * factor, image).astype(np.int16))

    return change


def flip(*axes: int) -> Change:
    return lambda patient: patient.map(lambda image: np.flip(image, axes).copy())


def quarter_turn(patient: Patient) -> Patient:
    return patient.map(lambda image: resized(np.rot90(image), image.shape))


def resized(image: NDArray, shape: tuple[int, ...]) -> NDArray:
    rows = [np.linspace(0, n - 1, m).round().astype(int) for n, m in zip(image.shape, shape, strict=True)]
    return image[np.ix_(*rows)].copy()


def keep(axis: int, low: float, high: float) -> Change:
    """Keep a share of the volume along an axis: its file is smaller."""

    def change(patient: Patient) -> Patient:
        length = patient.tissue.shape[axis]
        rows = slice(int(low * length), max(int(low * length) + 1, int(np.ceil(high * length))))
        place = tuple(rows if one == axis else slice(None) for one in range(3))
        affine = patient.affine.copy()
        affine[:3, 3] += affine[:3, axis] * rows.start
        return replace(patient.map(lambda image: image[place].copy()), affine=affine)

    return change


def blank(axis: int, low: float, high: float) -> Change:
    """Take the signal from a share of the volume along an axis."""

    def change(patient: Patient) -> Patient:
        length = patient.tissue.shape[axis]
        place = tuple(slice(int(low * length), int(high * length)) if one == axis else slice(None) for one in range(3))

        def emptied(image: NDArray) -> NDArray:
            image = image.copy()
            image[place] = np.percentile(image, 1)
            return image

        return patient.map(emptied)

    return change


def spacing(*factors: float) -> Change:
    """State another size of the voxels than they have."""
    return lambda patient: replace(patient.scan(), affine=patient.affine @ np.diag([*factors, 1.0]))


def inverted(image: NDArray) -> NDArray:
    return (image.max() - image).astype(np.int16)


def noisy(image: NDArray) -> NDArray:
    rng, scale = np.random.default_rng(0), 0.25 * np.percentile(image, 99)
    return np.hypot(image + scale * rng.standard_normal(image.shape), scale * rng.standard_normal(image.shape)).astype(
        np.int16
    )


def noise_alone(image: NDArray) -> NDArray:
    return np.random.default_rng(0).permutation(image.ravel()).reshape(image.shape)


def blurred(image: NDArray) -> NDArray:
    return gaussian_filter(image.astype(np.float32), (4, 4, 0)).astype(np.int16)


def shaded(image: NDArray) -> NDArray:
    ramp = np.exp(-2.5 * np.linspace(0, 1, image.shape[0]))[:, None, None]
    return (image * ramp).astype(np.int16)


def ghosted(image: NDArray) -> NDArray:
    ghost = np.roll(image, image.shape[1] // 3, axis=1) + np.roll(image, -image.shape[1] // 3, axis=1)
    return (0.6 * image + 0.35 * ghost).astype(np.int16)


def metal(image: NDArray) -> NDArray:
    x, y = np.meshgrid(*(np.linspace(-1, 1, n) for n in image.shape[:2]), indexing="ij")
    angle, far = np.arctan2(y - 0.1, x + 0.2), np.hypot(x + 0.2, y - 0.1)
    found = image * (1 + 0.6 * np.cos(12 * angle) * np.exp(-far / 0.5))[..., None]
    found[far < 0.12] = 0
    found[(far >= 0.12) & (far < 0.17)] = image.max()
    return np.clip(found, 0, 32000).astype(np.int16)


def exchanged(patient: Patient) -> Patient:
    """T1 in the place of T2, and the reverse; nothing of a set with one contrast."""
    taken = patient.scan()
    names = [*taken.images]
    return replace(taken, images=dict(zip(names, [taken.images[name] for name in reversed(names)], strict=True)))


def negative_gamma(image: NDArray) -> NDArray:
    """A window as for display: what is dark is black, what is bright white."""
    low, high = np.percentile(image, (40, 75))
    return (np.clip((image - low) / (high - low), 0, 1) * 1000).astype(np.int16)


def child(patient: Patient) -> Patient:
    """A body of 0.6 the size."""
    rows = [
        np.clip(((np.arange(n) - (n - 1) / 2) / 0.6 + (n - 1) / 2).round().astype(int), -1, n)
        for n in patient.tissue.shape
    ]
    padded = np.pad(patient.tissue, 1)
    rows = [np.where((row < 0) | (row >= n), 0, row + 1) for row, n in zip(rows, patient.tissue.shape, strict=True)]
    return replace(patient, tissue=padded[np.ix_(*rows)])


WRONG: dict[str, Change] = {
    "a head": head,
    "a chest": chest,
    "two legs": legs,
    "a bottle of water": bottle,
    "voxels in random order": lambda patient: patient.map(noise_alone),
    "left and right exchanged": flip(0),
    "front and back exchanged": flip(1),
    "head and feet exchanged": flip(2),
    "turned by 180 degrees": flip(0, 1),
    "turned by 90 degrees": quarter_turn,
    "the left half alone": keep(0, 0.5, 1),
    "the right half alone": keep(0, 0, 0.5),
    "the upper third alone": keep(2, 0.67, 1),
    "the lower third alone": keep(2, 0, 0.33),
    "one half without signal": blank(0, 0, 0.5),
    "voxels stated 1.9 times as large": spacing(1.9, 1.9, 1.9),
    "voxels stated half as large": spacing(0.53, 0.53, 0.53),
    "slices stated 1.9 times as thick": spacing(1, 1, 1.9),
    "the organ removed": without_organ,
    "the organ twice": two_organs,
    "an enhanced organ": enhanced(1.5),
    "an organ full of lesions": full_of_lesions,
    "a child, 0.6 the size": child,
    "bright and dark exchanged": lambda patient: patient.map(inverted),
    "a window for display": lambda patient: patient.map(negative_gamma),
    "strong noise": lambda patient: patient.map(noisy),
    "strong blur": lambda patient: patient.map(blurred),
    "strong shading": lambda patient: patient.map(shaded),
    "ghosts of motion": lambda patient: patient.map(ghosted),
    "metal": lambda patient: patient.map(metal),
    "contrasts exchanged": exchanged,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("runs", nargs="*", metavar="RUN")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seed", type=int, default=0, help="of the phantoms and the training")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.runs or RUNS:
        report(name, options)
    return 0


def report(name: str, options: argparse.Namespace) -> None:
    """Train a run where that is not done, and print its table and its false alarms."""
    job, kind, patients = RUNS[name]
    data = make_phantoms(options.out / f"{Path(kind.marker).stem}-{options.seed}", options.seed, patients, kind)
    run = options.out / f"{name}-{options.seed}"
    if not is_finished(run):
        length = ["--rounds", str(options.rounds)] if options.rounds else []
        sites = ("--sites", ",".join(SITES), "--seed", str(options.seed), "--set", "baseline_comparison=false")
        silofl("simulate", job, "--in-process", "--data", str(data), "--out", str(run), *sites, *length)
    model = SuperModel.load(run / "supermodel", "cpu")
    print(f"{name}: {job}, {model.contents.facts['rounds']} rounds")
    right = [*right_cases(data, model.contents.study)]
    found = [warn(model, files) for files in right]
    print(f"right cases: {sum(map(bool, found))} of {len(found)}; {reasons(found)}")
    for what, change in WRONG.items():
        if what == "contrasts exchanged" and not kind.has_contrasts:
            continue
        found = [warn_of(model, change(Patient.draw(kind, site, i)).scan()) for i, site in enumerate((*SITES, UNSEEN))]
        print(f"{what}: {sum(map(bool, found))} of {len(found)}; {reasons(found)}", flush=True)


def reasons(found: list[list[str]]) -> str:
    """Count what the sentences begin with."""
    counts = Counter(sentence.partition(":")[0] for sentences in found for sentence in sentences)
    return ", ".join(f"{count} {what}" for what, count in counts.most_common())


def right_cases(data: Path, study: Study) -> Iterator[Path | dict[str, Path]]:
    """Yield the files of the test cases, and of all cases of the hospital that did not train."""
    for site in (*SITES, UNSEEN):
        manifest = read_manifest(data / site, study)
        parts = manifest.parts if site == UNSEEN else {"test": manifest.test}
        for record in (record for records in parts.values() for record in records):
            source = manifest.source(record)
            files = [path for path, _ in source.files]
            yield dict(zip(source.channels, files, strict=True)) if source.channels else files[0]


def warn(model: SuperModel, files: Path | dict[str, Path]) -> list[str]:
    """Return what is said of a case; a refusal is a warning."""
    try:
        said = [*model.predict(files).warnings]
    except DataError as error:
        said = [f"refused: {error}"]
    # A label that was not learnt says nothing of the case.
    return [sentence for sentence in said if "was not learnt" not in sentence]


def warn_of(model: SuperModel, patient: Patient) -> list[str]:
    """Return what is said of a patient's images."""
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for contrast, image in patient.images.items():
            nifti = nibabel.Nifti1Image(image, patient.affine)
            nifti.set_qform(patient.affine, code="scanner")
            nifti.header.set_xyzt_units("mm")
            files[contrast] = Path(folder) / f"case{contrast}.nii.gz"
            nibabel.save(nifti, files[contrast])
        return warn(model, files if len(files) > 1 else next(iter(files.values())))


if __name__ == "__main__":
    sys.exit(main())
