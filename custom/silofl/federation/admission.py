"""The door of the server: every answer is read and checked here, once, and accepted or refused by itself."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from silofl.federation.known_sites import take_software
from silofl.federation.numbers import (
    cap_steps,
    check_image_shape,
    check_modality,
    check_names,
    find_long_updates,
    total_norm,
)
from silofl.federation.server import ServerRounds
from silofl.methods.answer import SiteAnswer, explain_refusal
from silofl.methods.task import TRAIN, Exchange, Message

A = TypeVar("A")


def admit_answers(
    server: ServerRounds, exchange: Exchange, given: Mapping[str, Message]
) -> tuple[dict[str, SiteAnswer], dict[str, str]]:
    """Return the answers that count, in the order of site names, and why the others do not.

    Args:
        server: The run; it learns the images' shape from the answers.
        exchange: What was asked.
        given: Site -> its answer, which may hold anything.
    """
    read, unread = _check_each(given, server.read)
    known, strange = _check_each(read, lambda site, answer: _check_claims(server, site, answer))
    # Before the other checks: what some parts expect has the form of the images, which the server learns from answers.
    server.learn_image_shape(list(known.values()))
    fitting, unfit = _check_each(known, lambda site, answer: server.check(site, exchange, answer))
    long = _refuse_long_updates(server, exchange, fitting)
    accepted = {site: answer for site, answer in fitting.items() if site not in long}
    return accepted, dict(sorted((unread | strange | unfit | long).items()))


def _check_each(
    answers: Mapping[str, A], check: Callable[[str, A], SiteAnswer]
) -> tuple[dict[str, SiteAnswer], dict[str, str]]:
    passed, refused = {}, {}
    # By name and not by arrival, here and in the mixing: float sums depend on their order.
    for site in sorted(answers):
        try:
            passed[site] = check(site, answers[site])
        except Exception as error:  # whatever a site sends costs its own answer, and nobody else's
            refused[site] = explain_refusal(site, error)
    return passed, refused


def _check_claims(server: ServerRounds, site: str, answer: SiteAnswer) -> SiteAnswer:
    take_software(server, site, answer.numbers.software)
    check_image_shape(site, answer.numbers.image_shape, server.study)
    check_modality(site, answer.domain, server.study)
    check_names(site, answer.numbers.metrics, server.study, server.parts)
    return answer


def _refuse_long_updates(server: ServerRounds, exchange: Exchange, answers: Mapping[str, SiteAnswer]) -> dict[str, str]:
    """Return why models' updates are refused that are far longer than those of the other sites."""
    study, settings = server.study, server.study.federation
    # In rounds after the study's nobody listens to anybody.
    if settings.max_update_ratio is None or exchange.task != TRAIN or exchange.round > study.rounds:
        return {}
    refused, steps = {}, cap_steps({site: answer.numbers.steps for site, answer in answers.items()})
    for role in study.recipe.traveling_roles:
        norms = {site: total_norm(answer.of(role)) / steps[site] for site, answer in answers.items()}
        refused |= find_long_updates(norms, settings.max_update_ratio, settings.min_sites_for_ratio)
    return refused
