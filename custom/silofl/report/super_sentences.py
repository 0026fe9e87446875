"""Sentences about a run with FedSM's selector: what each model is, where the super model loses, how gamma was found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from silofl.report.super_tables import ENSEMBLE, GLOBAL, PERSONAL, SUPER, Results, Values
from silofl.report.tables import number

_RIVALS = {PERSONAL: "the site's own personalised model", GLOBAL: "the global model"}


def model_meanings(results: Results) -> list[tuple[str, str]]:
    """Return each model's name with what it is."""
    meanings = {
        GLOBAL: "One model that all sites trained together and share.",
        PERSONAL: "The site's own model, which listens to the others a little; to use it, one must know the site.",
        SUPER: "All models with the selector: nobody says where a case comes from, the selector looks at its images "
        "and one model answers for the whole case, a site's or the global one.",
        ENSEMBLE: "Nobody is chosen: all models answer, and their probabilities are averaged by the selector's scores.",
    }
    if is_ensemble(results):
        meanings[SUPER] = "All models with the selector. This study answers with the ensemble: both columns are equal."
    return list(meanings.items())


def is_ensemble(results: Results) -> bool:
    """Return whether the super model of a run answers with the ensemble instead of one chosen model."""
    return (results.get("recipe") or {}).get("answer") == "ensemble"


def choices_sentence(results: Results) -> str:
    """Return what the counts of the chosen models say."""
    if is_ensemble(results):
        return "A column counts the test cases that the selector would give its model; here the ensemble answers."
    if results.get("threshold") is None:
        return "A column counts the test cases that its model answered."
    return "A column counts the test cases that its model answered: the global one where the selector was not sure."


def shortfalls(values: Mapping[str, Values]) -> list[str]:
    """Return at which sites the super model is below the site's own model, and below the global one.

    Args:
        values: Model -> site -> value.
    """
    return [sentence for rival in _RIVALS if (sentence := _against(values[SUPER], values[rival], _RIVALS[rival]))]


def threshold_sentence(results: Results) -> str:
    """Return the threshold gamma of a run, what it does and how it was chosen."""
    gamma, recipe = results.get("threshold"), results.get("recipe") or {}
    if gamma is None:
        return "No threshold is used: the selector knows the global model too, and the most probable model answers."
    rule = "a site's model answers where the selector's score for it is above gamma, otherwise the global model."
    origin = _origin(recipe.get("threshold"), results.get("validation") or {})
    return f"The threshold gamma is {gamma:g}: {rule} {origin}".rstrip()


def unseen_sentence(unseen: Mapping[str, Any], metric: str) -> str:
    """Return what the super model came to at a site that took no part in the training.

    Args:
        unseen: ``site``, ``value``, ``num_cases``, ``threshold``, as far as they are known.
        metric: The value's name.
    """
    cases = unseen.get("num_cases")
    of = f" over {cases} case{'s' * (cases != 1)}" if cases is not None else ""
    gamma = unseen.get("threshold")
    by = f", with the threshold gamma = {gamma:g} that the training sites found" if gamma is not None else ""
    name = f"Site {unseen['site']}" if unseen.get("site") else "This site"
    return f"{name} took no part in the training. There the super model reaches {metric} {_value(unseen)}{of}{by}."


def _value(unseen: Mapping[str, Any]) -> str:
    return number(unseen.get("value"))


def _against(values: Values, others: Values, rival: str) -> str:
    """Return where values are below a rival's in the three decimals shown; nothing where no site has both."""
    pairs = {s: (v, others.get(s)) for s, v in values.items() if v is not None and others.get(s) is not None}
    below = {site: (own, other) for site, (own, other) in pairs.items() if round(own, 3) < round(other, 3)}
    if not pairs:
        return ""
    if not below:
        return f"The super model is nowhere below {rival}."
    where = ", ".join(f"{site} ({number(own)} against {number(other)})" for site, (own, other) in below.items())
    return f"The super model is below {rival} at {len(below)} of {len(pairs)} sites: {where}."


def _origin(wanted: object, validation: Mapping[str, Any]) -> str:
    """Return where a threshold comes from."""
    if wanted != "tuned":
        return "The study fixed it." if wanted is not None else ""
    if not any((score or {}).get("value") is not None for score in validation.values()):
        return "No site had validation cases to tune it on, so that the global model always answers."
    return (
        "It was tuned on the sites' validation cases: each site sent only its sums by threshold; among the equally "
        "good the largest was taken."
    )
