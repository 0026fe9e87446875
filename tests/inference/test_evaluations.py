import numpy as np
import pytest

from silofl.base.errors import AggregationError
from silofl.core.intervals import Estimate, Sample
from silofl.inference.evaluations import (
    ALL,
    HospitalEvaluation,
    has_different_classes,
    list_scores,
    pool_hospitals,
    unpack_scores,
)

LABELS = {0: "normal", 1: "benign", 2: "malignant"}


def hospital(study, cases, area=0.8, accuracy=0.9):
    """Return what a hospital sends: class -> its cases; of a class that it lacks nothing."""
    share, nothing = Estimate(accuracy, (0.5, 0.97), 20), Estimate(None, None, 0)
    scores = {}
    for group, name in list_scores(study):
        is_there = group == ALL or cases.get(group)
        scores.setdefault(group, {})[name] = Estimate(area, (0.6, 0.9), 20) if is_there else nothing
    scores[ALL]["accuracy"] = share
    sizes = {"num_refused": 0, "unit": "patient", "distance_unit": "mm", "size_unit": "ml"}
    return HospitalEvaluation(num_cases=20, num_units=20, scores=scores, **sizes)


def test_means_over_different_classes_are_not_pooled(make_study):
    study = make_study("classification", LABELS)
    whole, less = {"normal": 10, "benign": 6, "malignant": 4}, {"normal": 10, "benign": 10}
    unlike = {"east": hospital(study, whole), "west": hospital(study, less)}
    pooled = pool_hospitals(unlike, study)
    assert pooled[ALL]["accuracy"].num_sites == pooled["normal"]["auroc"].num_sites == 2
    assert pooled[ALL]["auroc"] is pooled[ALL]["balanced_accuracy"] is pooled["malignant"]["auroc"] is None
    alike = {"east": hospital(study, whole), "west": hospital(study, whole)}
    assert pool_hospitals(alike, study)[ALL]["auroc"].num_sites == 2 and not has_different_classes(alike, "auroc")


def test_a_hospital_that_finds_all_counts_in_the_mean(make_study):
    study = make_study("classification", LABELS)
    recall = Sample(range(5)).mean(np.ones(5))
    east = hospital(study, dict.fromkeys(LABELS.values(), 5))
    east.scores["malignant"]["recall"] = recall
    sites = {"east": east, "west": hospital(study, dict.fromkeys(LABELS.values(), 5))}
    pooled = pool_hospitals(sites, study)["malignant"]["recall"]
    assert pooled.num_sites == 2 and 0.8 < pooled.value < 1


def test_a_share_may_not_lie_below_0(make_study):
    study = make_study().model_copy(update={"subgroups": {"age": (40.0, 65.0)}})
    places, rows = list_scores(study), np.zeros((len(list_scores(study)), 4))
    rows[places.index(("organ", "size_error"))] = (-0.1, -0.2, 0.0, 5)
    scores, _ = unpack_scores("east", rows, study)
    assert scores["organ"]["size_error"] == Estimate(-0.1, (-0.2, 0.0), 5)
    rows[places.index(("age: 40 to under 65", "Dice of organ"))] = (-0.1, -0.2, 0.0, 5)
    with pytest.raises(AggregationError, match="as Dice of organ, in place of a share"):
        unpack_scores("east", rows, study)
