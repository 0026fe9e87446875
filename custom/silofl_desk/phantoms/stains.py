"""Simulated hospitals with patches of stained tissue, whose laboratories stain and scan differently.

The classes differ in the form of the nuclei, few large irregular ones or many small round ones, and not in the light
that the nuclei absorb, so that the mean intensity does not tell them. The same area would not do: a soft edge absorbs
more than its share, and small nuclei have more of it. The appearance follows the law of Beer and Lambert, with optical
densities of haematoxylin and eosin (Ruifrok and Johnston, Quantification of histochemical staining by color
deconvolution, 2001). `strength` is a dial of how far the hospitals lie apart. Every file follows from (seed, strength,
site).
"""

from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from silofl.base.files import read_json, write_atomically, write_json
from silofl_desk.phantoms.phantoms import check_free, check_marker, seed_generator

LABELS = {0: "small", 1: "large"}
SITES = ("north", "east", "south", "west", "midland")
MARKER, IMAGES = "stains.json", "images.npz"
# It is raised when the files change, so that those of an older version are not taken for them.
VERSION = 1
SIZE = 32
PATIENTS = {"training": 6, "validation": 10, "test": 30}
# A patient has two patches of each class.
PATCHES = 4
# These are the optical densities of red, green and blue light.
HAEMATOXYLIN = np.array((0.65, 0.70, 0.29))
EOSIN = np.array((0.07, 0.99, 0.11))
NUCLEAR_DENSITY, GROUND_DENSITY = 1.6, 0.6
# This part of a patch is what nuclei as dense as in their middle would absorb alike, of both classes.
NUCLEAR_AREA = (0.10, 0.26)


@dataclass(frozen=True)
class _Look:
    """How a class's nuclei look: how many there are, their largest ratio of axes, and how uneven their outline is."""

    counts: tuple[int, int]
    elongation: float
    unevenness: float


LOOKS = {0: _Look((9, 14), 1.1, 0.0), 1: _Look((2, 4), 1.8, 0.15)}


@dataclass(frozen=True)
class _Laboratory:
    """How a hospital stains and scans.

    Attributes:
        haematoxylin: Optical density by colour.
        eosin: Optical density by colour.
        amounts: Strengths of both stains.
        light: Of the background.
        gamma: Exponent of the intensity.
        blur: Deviation of a Gaussian in pixels.
        noise: Deviation of the noise.
    """

    haematoxylin: NDArray[np.float64]
    eosin: NDArray[np.float64]
    amounts: NDArray[np.float64]
    light: float
    gamma: float
    blur: float
    noise: float

    @classmethod
    def draw(cls, rng: np.random.Generator, strength: float) -> "_Laboratory":
        """Draw one; with a strength of 0 all are the same."""
        return cls(
            haematoxylin=np.maximum(HAEMATOXYLIN + strength * rng.normal(0, 0.22, 3), 0),
            eosin=np.maximum(EOSIN + strength * rng.normal(0, 0.22, 3), 0),
            amounts=np.exp(strength * rng.normal(0, 0.45, 2)),
            light=1 - 0.25 * strength * rng.random(),
            gamma=np.exp(strength * rng.normal(0, 0.25)),
            blur=strength * rng.random(),
            noise=0.02 + 0.03 * strength * rng.random(),
        )

    def photograph(
        self, rng: np.random.Generator, nuclei: NDArray[np.float64], ground: NDArray[np.float64]
    ) -> NDArray[np.uint8]:
        """Return the picture (SIZE, SIZE, 3) of tissue with these shares of nuclei and ground in each pixel."""
        # Here, because it takes a third of a second to import, and most runs find their data made.
        from scipy.ndimage import gaussian_filter

        nuclear, eosin = self.amounts * np.exp(rng.normal(0, 0.12, 2))
        density = NUCLEAR_DENSITY * nuclear * nuclei[..., None] * self.haematoxylin
        density = density + GROUND_DENSITY * eosin * ground[..., None] * self.eosin
        image = (np.exp(-density) * self.light) ** self.gamma
        image = gaussian_filter(image, (self.blur, self.blur, 0)) + rng.normal(0, self.noise, image.shape)
        return np.asarray(np.round(255 * np.clip(image, 0, 1)), np.uint8)


def make_stains(target: Path, seed: int = 0, strength: float = 1.0) -> Path:
    """Make the simulated hospitals under `target`, one folder with dataset.json a site, unless they are there already.

    Args:
        target: Folder that holds or will hold the sites' folders.
        seed: 0 or more; another one means other hospitals and other patients.
        strength: How far the hospitals lie apart, 0 or more; about 0.25 for real laboratories.

    Returns:
        `target`.

    Raises:
        DataError: `target` holds simulated hospitals of another seed, strength or version, or other data under a
            site's name.
    """
    marker = target / MARKER
    wanted = {"seed": seed, "version": VERSION, "strength": float(strength)}
    if marker.exists():
        check_marker(target, read_json(marker), wanted)
        # A site's dataset.json is written last.
        if all((target / site / IMAGES).exists() and (target / site / "dataset.json").exists() for site in SITES):
            return target
    for site in SITES:
        check_free(target / site)
    for site in SITES:
        _make_site(target / site, seed, float(strength))
    # The marker comes last: without it, an interrupted call is repeated.
    write_json(marker, wanted)
    return target


def _make_site(folder: Path, seed: int, strength: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    laboratory = _Laboratory.draw(seed_generator(seed, MARKER, folder.name), strength)
    records: dict[str, list[dict[str, object]]] = {}
    images: list[NDArray[np.uint8]] = []
    numbers = count(1)
    for part, patients in PATIENTS.items():
        records[part] = []
        for number in islice(numbers, patients):
            name = f"{folder.name}_{number:02d}"
            # The tissue of a patient is the same at every strength.
            rng = seed_generator(seed, MARKER, name)
            for patch in range(PATCHES):
                label = patch % len(LABELS)
                record = {"image": IMAGES, "index": len(images), "label": label}
                records[part].append({**record, "patient": name, "case": f"{name}_{patch}"})
                # Nuclei are drawn before the ground: the order settles the random numbers.
                images.append(laboratory.photograph(rng, _draw_nuclei(rng, LOOKS[label]), _draw_ground(rng)))
    arrays = np.stack(images)
    write_atomically(folder / IMAGES, lambda stream: np.savez_compressed(stream, images=arrays))
    labels = {str(number): name for number, name in LABELS.items()}
    write_json(folder / "dataset.json", {"task": "classification", "labels": labels, **records})


def _draw_ground(rng: np.random.Generator) -> NDArray[np.float64]:
    """Return a texture of four plane waves around 0.5, (SIZE, SIZE)."""
    rows, columns = np.indices((SIZE, SIZE))
    ground = 0.5 + rng.normal(0, 0.05, (SIZE, SIZE))
    for _ in range(4):
        angle = rng.uniform(0, np.pi)
        length = rng.uniform(5, 20)
        phase = rng.uniform(0, 2 * np.pi)
        along = rows * np.sin(angle) + columns * np.cos(angle)
        ground += 0.12 * np.cos(2 * np.pi * along / length + phase)
    return np.clip(ground, 0, 1)


def _draw_nuclei(rng: np.random.Generator, look: _Look) -> NDArray[np.float64]:
    """Return the share of nuclei in each pixel, (SIZE, SIZE), whose light follows one distribution for all looks."""
    rows, columns = np.indices((SIZE, SIZE))
    places = _spread_places(rng, int(rng.integers(*look.counts, endpoint=True)))
    sizes = rng.uniform(0.85, 1.15, len(places))
    outlines = []
    for row, column in places:
        down = rows - row
        right = columns - column
        turn = rng.uniform(0, np.pi)
        # One axis is as much longer as the other is shorter: the area stays.
        ratio = np.sqrt(rng.uniform(1, look.elongation))
        along = (down * np.sin(turn) + right * np.cos(turn)) / ratio
        across = (down * np.cos(turn) - right * np.sin(turn)) * ratio
        angle = np.arctan2(along, across)
        uneven = look.unevenness * rng.random(2)
        waves = sum(uneven[wave - 2] * np.cos(wave * angle + rng.uniform(0, 2 * np.pi)) for wave in (2, 3))
        outlines.append((np.hypot(along, across), 1 + waves))
    wanted = rng.uniform(*NUCLEAR_AREA)
    density = NUCLEAR_DENSITY * HAEMATOXYLIN.mean()
    smallest = 0.5
    largest = SIZE / 2
    # Halving finds the radius at which the nuclei absorb what is wanted.
    for _ in range(12):
        radius = (smallest + largest) / 2
        # A soft edge, of slope 3 per pixel; where nuclei meet they do not add up.
        edges = [
            1 / (1 + np.exp(np.clip(3 * (far - radius * size * uneven), -50, 50)))
            for (far, uneven), size in zip(outlines, sizes, strict=True)
        ]
        nuclei: NDArray[np.float64] = np.max(edges, axis=0)
        absorbed = np.mean(1 - np.exp(-density * nuclei)) / (1 - np.exp(-density))
        if absorbed < wanted:
            smallest = radius
        else:
            largest = radius
    return nuclei


def _spread_places(rng: np.random.Generator, number: int) -> list[NDArray[np.float64]]:
    """Return places that keep away from one another: each the farthest of ten from those before it."""
    places = [rng.uniform(2, SIZE - 2, 2)]
    for _ in range(number - 1):
        tried = rng.uniform(2, SIZE - 2, (10, 2))
        places.append(max(tried, key=lambda point: min(np.hypot(*(point - taken)) for taken in places)))
    return places
