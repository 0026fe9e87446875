"""Robust mixing at the server: before answers are merged, the study's rule decides what counts of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from silofl.core.outliers import cap_claims
from silofl.core.robust import Robust, bound_updates, find_bounding_rule
from silofl.models.roles import add_role
from silofl.parts.answer import SiteAnswer
from silofl.parts.part import Compared, Part, Run
from silofl.parts.task import Exchange, Replies
from silofl.parts.work import SitePart
from silofl.study import Study

ROLE = Robust.section
UNBOUNDED = "algorithm.robust bounds no update, as {} sites answered and it takes more"


@dataclass(frozen=True)
class RobustPart(Part):
    """The rule, which keeps nothing from round to round.

    Attributes:
        study: Its recipe holds the rule.
    """

    study: Study
    role: str = ROLE

    def compared(self, exchange: Exchange, answers: dict[str, SiteAnswer], run: Run) -> Compared:
        """Put what counts in the place of all that parts average; name whose model's update Multi-Krum leaves out."""
        rule = find_bounding_rule(self.study.recipe, len(answers), self.study.federation.min_sites_for_ratio)
        changed, unlike = dict(answers), {}
        if rule is None:
            return Compared(answers, notes=(UNBOUNDED.format(len(answers)),))
        site = next(iter(answers), "")
        wanted = {role: part.expected(site, exchange, run) for role, part in run.parts.items()}
        for role, names in [(role, names) for role, found in wanted.items() for names in found.averaged]:
            updates = {
                site: {name: array for name, array in arrays.items() if name in names}
                for site, arrays in Replies(answers).updates_of(role).items()
            }
            is_mixed_alike = all(
                one.weights(role, exchange.round, list(answers), run) is None for one in run.parts.values()
            )
            has_median = is_mixed_alike and wanted[role].has_median
            shares = self._share_lengths(Replies(answers), rule.reach(has_median=has_median), is_mixed_alike)
            bounded, left_out = bound_updates(rule, updates, shares, wanted[role].buffers, has_median=has_median)
            for site, arrays in bounded.items():
                # What is not there any more moves nothing, as if the site had kept it back.
                sent = add_role(role, updates[site]).keys()
                others = {name: array for name, array in changed[site].arrays.items() if name not in sent}
                changed[site] = replace(changed[site], arrays=others | add_role(role, arrays))
            if role in self.study.recipe.traveling_roles:
                unlike = {site: {"distance": score} for site, score in left_out.items()}
        return Compared(changed, unlike)

    def _share_lengths(self, replies: Replies, reach: float, is_mixed_alike: bool) -> Mapping[str, float]:
        """Return how much a length of each site's update counts in a mean: its examples, by step."""
        # A site that says more steps than it took would otherwise send a longer update.
        steps = cap_claims(replies.steps, reach)
        if not is_mixed_alike:
            # Who listens to whom does not hang on examples where sites get models of their own.
            return {site: 1 / number for site, number in steps.items()}
        counts = self.study.recipe.count(replies.examples, self.study.federation.min_sites_for_ratio)
        return {site: counts[site] / number for site, number in steps.items()}


PART, SITE = RobustPart, SitePart
