"""The end of a FedSM run at the server: all models to every site, the threshold from their counts, the test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from silofl.algorithms.fedsm import THRESHOLDS, tune_threshold
from silofl.errors import AggregationError
from silofl.federation.message import Message
from silofl.federation.server import ServerRounds
from silofl.federation.super_message import complete_state, contents_of, super_arrays
from silofl.inference.contents import Contents
from silofl.models.members import GLOBAL, SELECTOR, with_role
from silofl.schema import plain


@dataclass
class SuperRounds:
    """What happens with the models of the reported round.

    Attributes:
        server: The run after its rounds.
        holders: Sites that hold all models.
        threshold: The paper's gamma; None where nothing is chosen by it.
        refused: Site -> why it has no say in the threshold.
    """

    server: ServerRounds
    holders: set[str] = field(default_factory=set)
    threshold: float | None = None
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def thresholds(self) -> tuple[float, ...]:
        """The candidates for the threshold; none where the selector knows the global model too."""
        return () if self.server.study.recipe.learns_best_model else THRESHOLDS

    def task(self, site: str, has_selector: bool = True) -> Message:
        """Return the task that brings a site what it lacks: all models unless it holds them, and the selector."""
        server, reported = self.server, self.server.reported_selector()
        is_holder = site in self.holders
        arrays = {} if is_holder else super_arrays(server.reported_models(), None, server.amplitude)
        # A holder has the selector too, unless it learnt after the models were sent.
        if has_selector and (not is_holder or server.study.recipe.learns_best_model):
            arrays |= with_role(SELECTOR, reported.parameters)
        meta = {"run": server.run, "round": server.reported_round(), "outputs": list(reported.outputs)}
        settings = {"thresholds": list(self.thresholds), "threshold": self.threshold, "facts": self.facts()}
        return Message(arrays, meta | settings)

    def note_assembled(self, answers: Mapping[str, Message]) -> None:
        """Take in which sites hold the models now, and choose the threshold from their counts."""
        self.holders |= set(answers)
        fixed = self.server.study.recipe.threshold
        counts = [sums for site in sorted(answers) if (sums := self._sums(site, answers[site]))]
        if not self.thresholds:
            self.threshold = None
        elif fixed != "tuned":
            self.threshold = fixed
        else:
            self.threshold = tune_threshold(counts) if counts else THRESHOLDS[-1]

    def _sums(self, site: str, answer: Message) -> list[list[float]]:
        """Return a site's sums by threshold; none where it sent no such thing, or has no validation data."""
        sums = answer.meta.get("by_threshold") or []
        try:
            if sums and self.thresholds:
                tune_threshold([sums], self.thresholds)
        except (AggregationError, TypeError, ValueError):
            self.refused[site] = f"site {site!r} must send a sum and a count for each threshold; it has no say in it"
            return []
        return sums

    def facts(self) -> dict[str, Any]:
        """Return what a super model says of how it was made."""
        return super_facts(self.server)

    def contents(self) -> Contents:
        """Return the super model itself."""
        server, shape = self.server, self.server.image_shape
        return contents_of(SuperRounds(server, threshold=self.threshold).task(""), server.study, shape, {})


def super_facts(server: ServerRounds) -> dict[str, Any]:
    """Return the rounds and the validation that a super model comes from."""
    number = server.reported_round()
    return {
        "run": server.run,
        "rounds": server.finished_rounds,
        "reported_round": number,
        "validation": plain(server.ledger[number - 1].validation),
    }


def single_contents(server: ServerRounds) -> Contents | None:
    """Return the super model of a run without selector; None where part of every model stays at its site.

    One model for all answers everybody. Where each site has its own, a new hospital gets the mean of them all.
    """
    study, models = server.study, server.reported_models()
    if study.recipe.stays_home != "nothing" or server.image_shape is None:
        return None
    first = next(iter(models.values()))
    is_shared = all(arrays[name] is first[name] for arrays in models.values() for name in first)
    named = {GLOBAL: first} if is_shared else models
    states = {
        name: complete_state(study, server.image_shape, arrays, server.amplitude) for name, arrays in named.items()
    }
    return Contents(study, server.image_shape, states, "only" if is_shared else "mean", facts=super_facts(server))
