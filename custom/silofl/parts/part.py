"""The protocol of a part: something that travels. Here is its half at the server; `SitePart` is the one at each site.

The engine sends, checks, mixes, saves and resumes. A part says what to send, what a correct answer is, and what the
answers change. Every method has a default that does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from silofl.base.schema import dump_record
from silofl.core.mixing import Arrays
from silofl.parts.answer import SiteAnswer
from silofl.parts.task import TEST, Exchange, Message, Outliers, PayloadSpec, SiteResults
from silofl.study import Study
from silofl.training.site_score import SiteScore

if TYPE_CHECKING:
    from silofl.data.data_profile import DataProfile
    from silofl.inference.contents import Contents

# Moments at which a part may add exchanges: before a round's training, in its place, after it; after all rounds; and
# before and after the test, as long as it asks.
BEFORE, INSTEAD, AFTER = "before", "instead", "after"
END, UNTESTED, TESTED = "end", "untested", "tested"
# Role -> aggregation weights (K', K') of the sites that answered.
WeightsOf = Callable[[str], NDArray[np.float64]]


@dataclass(frozen=True)
class OutboundPayload:
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
        is_metadata: Whether it is no array but the part's entry among an answer's numbers.
        is_bounded: Whether a robust rule bounds what one site sends of it: the part names it in `PayloadSpec.averaged`,
            or bounds it itself. Of arrays that are mixed and not bounded no study with such a rule begins.
    """

    name: str
    purpose: str
    risk: str
    role: str
    is_of_images: bool = False
    names: frozenset[str] | None = None
    is_batchnorm: bool = False
    is_mixed: bool = True
    is_metadata: bool = False
    is_bounded: bool = False

    def holds(self, role: str, name: str) -> bool:
        """Return whether an array is of this kind."""
        return role == self.role and (self.names is None or name in self.names)


@dataclass(frozen=True)
class ClientState:
    """Something that a site keeps of a part from round to round, as people know it.

    Attributes:
        what: What it is, as ``its control variate``.
        is_required: Whether a site that has lost it takes no part until it is back; else it goes on without it, and the
            run is not complete.
        is_recoverable: Whether the server brings it where it is lost.
        is_for_training: Whether nothing but training begins from it.
        is_of_model: Whether it belongs to a model, of which the recipe says what stays at home.
        num_models: How many models it is as large as, beside those that the site trains.
        has_second: Whether the site keeps a second super model of it in the end, with one model more.
    """

    what: str
    is_required: bool = False
    is_recoverable: bool = False
    is_for_training: bool = False
    is_of_model: bool = False
    num_models: int = 0
    has_second: bool = False


@dataclass(frozen=True)
class Reported:
    """What a run reports.

    Attributes:
        round: The round after which the sites' states belong to it.
        parts: Role -> the part as it is reported.
        validation: Site -> its validation of these models.
        how: How they were chosen.
        rounds: Site -> the round of its own that it reports; empty where all report one.
        run: The run's id.
        finished: Rounds that have finished.
    """

    round: int
    parts: Mapping[str, Part]
    validation: Mapping[str, SiteScore]
    how: str
    rounds: Mapping[str, int] = field(default_factory=dict)
    run: str = ""
    finished: int = 0

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that are written into a model: rounds, and the validation it was chosen by."""
        return {
            "run": self.run,
            "rounds": self.finished,
            "reported_round": self.one_round,
            "validation": dump_record(self.validation),
        }

    @property
    def one_round(self) -> int | None:
        """The round that all sites report; None where there is no such round."""
        return None if self.rounds else self.round


@dataclass(frozen=True)
class Compared:
    """The answers to an exchange after a part has compared its share of each with the others'.

    Attributes:
        answers: Site -> its answer, without what the part leaves out.
        outliers: In what answers are unlike the others', under the part's role.
        notes: Sentences on what is left out.
    """

    answers: dict[str, SiteAnswer]
    outliers: Outliers = field(default_factory=dict)
    notes: Sequence[str] = ()


class OwnTest(NamedTuple):
    """The task by which sites test the run's model, and the class of its score."""

    task: str = TEST
    score: type[SiteScore] = SiteScore


@dataclass(frozen=True)
class Outcome:
    """What run folder, models and results hold of a part.

    Attributes:
        make_files: Makes file name -> plain values for the run's folder.
        models: Site -> the model that the folder keeps; the empty name stands for one model of all sites.
        arrays: Arrays that every written model gets, by the model's own names.
        make_contents: Makes the run's super model; None of a part that builds none.
        complete: Adds to the run's super model, of whichever part.
        results: Fields of `silofl.federation.results.Results`.
    """

    make_files: Callable[[], Mapping[str, Any]] = dict
    models: Mapping[str, Arrays] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)
    make_contents: Callable[[], Contents | None] = lambda: None
    complete: Callable[[Contents], Contents] = lambda contents: contents
    results: Mapping[str, Any] = field(default_factory=dict)


class Run(Protocol):
    """What a part may read of its run."""

    study: Study
    sites: list[str]
    image_shape: tuple[int, ...] | None
    data_profile: DataProfile
    parts: dict[str, Part]

    @property
    def finished_rounds(self) -> int:
        """The number of the last finished round, 0 before the first."""

    @property
    def reported(self) -> Reported:
        """What is reported."""

    def measure_last_rise(self) -> float | None:
        """Return by how much the last rounds that trained models raised the sites' validation; None if unknown."""

    def held(self, site: str, number: int) -> int:
        """Return the newest round <= ``number`` whose saved state the site still has; 0 if none."""

    def has_lost(self, site: str, number: int) -> bool:
        """Return whether a site continues from an older state than that of round ``number``."""

    def averages_only_itself(self, site: str, number: int) -> bool:
        """Return whether the site's own mixing weight was 1 in that round."""

    def server_step(self, role: str, number: int, previous: Arrays, mixed: Arrays, site_results: SiteResults) -> Arrays:
        """Return a model's next parameters of a round after every part's `Part.server_step`."""


class Part:
    """A part's half at the server: a value that never changes, so that the best round's parts are kept by reference.

    Attributes:
        role: Prefix of its arrays on the wire.
        outbound: The kinds of its arrays that leave a site.
        test: How sites test the run's model, where that is its own matter.
        saved: Its fields that a checkpoint holds.
    """

    role: str
    outbound: ClassVar[tuple[OutboundPayload, ...]] = ()
    test: ClassVar[OwnTest | None] = None
    saved: ClassVar[tuple[str, ...]] = ()

    if TYPE_CHECKING:
        # Every part is a dataclass, and one without a `start` of its own is made from the study alone.
        __dataclass_fields__: ClassVar[dict[str, Any]]

        def __init__(self, study: Study) -> None: ...

    # A property, so that a part may compute it; a plain value takes its place as well.
    @property
    def follows_best(self) -> bool:
        """Whether the run reports this part as of its best round instead of its last."""
        return False

    @classmethod
    def start(cls, study: Study, sites: Sequence[str], pretrained: Arrays | None) -> Sequence[Part]:
        """Return the parts of this class at a run's start."""
        return [cls(study)]

    @classmethod
    def outbound_payloads(cls, study: Study) -> Sequence[OutboundPayload]:
        """Return the kinds that this study sends."""
        return cls.outbound

    def asks(self, moment: str, number: int, run: Run) -> Sequence[Exchange]:
        """Return exchanges of its own at a moment: `BEFORE`, `INSTEAD` of or `AFTER` a round's training, and later."""
        return ()

    def to_send(self, site: str, exchange: Exchange, run: Run) -> Message:
        """Return what it adds to a site's task."""
        return Message()

    def payload_spec(self, site: str, exchange: Exchange, run: Run) -> PayloadSpec:
        """Return what a site may send for it."""
        return PayloadSpec()

    def checked(self, site: str, exchange: Exchange, answer: SiteAnswer, run: Run) -> Part:
        """Return the part after one answer that is as `payload_spec` says. Tests are answers too.

        Raises:
            AggregationError: The answer is refused for another reason.
        """
        return self

    def compared(self, exchange: Exchange, answers: dict[str, SiteAnswer], run: Run) -> Compared:
        """Compare the accepted answers with each other, before they are merged."""
        return Compared(answers)

    def merged(self, exchange: Exchange, site_results: SiteResults, weights_of: WeightsOf, run: Run) -> Part:
        """Return the part after an exchange.

        Args:
            weights_of: Role -> aggregation weights (K', K') of the sites that answered.
        """
        return self

    def weights(self, role: str, number: int, sites: Sequence[str], run: Run) -> NDArray[Any] | None:
        """Return who listens to whom in a role and round, shape (K', K'); None if this part does not decide it."""
        return None

    def server_step(
        self, role: str, previous: Arrays, mixed: Arrays, site_results: SiteResults, number: int, learning_rate: float
    ) -> tuple[Arrays, Part]:
        """Return the model's next parameters and the next part. Buffers are not passed.

        Args:
            previous: Its parameters before the round.
            mixed: Their weighted mean after the sites' training, as the parts before it have changed it.
            learning_rate: Of the sites' optimiser in that round.
        """
        return mixed, self

    def joined(self, site: str) -> Part:
        """Return the part after a late site has joined."""
        return self

    def reported(self, reported: Reported, run: Run) -> Reported:
        """Return what the run reports: the given choice, or something better that this part has."""
        return reported

    def notes(self, exchange: Exchange, run: Run) -> Sequence[str]:
        """Return notes for log and ledger about its own exchange that has just ended.

        Before each round it is asked with the task `BEFORE`; what it says then is written once.
        """
        return ()

    def outcome(self, run: Run, tests: Mapping[str, Any]) -> Outcome:
        """Return what run folder, models and results hold of it.

        Args:
            tests: Site -> its test, of the class that the run's test has; empty before it.
        """
        return Outcome()

    def state(self) -> dict[str, Any]:
        """Return a checkpoint: plain values, and tensors."""
        # Imported here, as below: torch takes seconds, which who lists the kinds of a study need not wait for.
        from silofl.parts.tensors import to_tensors

        return {**to_tensors({name: getattr(self, name) for name in self.saved})}

    def restored(self, state: Mapping[str, Any]) -> Self:
        """Return what `state` described."""
        if not self.saved:
            return self
        from silofl.parts.tensors import to_arrays

        # Only these fields: a part is built anew from the study, and takes back what has changed since.
        fields = to_arrays({name: state[name] for name in self.saved})
        # A checkpoint holds tuples as lists.
        return replace(self, **{name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()})
