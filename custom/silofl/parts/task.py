"""A task of the server: the messages of an exchange, what an answer must hold, and the sites' results."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import AggregationError, quote_value
from silofl.base.settings import MOST, Section
from silofl.core.mixing import Arrays, check_array
from silofl.models.roles import is_variance, select_role
from silofl.parts.answer import SiteAnswer

# Of every study; a part names further tasks by itself.
TRAIN, VALIDATE, TEST, COLLECT = "train", "validate", "test", "collect"
# The most that a number of an array may be, either way.
LARGEST = 1e15
# Site -> what of its answer is unlike the others' -> by how much.
Outliers = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Message:
    """A message in either direction.

    Attributes:
        arrays: ``role/name`` -> array; from a site, differences to what the server sent it.
        meta: Plain numbers, strings, lists and dictionaries; a part's are under its role.
    """

    arrays: Arrays = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """Bytes of the arrays."""
        return sum(np.asarray(array).nbytes for array in self.arrays.values())

    def __or__(self, other: Message) -> Message:
        """Return one message of both."""
        return Message(self.arrays | other.arrays, self.meta | other.meta)

    def of(self, role: str) -> Arrays:
        """Return the arrays of one role under its own names."""
        return select_role(role, self.arrays)

    def find_entry(self, role: str) -> dict[str, Any]:
        """Return a part's entry in the meta data."""
        return dict(self.meta.get(role) or {})

    def failed(self, reason: str) -> Message:
        """Return the message of a site that cannot answer this one: its round, where it has one, and the reason."""
        number = self.meta.get("round")
        is_round = type(number) is int and 0 <= number <= MOST
        return Message(meta={"round": number if is_round else None, "error": reason})


@dataclass(frozen=True)
class Exchange:
    """One message to each site, and its answer.

    Attributes:
        task: What the sites are asked to do; the part whose site half names it among its ``tasks`` answers.
        round: The round that it belongs to; of an evaluation, the finished round whose models it is about.
        step: Its number among the exchanges of the same task in a round, from 1.
        sites: The sites it goes to; None for all.
        is_needed: Whether too few answers end the run.
        models_round: The finished round after which sites begin from what they kept.
    """

    task: str
    round: int
    step: int = 1
    sites: tuple[str, ...] | None = None
    is_needed: bool = True
    models_round: int = 0

    @property
    def is_of_models(self) -> bool:
        """Whether its task begins from the models."""
        return self.task in (TRAIN, VALIDATE, TEST, COLLECT)


@dataclass(frozen=True)
class ArraySpec:
    """The conditions that an array of an answer must meet.

    Attributes:
        shape: Its shape; None where the first accepted answer decides it.
        is_required: Whether an answer without it is refused.
        minimum: The least value that it may hold, or that each of its numbers may be.
        origin: Words that say where the shape comes from, and what to do.
        dtype: Its floating-point type, into which one of the other width is turned.
    """

    shape: tuple[int, ...] | None
    is_required: bool = False
    minimum: float | NDArray[Any] | None = None
    origin: str = ""
    dtype: str = "float32"

    @property
    def num_bytes(self) -> int:
        """Its size; 0 where its shape is not known yet."""
        return 0 if self.shape is None else prod(self.shape) * np.dtype(self.dtype).itemsize

    @classmethod
    def like(cls, arrays: Arrays) -> dict[str, ArraySpec]:
        """Return the expectation of arrays of the same shapes, any of which may be withheld."""
        expected = {}
        for name, array in arrays.items():
            expected[name] = cls(np.shape(array), dtype=np.asarray(array).dtype.name)
        return expected

    @classmethod
    def whole_model(cls, arrays: Arrays) -> dict[str, ArraySpec]:
        """Return the expectation of all arrays of a model like this one, whose variances are not below 0."""
        expected = {}
        for name, array in cls.like(arrays).items():
            expected[name] = replace(array, is_required=True, minimum=0 if is_variance(name) else None)
        return expected


@dataclass(frozen=True)
class PayloadSpec:
    """What a right answer may hold for a part; anything else is refused by name.

    Attributes:
        arrays: ``role/name`` -> the condition of the array.
        metadata: The schema of its entry in the meta data, all with defaults; None where it expects none.
        averaged: Names, within the role, of arrays of which it takes a mean over sites, those of one scale together.
            The study's robust rule bounds what each site sends of them.
        buffers: Those among them that are no parameters.
        has_median: Whether the sites learn the same, so that a rule may clip their updates around a median.
    """

    arrays: Mapping[str, ArraySpec] = field(default_factory=dict)
    metadata: type[Section] | None = None
    averaged: Sequence[Collection[str]] = ()
    buffers: frozenset[str] = frozenset()
    has_median: bool = True


@dataclass(frozen=True)
class SiteResults:
    """The answers to an exchange, in the order of site names.

    Attributes:
        accepted: The answers that fit.
        refused: Site -> why its answer was refused.
        missing: Site -> why it gave none.
        outliers: In what accepted answers are unlike the others'.
    """

    accepted: dict[str, SiteAnswer]
    refused: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    outliers: Outliers = field(default_factory=dict)

    @property
    def sites(self) -> list[str]:
        """The sites whose answers were accepted."""
        return list(self.accepted)

    def updates_of(self, role: str) -> dict[str, Arrays]:
        """Return site -> the arrays that it sent in a role, under their own names."""
        return {site: answer.of(role) for site, answer in self.accepted.items()}

    @property
    def steps(self) -> dict[str, int]:
        """The sites' numbers of training steps."""
        return self._collect_counts("steps")

    @property
    def examples(self) -> dict[str, int]:
        """The sites' numbers of training examples."""
        return self._collect_counts("num_examples")

    def _collect_counts(self, name: str) -> dict[str, int]:
        counts = {}
        for site, answer in self.accepted.items():
            count = getattr(answer.numbers, name)
            if count is not None:
                counts[site] = count
        return counts


def check_arrays(site: str, arrays: Mapping[str, object], expected: Mapping[str, ArraySpec]) -> Arrays:
    """Return an answer's arrays in the types that are expected.

    Raises:
        AggregationError: An array is not expected, or not as it is expected; names the site and the array.
    """
    for name in arrays:
        if name not in expected:
            raise AggregationError(f"site {site!r} sent {quote_value(name)}, which was not asked for")
    # Arrays that are not required may be kept back by the site's policy.
    for name, wanted in expected.items():
        if name not in arrays and wanted.is_required:
            raise AggregationError(f"the answer of site {site!r} lacks {name!r}")
    return {name: _check_and_cast(site, name, array, expected[name]) for name, array in arrays.items()}


def _check_and_cast(site: str, name: str, array: object, wanted: ArraySpec) -> NDArray[Any]:
    if not isinstance(array, np.ndarray) or array.dtype.kind != "f" or array.dtype.itemsize not in (4, 8):
        sent = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise AggregationError(f"site {site!r} sent {name!r} as an array of {sent} in place of float32 or float64")
    check_array(site, name, array, array.shape if wanted.shape is None else wanted.shape, wanted.origin)
    # Larger ones are no numbers of a model, and their squares and sums would overflow in float32.
    if np.max(np.abs(array), initial=0) > LARGEST:
        raise AggregationError(f"{name!r} of site {site!r} has a value above {LARGEST:g}")
    if wanted.minimum is not None and np.any(is_below := array < wanted.minimum):
        least = np.broadcast_to(wanted.minimum, array.shape)[is_below][0]
        raise AggregationError(f"{name!r} of site {site!r} has a value below {least:g}")
    # All that follows counts on the expected width: sums over sites are taken in it.
    return np.asarray(array, wanted.dtype)
