"""No site's arrays go into a model with those of fewer other sites than it asks for by ``min_partners``."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from silofl.parts.answer import SiteAnswer


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
    left = drop_lonely(answers, is_mixed)
    sent = {site: [name for name in answer.arrays if is_mixed(name)] for site, answer in answers.items()}
    alone = [site for site, names in sent.items() if names and left[site].arrays.keys().isdisjoint(names)]
    return {site: answer for site, answer in left.items() if site not in alone}, {
        site: f"site {site!r} must have its answer mixed with those of at least "
        f"{describe_partners(answers[site].numbers.min_partners)}, as min_partners of its site.yaml asks; fewer sent "
        "the like: let more sites take part"
        for site in alone
    }


def drop_lonely(answers: Mapping[str, SiteAnswer], is_mixed: Callable[[str], bool]) -> dict[str, SiteAnswer]:
    """Return the answers without the arrays that fewer others have sent than their site asks for."""
    asked = {site: answer.numbers.min_partners for site, answer in answers.items()}
    names = {name for answer in answers.values() for name in answer.arrays if is_mixed(name)}
    senders = {name: frozenset(site for site in answers if name in answers[site].arrays) for name in names}
    # Most arrays have the same senders.
    partnered = {sites: _find_partnered(sites, asked) for sites in {*senders.values()}}
    return {
        site: _drop(answer, {name for name, sites in senders.items() if site in sites - partnered[sites]})
        for site, answer in answers.items()
    }


def describe_partners(count: int) -> str:
    """Return a number of other sites in words."""
    return f"{count} other site{'s' * (count != 1)}"


def _find_partnered(sites: frozenset[str], asked: Mapping[str, int]) -> frozenset[str]:
    """Return the most of these sites that have as many partners among them as each asks for."""
    # One that asks for more than all of them has too few in any smaller number too.
    while lonely := {site for site in sites if asked[site] > len(sites) - 1}:
        sites -= lonely
    return sites


def _drop(answer: SiteAnswer, names: set[str]) -> SiteAnswer:
    if not names:
        return answer
    arrays = {name: array for name, array in answer.arrays.items() if name not in names}
    return replace(answer, arrays=arrays, withheld=tuple(sorted(names.union(answer.withheld))))
