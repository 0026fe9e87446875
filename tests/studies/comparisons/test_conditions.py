from dataclasses import replace

import pytest

from silofl_desk.studies.comparisons.conditions import list_differences, rows_by_name, run_names
from tests.report.conftest import counts, with_data


def test_runs_that_differ_in_a_setting_are_told_with_its_values(made):
    runs = {
        "fedavg": [made(study={"training": {"learning_rate": 0.01}})],
        "fast": [made(study={"training": {"learning_rate": 0.1}})],
        "fedbn": [made(study={"algorithm": {"name": "fedbn"}, "training": {"learning_rate": 0.1}})],
    }
    assert list_differences(runs) == ["The rows differ in training.learning_rate: 0.01 (fedavg); 0.1 (fast, fedbn)."]
    plain, set_by_one = [made(study={})], [made(study={"data": {"modality": "MR"}})]
    found = list_differences({"a": plain, "b": set_by_one})
    assert found == ["The rows differ in data.modality: not set (a); MR (b)."]


def test_batchnorm_that_a_method_keeps_at_home_is_its_own_and_no_difference(made):
    def ran(algorithm, normalization, **more):
        home = {"stays": "batchnorm" if algorithm == "fedbn" else "nothing"}
        study = {"algorithm": {"name": algorithm, **more}, "model": {"normalization": normalization}}
        return [made(study=study, algorithm=algorithm, normalization=normalization, recipe=home)]

    group, instance, batch = (ran("fedavg", one) for one in ("group", "instance", "batch"))
    assert list_differences({"fedavg": group, "fedbn": ran("fedbn", "batch")}) == []
    found = list_differences({"fedavg": group, "own": instance, "fedbn": ran("fedbn", "batch")})
    assert found == ["The rows differ in model.normalization: group (fedavg); instance (own)."]
    # FedAvg would do without.
    assert "model.normalization" in "".join(list_differences({"fedavg": group, "other": batch}))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rounds": 5}, "The rows differ in rounds: 2 (a); 5 (b)."),
        ({"metric": "dice_with_background"}, "The rows differ in metric: dice (a); dice_with_background (b)."),
        ({"sites": {"north": 0.5}}, "The rows differ in sites: east, west (a); east, north, west (b)."),
    ],
)
def test_what_results_know_to_differ_is_said_without_a_study_too(made, changes, sentence):
    assert sentence in list_differences({"a": [made()], "b": [made(**changes)]})


def test_extra_rounds_count_as_rounds_and_seed_and_name_are_what_rows_are_for(made):
    with_extra = made(study={"algorithm": {"name": "finetuning", "extra_rounds": 3}}, recipe={"extra_rounds": 3})
    sentence = "The rows differ in rounds: 2 (a); 5 (b)."
    assert list_differences({"a": [made(study={})], "b": [with_extra]}) == [sentence]
    other = {"algorithm": {"name": "fedsm"}, "name": "other", "seed": 4}
    fedsm = made(study=other, algorithm="fedsm", seed=4, recipe={"stays": "nothing"})
    assert list_differences({"a": [made(study={}), made(study={}, seed=1)], "b": [fedsm]}) == []


def test_other_data_are_told_by_site_and_unknown_ones_are_no_difference(made):
    def differ(a, b):
        return "".join(line for line in list_differences({"a": [a], "b": [b]}) if "the data of" in line)

    first = with_data(made(), east=counts(8, 2, 2))
    assert differ(first, with_data(made(), east=counts(6, 2, 4, digest="9876543210"))) == (
        "The rows differ in the data of east: 8 / 2 / 2 cases, 01234567 (a); 6 / 2 / 4 cases, 98765432 (b)."
    )
    assert not differ(made(), made())
    # The same dataset.json with other files; an older run has not recorded them.
    one, other = (with_data(made(), east=replace(counts(8, 2, 2), content=text)) for text in ("abcdef012", "fedcba987"))
    assert "cases, 01234567, abcdef01 (a); " in differ(one, other) and not differ(first, other)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        (({}, {"algorithm": "fedavg"}), ["1: harmofl", "2: fedavg"]),
        (({"seed": 1}, {"seed": 2, "preset": "paper"}), ["1: harmofl recommended seed 1", "2: harmofl paper seed 2"]),
    ],
)
def test_runs_are_named_by_row_and_algorithm_and_by_what_differs(made, changes, names):
    runs = [made(**one) for one in changes]
    assert list(run_names(runs)) == names
    assert list(rows_by_name(runs)) == names
