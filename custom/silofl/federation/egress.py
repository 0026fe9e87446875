"""What leaves a site: whether an answer may, and a record of each of its arrays and of its numbers.

A site's privacy officer reads the records; they are made from the very message that leaves.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silofl.federation.message import Message
from silofl.federation.selector import is_selectors
from silofl.models.members import Members, role_of
from silofl.models.parts import AMPLITUDE
from silofl.site import Site
from silofl.study import Study

NUMBERS, UNKNOWN = "numbers", "unknown"
PURPOSES = {
    "weights": "what the round's training changed in the model's weights; they are mixed with other sites'",
    "batchnorm": "what the round's training changed in BatchNorm, which holds means over the site's images",
    "amplitude": "the mean frequency amplitude of the training images, sent once so that all sites normalise alike",
    "statistics": "means and variances of the model's features over the training images, to compare sites by",
    "selector": "what the selector learnt, which tells the sites' images apart",
    NUMBERS: "counts, losses and scores; no case is named",
    UNKNOWN: "not a part of the study's model",
}
# Both are means over the images themselves: of few images they would show them.
OF_IMAGES = ("amplitude", "statistics")


@dataclass(frozen=True)
class Gate:
    """What a site lets out in one study.

    Attributes:
        weights: Names of the study's models, without BatchNorm.
        batchnorm: Names of their BatchNorm parameters and statistics.
        allowed: Kinds of arrays that may leave.
        min_examples: Training examples that an amplitude or statistics must come from.
    """

    weights: frozenset[str]
    batchnorm: frozenset[str]
    allowed: frozenset[str]
    min_examples: int

    @classmethod
    def of(cls, study: Study, site: Site) -> Gate:
        """Return what the site's settings and the study together allow."""
        members = Members.build(study, None)
        batchnorm = frozenset(members.batchnorm_names())
        stays = {"batchnorm"} if study.recipe.stays_home == "batchnorm" else set()
        return cls(
            frozenset(members.state()) - batchnorm, batchnorm, frozenset(site.may_leave) - stays, site.min_examples
        )

    def kind(self, name: str) -> str:
        """Return the kind of an array by its name: a key of ``PURPOSES``."""
        if is_selectors(name):
            return "selector"
        if role_of(name) == "statistics":
            return "statistics"
        known = {"amplitude": {AMPLITUDE}, "batchnorm": self.batchnorm, "weights": self.weights}
        return next((kind for kind, names in known.items() if name in names), UNKNOWN)

    def refusal(self, message: Message) -> str | None:
        """Return why an answer must not leave, as a sentence for the server; None where it may."""
        names: dict[str, list[str]] = {}
        for name in message.arrays:
            names.setdefault(self.kind(name), []).append(name)
        for kind in sorted(names.keys() - self.allowed):
            return (
                f"the site lets only {', '.join(sorted(self.allowed)) or 'no arrays'} leave, not {kind}; the answer "
                f"held {len(names[kind])} such arrays, the first {names[kind][0]!r}: change the study, or ask the site"
            )
        examples = message.meta.get("num_examples")
        few = [kind for kind in OF_IMAGES if kind in names]
        if few and examples is not None and examples < self.min_examples:
            return f"the site lets {few[0]} leave only from {self.min_examples} training examples or more; it has fewer"
        return None

    def records(self, task: str, message: Message, reason: str | None = None) -> list[dict[str, Any]]:
        """Return one record for each array of an answer, and one for its numbers.

        Args:
            task: The task that it answers.
            message: The answer.
            reason: Why it does not leave; None where it does.
        """
        facts = {"round": message.meta.get("round"), "task": task, "refused": reason is not None}
        facts |= {} if reason is None else {"reason": reason}
        records = [facts | self._of_array(name, np.asarray(array)) for name, array in message.arrays.items()]
        # NaN as a word: other programs cannot read it as a number.
        values = json.loads(json.dumps(message.meta, default=str), parse_constant=str)
        return [*records, facts | {"name": NUMBERS, "kind": NUMBERS, "values": values, "purpose": PURPOSES[NUMBERS]}]

    def _of_array(self, name: str, array: NDArray) -> dict[str, Any]:
        kind = self.kind(name)
        return {
            "name": name,
            "kind": kind,
            "shape": list(array.shape),
            "dtype": str(array.dtype),
            "bytes": array.nbytes,
            "sha256": hashlib.sha256(array.tobytes()).hexdigest(),
            "purpose": PURPOSES[kind],
        }
