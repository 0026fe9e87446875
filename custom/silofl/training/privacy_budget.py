"""What training with differential privacy has spent: in results.json, and as a site counts it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from silofl.base.documents import ABSENT, read_json_document
from silofl.base.errors import TrainingError

# Beside the runs of a study; and in each run as that has left it, to know in other runs whether the count is lost.
FILE = "dp_sgd.json"


class PrivacyBudget(NamedTuple):
    """Steps of one kind: their noise in multiples of the norm, the probability of each unit, and their number.

    Older counts do not say their unit: they promise what the lesser one does.
    """

    noise: float
    rate: float
    steps: int
    unit: str = "example"


@dataclass(frozen=True)
class Privacy:
    """What differential privacy has spent.

    Attributes:
        epsilon: Site -> the epsilon of all runs of the study.
        delta: The probability with which epsilon need not hold.
        unit: Whom it protects: a patient, or an example.
        noise: Standard deviation of the noise, in multiples of clip.
        clip: Norm to which gradients were clipped.
    """

    epsilon: Mapping[str, float]
    delta: float
    unit: str
    noise: float
    clip: float


def read_count(folder: Path, site: str, unit: str, least: int = 0) -> list[PrivacyBudget]:
    """Return what all runs of a study have spent at a site.

    Args:
        folder: The site's state, with the count and the runs.
        unit: The study's unit, ``patient`` or ``example``.
        least: Steps that the site's state knows of.

    Raises:
        TrainingError: The count is missing, broken, or older than the site's state or any run's copy; or it holds steps
            that protected another unit.
    """
    try:
        # The copies first: another run of the study writes its own after the count.
        for copy in folder.glob(f"*/{FILE}"):
            least = max(least, count_steps(_read_budgets(copy)))
        spent = _read_budgets(folder / FILE)
        counted = count_steps(spent)
    except (OSError, ValueError, TypeError, KeyError):
        counted = -1
    if counted < least:
        raise TrainingError(
            f"{FILE} in the state folder of site {site!r} is missing, broken or older than its state, and counts what "
            "the rounds have spent of its patients' privacy; restore it"
        )
    for earlier in spent:
        # Neither promise holds the other: without one of several examples a patient's gradient is another, not absent.
        if earlier.unit != unit:
            raise TrainingError(
                f"privacy.dp_sgd.unit must be {earlier.unit}, by which {FILE} of site {site!r} has counted earlier "
                f"steps, not {unit}; change it, or leave the site out"
            )
    return spent


def _read_budgets(path: Path) -> list[PrivacyBudget]:
    document: Any = read_json_document(path)
    if document is ABSENT:
        return []
    return [PrivacyBudget(**steps) for steps in document["spent"]]


def count_steps(spent: Sequence[PrivacyBudget]) -> int:
    """Return how many steps there are of all kinds."""
    return sum(steps.steps for steps in spent)
