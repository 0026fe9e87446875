"""A site's answer as the server reads it: once, by a schema, every number in its range.

What is wrong with an answer is an `AggregationError`, so that it costs this site's answer and nothing else.
"""

import errno
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, Strict

from silofl.base import schema
from silofl.base.errors import AggregationError, ConfigError, DataError, Reason, SiloFLError, one_line, quote_value
from silofl.base.settings import MOST, Section, parse
from silofl.core.mixing import Arrays
from silofl.data.data_profile import DataProfile
from silofl.data.transforms import MOST_VOXELS
from silofl.models.roles import select_role
from silofl.parts.checked_cast import checked_cast
from silofl.setup.software import Software
from silofl.training.site_score import SiteScore

S = TypeVar("S", bound=SiteScore)
E = TypeVar("E", bound=Section)

LONGEST_TEXT = 200
# Characters of all numbers of an answer; a super model's test of a hundred sites has about 20,000.
LONGEST_META = 1 << 20


def plain_text(value: object) -> str:
    """Return a site's text as one line without control characters, cut to `LONGEST_TEXT` characters."""
    return one_line(value if isinstance(value, str) else quote_value(value), LONGEST_TEXT)


Text = Annotated[str, Strict(), AfterValidator(plain_text)]
Number = Annotated[float, Strict(), Field(ge=-1e15, le=1e15, allow_inf_nan=False)]
Count = Annotated[int, Strict(), Field(ge=1, le=10**7)]
Side = Annotated[int, Strict(), Field(ge=1, le=2**14)]


def _check_image_size(shape: tuple[int, ...]) -> tuple[int, ...]:
    # The server builds a network, and maybe an amplitude, of this size.
    if math.prod(shape) > MOST_VOXELS:
        raise ValueError(f"of at most {MOST_VOXELS} pixels or voxels of all channels")
    return shape


ImageShape = Annotated[tuple[Side, ...], Field(min_length=3, max_length=4), AfterValidator(_check_image_size)]
# A round's training is measured by these; the losses of other learners than the site's own model are beside them.
TRAINING = ("loss", "drift", "epsilon")
LossName = Annotated[str, Field(pattern=r"^loss_[a-z_]{1,40}$")]


class Metrics(Section, Generic[S]):
    """What was measured at a site.

    Attributes:
        loss: Of the site's own model, mean over the steps; those of other learners are beside it as ``loss_<role>``.
        drift: HarmoFL's, where the study measures it.
        epsilon: Spent by all that has left of the training, where the study has differential privacy.
        validation: The score on validation data; None without such data.
        round_test: The same models' score on test data, where the study evaluates every round.
        test: The score of the run's model on test data.
    """

    # The losses of other learners are checked too, by the type of the extras.
    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: dict[LossName, Number]
    loss: Number | None = None
    drift: Annotated[Number, Field(ge=0)] | None = None
    epsilon: Annotated[Number, Field(ge=0)] | None = None
    validation: SiteScore | None = None
    round_test: SiteScore | None = None
    test: S | None = None

    @property
    def training(self) -> dict[str, float]:
        """The numbers of a round's training by name."""
        own = {name: getattr(self, name) for name in TRAINING}
        return {name: value for name, value in own.items() if value is not None} | self.__pydantic_extra__


class Rehearsal(Section):
    """What a site says of a rehearsal.

    Attributes:
        round_seconds: Expected of a round's training and validation.
        seconds: That the rehearsal itself took at the site.
        peak_bytes: The most memory in use, of the GPU where there is one.
        device: On which it trained.
        faults: What would fail later.
    """

    round_seconds: Annotated[Number, Field(ge=0)]
    seconds: Annotated[Number, Field(ge=0)]
    peak_bytes: Annotated[int, Strict(), Field(ge=0, le=10**15)]
    device: Literal["cpu", "cuda"]
    faults: Annotated[tuple[Text, ...], Field(max_length=10)] = ()


class Numbers(Section, Generic[S]):
    """All of an answer that is no array and no part's.

    Attributes:
        round: The round of the task that it answers.
        num_examples: Training examples.
        num_patients: Patients in training; those whom nobody knows count as none.
        image_shape: (C, *spatial) of the training images, or patches.
        steps: Steps of the own model's training.
        unreadable: Why cases of the site are left out -> how many.
        software: What the site runs, in its first answer of a run.
        min_partners: Other answers that must be mixed with this one.
        shares_models: Whether models for single sites, with this answer in them, may be handed to others.
        rehearsal: What a rehearsal found; of no other answer.
        metrics: What was measured.
    """

    round: Annotated[int, Strict()]
    num_examples: Count | None = None
    num_patients: Annotated[int, Strict(), Field(ge=0, le=10**7)] | None = None
    image_shape: ImageShape | None = None
    steps: Count | None = None
    unreadable: dict[Reason, Count] = {}
    software: Software | None = None
    min_partners: Annotated[int, Strict(), Field(ge=0, le=MOST)] = 0
    shares_models: Annotated[bool, Strict()] = False
    rehearsal: Rehearsal | None = None
    metrics: Metrics[S] = Metrics[S]()


@dataclass(frozen=True)
class SiteAnswer:
    """A site's answer.

    Attributes:
        arrays: ``role/name`` -> array, a difference to what the server sent it.
        numbers: Its numbers.
        data_profile: What its training images are like; nothing where it says nothing.
        entries: Role -> the entry of the part, of the class `PayloadSpec.metadata`.
        withheld: Names of the expected arrays that it does not hold.
    """

    arrays: Arrays = field(default_factory=dict)
    numbers: Numbers[Any] = Numbers(round=0)
    data_profile: DataProfile = DataProfile()
    entries: Mapping[str, Section] = field(default_factory=dict)
    withheld: tuple[str, ...] = ()

    def of(self, role: str) -> Arrays:
        """Return the arrays of one role under its own names."""
        return select_role(role, self.arrays)

    def metadata(self, role: str, kind: type[E]) -> E:
        """Return the entry of the part of a role, whose `PayloadSpec.metadata` is the class given."""
        return checked_cast(self.entries[role], kind)


def read_answer(
    site: str,
    arrays: Arrays,
    meta: Mapping[str, Any],
    entries: Mapping[str, type[Section]],
    test: type[SiteScore] = SiteScore,
) -> SiteAnswer:
    """Read a site's answer.

    Args:
        arrays: Its arrays, which are not checked here.
        meta: All else in it.
        entries: Role -> the class of the part's entry, of the parts that expect one.
        test: The class of a test's score.

    Raises:
        AggregationError: A key is missing or unknown, or a value of another type or out of its range.
    """
    where = f"the answer of site {site!r}"
    try:
        # Measured before anything is parsed, so that a huge answer costs the server little.
        if len(json.dumps(meta)) > LONGEST_META:
            raise ConfigError(f"{where} has more than {LONGEST_META} characters of numbers and texts")
        read = {role: parse(entry, meta.get(role, {}), f"{where}: {role}") for role, entry in entries.items()}
        data_profile = schema.read_record(DataProfile, meta.get("domain", {}), f"{where}: domain")
        numbers = {key: value for key, value in meta.items() if key not in entries and key != "domain"}
        # mypy looks for the hash of the class's instances.
        numbers_class = _build_numbers_class(test)  # type: ignore[arg-type]
        return SiteAnswer(arrays, parse(numbers_class, numbers, where), data_profile, read)
    except ConfigError as error:
        raise AggregationError(str(error)) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise AggregationError(
            f"{where} holds other things than plain numbers and texts ({type(error).__name__})"
        ) from None


@cache
def _build_numbers_class(test: type[SiteScore]) -> type[Numbers[Any]]:
    """Return the class of numbers with a class of test scores; pydantic forgets it, and takes 9 ms to make it anew."""
    # A class that is known at run time alone is none to mypy.
    return Numbers[test]  # type: ignore[valid-type]


def explain_refusal(site: str, error: Exception) -> str:
    """Return why a site's answer is refused, as one bounded line."""
    if isinstance(error, SiloFLError):
        return plain_text(str(error))
    return plain_text(f"the answer of site {site!r} cannot be read ({type(error).__name__}: {error})")


def public_reason(error: Exception, log: str = "the site's own log") -> str:
    """Return the reason that may leave the site; the whole of it stands in the log that it names."""
    # Sentences on data and settings may name a case or a path: they stay in the site's log.
    if isinstance(error, (DataError, ConfigError)):
        return f"the site's {'data' if isinstance(error, DataError) else 'settings'} have a fault; {log} names it"
    if isinstance(error, SiloFLError):
        return plain_text(str(error))
    # The system's words for its number, because the error's own may name a file.
    if isinstance(error, OSError) and error.errno is not None and error.errno in errno.errorcode:
        return f"the site's system said {os.strerror(error.errno)!r}; {log} names the file"
    return f"an unexpected {type(error).__name__}; {log} has it"
