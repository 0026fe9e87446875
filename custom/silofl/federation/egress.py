"""The gate of a site: whether an answer may leave, and a record of each of its arrays and of its numbers.

The records are for the site's privacy officer, and are made from the very message that leaves.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silofl.errors import ConfigError
from silofl.methods.part import Kind, Message
from silofl.methods.parts import kind_of, kinds
from silofl.models.roles import role_of
from silofl.site import Site
from silofl.study import Study

NUMBERS, UNKNOWN = "numbers", "unknown"
# Kinds of no part: the counts and scores of every answer, and arrays that no part of the study knows.
OTHERS = {
    NUMBERS: "counts, losses, scores, and what the images are like; no case is named",
    UNKNOWN: "not a part of the study's model",
}


@dataclass(frozen=True)
class Gate:
    """The kinds of arrays that a site lets out in one study.

    Attributes:
        kinds: All kinds that the study's parts send.
        allowed: Names of the kinds that may leave.
        min_examples: Training examples that a mean over the images must come from.
    """

    kinds: tuple[Kind, ...]
    allowed: frozenset[str]
    min_examples: int

    @classmethod
    def of(cls, study: Study, site: Site) -> Gate:
        """Build the gate from the site's settings and the study.

        Raises:
            ConfigError: A part of the study cannot be loaded.
        """
        sent = tuple(kinds(study))
        known = {kind.name for kind in sent}
        names = known if site.may_leave is None else set(site.may_leave)
        for name in names - known:
            # Kinds of other studies may be listed too; a name that is nearly one of this study's is a slip.
            if close := difflib.get_close_matches(name, known, n=1, cutoff=0.8):
                raise ConfigError(f"may_leave of site.yaml must name kinds of arrays, not {name!r}; write {close[0]!r}")
        stays = {"batchnorm"} if study.recipe.stays_home == "batchnorm" else set()
        # A site cannot allow arrays that no part knows, even by naming their kind.
        return cls(sent, frozenset(names - stays - {UNKNOWN}), site.min_examples)

    def kind(self, name: str) -> str:
        """Return the kind of an array by its name on the wire."""
        known = kind_of(self.kinds, role_of(name), name.removeprefix(f"{role_of(name)}/"))
        return known.name if known else UNKNOWN

    def purpose(self, kind: str) -> str:
        """Return the sentence on a kind for people."""
        return next((known.purpose for known in self.kinds if known.name == kind), OTHERS.get(kind, OTHERS[UNKNOWN]))

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
        few = [kind.name for kind in self.kinds if kind.is_of_images and kind.name in names]
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
        return [*records, facts | {"name": NUMBERS, "kind": NUMBERS, "values": values, "purpose": OTHERS[NUMBERS]}]

    def _of_array(self, name: str, array: NDArray) -> dict[str, Any]:
        kind = self.kind(name)
        return {
            "name": name,
            "kind": kind,
            "shape": list(array.shape),
            "dtype": str(array.dtype),
            "bytes": array.nbytes,
            "sha256": hashlib.sha256(array.tobytes()).hexdigest(),
            "purpose": self.purpose(kind),
        }
