import pytest

from silofl_desk.studies.method_rows import (
    compute_further_averages,
    find_leading_places,
    is_clearly_above,
    list_further_averages,
    make_method_rows,
)


@pytest.mark.parametrize(
    ("values", "others", "expected"),
    [
        # means 0.7 and 0.5; deviations 0.1 * sqrt(2) = 0.141 and 0: the difference of 0.2 is more
        ((0.6, 0.8), (0.5, 0.5), True),
        # 0.7 and 0.6: 0.1 is less than 0.141
        ((0.6, 0.8), (0.6, 0.6), False),
        # the larger deviation counts, whichever row has it
        ((0.6, 0.6), (0.4, 0.6), False),
        # more than no spread, but not to be seen in three decimals
        ((0.6004, 0.6004), (0.6, 0.6), False),
        ((0.601, 0.601), (0.6, 0.6), True),
        ((0.5, 0.5), (0.6, 0.6), False),
        # one seed has no spread
        ((0.9,), (0.1,), False),
        ((0.9, 0.9), (0.1,), False),
    ],
)
def test_a_mean_leads_by_more_than_the_seeds_spread(values, others, expected):
    assert is_clearly_above(values, others) is expected


def test_the_front_is_the_highest_mean_and_all_that_it_does_not_lead():
    assert find_leading_places([(0.5, 0.5), (0.9, 0.9), (0.6, 0.6)]) == [1]
    # 0.9 leads 0.5 by more than 0.141, and 0.8 not
    assert find_leading_places([(0.5, 0.5), (0.8, 1.0), (0.8, 0.8)]) == [1, 2]
    assert find_leading_places([(0.5, 0.5), (0.9,), ()]) == [] and find_leading_places([]) == []


def cells(row):
    return dict(zip(("east", "west", "client average", "pooled"), row.cells, strict=True))


def test_a_row_has_the_values_of_all_seeds_by_site_then_both_means(method):
    (row,) = make_method_rows(method("fedavg", (0.5, 0.75), (0.25, 1.0)))
    assert cells(row) == {
        "east": (0.5, 0.25),
        "west": (0.75, 1.0),
        "client average": (0.625, 0.625),
        # (0.5 + 4 * 0.75) / 5 and (0.25 + 4 * 1) / 5
        "pooled": pytest.approx((0.7, 0.85)),
    }


def test_a_run_with_a_selector_gives_four_rows_and_personal_is_each_sites_own_model(fedsm):
    rows = {row.name: cells(row) for row in make_method_rows(fedsm)}
    assert list(rows) == ["fedsm super", "fedsm global", "fedsm personal", "fedsm ensemble"]
    assert (rows["fedsm ensemble"]["east"], rows["fedsm global"]["west"]) == ((0.625,), (0.25,))
    assert (rows["fedsm personal"]["east"], rows["fedsm personal"]["west"]) == ((0.75,), (0.5,))
    # (0.5 + 0.25) / 2, and (1 * 0.5 + 4 * 0.25) / 5
    assert rows["fedsm global"]["client average"] == (0.375,)
    assert rows["fedsm global"]["pooled"] == pytest.approx((0.3,))


def test_a_run_without_a_value_at_a_site_has_no_means(method):
    (row,) = make_method_rows(method("fedavg", (0.5, None), (0.25, 1.0)))
    assert cells(row)["west"] == (1.0,) and cells(row)["client average"] == (0.625,)


def test_averages_beside_the_metric_stand_after_the_pooled_mean(method):
    also = {"east": {"balanced_accuracy": 0.5, "auroc": 0.75}, "west": {"balanced_accuracy": 0.25}}
    everyone = {"accuracy": 0.5, "balanced_accuracy": 0.125, "num_cases": 5}
    methods = method("fedavg", (0.5, 0.75), metric="accuracy", also=also, everyone=everyone) | method("local", (1, 1))
    assert list_further_averages(methods) == ["balanced_accuracy", "auroc", "everyone_balanced_accuracy"]
    fedavg, local = make_method_rows(methods)
    # (0.5 + 0.25) / 2; the one AUROC there is; the value as it came
    assert fedavg.averages[2:] == ((0.375,), (0.75,), (0.125,))
    assert local.averages[2:] == ((), (), ())


def test_means_over_different_classes_have_no_average(classes, method):
    cases = {"east": {"a": 2, "b": 2}, "west": {"a": 2, "b": 2, "c": 1}}
    found = classes(label_cases=cases)
    assert compute_further_averages(found, ["east", "west"]) == {}
    # A site of one class has no area, and the others have an average.
    lone = classes(label_cases=cases | {"west": {"a": 3}})
    assert [*compute_further_averages(lone, ["east", "west"])] == ["auroc"]
    (row,) = make_method_rows(method("fedavg", (0.5, 0.75), metric="auroc", also={}, label_cases=cases))
    assert cells(row)["client average"] == () and cells(row)["west"] == (0.75,) and cells(row)["pooled"] != ()


def test_averages_are_over_all_sites_and_that_of_the_auroc_over_those_that_have_one(classes, results):
    # (0.25 + 0.75) / 2
    assert compute_further_averages(classes(), ["east", "west"]) == {"balanced_accuracy": 0.5, "auroc": 0.875}
    # A run that did not test at north is not the better for it.
    assert compute_further_averages(classes(), ["east", "west", "north"]) == {}
    # A segmentation has none.
    assert compute_further_averages(results(), ["east", "west"]) == {}
