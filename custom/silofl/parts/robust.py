"""Robust mixing at the server: before answers are merged, the study's rule decides what counts of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from silofl.core.mixing import Arrays
from silofl.core.outliers import cap_claims
from silofl.core.recipe import find_bounding_rule
from silofl.core.robust import Robust, bound_updates
from silofl.models.roles import add_role
from silofl.parts.answer import SiteAnswer
from silofl.parts.part import Compared, Part, Run
from silofl.parts.task import Exchange, Outliers, SiteResults
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
        if rule is None:
            return Compared(answers, notes=(UNBOUNDED.format(len(answers)),))
        changed = dict(answers)
        outliers: Outliers = {}
        site_results = SiteResults(answers)
        # What parts average does not depend on the site.
        any_site = next(iter(answers), "")
        for role, averaging in run.parts.items():
            wanted = averaging.payload_spec(any_site, exchange, run)
            if not wanted.averaged:
                continue
            # The first part with weights of its own decides: the others need not compute theirs.
            is_mixed_alike = all(
                part.weights(role, exchange.round, list(answers), run) is None for part in run.parts.values()
            )
            has_median = is_mixed_alike and wanted.has_median
            shares = self._share_lengths(site_results, rule.reach(has_median=has_median), is_mixed_alike)
            # Arrays of one scale are bounded together; behind long ones of another scale none can hide.
            for names in wanted.averaged:
                updates: dict[str, Arrays] = {}
                for site, arrays in site_results.updates_of(role).items():
                    updates[site] = {name: array for name, array in arrays.items() if name in names}
                bounded, left_out = bound_updates(rule, updates, shares, wanted.buffers, has_median=has_median)
                for site, arrays in bounded.items():
                    remaining = dict(changed[site].arrays)
                    # An array that is missing in `bounded` moves nothing, as if the site had kept it back.
                    for name in add_role(role, updates[site]):
                        remaining.pop(name, None)
                    changed[site] = replace(changed[site], arrays=remaining | add_role(role, arrays))
                if role in self.study.recipe.traveling_roles:
                    outliers = {site: {"distance": score} for site, score in left_out.items()}
        return Compared(changed, outliers)

    def _share_lengths(self, site_results: SiteResults, reach: float, is_mixed_alike: bool) -> Mapping[str, float]:
        """Return how much a length of each site's update counts in a mean: its examples, by step."""
        # A site that says more steps than it took would otherwise send a longer update.
        steps = cap_claims(site_results.steps, reach)
        if not is_mixed_alike:
            # Who listens to whom does not hang on examples where sites get models of their own.
            return {site: 1 / number for site, number in steps.items()}
        counts = self.study.recipe.count(site_results.examples, self.study.federation.min_sites_for_ratio)
        return {site: counts[site] / number for site, number in steps.items()}


PART, SITE = RobustPart, SitePart
