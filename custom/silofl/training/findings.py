"""Scores of a model that answers a set of findings: each finding is there or not, and so are two classes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silofl.core.findings import name_absence, unpack_findings
from silofl.data.volumes import Array
from silofl.training.metrics import Label, Probabilities, Score, group_positions


def findings_by_case(
    predictions: Array,
    targets: Array,
    cases: Sequence[str],
    labels: Mapping[int, str],
    metric: str = "accuracy",
    probabilities: NDArray[Any] | None = None,
) -> Score:
    """Return the mean over cases, or over each finding's presence and absence, of the share of right findings.

    A case's examples count as one: their share of right answers, their mean probabilities.

    Args:
        predictions: Sets of findings, shape (N,).
        targets: The true sets, shape (N,), equal within a case.
        cases: The case of each of the N examples.
        labels: Number -> name of each finding.
        metric: ``accuracy``, the mean over cases and findings; or ``balanced_accuracy``, the mean over all findings of
            sensitivity and specificity, where there are cases for them.
        probabilities: Shape (N, findings); without them there is no AUROC.
    """
    truth = unpack_findings(np.asarray(targets), len(labels))
    is_right = unpack_findings(np.asarray(predictions), len(labels)) == truth
    by_case: dict[str, float | None] = {}
    labels_by_case: dict[Label, dict[str, float]] = {}
    for number, name in sorted(labels.items()):
        # A finding and its absence are two classes, both there even without a case.
        labels_by_case |= {number: {}, name_absence(name): {}}
    probabilities_by_case: dict[Label, dict[str, Probabilities]] = {}
    for case, rows in group_positions(cases).items():
        shares = is_right[rows].mean(axis=0).tolist()
        by_case[case] = sum(shares) / len(shares)
        for number, name in labels.items():
            label = number if truth[rows[0], number] else name_absence(name)
            labels_by_case[label][case] = shares[number]
        if probabilities is not None:
            mean = probabilities[rows].mean(axis=0)
            probabilities_by_case.setdefault(int(targets[rows[0]]), {})[case] = tuple(mean.tolist())
    return Score.of(by_case, labels_by_case, metric, probabilities_by_case, is_multilabel=True)
