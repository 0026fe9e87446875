import numpy as np
import pytest

from silofl.base.settings import parse
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
        EvaluatedCase(case, "test", "global", (), Score({case: value}, labels_by_case={1: {case: value}}), {})
        for case, value in dice.items()
    ]
    units = {case: case for case in dice}
    people = People(units, units if patient_of is None else patient_of, least)
    people.may_tell(list_having(cases, STUDY))
    return measure_subgroups(cases, {"sex": group_of}, people, STUDY)


def draw(count, mean, start=0):
    rng = np.random.default_rng(start)
    return {f"{mean}-{i}": float(np.clip(rng.normal(mean, 0.05), 0, 1)) for i in range(count)}


def test_a_group_has_the_scores_of_its_cases():
    women, men = draw(12, 0.7), draw(15, 0.8, 1)
    subgroups = measure(women | men, dict.fromkeys(women, "F") | dict.fromkeys(men, "M"))
    of_women, of_men = subgroups["sex"]["F"], subgroups["sex"]["M"]
    mean = pytest.approx(np.mean([*women.values()]))
    assert of_women.scores["dice"].value == of_women.scores["Dice of organ"].value == mean
    assert (of_women.num_cases, of_men.num_cases) == (12, 15)


def test_few_patients_and_what_they_follow_from_are_withheld():
    dice = draw(30, 0.8)
    group_of = {case: "O" if number < 2 else "FM"[number % 2] for number, case in enumerate(dice)}
    subgroups = measure(dice, group_of, least=5)["sex"]
    withheld = {group for group, subgroup in subgroups.items() if subgroup.num_cases is None}
    # the two, and the smaller of the others, as both with all cases give the two
    assert (
        withheld == {"O", "F"} and subgroups["O"].scores == {} and subgroups["O"].withheld == ("dice", "Dice of organ")
    )
    assert subgroups["M"].num_cases == 14


def test_where_patients_must_be_known_others_count_for_nothing():
    dice = draw(12, 0.8)
    nobody = measure(dice, dict.fromkeys(dice, "F"), least=1, patient_of=dict.fromkeys(dice))["sex"]["F"]
    assert nobody.num_cases is None


def test_a_mean_over_classes_with_few_patients_is_withheld():
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
    patients = {case: case for case in group_of}
    women = measure_subgroups(cases, {"sex": group_of}, People(patients, patients, 5), study)["sex"]["F"]
    # The recall of two would follow from the accuracy of all and the recall of the others.
    assert women.scores.keys() == {"accuracy"}
    assert {"recall of no", "recall of yes", "balanced_accuracy", "auroc"} <= {*women.withheld}


@pytest.mark.parametrize(("lacking", "is_withheld"), [(0, False), (1, True), (4, True), (5, False)])
def test_no_value_of_few_follows_from_other_scores(lacking, is_withheld):
    study = parse(Study, STUDY.model_dump(exclude_defaults=True) | {"labels": {1: "organ", 2: "lesion"}}, "study.yaml")
    dice = draw(16, 0.8)
    tables = {
        case: {1: {case: value}} | ({2: {case: value / 2}} if i >= lacking else {})
        for i, (case, value) in enumerate(dice.items())
    }
    cases = [
        EvaluatedCase(case, "test", "global", (), Score({case: value}, labels_by_case=tables[case]), {})
        for case, value in dice.items()
    ]
    patients = {case: case for case in dice}
    women = measure_subgroups(cases, {"sex": dict.fromkeys(dice, "F")}, People(patients, patients, 5), study)["sex"][
        "F"
    ]
    assert ("Dice of lesion" in women.withheld) is is_withheld
    assert women.scores.keys() == {"dice", "Dice of organ", "Dice of lesion"} - {*women.withheld}
