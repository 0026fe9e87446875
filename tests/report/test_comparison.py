import pytest

from silofl.report.comparison import are_comparable, best_runs, compared_sites, comparison_notes


def test_the_sites_of_all_runs_are_compared(results):
    assert compared_sites([results(sites={"west": 1.0}), results(sites={"east": None})]) == ["east", "west"]


def test_the_highest_mean_is_the_best(results):
    assert best_runs([results(mean=0.5), results(mean=0.7), results(mean=0.6)]) == {1}


def test_means_that_read_the_same_tie_and_the_tie_is_said(results):
    runs = [results(mean=0.7001), results(mean=0.5), results(mean=0.6999)]
    assert best_runs(runs) == {0, 2}
    assert any("tie" in note for note in comparison_notes(runs))


def test_a_run_that_lacks_a_site_is_not_compared_however_high_its_mean(results):
    lacking = results(sites={"east": 0.9, "west": None}, mean=0.9)
    runs = [lacking, results(mean=0.5), results(mean=0.6)]
    assert best_runs(runs) == {2}
    assert "Run 1 is left out of the choice of the best: it has no value at west." in comparison_notes(runs)


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"metric": "dice_with_background"}, "metric"),
        ({"split_unit": "slices"}, "how patients are split"),
        ({"cases": {"east": 1, "west": 5}}, "the number of test cases"),
    ],
)
def test_no_mean_is_the_best_where_runs_measure_different_things(results, changes, difference):
    runs = [results(mean=0.5), results(mean=0.9, **changes)]
    assert best_runs(runs) == frozenset()
    assert f"No mean is marked as the best: the runs differ in {difference}." in comparison_notes(runs)


def test_runs_can_be_compared_where_they_measure_the_same(results):
    assert are_comparable([results(mean=0.1), results(mean=0.2)])
    assert not are_comparable([results(), results(metric="accuracy")])


def test_excluded_cases_are_test_cases_too(results):
    # 4 + 2 cases at west in both
    assert best_runs([results(mean=0.5), results(cases={"east": 1, "west": 6}, excluded_cases={}, mean=0.6)]) == {1}


def test_a_single_run_is_not_called_the_best(results):
    assert best_runs([results()]) == frozenset()
    assert "fewer than two runs" in comparison_notes([results()])[0]


def test_runs_without_any_site_have_no_best():
    failed = {"status": "FAILED", "sites": {}}
    assert best_runs([failed, failed]) == frozenset()
    assert "it has no value at any site" in comparison_notes([failed, failed])[0]


def test_many_missing_sites_are_counted_instead_of_named(results):
    many = results(sites={f"site-{i}": 0.5 for i in range(5)})
    assert "it has no value at 5 of 7 sites" in comparison_notes([results(), many])[0]


def test_caveats_name_the_runs_they_hold_for(results):
    notes = comparison_notes([results(), *[results(normalization="batch_stateless", split_unit="slices")] * 2])
    assert "Runs 2, 3: a prediction depends on the batch it stands in." in notes
    assert "Runs 2, 3: split by slices, same person in training and test." in notes


def test_every_comparison_says_that_one_seed_is_one_seed(results):
    assert "other seeds" in comparison_notes([results(), results()])[-1]


def test_shared_batchnorm_is_said_beside_runs_that_keep_it_at_home(results):
    shared = results(normalization="batch", recipe={"stays_home": "nothing"})
    local = results(normalization="batch", recipe={"stays_home": "batchnorm"})
    assert any(note.startswith("Run 1: BatchNorm is shared") for note in comparison_notes([shared, local]))
    assert not any("BatchNorm is shared" in note for note in comparison_notes([shared, shared]))


def test_a_head_at_home_leaves_batchnorm_shared(results):
    head, local = (results(normalization="batch", recipe={"stays_home": home}) for home in ("head", "batchnorm"))
    assert any(note.startswith("Run 1: BatchNorm is shared") for note in comparison_notes([head, local]))
