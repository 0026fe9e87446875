"""The protocol of a part: something that travels, with a half at the server and a half at each site.

The engine sends, checks, mixes, saves and resumes. A part says what to send, what a correct answer is, and what the
answers change. Every method has a default that does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from silofl.algorithms.mixing import Arrays, check_array
from silofl.algorithms.steps import Step
from silofl.errors import AggregationError, shown
from silofl.methods.answer import Answer
from silofl.models.roles import of_role
from silofl.settings import MOST, Section
from silofl.study import Study
from silofl.training.loop import Learner, TrainingResult
from silofl.training.site_score import SiteScore

if TYPE_CHECKING:
    from silofl.data.domain import Domain
    from silofl.data.parts import Examples
    from silofl.inference.contents import Contents
    from silofl.methods.work import Work
    from silofl.models import HarmonizedModel
    from silofl.training.metrics import Score

# Moments at which a part may add exchanges: before a round's training, in its place, after it; once the models of the
# last round that trained any are validated; after all rounds; and after the test.
BEFORE, INSTEAD, AFTER, VALIDATED = "before", "instead", "after", "validated"
END, TESTED = "end", "tested"
TRAIN, VALIDATE, TEST, COLLECT = "train", "validate", "test", "collect"
# Role -> aggregation weights (K', K') of the sites that answered.
WeightsOf = Callable[[str], NDArray[np.float64]]
# The most that a number of an array may be, either way.
LARGEST = 1e15


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
        return of_role(role, self.arrays)

    def about(self, role: str) -> dict[str, Any]:
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
class Expected:
    """The conditions that an array of an answer must meet.

    Attributes:
        shape: Its shape; None where the first accepted answer decides it.
        is_required: Whether an answer without it is refused.
        minimum: The least value that it may hold.
        origin: Words that say where the shape comes from, and what to do.
        dtype: Its floating-point type, into which one of the other width is turned.
        num_bytes: Its size on the wire.
    """

    shape: tuple[int, ...] | None
    is_required: bool = False
    minimum: float | None = None
    origin: str = ""
    dtype: str = "float32"
    num_bytes: int = 0

    @classmethod
    def like(cls, arrays: Arrays) -> dict[str, Expected]:
        """Return the expectation of arrays of the same shapes, any of which may be withheld."""
        known = {name: np.asarray(array) for name, array in arrays.items()}
        return {name: cls(one.shape, dtype=one.dtype.name, num_bytes=one.nbytes) for name, one in known.items()}


@dataclass(frozen=True)
class Replies:
    """The answers to an exchange, in the order of site names.

    Attributes:
        accepted: The answers that fit.
        refused: Site -> why its answer was refused.
        missing: Site -> why it gave none.
    """

    accepted: dict[str, Answer]
    refused: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def sites(self) -> list[str]:
        """The sites whose answers were accepted."""
        return list(self.accepted)

    @property
    def examples(self) -> dict[str, int]:
        """The sites' numbers of training examples."""
        return {site: answer.numbers.num_examples for site, answer in self.accepted.items()}


@dataclass(frozen=True)
class Kind:
    """A kind of arrays that leave a site, as people and site.yaml know it.

    Attributes:
        name: What ``may_leave`` of site.yaml calls it.
        purpose: What it is, and what it is for.
        risk: What it can tell of the images, to whom, and the switch that stops it; for the privacy officer.
        is_of_images: Whether it is a mean over the images themselves, which would show them if there were few.
        role: The role of its arrays.
        names: Their names within the role; None for all.
    """

    name: str
    purpose: str
    risk: str
    role: str
    is_of_images: bool = False
    names: frozenset[str] | None = None

    def holds(self, role: str, name: str) -> bool:
        """Return whether an array is of this kind."""
        return role == self.role and (self.names is None or name in self.names)


@dataclass(frozen=True)
class Reported:
    """What a run reports.

    Attributes:
        round: The round after which the sites' states belong to it.
        parts: Role -> the part as it is reported.
        validation: Site -> its validation of these models.
        how: How they were chosen.
    """

    round: int
    parts: Mapping[str, Part]
    validation: Mapping[str, SiteScore]
    how: str


class Run(Protocol):
    """What a part may read of its run."""

    study: Study
    id: str
    sites: list[str]
    best_round: int | None
    image_shape: tuple[int, ...] | None
    domain: Domain
    parts: dict[str, Part]

    @property
    def finished_rounds(self) -> int:
        """The number of the last finished round, 0 before the first."""

    @property
    def reported(self) -> Reported:
        """What is reported."""

    def task(self, site: str, exchange: Exchange) -> Message:
        """Return a task for a site, with every part's share of it."""

    def is_better_than_best(self, validation: Mapping[str, SiteScore]) -> bool:
        """Return whether other models' validation after the last round is better than the best round's."""

    def facts(self) -> dict[str, Any]:
        """Return the facts that are written into a model: rounds and validation."""

    def held(self, site: str, number: int) -> int:
        """Return the last round, up to one, whose state a site has, as far as is known; 0 for none."""

    def listens_to_itself(self, site: str, number: int) -> bool:
        """Return whether nobody else's model went into a site's own one in a round."""

    def server_step(self, role: str, previous: Arrays, mixed: Arrays, replies: Replies) -> Arrays:
        """Return a model's next parameters after every part's `Part.server_step`."""


class Part:
    """A part's half at the server: a value that never changes, so that the best round's parts are kept by reference.

    Attributes:
        role: Prefix of its arrays on the wire.
        leaves: The kinds of its arrays that leave a site.
        follows_best: Whether it is reported as it was after the best round, and not as it is after the last.
        test_task: The task by which sites test the run's model, where that is not `TEST`.
        test_score: The class of such a test's score.
        entry: The schema of its entry in an answer's meta data; None where it expects none.
        num_bytes: Bytes of what learns in it, such as a selector; 0 where nothing does.
        end_bytes: Bytes that each site sends of it once, in the end.
        home_bytes: Bytes that a site keeps of it after each round, of which the server has nothing.
        saved: Its fields that a checkpoint holds.
    """

    role: str
    leaves: ClassVar[tuple[Kind, ...]] = ()
    follows_best: bool = False
    test_task: ClassVar[str | None] = None
    test_score: ClassVar[type[SiteScore]] = SiteScore
    entry: ClassVar[type[Section] | None] = None
    num_bytes: int = 0
    end_bytes: int = 0
    home_bytes: int = 0
    saved: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def start(cls, study: Study, sites: Sequence[str], pretrained: Arrays | None) -> Sequence[Part]:
        """Return the parts of this class at a run's start."""
        return [cls(study)]

    @classmethod
    def kinds(cls, study: Study) -> Sequence[Kind]:
        """Return those of its kinds that a study sends."""
        return cls.leaves

    def asks(self, moment: str, number: int, run: Run) -> Sequence[Exchange]:
        """Return its own exchanges before, in place of, or after the training of a round, or after all rounds."""
        return ()

    def to_send(self, site: str, exchange: Exchange, run: Run) -> Message:
        """Return its share of a task."""
        return Message()

    def expected(self, site: str, exchange: Exchange, run: Run) -> Mapping[str, Expected]:
        """Return the arrays of its share of the answer by ``role/name``, with their conditions."""
        return {}

    def checked(self, site: str, exchange: Exchange, answer: Answer, run: Run) -> Part:
        """Return the part after an answer, a test's too, that meets all conditions of `expected` and `entry`.

        Raises:
            AggregationError: The answer is refused for another reason.
        """
        return self

    def merged(self, exchange: Exchange, replies: Replies, weights_of: WeightsOf, run: Run) -> Part:
        """Return the part after an exchange.

        Args:
            exchange: What was asked.
            replies: What came back.
            weights_of: Role -> aggregation weights (K', K') of the sites that answered.
            run: The run.
        """
        return self

    def weights(self, role: str, number: int, sites: Sequence[str], run: Run) -> NDArray | None:
        """Return who listens to whom in a role and round, shape (K', K'); None where this part does not decide it."""
        return None

    def server_step(self, role: str, previous: Arrays, mixed: Arrays, replies: Replies) -> tuple[Arrays, Part]:
        """Return a model's next parameters from the mixed ones, and this part after that; buffers never come here."""
        return mixed, self

    def joined(self, site: str) -> Part:
        """Return the part after a site has come late."""
        return self

    def reported(self, reported: Reported, run: Run) -> Reported:
        """Return what the run reports, where this part has something better than the best round."""
        return reported

    def notes(self, exchange: Exchange) -> Sequence[str]:
        """Return sentences for the log and the ledger on its own exchange that has just ended."""
        return ()

    def files(self) -> dict[str, Any]:
        """Return file name -> plain values that the run's folder keeps for people."""
        return {}

    def models(self) -> dict[str, Arrays]:
        """Return the models that a run's folder keeps, by site; the only one of all sites has the empty name."""
        return {}

    def to_save(self) -> Arrays:
        """Return arrays that belong into every written model, by the model's own names."""
        return {}

    def contents(self, run: Run) -> Contents | None:
        """Return the run's super model; None where this part builds none."""
        return None

    def results(self, run: Run, tests: Mapping[str, SiteScore]) -> dict[str, Any]:
        """Return its fields of `silofl.federation.results.Results`."""
        return {}

    def state(self) -> dict[str, Any]:
        """Return a checkpoint: plain values, and tensors."""
        return to_tensors({name: getattr(self, name) for name in self.saved})

    def restored(self, state: Mapping[str, Any]) -> Part:
        """Return what `state` described."""
        if not self.saved:
            return self
        fields = to_arrays({name: state[name] for name in self.saved})
        # A checkpoint holds tuples as lists.
        return replace(self, **{name: tuple(one) if isinstance(one, list) else one for name, one in fields.items()})


class SitePart:
    """A part's half at a site, for one task.

    Args:
        work: The task, and what the site has for it.

    Attributes:
        name: The key of its state in the site's file of a round.
        tasks: Tasks that this part answers by itself.
    """

    name: ClassVar[str]
    tasks: ClassVar[tuple[str, ...]] = ()

    def __init__(self, work: Work) -> None:
        self.work = work

    def prepare(self) -> None:
        """Bring the models to where the task begins."""

    def answer(self, task: str) -> Message:
        """Carry out one of its ``tasks``."""
        # Unreachable: `Work.answer` asks only parts that list the task.
        raise NotImplementedError(task)

    def step(self, role: str, step: Step) -> Step:
        """Return the step of a model, with what this part adds to it."""
        return step

    def learners(self) -> Mapping[str, Learner]:
        """Return what this part trains in the same pass over the data."""
        return {}

    def epoch(self) -> None:
        """Take note of an epoch's beginning: torch's random numbers are those that every learner begins it with."""

    def deployed(self, role: str, model: HarmonizedModel) -> HarmonizedModel:
        """Return a model as the site validates, tests and keeps it: the task's own, or a copy that went on."""
        return model

    def draw(self, examples: Examples) -> Sequence[NDArray[np.int64]] | None:
        """Return the rows of each batch of an epoch, where this part draws them; None where it does not."""
        return None

    def measured(self) -> dict[str, float]:
        """Return numbers of the training that leave with its loss."""
        return {}

    def validated(self, own: Score) -> None:
        """Take note of the score of the site's own model on its validation data."""

    def finish(self, results: Mapping[str, TrainingResult]) -> Message:
        """Return what leaves after training."""
        return Message()

    def kept(self) -> dict[str, Any]:
        """Return what stays at home until the next round."""
        return {}

    def judged(self, scores: Mapping[str, Score], examples: Examples) -> dict[str, Any] | None:
        """Return the score of the site's models as this part combines them; None where it does not."""
        return None


def to_tensors(value: Any) -> Any:  # noqa: ANN401
    """Return a value with its arrays as tensors, for a file."""
    if isinstance(value, Mapping):
        return {key: to_tensors(one) for key, one in value.items()}
    if isinstance(value, (np.ndarray, np.generic)):
        # Not ascontiguousarray, which makes an array of one number one of one axis.
        return torch.from_numpy(np.asarray(value, order="C"))
    return list(value) if isinstance(value, tuple) else value


def to_arrays(value: Any) -> Any:  # noqa: ANN401
    """Return a value of a file with its tensors as arrays."""
    if isinstance(value, Mapping):
        return {key: to_arrays(one) for key, one in value.items()}
    return value.numpy() if isinstance(value, torch.Tensor) else value


def check_arrays(site: str, arrays: Mapping[str, object], expected: Mapping[str, Expected]) -> Arrays:
    """Return an answer's arrays in the types that are expected.

    Raises:
        AggregationError: An array is not expected, or not as it is expected; names the site and the array.
    """
    for name in arrays:
        if name not in expected:
            raise AggregationError(
                f"site {site!r} must send only arrays that were asked for; {shown(name)} is none of them"
            )
    for name, wanted in expected.items():
        if name not in arrays and wanted.is_required:
            raise AggregationError(f"site {site!r} must send {name!r}; it is missing from its answer")
    return {name: _as_expected(site, name, array, expected[name]) for name, array in arrays.items()}


def _as_expected(site: str, name: str, array: object, wanted: Expected) -> NDArray:
    if not isinstance(array, np.ndarray) or array.dtype.kind != "f" or array.dtype.itemsize not in (4, 8):
        kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise AggregationError(f"site {site!r} must send {name!r} as an array of float32 or float64, not of {kind}")
    check_array(site, name, array, array.shape if wanted.shape is None else wanted.shape, wanted.origin)
    # Larger ones are no numbers of a model, and their squares and sums would overflow in float32.
    if np.max(np.abs(array), initial=0) > LARGEST:
        raise AggregationError(f"site {site!r} must send {name!r} with values of at most {LARGEST:g}")
    if wanted.minimum is not None and np.any(array < wanted.minimum):
        raise AggregationError(f"site {site!r} must send {name!r} with values of at least {wanted.minimum:g}")
    return np.asarray(array, wanted.dtype)
