import numpy as np
import pytest
from scipy.stats import permutation_test

from silofl.base.settings import parse
from silofl.data.groups import UNKNOWN
from silofl.inference.evaluated_cases import EvaluatedCase
from silofl.inference.subgroups import People, list_having, measure_subgroups
from silofl.study import Study
from silofl.training.metrics import Score

STUDY = parse(
    Study,
    {"name": "x", "task": "segmentation", "labels": {1: "organ"}, "rounds": 1, "algorithm": {"name": "fedavg"}},
    "study.yaml",
)


def measure(dice, group_of, least=2, patient_of=None):
    """Measure groups of cases by their Dice, each case of a patient."""
    cases = [
        EvaluatedCase(case, "test", "global", (), Score({case: one}, labels_by_case={1: {case: one}}), {})
        for case, one in dice.items()
    ]
    own = {case: case for case in dice}
    people = People(own, own if patient_of is None else patient_of, least)
    people.may_tell(list_having(cases, STUDY))
    return measure_subgroups(cases, {"sex": group_of}, people, STUDY)


def draw(count, mean, start=0):
    rng = np.random.default_rng(start)
    return {f"{mean}-{i}": float(np.clip(rng.normal(mean, 0.05), 0, 1)) for i in range(count)}


def test_a_group_is_compared_with_the_others_by_a_permutation_of_patients():
    women, men = draw(12, 0.7), draw(15, 0.8, 1)
    found = measure(women | men, dict.fromkeys(women, "F") | dict.fromkeys(men, "M"))
    one, other = found["sex"]["F"], found["sex"]["M"]
    values = [np.array([*some.values()]) for some in (women, men)]
    assert one.scores["dice"].value == pytest.approx(values[0].mean()) and (one.num_cases, other.num_cases) == (12, 15)
    assert one.differences["Dice of organ"].value == pytest.approx(values[0].mean() - values[1].mean())
    test = permutation_test(values, lambda a, b: a.mean() - b.mean(), n_resamples=999, rng=1)
    assert one.p_values == {"Dice of organ": pytest.approx(test.pvalue, abs=0.003)}
    # each is the other's others: one comparison
    assert "Dice of organ" in other.differences and not other.p_values


def test_p_values_are_corrected_for_all_comparisons():
    dice = draw(30, 0.8)
    groups = {case: "FMO"[number % 3] for number, case in enumerate(dice)}
    found = measure(dice, groups)
    assert [one.p_values["Dice of organ"] > 0.05 for one in found["sex"].values()] == [True] * 3


def test_groups_that_do_not_differ_are_hardly_ever_said_to():
    alarms = 0
    for seed in range(20):
        dice = draw(40, 0.8, seed)
        found = measure(dice, {case: "FMO"[number % 3] for number, case in enumerate(dice)})
        alarms += any(one.p_values["Dice of organ"] < 0.05 for one in found["sex"].values())
    # in one evaluation of twenty, whatever the number of groups
    assert alarms <= 3


def test_a_group_of_few_patients_is_withheld_and_so_is_what_it_would_follow_from():
    dice = draw(30, 0.8)
    group_of = {case: "O" if number < 2 else "FM"[number % 2] for number, case in enumerate(dice)}
    found = measure(dice, group_of, least=5)["sex"]
    withheld = {group for group, one in found.items() if one.num_cases is None}
    # the two, and the smaller of the others, as both with all cases give the two
    assert withheld == {"O", "F"} and found["O"].scores == {} and found["O"].withheld == ("dice", "Dice of organ")
    assert found["M"].num_cases == 14


def test_where_patients_must_be_known_others_count_for_nothing():
    dice = draw(12, 0.8)
    nobody = measure(dice, dict.fromkeys(dice, "F"), least=1, patient_of=dict.fromkeys(dice))["sex"]["F"]
    assert nobody.num_cases is None


def test_cases_without_a_group_are_shown_and_compared_with_nothing():
    dice = draw(12, 0.8)
    found = measure(dice, {case: UNKNOWN if i < 6 else "F" for i, case in enumerate(dice)})["sex"]
    assert found[UNKNOWN].num_cases == 6 and not found[UNKNOWN].differences and not found["F"].differences


def test_a_mean_over_classes_is_withheld_where_one_of_them_is_of_too_few():
    settings = {"name": "x", "task": "classification", "labels": {0: "no", 1: "yes"}, "rounds": 1, "metric": "accuracy"}
    settings |= {"model": {"name": "lenet5"}, "training": {"loss": "cross_entropy"}, "algorithm": {"name": "fedavg"}}
    study, cases, group_of = parse(Study, settings, "study.yaml"), [], {}
    for number in range(30):
        # of the women two have it, of the men seven
        case, truth = f"c{number}", int(number in (0, 1, *range(20, 27)))
        group_of[case] = "F" if number < 15 else "M"
        chances = {truth: {case: (0.7, 0.3)}}
        score = Score({case: float(not truth)}, 0, {truth: {case: float(not truth)}}, "accuracy", chances)
        cases.append(EvaluatedCase(case, "test", "global", (), score, {}))
    known = {case: case for case in group_of}
    women = measure_subgroups(cases, {"sex": group_of}, People(known, known, 5), study)["sex"]["F"]
    # The recall of two would follow from the accuracy of all and the recall of the others.
    assert women.scores.keys() == {"accuracy"} and not women.p_values
    assert {"recall of no", "recall of yes", "balanced_accuracy", "auroc"} <= {*women.withheld}


@pytest.mark.parametrize(("lacking", "is_withheld"), [(0, False), (1, True), (4, True), (5, False)])
def test_no_value_of_the_few_without_a_label_follows_from_a_groups_other_scores(lacking, is_withheld):
    study = parse(Study, STUDY.model_dump(exclude_defaults=True) | {"labels": {1: "organ", 2: "lesion"}}, "study.yaml")
    dice = draw(16, 0.8)
    tables = {
        case: {1: {case: one}} | ({2: {case: one / 2}} if i >= lacking else {})
        for i, (case, one) in enumerate(dice.items())
    }
    cases = [
        EvaluatedCase(case, "test", "global", (), Score({case: one}, labels_by_case=tables[case]), {})
        for case, one in dice.items()
    ]
    known = {case: case for case in dice}
    found = measure_subgroups(cases, {"sex": dict.fromkeys(dice, "F")}, People(known, known, 5), study)["sex"]["F"]
    assert ("Dice of lesion" in found.withheld) is is_withheld
    assert found.scores.keys() == {"dice", "Dice of organ", "Dice of lesion"} - {*found.withheld}
