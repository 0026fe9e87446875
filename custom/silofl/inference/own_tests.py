"""What a model's own tests say of its answers: how well it finds each label, and what to be warned of."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from silofl.core.findings import name_absence
from silofl.core.guess import count_measured, describe_guess, measure_classes, measure_findings, pool_measures
from silofl.core.intervals import LEAST_UNITS
from silofl.core.operating_point import read_at_thresholds
from silofl.inference.contents import Contents
from silofl.study import Study

# A model has not learnt a label of which the Dice, or the recall, is below this at every site.
LEARNT = 0.1


def describe_quality(contents: Contents) -> str:
    """Say how well the models find each label, by the sites' tests or else their validation; empty where not known."""
    part, scores = _read_scores(contents)
    spans = []
    for name, values in scores.items():
        if values:
            # Of several sites the lowest and the highest value are told.
            ends = [f"{end:.2f}" for end in (min(values), max(values))]
            spans.append(f"{name} {' to '.join(ends[: len(values)])}")
    return f"{name_measure(contents.study)} in {part}: {', '.join(spans)}" if spans else ""


def list_not_learnt(contents: Contents) -> list[str]:
    """Return a sentence for each label that the models found at no site, and on classes that they may have guessed."""
    part, scores = _read_scores(contents)
    place = "the best site" if contents.facts.get(part) else "the site"
    sentences = []
    for name, values in scores.items():
        if values and max(values) < LEARNT:
            measure = f"{part} {name_measure(contents.study)} {max(values):.2f} at {place}"
            sentences.append(f"the model cannot recognise {name} ({measure}): ignore what it says about {name}")
    guess = "" if contents.study.task == "segmentation" else _describe_guesses(contents)
    return [*sentences, guess] if guess else sentences


def _describe_guesses(contents: Contents) -> str:
    """Return a sentence where the answers in at least 6 test cases are not shown to be better than guesses."""
    study = contents.study
    measured = []
    for test in _list_tests(contents, "test"):
        cases = test.get("label_cases") or {}
        values = test.get("also") or {}
        if study.is_multilabel:
            pairs = [(cases.get(str(key), 0), cases.get(name_absence(name), 0)) for key, name in study.labels.items()]
            measured.append(measure_findings("", values, pairs))
        else:
            measured.append(measure_classes("", values, cases.values()))
    # Of a few cases also a good model's answers may look like guesses.
    guess = describe_guess(measured, study.metric)
    return f"the model is not {guess}" if guess and count_measured(pool_measures(measured)) >= LEAST_UNITS else ""


def list_low_labels(contents: Contents) -> list[str]:
    """Return a sentence for each label whose expected score is below what the study asks for, or not known."""
    rule = contents.study.do_not_use
    if rule is None or rule.label_below is None:
        return []
    part, scores = _read_scores(contents)
    measure = name_measure(contents.study)
    wanted = f"and the study asks for {rule.label_below:.2f}"
    sentences = []
    for name, values in scores.items():
        if not values:
            sentences.append(f"the {measure} of {name} is not known, {wanted}")
        elif np.mean(values) < rule.label_below:
            sentences.append(f"{name} has a mean {part} {measure} of {np.mean(values):.2f}, {wanted}")
    return sentences


def read_label_scores(contents: Contents, score: Mapping[str, Any]) -> dict[str, float]:
    """Return the values of labels in a site's score, by number, region or absence of a finding.

    What is called from a threshold has its sensitivity, and its absence the specificity, at the site's threshold; they
    are left out where the site did not measure them, as recall from one half on says nothing of such a model.
    """
    study = contents.study
    absences = {}
    for number in contents.operating_point.thresholds:
        absences[str(number)] = name_absence(study.labels[number]) if study.is_multilabel else str(1 - number)
    operating_point = score.get("operating_point") or score.get("calling") or {}
    sensitivity = operating_point.get("sensitivity") or {}
    specificity = operating_point.get("specificity") or {}
    return read_at_thresholds(score.get("labels") or {}, absences, sensitivity, specificity)


def name_measure(study: Study) -> str:
    """Return what the score of a label is called in sentences."""
    return "Dice" if study.task == "segmentation" else "recall"


def _read_scores(contents: Contents) -> tuple[str, dict[str, list[float]]]:
    """Return ``test`` or ``validation``, and label or region -> its value at each site."""
    study = contents.study
    # Validation chose the round, and flatters the model: it stands in only where nothing was tested.
    part = "test" if _list_tests(contents, "test") else "validation"
    tests = [read_label_scores(contents, test) for test in _list_tests(contents, part)]
    scores = {}
    for key, name in (dict.fromkeys(study.regions) if study.regions else study.labels).items():
        scores[name or str(key)] = [test[str(key)] for test in tests if str(key) in test]
    return part, scores


def _list_tests(contents: Contents, part: str) -> list[Mapping[str, Any]]:
    """Return the sites' scores on a part of their data."""
    tests = list((contents.facts.get(part) or {}).values())
    # What one site keeps holds its own test, without a name of a site.
    if not tests and part == "test" and "value" in contents.facts:
        return [contents.facts]
    return tests
