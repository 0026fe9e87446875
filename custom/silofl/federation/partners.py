"""No site's arrays go into a model with those of fewer other sites than it asks for by ``min_partners``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from silofl.federation.known_sites import list_present_sites
from silofl.parts.answer import SiteAnswer
from silofl.parts.model import ModelPart
from silofl.setup.site import count_partners

if TYPE_CHECKING:
    from silofl.federation.server import ServerRounds


def describe_partners(server: ServerRounds, site: str, number: int) -> dict[str, Any]:
    """Return what a task tells a site of its partners, for the site's own record.

    Args:
        number: The finished round after which the sites begin; 0 where the task is about no round's models.

    Returns:
        ``sites``: how many are asked. ``partners``: their names. ``mixed``: the last round, and of how many sites an
        answer was mixed in it, 0 where this site's was not. ``rows``: site -> this site's weight in that site's own
        model after round ``number``; nothing where such models stay with their sites, or where there are none.
    """
    present = list_present_sites(server)
    facts: dict[str, Any] = {"sites": len(present), "partners": present}
    if not server.ledger:
        return facts
    answered = server.ledger[-1].answered
    facts["mixed"] = [server.finished_rounds, len(answered) if site in answered else 0]
    models = [part for part in server.parts.values() if isinstance(part, ModelPart)]
    leaves = any(part.own for part in models) and not any(part.stays for part in models)
    if leaves and 0 < number <= len(server.ledger):
        weights = server.ledger[number - 1].weights
        facts["rows"] = {owner: row[site] for owner, row in weights.items() if site in row}
    return facts


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
