"""The guard: every site trains a model alone beside the federated one, and keeps what its own validation data favour.

The federated model is the one that the run tests; the local one is taken from its best round by the site's own
validation. `silofl.core.guard_rule` has the rule. What a site keeps lies in its folder `chosen`, its decision bias
with it; only numbers leave the site.

The local model is that of the algorithm ``local``, bit for bit: the same batches, steps and dropout. A super model of
several models is mixed with it as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from silofl.core.mixing import Arrays
from silofl.models import build_plain_model
from silofl.models.roles import add_role
from silofl.parts.answer import SiteAnswer
from silofl.parts.part import TESTED, Part, Run, WeightsOf
from silofl.parts.site_guard import CHOOSE, ROLE, SiteGuard
from silofl.parts.task import TRAIN, Exchange, Message, Replies
from silofl.settings import Section
from silofl.study import Study
from silofl.training.joined import Joined

# Of the local model: its last state, with Adam's two moments, and that of its best round.
MODELS = 4


class GuardEntry(Section):
    """What a site says of its choice.

    Attributes:
        joined: The choice; None where it could not make one.
        reason: Why it could not.
    """

    joined: Joined | None = None
    reason: Literal["it has no validation data", "it has trained no model alone"] | None = None


@dataclass(frozen=True)
class GuardPart(Part):
    """The sites' choices at the server.

    Attributes:
        study: The study.
        choices: Site -> its choice; not part of the checkpoint, because the run ends with it.
        unchosen: Site -> why it made no choice, of those that were asked; not in the checkpoint either.
        tested: The sites that have tested what the run reports; not in the checkpoint either.
        pretrained: All arrays of the file that every model of the study begins from; empty where the seed gives them.
            Not in the checkpoint either.
    """

    study: Study
    choices: dict[str, Joined] = field(default_factory=dict)
    unchosen: dict[str, str] = field(default_factory=dict)
    tested: frozenset[str] = frozenset()
    pretrained: Arrays = field(default_factory=dict)
    role: str = ROLE
    entry: ClassVar[type[GuardEntry]] = GuardEntry
    keeps_second: ClassVar[bool] = True

    @classmethod
    def start(cls, study: Study, sites: Sequence[str], pretrained: Arrays | None) -> Sequence[Part]:
        """Return the server half before any choice."""
        return [cls(study, pretrained=(pretrained or {}) if study.starts_from_file else {})]

    @property
    def home_bytes(self) -> int:
        """Bytes that a site keeps of it in each round: the local model with its optimiser, and its best round."""
        return MODELS * sum(value.nbytes for value in build_plain_model(self.study, 0).state_dict().values())

    def asks(self, moment: str, number: int, run: Run) -> Sequence[Exchange]:
        """After the test, let every site that gave one choose."""
        if moment != TESTED or not self.tested:
            return ()
        # A run may end early, and may have rounds after those of training. Of a run that was asked for more rounds,
        # another site may have the model of the earlier end alone.
        last = min(number, self.study.training_rounds)
        return [Exchange(CHOOSE, last, sites=tuple(sorted(self.tested)), is_needed=False, models_round=last)]

    def to_send(self, site: str, exchange: Exchange, run: Run) -> Message:
        """Return the file's arrays to a site that begins after round 1, in which the models themselves are these."""
        is_late = exchange.task == TRAIN and exchange.round > 1 and not run.held(site, exchange.models_round)
        return Message(add_role(ROLE, self.pretrained) if is_late else {})

    def checked(self, site: str, exchange: Exchange, answer: SiteAnswer, run: Run) -> GuardPart:
        """Collect a site's test."""
        # Without a test the site has no super model in its folder, which is what its candidates are made from.
        return self if answer.numbers.metrics.test is None else replace(self, tested=self.tested | {site})

    def merged(self, exchange: Exchange, replies: Replies, weights_of: WeightsOf, run: Run) -> GuardPart:
        """Take up the sites' choices."""
        if exchange.task != CHOOSE:
            return self
        entries = {site: answer.entry(ROLE, GuardEntry) for site, answer in replies.accepted.items()}
        choices = {site: entry.joined for site, entry in entries.items() if entry.joined}
        without = {site: entry.reason or "no answer" for site, entry in entries.items() if not entry.joined}
        return replace(self, choices=choices, unchosen=replies.missing | replies.refused | without)

    def notes(self, exchange: Exchange) -> Sequence[str]:
        """Return each site's choice, or why it made none."""
        if exchange.task != CHOOSE:
            return ()
        chosen = [choice_sentence(site, one) for site, one in self.choices.items()]
        return chosen + [f"site {site!r} made no choice: {reason}" for site, reason in self.unchosen.items()]

    def results(self, run: Run, tests: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sites' choices, and why the others made none."""
        without = [site for site in run.sites if site not in self.choices]
        reasons = {site: self.unchosen.get(site, "it did not test the model") for site in without}
        return {"joining": self.choices or None, "unchosen": reasons or None}


def choice_sentence(site: str, one: Joined) -> str:
    """Return what a site keeps, and on what grounds."""
    text = one.threshold
    units = f"{one.num_units} validation {one.unit}{'' if one.num_units == 1 else 's'}"
    lead = f"the best mean of both models scores {one.lead:+.3f} beside its own model"
    return f"site {site!r} keeps {one.kept}: by its {units} {lead}{f'. On test data {text}' * bool(text)}"


PART, SITE = GuardPart, SiteGuard
