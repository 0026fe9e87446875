"""What an amplitude alone reveals: attempts to find images from HarmoFL's mean amplitude (HarmoFL, Fig. 7).

    python bench/inversion.py OUT [--data DIR] [--job JOB] [--attempts 4]

Without --data on phantoms. From the mean amplitude of 1, 2, 5 and 20 training images of a site an attacker looks for a
picture with that amplitude, by Fienup's hybrid input-output algorithm (Applied Optics 21, 2758, 1982), knowing that
pixels lie in [0, 1]; a second attacker also knows the outline, outside of which the images are dark. Of several starts
the one that fits best is taken. The score is the correlation with the most alike of the averaged images, after the best
shift and half turn, which no amplitude tells. Beside it stands what needs no amplitude: another image of the same site
in place of the picture that was found. OUT gets inversion.png, the first attempt of the second attacker at each site.
"""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import binary_dilation, binary_fill_holes

from silofl_desk.phantoms.phantoms import make_phantoms
from silofl_desk.studies.runs import simulate
from silofl_desk.studies.runs.simulation import Simulation, settle_job
from silofl_hospital.report.canvas import encode_png, make_panels

JOB = Path(__file__).parents[1] / "jobs" / "harmofl_phantoms"
NUMBERS = (1, 2, 5, 20)
STARTS, STEPS, FEEDBACK = 4, 400, 0.9
Image = NDArray[np.float64]


def main() -> None:
    """Attack, print the table, and draw the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--job", type=Path, default=JOB)
    parser.add_argument("--attempts", type=int, default=4)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    data = options.data or make_phantoms(options.out / "phantoms", 101)
    images = images_of_sites(options.job, data)
    found = {site: list(attempts(own, options.attempts)) for site, own in images.items()}
    print(
        "| site | images averaged | found from the amplitude | found knowing the outline | another image of the site |"
    )
    print("|---|---|---|---|---|")
    for site, tried in found.items():
        for number in NUMBERS:
            of_number = [one for one in tried if one.number == number]
            if of_number:
                columns = zip(*((one.blind, one.score, one.guess) for one in of_number), strict=True)
                print(f"| {site} | {number} | {' | '.join(map(mean_and_range, columns))} |")
    (options.out / "inversion.png").write_bytes(picture(found))


@dataclass(frozen=True)
class Attempt:
    """One attack.

    Attributes:
        number: Of the images that were averaged.
        truth: The one of them that is most like what was found.
        found: What the second attacker found.
        score: Their correlation.
        blind: The same of the first attacker, who does not know the outline.
        guess: The highest correlation of another image of the site with one that was averaged.
    """

    number: int
    truth: Image
    found: Image
    score: float
    blind: float
    guess: float


def images_of_sites(job: Path, data: Path) -> dict[str, Image]:
    """Return each site's training images in grey, shape (N, H, W), as its study prepares them; empty ones left out."""
    study, simulation = settle_job(job, Simulation(data=str(data)), {})
    sites = simulate.read_data(study, simulation, data)
    grey = {site: np.array(own.training.images, dtype=np.float64).mean(axis=1) for site, own in sites.items()}
    return {site: images[np.ptp(images, axis=(1, 2)) > 0] for site, images in grey.items()}


def attempts(images: Image, number_of_attempts: int) -> Iterator[Attempt]:
    """Attack mean amplitudes of randomly chosen images of a site."""
    draw = np.random.default_rng(0)
    for number in NUMBERS:
        for _ in range(number_of_attempts if number < len(images) else 0):
            order = draw.permutation(len(images))
            averaged, other = images[order[:number]], images[order[number]]
            amplitude = np.abs(np.fft.rfft2(averaged)).mean(axis=0)
            blind = inverted(amplitude, np.ones(other.shape, bool), draw)
            found = inverted(amplitude, outline(averaged), draw)
            scores = [alike(found, one) for one in averaged]
            of_blind, guess = (max(alike(candidate, one) for one in averaged) for candidate in (blind, other))
            yield Attempt(number, averaged[int(np.argmax(scores))], found, max(scores), of_blind, guess)


def outline(images: Image) -> NDArray[np.bool_]:
    """Return where one of the images is brighter than a tenth, holes filled, two pixels wider."""
    return binary_dilation(binary_fill_holes((images > 0.1).any(axis=0)), iterations=2)


def inverted(amplitude: Image, support: NDArray[np.bool_], draw: np.random.Generator) -> Image:
    """Return the picture in [0, 1] that of several starts has the amplitude most nearly."""
    pictures = [phase_retrieval(amplitude, support, draw) for _ in range(STARTS)]
    return min(pictures, key=lambda one: np.linalg.norm(np.abs(np.fft.rfft2(one)) - amplitude))


def phase_retrieval(amplitude: Image, support: NDArray[np.bool_], draw: np.random.Generator) -> Image:
    """Look for a picture in [0, 1] with an amplitude, dark outside of a support, from a random start."""
    picture = draw.random(support.shape) * support
    for _ in range(STEPS):
        spectrum = np.fft.rfft2(picture)
        size = np.abs(spectrum)
        phase = np.divide(spectrum, size, out=np.ones_like(spectrum), where=size > 0)
        proposed = np.fft.irfft2(amplitude * phase, s=support.shape)
        is_possible = (proposed >= 0) & (proposed <= 1) & support
        picture = np.where(is_possible, proposed, picture - FEEDBACK * proposed)
    return np.clip(proposed, 0, 1) * support


def alike(one: Image, other: Image) -> float:
    """Return the highest correlation of two pictures over all cyclic shifts and a half turn."""
    spectrum = np.fft.rfft2(standardised(other))
    products = (np.fft.rfft2(standardised(turned)) for turned in (one, one[::-1, ::-1]))
    return max(float(np.fft.irfft2(np.conj(left) * spectrum, s=one.shape).max()) for left in products) / one.size


def standardised(picture: Image) -> Image:
    """Return a picture with mean 0 and deviation 1; one of a single value stays 0."""
    deviation = picture.std()
    return (picture - picture.mean()) / (deviation if deviation > 0 else 1.0)


def mean_and_range(values: list[float]) -> str:
    """Return mean, least and largest value."""
    return f"{np.mean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def picture(found: Mapping[str, list[Attempt]]) -> bytes:
    """Draw the first attempt of each number at each site: the most alike image, and beside it what was found."""
    figure, axes = make_panels(len(found), 2 * len(NUMBERS), (1.5 * 2 * len(NUMBERS), 1.7 * len(found)))
    for axis in axes.flat:
        axis.set_axis_off()
    for row, (site, tried) in zip(axes, found.items(), strict=True):
        first = {one.number: one for one in reversed(tried)}
        for place, number in enumerate(NUMBERS):
            if number in first:
                one, (left, right) = first[number], row[2 * place : 2 * place + 2]
                left.imshow(one.truth, cmap="gray", vmin=0, vmax=1)
                right.imshow(one.found, cmap="gray", vmin=0, vmax=1)
                left.set_title(f"{site}, 1 of {number}", fontsize=7)
                right.set_title(f"found: {one.score:.2f}", fontsize=7)
    return encode_png(figure)


if __name__ == "__main__":
    main()
