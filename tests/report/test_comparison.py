from pathlib import Path

import pytest

from silofl.report.run_records import RunRecords
from silofl.studies.comparison import (
    are_comparable,
    compared_sites,
    comparison_notes,
    comparison_table,
    print_comparison,
    site_comparison_table,
)
from silofl.studies.method_rows import (
    Method,
    compute_further_averages,
    find_leading_places,
    is_clearly_above,
    list_further_averages,
    make_method_rows,
)


def test_the_sites_of_all_runs_are_compared(results):
    assert compared_sites([results(sites={"west": 1.0}), results(sites={"east": None})]) == ["east", "west"]


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


def test_a_site_without_a_count_of_excluded_cases_has_none(results):
    assert are_comparable([results(), results(excluded_cases={"west": 2})])


def test_a_run_that_lacks_a_site_is_not_compared_however_high_its_mean(results):
    lacking = results(sites={"east": 0.9, "west": None}, mean=0.9)
    runs = [lacking, results(mean=0.5), results(mean=0.6)]
    assert "Run 1 has no value at west: its mean says nothing beside the others." in comparison_notes(runs)


@pytest.mark.parametrize(
    "changes",
    [
        {"metric": "dice_with_background"},
        {"regions": {"all": [1]}},
        {"split_unit": "slices"},
        {"cases": {"east": 1, "west": 5}},
    ],
)
def test_runs_that_measure_different_things_are_not_compared(results, changes):
    assert not are_comparable([results(), results(**changes)])


def test_runs_can_be_compared_where_they_measure_the_same(results):
    assert are_comparable([results(mean=0.1), results(mean=0.2)])
    assert not are_comparable([results(), results(metric="accuracy")])


def test_excluded_cases_are_test_cases_too(results):
    # 4 + 2 cases at west in both
    counts = {"cases": {"east": 1, "west": 6}, "excluded_cases": {"east": 0, "west": 0}}
    assert are_comparable([results(), results(**counts)])


def test_runs_without_any_site_are_told(results):
    failed = results(status="FAILED")
    assert "has no value at any site" in comparison_notes([failed, failed])[0]


def test_many_missing_sites_are_counted_instead_of_named(results):
    many = results(sites={f"site-{i}": 0.5 for i in range(5)})
    assert "has no value at 5 of 7 sites" in comparison_notes([results(), many])[0]


def test_caveats_name_the_runs_they_hold_for(results):
    notes = comparison_notes([results(), *[results(normalization="batch_stateless", split_unit="slices")] * 2])
    assert "Runs 2, 3: a prediction depends on the batch it stands in." in notes
    assert "Runs 2, 3: split by slices, same person in training and test." in notes


def test_runs_that_score_regions_name_them(results):
    notes = comparison_notes([results(), results(regions={"all": [1]})])
    assert "Run 2: scored are regions, all (organ)." in notes
    assert not any("regions" in note for note in comparison_notes([results()]))


def test_every_comparison_says_that_one_seed_marks_no_best(results, printed):
    runs = [results(mean=0.5), results(mean=0.9)]
    assert comparison_notes(runs)[-1].startswith("Each row is one run with one seed, so that no value is marked")
    assert not comparison_table(runs).best_cells and "*" not in printed(print_comparison, records(*runs), width=200)


def test_shared_batchnorm_is_said_beside_runs_that_keep_it_at_home(results):
    shared = results(normalization="batch", recipe={"stays_home": "nothing"})
    local = results(normalization="batch", recipe={"stays_home": "batchnorm"})
    assert any(note.startswith("Run 1: BatchNorm is shared") for note in comparison_notes([shared, local]))
    assert not any("BatchNorm is shared" in note for note in comparison_notes([shared, shared]))


def test_a_head_at_home_leaves_batchnorm_shared(results):
    head, local = (results(normalization="batch", recipe={"stays_home": home}) for home in ("head", "batchnorm"))
    assert any(note.startswith("Run 1: BatchNorm is shared") for note in comparison_notes([head, local]))


def cells(row):
    return dict(zip(("east", "west", "client average", "pooled"), row.cells, strict=True))


def test_a_row_has_the_values_of_all_seeds_by_site_then_both_means(method):
    (row,) = make_method_rows([method("fedavg", (0.5, 0.75), (0.25, 1.0))])
    assert cells(row) == {
        "east": (0.5, 0.25),
        "west": (0.75, 1.0),
        "client average": (0.625, 0.625),
        # (0.5 + 4 * 0.75) / 5 and (0.25 + 4 * 1) / 5
        "pooled": pytest.approx((0.7, 0.85)),
    }


def test_a_run_with_a_selector_gives_four_rows_and_personal_is_each_sites_own_model(fedsm):
    rows = {row.name: cells(row) for row in make_method_rows([fedsm])}
    assert list(rows) == ["fedsm super", "fedsm ensemble", "fedsm global", "fedsm personal"]
    assert (rows["fedsm ensemble"]["east"], rows["fedsm global"]["west"]) == ((0.625,), (0.25,))
    assert (rows["fedsm personal"]["east"], rows["fedsm personal"]["west"]) == ((0.75,), (0.5,))
    # (0.5 + 0.25) / 2, and (1 * 0.5 + 4 * 0.25) / 5
    assert rows["fedsm global"]["client average"] == (0.375,)
    assert rows["fedsm global"]["pooled"] == pytest.approx((0.3,))


def test_models_of_one_exchange_have_no_row_of_a_global_one(method):
    models = {"east": {"east": 0.75, "ensemble": 0.625, "super": 0.75}, "west": {"west": 0.5, "super": 0.5}}
    rows = make_method_rows([method("oneshot", (0.75, 0.5), models=models)])
    assert [row.name for row in rows] == ["oneshot super", "oneshot ensemble", "oneshot personal"]


def test_a_run_without_a_value_at_a_site_has_no_means(method):
    (row,) = make_method_rows([method("fedavg", (0.5, None), (0.25, 1.0))])
    assert cells(row)["west"] == (1.0,) and cells(row)["client average"] == (0.625,)


def test_averages_beside_the_metric_stand_after_the_pooled_mean(method):
    also = {"east": {"balanced_accuracy": 0.5, "auroc": 0.75}, "west": {"balanced_accuracy": 0.25}}
    everyone = {"accuracy": 0.5, "balanced_accuracy": 0.125, "num_cases": 5}
    methods = [method("fedavg", (0.5, 0.75), metric="accuracy", also=also, everyone=everyone), method("local", (1, 1))]
    assert list_further_averages(methods) == ["balanced_accuracy", "auroc", "everyone_balanced_accuracy"]
    fedavg, local = make_method_rows(methods)
    # (0.5 + 0.25) / 2; the one AUROC there is; the value as it came
    assert fedavg.averages[2:] == ((0.375,), (0.75,), (0.125,))
    assert local.averages[2:] == ((), (), ())


def test_a_method_was_to_run_with_its_finished_and_its_unfinished_seeds(method):
    finished = method("fedavg", (0.5, 0.75))
    assert Method("fedavg", finished.results, unfinished={1: "no disk"}).num_seeds == 2


def test_averages_are_over_all_sites_and_that_of_the_auroc_over_those_that_have_one(classes):
    # (0.25 + 0.75) / 2
    assert compute_further_averages(classes(), ["east", "west"]) == {"balanced_accuracy": 0.5, "auroc": 0.875}
    assert compute_further_averages(classes(), ["east", "west", "north"]) == {"auroc": 0.875}


def records(*results):
    return [RunRecords(Path("run"), one, [], {}, {}) for one in results]


def test_what_differs_is_printed_above_the_table(results, printed):
    text = printed(print_comparison, records(results(), results(rounds=5)), width=200)
    sentence = "The rows differ in rounds: 2 (1: harmofl); 5 (2: harmofl); more of them are more training."
    assert 0 <= text.index(sentence) < text.index("status")


def test_numbers_are_never_cropped_in_a_narrow_terminal(results, printed):
    sites = {f"a_long_name_of_hospital_{i}": 0.1 * i for i in range(1, 9)}
    text = printed(print_comparison, records(results(sites=sites), results(sites=sites)), width=40)
    assert all(f"{value:.3f}" in text for value in sites.values()) and "…" not in text


def test_a_comparison_has_one_row_a_run_and_one_column_a_site(results):
    table = comparison_table([results(), results(algorithm="fedavg", sites={"east": 0.25}, mean=0.25, spread=0.0)])
    assert table.columns[-5:] == ("mean", "spread", "pooled", "east", "west")
    assert table.rows[0][:7] == ("1", "small", "harmofl", "recommended", "batch", "0", "COMPLETE")
    assert table.rows[1][-5:] == ("0.250", "0.000", "0.700", "0.250", "-")


def test_surface_distances_are_means_over_sites_beside_the_other_means(results):
    surface = {"hd95": 4.0, "surface_dice": 0.5, "num_cases": 1, "num_undefined": 0}
    with_surface = results(surface={"east": surface, "west": surface | {"hd95": 5.0}})
    table = comparison_table([with_surface, results()])
    assert table.columns[-5:] == ("pooled", "HD95", "surface Dice", "east", "west")
    # (4 + 5) / 2
    assert [row[-4:-2] for row in table.rows] == [("4.5 px", "0.500"), ("-", "-")]
    assert any("HD95" in note for note in comparison_notes([with_surface]))
    assert not any("HD95" in note for note in comparison_notes([results()]))


def test_metrics_of_packages_are_means_over_sites_by_package_and_version(results):
    one, other = ({"east": {f"a=={v}/overlap": {"value": 0.25 * v, "num_cases": 1}}} for v in (1, 2))
    one |= {"west": {"a==1/overlap": {"value": 0.75, "num_cases": 2}}}
    runs = [results(extra_metrics=one), results(extra_metrics=other), results()]
    table = comparison_table(runs)
    assert table.columns[-5:] == ("pooled", "overlap", "overlap", "east", "west")
    # (0.25 + 0.75) / 2
    assert [row[-4:-2] for row in table.rows] == [("0.500", "-"), ("-", "0.500"), ("-", "-")]
    assert [note for note in comparison_notes(runs) if "of the package a==2" in note]


def test_many_sites_of_several_runs_stand_in_rows_of_a_second_table(results, printed):
    sites = {f"s{i}": 0.125 * i for i in range(9)}
    runs = [results(sites=sites), results(sites={"s1": 0.5}, algorithm="fedavg")]
    assert comparison_table(runs).columns[-1] == "pooled"
    table = site_comparison_table(runs)
    assert table.columns == ("site", "1: harmofl", "2: fedavg") and len(table.rows) == 9
    assert table.rows[1] == ("s1", "0.125", "0.500") and table.rows[2] == ("s2", "0.250", "-")
    assert "s8" in printed(print_comparison, records(*runs))
    assert site_comparison_table([results()]) is None


def test_a_segmentation_has_no_averages_beside_its_metric(results):
    assert compute_further_averages(results(), ["east", "west"]) == {}
