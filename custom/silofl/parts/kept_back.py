"""BatchNorm that sites' own filters take out of their answers, so that FedAvg becomes FedBN where nobody sends it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from silofl.core.mixing import Arrays


@dataclass(frozen=True)
class Excluded:
    """What the sites' answers lack of a model's BatchNorm, as the server learns it from round to round.

    Attributes:
        names: BatchNorm's arrays that the study asks for.
        lacking: Site -> those that its last answer lacked.
        home: Those that no site sends any more: each site goes on with its own.
        sentence: Who excludes what, for people; empty where nobody does.
        news: The same, in the round that changed it.
    """

    names: frozenset[str]
    lacking: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    home: frozenset[str] = frozenset()
    sentence: str = ""
    news: str = ""

    def after(self, answers: Mapping[str, Arrays], left: Collection[str]) -> Excluded:
        """Return what is known after a round of training.

        Args:
            answers: Site -> the arrays of its answer.
            left: Sites that have left the study.
        """
        # All of it stays home for good: the sites have gone apart, and a mean of theirs would suit none.
        if self.home == self.names:
            return replace(self, news="")
        lacking = dict(self.lacking)
        for site, arrays in answers.items():
            lacking[site] = tuple(sorted(self.names - arrays.keys()))
        for site in left:
            lacking.pop(site, None)
        # By the last answer of every site: one that sends them still does where it is away for a round.
        home = self.home | self.names.intersection(*lacking.values())
        sentence = _describe(lacking, self.names, home)
        return Excluded(self.names, lacking, home, sentence, sentence if sentence != self.sentence else "")

    def state(self) -> dict[str, Any]:
        """Return a checkpoint."""
        lacking = {site: list(names) for site, names in self.lacking.items()}
        return {"lacking": lacking, "home": sorted(self.home), "sentence": self.sentence}

    def restored(self, state: Mapping[str, Any]) -> Excluded:
        """Return what `state` described."""
        lacking = {site: tuple(names) for site, names in state["lacking"].items()}
        return replace(self, lacking=lacking, home=frozenset(state["home"]), sentence=state["sentence"])


def _describe(lacking: Mapping[str, tuple[str, ...]], names: frozenset[str], home: frozenset[str]) -> str:
    excluded = set().union(*lacking.values())
    if not excluded:
        return ""
    which = "BatchNorm" if excluded == names else f"{len(excluded)} of {len(names)} arrays of BatchNorm"
    then = "what some sites still send is mixed over these"
    if home == excluded:
        then = "each site goes on with its own from here on, as in FedBN"
    return f"{which} excluded at {', '.join(sorted(site for site in lacking if lacking[site]))}: {then}"
