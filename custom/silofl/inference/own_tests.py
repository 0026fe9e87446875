"""What a model's own tests say of its answers: how well it finds each label, and what to be warned of."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from silofl.base.errors import quote_markdown
from silofl.core.findings import name_absence
from silofl.core.guess import count_measured, describe_guess, measure_classes, measure_findings, pool_measures
from silofl.core.intervals import LEAST_UNITS
from silofl.core.operating_point import find_unlike_thresholds, read_at_thresholds
from silofl.inference.contents import Contents

# The Dice of a label below which a model has not learnt it.
LEARNT = 0.1


def describe_quality(contents: Contents) -> str:
    """Say how well the models find each label, by the sites' tests or else their validation; empty where not known."""
    part, _, scores = _read_label_scores(contents)
    spans = [
        f"{name} {min(values):.2f}" + (f" to {max(values):.2f}" if len(values) > 1 else "")
        for name, values in scores.items()
        if values
    ]
    return f"{_name_measure(contents)} in {part}: {', '.join(spans)}" if spans else ""


def list_not_learnt(contents: Contents) -> list[str]:
    """Return a sentence for each label that the models found at no site, and on classes that they may have guessed."""
    part, where, scores = _read_label_scores(contents)
    unlearnt = [
        f"the model cannot recognise {name} ({part} {_name_measure(contents)} {max(values):.2f} at {where}): ignore "
        f"what it says about {name}"
        for name, values in scores.items()
        if values and max(values) < LEARNT
    ]
    return unlearnt + _list_guesses(contents)


def _list_guesses(contents: Contents) -> list[str]:
    """Return a sentence where the answers in at least 6 test cases are not shown to be better than guesses."""
    study, measured = contents.study, []
    for test in _list_tests(contents, "test") if study.task != "segmentation" else ():
        cases, values = test.get("label_cases") or {}, test.get("also") or {}
        pairs = [(cases.get(str(key), 0), cases.get(name_absence(name), 0)) for key, name in study.labels.items()]
        of_classes = measure_classes("", values, cases.values())
        measured.append(measure_findings("", values, pairs) if study.is_multilabel else of_classes)
    guess = describe_guess(measured, study.metric)
    return [f"the model is not {guess}"] if guess and count_measured(pool_measures(measured)) >= LEAST_UNITS else []


def list_low_labels(contents: Contents) -> list[str]:
    """Return a sentence for each label whose expected score is below what the study asks for, or not known."""
    rule, (part, _, scores) = contents.study.do_not_use, _read_label_scores(contents)
    if rule is None or rule.label_below is None:
        return []
    measure, wanted = _name_measure(contents), f", and the study asks for {rule.label_below:.2f}"
    means = {name: float(np.mean(values)) if values else None for name, values in scores.items()}
    return [
        f"the {measure} of {name} is not known{wanted}"
        if mean is None
        else f"{name} has a mean {part} {measure} of {mean:.2f}{wanted}"
        for name, mean in means.items()
        if mean is None or mean < rule.label_below
    ]


def list_unlike_thresholds(contents: Contents) -> list[str]:
    """Return a sentence for each threshold that lies far from one that a site chose on its own validation cases."""
    study, tests = contents.study, contents.facts.get("test") or {}
    plain = [(test.get("calling") or {}).get("thresholds") or {} for test in tests.values()]
    own = [{int(number): threshold for number, threshold in one.items()} for one in plain]
    shown = contents.calling.shown_thresholds(study.is_multilabel)
    return [
        f"the threshold of {quote_markdown(study.labels[number])} is far from some sites' own: {shown[number]:.2f}, "
        f"theirs {low:.2f} to {high:.2f}; at a hospital it may miss more, or alarm more, than the study wants"
        for number, (low, high) in find_unlike_thresholds(contents.calling, own, study.is_multilabel).items()
    ]


def read_label_scores(contents: Contents, score: Mapping[str, Any]) -> dict[str, float]:
    """Return the values of labels in a site's score, by number, region or absence of a finding.

    What is called from a threshold has its sensitivity, and its absence the specificity, at the site's threshold; they
    are left out where the site did not measure them, as recall from one half on says nothing of such a model.
    """
    study, read = contents.study, score.get("calling") or {}
    absences = {
        str(number): name_absence(study.labels[number]) if study.is_multilabel else str(1 - number)
        for number in contents.calling.thresholds
    }
    shares = (read.get(name) or {} for name in ("sensitivity", "specificity"))
    return read_at_thresholds(score.get("labels") or {}, absences, *shares)


def _name_measure(contents: Contents) -> str:
    return "Dice" if contents.study.task == "segmentation" else "recall"


def _read_label_scores(contents: Contents) -> tuple[str, str, dict[str, list[float]]]:
    """Return ``test`` or ``validation``, where the best of it was, and label or region -> its value at each site."""
    study = contents.study
    part = "test" if _list_tests(contents, "test") else "validation"
    found = _list_tests(contents, part)
    tests = [read_label_scores(contents, test) for test in found]
    where = "the best site" if contents.facts.get(part) or not found else "the site"
    named = dict.fromkeys(study.regions) if study.regions else study.labels
    names = {str(key): name or key for key, name in named.items()}
    return part, where, {name: [test[key] for test in tests if key in test] for key, name in names.items()}


def _list_tests(contents: Contents, part: str) -> list[Mapping[str, Any]]:
    """Return the sites' scores on a part of their data."""
    # What one site keeps holds its own test, without a name of a site.
    own = [contents.facts] if part == "test" and "value" in contents.facts else []
    return list((contents.facts.get(part) or {}).values()) or own
