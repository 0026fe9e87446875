"""How soon `silofl monitor` sees that a clinic's images or patients changed, and how often it is wrong.

    python bench/monitor.py [--hospitals 20]

Hospitals answer for 24 months, each with its own offset from the model's test. From month 13 on something changes; the
numbers of each answer are drawn, no network is run: deviations from bell curves, warnings and fallbacks with the shares
below. The Dice that a change costs is given too, so that what a late alarm loses is the Dice of all answers between the
change and the alarm, against a model that is retrained at once. The seed is fixed.
"""

import argparse
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from silofl_clinic.monitor import find_alarms
from silofl_hospital.inference.answers import FALLBACK, REFUSED, WARNED, Answer, group_months

MONTHS, CHANGE = 24, 12
VOLUMES = (40, 200)
LOOK, SIZE = "the look of the image to the network", "the size of organ"
UNLIKE = "it is unlike the training images"


@dataclass(frozen=True)
class Change:
    """What changes after the first year, for some of the answers.

    Attributes:
        affected: Share of the answers.
        look: Deviations that the distance of the network's features rises by.
        size: Deviations that the size of the organ rises by.
        fallback: What the share of fallbacks rises by.
        dice: What the Dice of such an answer falls by.
        months: In which the change comes, evenly.
    """

    affected: float = 0.0
    look: float = 0.0
    size: float = 0.0
    fallback: float = 0.0
    dice: float = 0.0
    months: int = 1


CHANGES = {
    "nothing": Change(),
    "a new scanner, all exams": Change(1.0, look=1.5, fallback=0.3, dice=0.15),
    "a new scanner, a third of the exams": Change(0.33, look=1.5, fallback=0.3, dice=0.15),
    "another protocol": Change(1.0, look=0.5, dice=0.05),
    "scanner wears out over a year": Change(1.0, look=1.5, dice=0.15, months=12),
    "other patients": Change(1.0, size=0.5, dice=0.03),
    "Dice falls, images and answers do not change": Change(1.0, dice=0.1),
}


def draw_hospital(change: Change, volume: int, rng: np.random.Generator) -> list[Answer]:
    """Return the answers of 24 months."""
    offset, warned, fallback = rng.normal(0, 0.5, 2), rng.uniform(0.0, 0.06), rng.uniform(0.02, 0.3)
    answers = []
    for month in range(MONTHS):
        progress = min(max(month - CHANGE + 1, 0) / change.months, 1.0)
        for _ in range(rng.poisson(volume)):
            part = progress * (rng.random() < change.affected)
            numbers = {
                LOOK: rng.normal(offset[0] + part * change.look),
                SIZE: rng.normal(offset[1] + part * change.size),
            }
            # As predict warns of what lies far from the mean.
            heads = {UNLIKE} if rng.random() < warned or numbers[LOOK] > 3 else set()
            shares = {REFUSED: bool(rng.random() < 0.02), WARNED: bool(heads)} | dict.fromkeys(heads, True)
            shares[FALLBACK] = bool(rng.random() < fallback + part * change.fallback)
            time = datetime(2027 + month // 12, month % 12 + 1, 15)
            answers.append(Answer(time, "f", "x", "", "", "global", shares | numbers))
    return answers


def measure(change: Change, volume: int, hospitals: int) -> tuple[float, float, float, float]:
    """Return false alarms a year, share of hospitals that are alarmed, months until then, and Dice lost meanwhile."""
    false, delays, lost = 0, [], []
    for seed in range(hospitals):
        months = group_months(draw_hospital(change, volume, np.random.default_rng(seed)))
        places = {name: place for place, name in enumerate(months)}
        alarmed = sorted({places[one.month] for one in find_alarms(months)})
        is_changing = change != Change()
        false += sum(place < CHANGE or not is_changing for place in alarmed)
        first = next((place for place in alarmed if place >= CHANGE), MONTHS)
        delays.append(first - CHANGE + 1 if first < MONTHS else np.inf)
        falls = [min((place - CHANGE + 1) / change.months, 1.0) for place in range(CHANGE, min(first + 1, MONTHS))]
        lost.append(change.dice * change.affected * sum(falls))
    # The reference takes three months; of a hospital where nothing changes all others count.
    years = hospitals * ((MONTHS if change == Change() else CHANGE) - 3) / 12
    found = [one for one in delays if np.isfinite(one)]
    return false / years, len(found) / hospitals, float(np.median(found)) if found else np.inf, float(np.mean(lost))


def main() -> None:
    """Print a row for each change and number of answers a month."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hospitals", type=int, default=20)
    hospitals = parser.parse_args().hospitals
    print("| change | answers a month | false alarms a year | seen | median months | Dice-months lost |")
    print("|---|---|---|---|---|---|")
    for name, change in CHANGES.items():
        for volume in VOLUMES:
            false, seen, delay, lost = measure(change, volume, hospitals)
            print(f"| {name} | {volume} | {false:.2f} | {seen:.0%} | {delay:g} | {lost:.2f} |", flush=True)


if __name__ == "__main__":
    main()
