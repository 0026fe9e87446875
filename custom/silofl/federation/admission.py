"""The door of the server: every answer is read and checked here, once, and accepted or refused by itself.

No site's arrays go into a model with those of fewer other sites than it asks for by ``min_partners``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from typing import TypeVar

from silofl.core.outliers import BEYOND, cap_claims
from silofl.core.products import multiply_updates
from silofl.federation.numbers import check_image_shape, check_modality, check_names, find_long_updates
from silofl.federation.outlying_updates import find_outlying_updates, find_outweighing, join_outliers, sort_by_site
from silofl.federation.server import ServerRounds
from silofl.parts.answer import SiteAnswer, explain_refusal
from silofl.parts.task import TRAIN, Exchange, Message, Outliers, SiteResults
from silofl.setup.site import count_partners

A = TypeVar("A")
# Of the steps that a site says it took, so many times the median of the others' count at most: by a million steps any
# length would be little.
MOST_STEPS = 10


def admit_answers(
    server: ServerRounds, exchange: Exchange, given: Mapping[str, Message]
) -> tuple[dict[str, SiteAnswer], dict[str, str], Outliers]:
    """Return the answers that count, in the order of site names, why the others do not, and what of them is unlike.

    Args:
        server: The run; it learns the images' shape from the answers.
        given: Site -> its answer, which may hold anything.
    """
    refused: dict[str, str] = {}
    answers = _check_each(given, lambda site, message: server.read(site, exchange, message), refused)
    # A site of another release is refused before its numbers are judged.
    answers = _check_each(answers, lambda site, answer: _check_claims(server, site, answer), refused)
    # Before the other checks: what some parts expect has the form of the images, which the server learns from answers.
    server.learn_image_shape(list(answers.values()))
    answers = _check_each(answers, lambda site, answer: server.check(site, exchange, answer), refused)
    too_long, outliers = _compare_updates(server, exchange, answers)
    answers = {site: answer for site, answer in answers.items() if site not in too_long}
    # Last: a refused answer is nobody's partner.
    answers, lonely = part_lonely(answers, server.is_mixed)
    return answers, dict(sorted((refused | too_long | lonely).items())), outliers


def _check_each(
    answers: Mapping[str, A], check: Callable[[str, A], SiteAnswer], refused: dict[str, str]
) -> dict[str, SiteAnswer]:
    """Return the answers that pass a check; why the others do not goes into ``refused``."""
    passed = {}
    # By name and not by arrival, here and in the mixing: float sums depend on their order.
    for site in sorted(answers):
        try:
            passed[site] = check(site, answers[site])
        except Exception as error:  # whatever a site sends costs its own answer, and nobody else's
            refused[site] = explain_refusal(site, error)
    return passed


def _check_claims(server: ServerRounds, site: str, answer: SiteAnswer) -> SiteAnswer:
    server.take_software(site, answer.numbers.software)
    check_image_shape(site, answer.numbers.image_shape, server.study)
    check_modality(site, answer.data_profile, server.study)
    check_names(site, answer.numbers.metrics, server.study, server.parts)
    return answer


def _compare_updates(
    server: ServerRounds, exchange: Exchange, answers: Mapping[str, SiteAnswer]
) -> tuple[dict[str, str], Outliers]:
    """Compare the models' updates with one another: return why some are refused, and what of the others is unlike."""
    study = server.study
    settings = study.federation
    refused: dict[str, str] = {}
    if exchange.task != TRAIN or not answers:
        return refused, {}
    site = next(iter(answers))
    site_results = SiteResults(dict(answers))
    steps = cap_claims(site_results.steps, MOST_STEPS)
    models = []
    for role in study.recipe.traveling_roles:
        part = server.parts[role]
        expected = part.payload_spec(site, exchange, server)
        # Where every site goes on alone, nobody's update is another's matter.
        if expected.averaged:
            models.append(multiply_updates(site_results.updates_of(part.role), expected.buffers))
    if not models:
        return refused, {}
    if settings.max_update_ratio is not None:
        for products in models:
            by_step = {site: length / steps[site] for site, length in products.lengths().items()}
            refused |= find_long_updates(by_step, settings.max_update_ratio, settings.min_sites_for_ratio)
    # What is refused no longer counts among those that the others are compared with.
    examples = {site: number for site, number in site_results.examples.items() if site not in refused}
    if study.recipe.weights == "uniform":
        weights = dict.fromkeys(examples, 1.0)
    else:
        weights = cap_claims(examples, BEYOND)
    outliers = [
        find_outlying_updates(products.select(examples), steps, weights, settings.min_sites_for_ratio)
        for products in models
    ]
    if study.recipe.counts_examples:
        outliers.append(sort_by_site({"examples": find_outweighing(examples, settings.min_sites_for_ratio)}))
    return refused, join_outliers(outliers)


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
