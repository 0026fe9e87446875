import pytest

from silofl.report.method_rows import Method, averages_beside, rows_of


def cells(row):
    return dict(zip(("east", "west", "client average", "pooled"), row.cells, strict=True))


def test_a_row_has_the_values_of_all_seeds_by_site_then_both_means(method):
    (row,) = rows_of([method("fedavg", (0.5, 0.75), (0.25, 1.0))])
    assert cells(row) == {
        "east": (0.5, 0.25),
        "west": (0.75, 1.0),
        "client average": (0.625, 0.625),
        # (0.5 + 4 * 0.75) / 5 and (0.25 + 4 * 1) / 5
        "pooled": pytest.approx((0.7, 0.85)),
    }


def test_a_run_with_a_selector_gives_four_rows_and_personal_is_each_sites_own_model(fedsm):
    rows = {row.name: cells(row) for row in rows_of([fedsm])}
    assert list(rows) == ["fedsm super", "fedsm ensemble", "fedsm global", "fedsm personal"]
    assert (rows["fedsm ensemble"]["east"], rows["fedsm global"]["west"]) == ((0.625,), (0.25,))
    assert (rows["fedsm personal"]["east"], rows["fedsm personal"]["west"]) == ((0.75,), (0.5,))
    # (0.5 + 0.25) / 2, and (1 * 0.5 + 4 * 0.25) / 5
    assert rows["fedsm global"]["client average"] == (0.375,)
    assert rows["fedsm global"]["pooled"] == pytest.approx((0.3,))


def test_a_run_without_a_value_at_a_site_has_no_means(method):
    (row,) = rows_of([method("fedavg", (0.5, None), (0.25, 1.0))])
    assert cells(row)["west"] == (1.0,) and cells(row)["client average"] == (0.625,)


def test_averages_beside_the_metric_stand_after_the_pooled_mean(method):
    also = {"east": {"balanced_accuracy": 0.5, "auroc": 0.75}, "west": {"balanced_accuracy": 0.25}}
    everyone = {"accuracy": 0.5, "balanced_accuracy": 0.125, "num_cases": 5}
    methods = [method("fedavg", (0.5, 0.75), metric="accuracy", also=also, everyone=everyone), method("local", (1, 1))]
    assert averages_beside(methods) == ["balanced_accuracy", "auroc", "everyone_balanced_accuracy"]
    fedavg, local = rows_of(methods)
    # (0.5 + 0.25) / 2; the one AUROC there is; the value as it came
    assert fedavg.averages[2:] == ((0.375,), (0.75,), (0.125,))
    assert local.averages[2:] == ((), (), ())


def test_a_method_was_to_run_with_its_finished_and_its_unfinished_seeds(method):
    finished = method("fedavg", (0.5, 0.75))
    assert Method("fedavg", finished.results, unfinished={1: "no disk"}).num_seeds == 2
