import json
from pathlib import Path

import pytest

from silofl.core.presets import find_recipe
from silofl_desk.report.run_records import RunRecords, read_run
from silofl_desk.studies.comparisons.comparison import (
    MARKED,
    ONE_SEED,
    UNLIKE,
    are_comparable,
    compute_further_averages,
    find_best,
    is_clearly_above,
    list_notes,
    list_values,
    methods_table,
    methods_values,
    pivot,
)
from tests.report.conftest import counts, with_data

FEDERATED = {"stays": "nothing", "extra_rounds": 0}


def records(*methods):
    """Return the rows of some methods, each as name -> results."""
    return {
        name: [RunRecords(Path("run"), one, [], {}, {}) for one in runs]
        for method in methods
        for name, runs in method.items()
    }


def twice(method, name, *values, **changes):
    """Build a method with the same values at east and west with two seeds, so that the seeds' spread is 0."""
    return method(name, values, values, **changes)


def marked(*methods):
    """Return the (row, column) of the cells that are marked as the best."""
    return methods_table(records(*methods)).best_cells


def notes(*methods):
    return "\n".join(list_notes(records(*methods)))


def test_the_table_has_a_row_a_method_in_the_order_given_with_the_means_over_seeds(method):
    table = methods_table(records(method("b", (0.5, 0.75), (0.25, 1.0)), method("a", (0.5, None)), {"fedprox": []}))
    assert table.columns == ("method", "east", "west", "client average", "pooled mean")
    # pooled (0.5 + 4 * 0.75) / 5 and (0.25 + 4 * 1) / 5
    assert table.rows[0] == ("b", "0.375 ± 0.177", "0.875 ± 0.177", "0.625 ± 0.000", "0.775 ± 0.106")
    # A mean counts only where each site has a value.
    assert table.rows[1:] == (("a", "0.500", "-", "-", "-"), ("fedprox", *"----"))


def test_a_run_with_a_selector_gives_four_rows_and_personal_is_each_sites_own_model(fedsm):
    rows = pivot(list_values(records(fedsm)))
    assert list(rows) == ["fedsm super", "fedsm global", "fedsm personal", "fedsm ensemble"]
    assert (rows["fedsm personal"]["east"], rows["fedsm personal"]["west"]) == ([0.75], [0.5])
    # (0.5 + 0.25) / 2, and (1 * 0.5 + 4 * 0.25) / 5
    assert rows["fedsm global"]["client average"] == [0.375]
    assert rows["fedsm global"]["pooled mean"] == pytest.approx([0.3])
    assert "which needs the site's name" in notes(fedsm)


def test_many_sites_and_long_averages_stand_in_rows(results):
    sites = {f"a_long_name_of_hospital_{number}": 0.5 for number in range(5)}
    table = methods_table(records({"a": [results(sites=sites)], "b": [results(sites=sites)]}))
    assert table.columns == ("site", "a", "b") and table.rows[0] == ("a_long_name_of_hospital_0", "0.500", "0.500")


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
        # one seed has no spread
        ((0.9,), (0.5, 0.5), False),
    ],
)
def test_a_mean_leads_by_more_than_the_seeds_spread(values, others, expected):
    assert is_clearly_above(values, others) is expected
    assert find_best({"a": values, "b": others}) == ("a" if expected else None)


def test_a_row_is_the_best_where_it_leads_all_that_have_every_seed(method):
    a, b = twice(method, "a", 0.5, 0.9), twice(method, "b", 0.75, 0.5)
    # east, west, client average; pooled (0.5 + 3.6) / 5 and (0.75 + 2) / 5
    assert marked(a, b) == {(1, 1), (0, 2), (0, 3), (0, 4)}
    assert MARKED in notes(a, b)
    assert marked(a) == frozenset() == marked(method("a", (0.9, 0.9)), method("b", (0.1, 0.1)))
    assert ONE_SEED in notes(method("a", (0.9, 0.9)), method("b", (0.1, 0.1)))
    # A row that lacks a seed is not compared.
    thrice = [method(name, *[values] * 3) for name, values in (("a", (0.5, 0.9)), ("b", (0.75, 0.5)))]
    assert marked(*thrice, twice(method, "c", 0.95, 0.95)) == marked(a, b)
    local, pooled = twice(method, "local", 0.95, 0.95), twice(method, "centralised", 1.0, 1.0)
    assert marked(local, a, pooled) == {(0, column) for column in range(1, 5)}
    assert "centralised: these rows need the data of all sites pooled" in notes(local, a, pooled)
    assert methods_table(records(pooled)).rows[0][0] == "centralised (data pooled: simulation only)"


def test_nothing_is_marked_where_rows_measure_other_things_or_the_first_may_guess(method):
    other = twice(method, "b", 0.75, 0.5, metric="dice_with_background")
    assert not marked(twice(method, "a", 0.5, 0.9), other) and UNLIKE in notes(twice(method, "a", 0.5, 0.9), other)

    def tested(name, value, count):
        values = {"also": {"accuracy": value}, "label_cases": dict.fromkeys(("ill", "well"), count)}
        by_site = {key: dict.fromkeys(("east", "west"), one) for key, one in values.items()}
        return twice(method, name, value, value, metric="accuracy", **by_site)

    # Of 8 cases 6 right ones show nothing.
    guess = tested("a", 0.75, 2)
    assert not marked(guess, tested("c", 0.7, 100)) and marked(guess, tested("c", 0.8, 100))
    assert "\na: no model is shown to be better than guessing." in notes(guess, tested("c", 0.7, 100))


@pytest.mark.parametrize(
    ("changes", "are_alike"),
    [
        ({"mean": 0.1}, True),
        # Excluded cases are test cases too: 4 + 2 at west in both.
        ({"cases": {"east": 1, "west": 6}, "excluded_cases": {"east": 0, "west": 0}}, True),
        ({"metric": "dice_with_background"}, False),
        ({"regions": {"all": [1]}}, False),
        ({"split_unit": "slices"}, False),
        ({"cases": {"east": 1, "west": 5}}, False),
    ],
)
def test_runs_are_compared_where_they_measure_the_same(made, changes, are_alike):
    assert are_comparable([made(), made(**changes)]) is are_alike


def test_runs_on_other_data_are_not_compared_however_many_test_cases_they_have(made):
    first, same, other = (with_data(made(), west=counts(8, 2, 2, digest=digest)) for digest in ("01", "01", "02"))
    assert are_comparable([first, same]) and not are_comparable([first, same, other])


def test_averages_are_over_all_sites_and_that_of_the_auroc_over_those_that_have_one(classes, results):
    # (0.25 + 0.75) / 2
    assert compute_further_averages(classes(), ["east", "west"]) == {"balanced_accuracy": 0.5, "auroc": 0.875}
    # A run that did not test at north is not the better for it; a segmentation has none.
    assert compute_further_averages(classes(), ["east", "west", "north"]) == {}
    assert compute_further_averages(results(), ["east", "west"]) == {}
    # Means over different classes have no average; a site of one class has no area, and the others have an average.
    cases = {"east": {"a": 2, "b": 2}, "west": {"a": 2, "b": 2, "c": 1}}
    assert compute_further_averages(classes(label_cases=cases), ["east", "west"]) == {}
    assert [*compute_further_averages(classes(label_cases=cases | {"west": {"a": 3}}), ["east", "west"])] == ["auroc"]


def test_the_drift_is_a_column_by_its_digits_and_never_the_best(measured, run, results, record):
    plain = read_run(run("b").json("results.json", results()).study().ledger(record(1, metrics={})).path)
    drifting = [read_run(measured("a0", 0.1, 0.3)), read_run(measured("a1", 0.4, 0.4, seed=1))]
    table = methods_table({"a": drifting, "b": [plain]})
    assert table.columns[-2:] == ("drift of sites", "dissimilarity of updates")
    # means of the seeds .2 and .4: .3, deviation .141
    assert [row[-2:] for row in table.rows] == [("0.3 ± 0.14", "2 ± 0"), ("-", "-")] and not table.best_cells
    assert "HarmoFL, Eq. 9" in "\n".join(list_notes({"a": drifting}))
    assert "Eq. 9" not in "\n".join(list_notes({"b": [plain]}))


def test_the_rows_are_plain_values_for_programs(method, fedsm):
    values = methods_values(records(method("fedavg", (0.5, 0.75), (0.75, 0.75)), fedsm, {"fedprox": []}))
    assert json.loads(json.dumps(values, allow_nan=False)) == values
    # mean 0.625, deviation 0.125 * sqrt(2)
    east = {"mean": 0.625, "std": pytest.approx(0.125 * 2**0.5), "values": [0.5, 0.75]}
    assert values[0]["sites"]["east"] == east and values[0]["pooled"]["values"] == pytest.approx([0.7, 0.75])
    assert values[1]["name"] == "fedsm super" and values[1]["client_average"]["std"] is None
    assert values[-1]["client_average"] == {"mean": None, "std": None, "values": []}


@pytest.fixture
def described(results):
    def build(name="fedavg", seeds=(0,), **changes):
        return {name: [results(**{"recipe": FEDERATED, "seed": seed, **changes}) for seed in seeds]}

    return build


HOME = {"stays": "batchnorm"}
EXTRA = {"recipe": FEDERATED | {"extra_rounds": 50}}
ALONE = {"local_models": {"east": {"best_round": 3, "rounds": 5, "is_finished": True}}}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"split_unit": "slices"}, "Split: by patient (fedavg); by slices, same person in training and test (other)."),
        ({"normalization": "instance"}, "Normalization: batch (fedavg); instance (other)."),
        ({"regions": {"all": [1]}}, "Regions: each label (fedavg); all (organ) (other)."),
        ({"metric": "dice_with_background"}, "Metric: dice (fedavg); dice_with_background (other);"),
        (EXTRA, "Rounds: 2 (fedavg); 2 and 50 extra (other)."),
        (ALONE, "Rounds: 2 (fedavg); 2, then each site alone to its end, up to round 5 (other)."),
        ({"ended_early": "the run ended after round 1 of 2"}, "other, seed 0: COMPLETE: the run ended after round 1"),
        ({"status": "INCOMPLETE", "reasons": ["west missed [2]"]}, "other, seed 0: INCOMPLETE: west missed [2]"),
        ({"recipe": find_recipe("adafed", "paper", {}).as_dict()}, "other: these rows use a pretrained model"),
        ({"recipe": HOME}, "fedavg: BatchNorm is shared"),
        ({"mean": None, "metric": "accuracy"}, "other: the sites' tests show different classes"),
    ],
)
def test_a_note_says_what_a_row_is_and_what_limits_it(described, changes, sentence):
    assert sentence in notes(described(), described("other", **changes))
    assert sentence.split(" (")[0] not in notes(described()) or "(" in sentence
