"""No site's arrays go into a model with those of fewer other sites than it asks for by ``min_partners``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import replace

from silofl.parts.answer import SiteAnswer
from silofl.setup.site import count_partners


def part_lonely(
    answers: Mapping[str, SiteAnswer], is_mixed: Callable[[str], bool]
) -> tuple[dict[str, SiteAnswer], dict[str, str]]:
    """Part the answers from those of which nothing can be mixed.

    Args:
        answers: Site -> its answer.
        is_mixed: Whether an array is mixed with other sites', by its name.

    Returns:
        Site -> its answer as `drop_lonely` leaves it. Site -> why its answer does not count.
    """
    accepted = drop_lonely(answers, is_mixed)
    lonely = {}
    for site, answer in answers.items():
        names = [name for name in answer.arrays if is_mixed(name)]
        # An answer without anything to mix, as of an evaluation, needs no partner.
        if names and accepted[site].arrays.keys().isdisjoint(names):
            accepted.pop(site)
            lonely[site] = (
                f"too few sites sent an answer to mix with that of site {site!r}, which asks for at least "
                f"{count_partners(answer.numbers.min_partners)} by min_partners of its site.yaml; let more sites take "
                "part"
            )
    return accepted, lonely


def drop_lonely(answers: Mapping[str, SiteAnswer], is_mixed: Callable[[str], bool]) -> dict[str, SiteAnswer]:
    """Return the answers without the arrays that fewer others have sent than their site asks for."""
    asked = {site: answer.numbers.min_partners for site, answer in answers.items()}
    senders: dict[str, set[str]] = {}
    for site, answer in answers.items():
        for name in filter(is_mixed, answer.arrays):
            senders.setdefault(name, set()).add(site)
    lonely: dict[str, set[str]] = {}
    for name, sites in senders.items():
        for site in sites - _find_partnered(sites, asked):
            lonely.setdefault(site, set()).add(name)
    left = dict(answers)
    for site, names in lonely.items():
        answer = answers[site]
        arrays = {name: array for name, array in answer.arrays.items() if name not in names}
        # What is taken out counts as withheld by a policy: its row is renormalised over the other sites.
        left[site] = replace(answer, arrays=arrays, withheld=tuple(sorted(names.union(answer.withheld))))
    return left


def _find_partnered(sites: Set[str], asked: Mapping[str, int]) -> Set[str]:
    """Return the most of these sites that have as many partners among them as each asks for."""
    # One that asks for more than all of them has too few in any smaller number too.
    while lonely := {site for site in sites if asked[site] > len(sites) - 1}:
        sites = sites - lonely
    return sites
