"""Robust mixing at the server: before updates are merged, the study's rule decides what counts of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from silofl.core.others import cap_claims
from silofl.core.robust import Robust, bound_updates
from silofl.models.roles import add_role
from silofl.parts.answer import SiteAnswer
from silofl.parts.narrow import narrow
from silofl.parts.part import Compared, Part, Run
from silofl.parts.task import TRAIN, Exchange, Replies
from silofl.parts.work import SitePart
from silofl.study import Study

ROLE = Robust.section


@dataclass(frozen=True)
class RobustPart(Part):
    """The rule, which keeps nothing from round to round.

    Attributes:
        study: Its recipe holds the rule.
    """

    study: Study
    role: str = ROLE

    def compared(self, exchange: Exchange, answers: dict[str, SiteAnswer], run: Run) -> Compared:
        """Put what counts in the place of each update of the shared model; name whom Multi-Krum leaves out."""
        rule, federation = narrow(self.study.recipe.ingredient(ROLE), Robust), self.study.federation
        fewest = max(rule.fewest_sites, federation.min_sites_for_ratio if rule.rule == "clipped" else 1)
        # In rounds after the study's nobody listens to anybody.
        if exchange.task != TRAIN or exchange.round > self.study.rounds or len(answers) < fewest:
            return Compared(answers)
        role, replies = self.study.recipe.traveling_roles[0], Replies(answers)
        # A site that says more steps than it took would otherwise send a longer update.
        steps = cap_claims(replies.steps, rule.factor)
        counts = rule.count(replies.examples, federation.min_sites_for_ratio)
        shares = {site: counts[site] / steps[site] for site in answers}
        bounded, left_out = bound_updates(rule, replies.updates_of(role), shares, run.parts[role].buffers)
        changed = {
            site: replace(answer, arrays=answer.arrays | add_role(role, bounded[site]))
            for site, answer in answers.items()
        }
        return Compared(changed, {site: {"distance": score} for site, score in left_out.items()})


PART, SITE = RobustPart, SitePart
