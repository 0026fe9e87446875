"""The protocol of a part: something that travels. Here is its half at the server; `SitePart` is the one at each site.

The engine sends, checks, mixes, saves and resumes. A part says what to send, what a correct answer is, and what the
answers change. Every method has a default that does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray

from silofl.core.mixing import Arrays
from silofl.parts.answer import SiteAnswer
from silofl.parts.task import Exchange, Expected, Message, Replies, Unlike
from silofl.settings import Section
from silofl.study import Study
from silofl.training.site_score import SiteScore

if TYPE_CHECKING:
    from silofl.data.domain import Domain
    from silofl.inference.contents import Contents

# Moments at which a part may add exchanges: before a round's training, in its place, after it; once the models of the
# last round that trained any are validated; after all rounds; and before and after the test, as long as it asks.
BEFORE, INSTEAD, AFTER, VALIDATED = "before", "instead", "after", "validated"
END, UNTESTED, TESTED = "end", "untested", "tested"
# Role -> aggregation weights (K', K') of the sites that answered.
WeightsOf = Callable[[str], NDArray[np.float64]]


@dataclass(frozen=True)
class Kind:
    """A kind of arrays that leave a site, as people and site.yaml know it.

    Attributes:
        name: What ``may_leave`` of site.yaml calls it.
        purpose: What it is, and what it is for.
        risk: What it can tell of the images, to whom, and the switch that stops it; for the privacy officer.
        is_of_images: Whether it is a mean over the images themselves, or their scores, which would show single ones if
            there were few.
        role: The role of its arrays.
        names: Their names within the role; None for all.
        is_batchnorm: Whether it is BatchNorm's, under names that are none of the network's.
        is_mixed: Whether the server makes one thing of it and other sites', so that ``min_partners`` applies.
        is_entry: Whether it is no array but the part's entry among an answer's numbers.
    """

    name: str
    purpose: str
    risk: str
    role: str
    is_of_images: bool = False
    names: frozenset[str] | None = None
    is_batchnorm: bool = False
    is_mixed: bool = True
    is_entry: bool = False

    def holds(self, role: str, name: str) -> bool:
        """Return whether an array is of this kind."""
        return role == self.role and (self.names is None or name in self.names)


@dataclass(frozen=True)
class Kept:
    """Something that a site keeps of a part from round to round, as people know it.

    Attributes:
        what: What it is, as ``its control variate``.
        is_vital: Whether a site that has lost it takes no part until it is back; else it goes on without it, and the
            run is not complete.
        is_sent_again: Whether the server brings it where it is lost.
        is_for_training: Whether nothing but training begins from it.
        is_of_model: Whether it belongs to a model, of which the recipe says what stays at home.
    """

    what: str
    is_vital: bool = False
    is_sent_again: bool = False
    is_for_training: bool = False
    is_of_model: bool = False


@dataclass(frozen=True)
class Reported:
    """What a run reports.

    Attributes:
        round: The round after which the sites' states belong to it.
        parts: Role -> the part as it is reported.
        validation: Site -> its validation of these models.
        how: How they were chosen.
        is_mean: Whether they are means over several rounds, and no round's own.
        rounds: Site -> the round of its own that it reports; empty where all report one.
    """

    round: int
    parts: Mapping[str, Part]
    validation: Mapping[str, SiteScore]
    how: str
    is_mean: bool = False
    rounds: Mapping[str, int] = field(default_factory=dict)

    @property
    def one_round(self) -> int | None:
        """The round that all sites report; None where there is no such round."""
        return None if self.is_mean or self.rounds else self.round


@dataclass(frozen=True)
class Compared:
    """The answers to an exchange after a part has compared its share of each with the others'.

    Attributes:
        answers: Site -> its answer, without what the part leaves out.
        unlike: In what answers are unlike the others', under the part's role.
        notes: Sentences on what is left out.
    """

    answers: dict[str, SiteAnswer]
    unlike: Unlike = field(default_factory=dict)
    notes: Sequence[str] = ()


class Run(Protocol):
    """What a part may read of its run."""

    sites: list[str]
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
        """Return a site's task, to which every part adds its share."""

    @property
    def medians(self) -> list[float | None]:
        """The median of the sites' validation after each round that trained; None of one without any."""

    def is_better_than_best(self, validation: Mapping[str, SiteScore]) -> bool:
        """Return whether these scores, of other models than a round's, are better than the best round's."""

    def facts(self) -> dict[str, Any]:
        """Return the facts that are written into a model: rounds and validation."""

    def held(self, site: str, number: int) -> int:
        """Return the newest round <= ``number`` whose saved state the site still has; 0 if none."""

    def has_lost(self, site: str, number: int) -> bool:
        """Return whether a site continues from an older state than that of round ``number``."""

    def listens_to_itself(self, site: str, number: int) -> bool:
        """Return whether the site's own mixing weight was 1 in that round."""

    def server_step(self, role: str, previous: Arrays, mixed: Arrays, replies: Replies) -> Arrays:
        """Return a model's next parameters after every part's `Part.server_step`."""


class Part:
    """A part's half at the server: a value that never changes, so that the best round's parts are kept by reference.

    Attributes:
        role: Prefix of its arrays on the wire.
        leaves: The kinds of its arrays that leave a site.
        buffers: Names of its arrays, within the role, that are no parameters.
        test_task: The task by which sites test the run's model, where that is not `TEST`.
        test_score: The class of such a test's score.
        entry: The schema of its entry in an answer's meta data; None where it expects none.
        has_median: Whether its sites learn the same, so that a robust rule may clip their updates around a median.
        saved: Its fields that a checkpoint holds.
    """

    role: str
    leaves: ClassVar[tuple[Kind, ...]] = ()
    buffers: frozenset[str] = frozenset()
    test_task: ClassVar[str | None] = None
    test_score: ClassVar[type[SiteScore]] = SiteScore
    entry: ClassVar[type[Section] | None] = None
    has_median: ClassVar[bool] = True
    saved: ClassVar[tuple[str, ...]] = ()

    if TYPE_CHECKING:
        # Every part is a dataclass, and one without a `start` of its own is made from the study alone.
        __dataclass_fields__: ClassVar[dict[str, Any]]

        def __init__(self, study: Study) -> None: ...

    # Properties, so that a part may compute them; a plain value takes their place as well.
    @property
    def home(self) -> frozenset[str]:
        """Names of arrays that no site sends, although the recipe lets them travel."""
        return frozenset()

    @property
    def follows_best(self) -> bool:
        """Whether the run reports this part as of its best round instead of its last."""
        return False

    @property
    def num_bytes(self) -> int:
        """Bytes of a network that this part trains, such as a selector; 0 for none."""
        return 0

    @property
    def end_bytes(self) -> int:
        """Bytes that each site sends once, at the end."""
        return 0

    @property
    def home_bytes(self) -> int:
        """Bytes of site-only state saved per round."""
        return 0

    @property
    def keeps_second(self) -> bool:
        """Whether a site keeps a second super model of it in the end, with one model more."""
        return False

    @classmethod
    def start(cls, study: Study, sites: Sequence[str], pretrained: Arrays | None) -> Sequence[Part]:
        """Return the parts of this class at a run's start."""
        return [cls(study)]

    @classmethod
    def kinds(cls, study: Study) -> Sequence[Kind]:
        """Return the kinds that this study sends."""
        return cls.leaves

    def asks(self, moment: str, number: int, run: Run) -> Sequence[Exchange]:
        """Return exchanges of its own at a moment: `BEFORE`, `INSTEAD` of or `AFTER` a round's training, and later."""
        return ()

    def to_send(self, site: str, exchange: Exchange, run: Run) -> Message:
        """Return what it adds to a site's task."""
        return Message()

    def expected(self, site: str, exchange: Exchange, run: Run) -> Mapping[str, Expected]:
        """Return ``role/name`` -> the condition of each array that a site may send for it."""
        return {}

    def checked(self, site: str, exchange: Exchange, answer: SiteAnswer, run: Run) -> Part:
        """Return the part after one answer that meets `expected` and `entry`. Tests are answers too.

        Raises:
            AggregationError: The answer is refused for another reason.
        """
        return self

    def compared(self, exchange: Exchange, answers: dict[str, SiteAnswer], run: Run) -> Compared:
        """Compare the accepted answers with each other, before they are merged."""
        return Compared(answers)

    def averaged(self, exchange: Exchange, run: Run) -> Sequence[Collection[str]]:
        """Return names, within the role, of arrays of which it takes a mean over sites: those of one scale together.

        The study's robust rule bounds what each site sends of them.
        """
        return ()

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
        """Return who listens to whom in a role and round, shape (K', K'); None if this part does not decide it."""
        return None

    def server_step(self, role: str, previous: Arrays, mixed: Arrays, replies: Replies) -> tuple[Arrays, Part]:
        """Return the model's next parameters and the next part. Buffers are not passed."""
        return mixed, self

    def doubts(self, num_sites: int) -> Sequence[str]:
        """Return warnings about its constants, given the number of sites."""
        return ()

    def joined(self, site: str) -> Part:
        """Return the part after a late site has joined."""
        return self

    def reported(self, reported: Reported, run: Run) -> Reported:
        """Return what the run reports: the given choice, or something better that this part has."""
        return reported

    def notes(self, exchange: Exchange) -> Sequence[str]:
        """Return notes for log and ledger about its own exchange that has just ended."""
        return ()

    def files(self) -> dict[str, Any]:
        """Return file name -> plain values for the run's folder."""
        return {}

    def models(self) -> dict[str, Arrays]:
        """Return site -> the model that the run's folder keeps; the empty name stands for one model of all sites."""
        return {}

    def to_save(self) -> Arrays:
        """Return arrays that every written model gets, by the model's own names."""
        return {}

    def contents(self, run: Run) -> Contents | None:
        """Return the run's super model; None if this part builds none."""
        return None

    def completed(self, contents: Contents) -> Contents:
        """Return the run's super model, of whichever part, with what this part adds to it."""
        return contents

    def results(self, run: Run, tests: Mapping[str, Any]) -> dict[str, Any]:
        """Return its fields of `silofl.federation.results.Results`; the tests are of the run's ``test_score``."""
        return {}

    def state(self) -> dict[str, Any]:
        """Return a checkpoint: plain values, and tensors."""
        return to_tensors({name: getattr(self, name) for name in self.saved})

    def restored(self, state: Mapping[str, Any]) -> Self:
        """Return what `state` described."""
        if not self.saved:
            return self
        fields = to_arrays({name: state[name] for name in self.saved})
        # A checkpoint holds tuples as lists.
        return replace(self, **{name: tuple(one) if isinstance(one, list) else one for name, one in fields.items()})


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
