from pathlib import Path

import pytest

from silofl.core.gain import WORSE
from silofl_desk.report.run_records import RunRecords, read_run
from silofl_desk.studies.comparison import (
    AT_HALF,
    are_comparable,
    compare_drift,
    compare_joining,
    compared_sites,
    comparison_notes,
    comparison_table,
    list_limits,
)
from silofl_desk.studies.comparison_page import print_comparison
from silofl_desk.studies.conditions import rows_by_name
from tests.report.conftest import counts, joined, with_data

LOSING = joined(kept=0.5, verdict=WORSE, p_below=0.001)


@pytest.mark.parametrize(
    ("changes", "are_alike"),
    [
        ({"mean": 0.1}, True),
        # A site without a count of excluded cases has none.
        ({"excluded_cases": {"west": 2}}, True),
        # Excluded cases are test cases too: 4 + 2 at west in both.
        ({"cases": {"east": 1, "west": 6}, "excluded_cases": {"east": 0, "west": 0}}, True),
        ({"metric": "dice_with_background"}, False),
        ({"regions": {"all": [1]}}, False),
        ({"split_unit": "slices"}, False),
        ({"cases": {"east": 1, "west": 5}}, False),
        ({"sites": {"east": 0.5, "west": None}, "cases": {"east": 1}, "excluded_cases": {"east": 0}}, True),
    ],
)
def test_runs_are_compared_where_they_measure_the_same(made, changes, are_alike):
    assert are_comparable([made(), made(**changes)]) is are_alike


def test_runs_on_other_data_are_not_compared_however_many_test_cases_they_have(made):
    # Nor where a site has no value in any run, as an AUROC where all test cases are of one class.
    for values in ({"east": 0.9, "west": 0.9}, {"east": 0.9, "west": None}):
        first, same, other = (
            with_data(made(sites=values), west=counts(8, 2, 2, digest=digest)) for digest in ("01", "01", "02")
        )
        assert are_comparable([first, same]) and not are_comparable([first, same, other])


def test_a_run_that_lacks_sites_is_not_compared_however_high_its_mean(results):
    assert compared_sites([results(sites={"west": 1.0}), results(sites={"east": None})]) == ["east", "west"]
    lacking = results(sites={"east": 0.9, "west": None}, mean=0.9)
    runs = [lacking, results(mean=0.5), results(mean=0.6)]
    assert "Run 1 has no value at west: do not compare its mean with the others'." in comparison_notes(runs)
    many, failed = results(sites={f"site-{i}": 0.5 for i in range(5)}), results(status="FAILED")
    assert "has no value at 5 of 7 sites" in comparison_notes([results(), many])[0]
    assert "has no value at any site" in comparison_notes([failed, failed])[0]


def test_caveats_name_the_runs_they_hold_for(results):
    other = results(normalization="batch_stateless", split_unit="slices", regions={"all": [1]})
    notes = list_limits({"run 1": [results()], "run 2": [other], "run 3": [other]})
    label = "batch_stateless (a prediction depends on the other images of its batch)"
    assert f"Normalization: batch (run 1); {label} (run 2, run 3)." in notes
    assert "Split: by patient (run 1); by slices, same person in training and test (run 2, run 3)." in notes
    assert "Regions: each label (run 1); all (organ) (run 2, run 3)." in notes
    assert not any("Regions" in note for note in list_limits({"run 1": [results()]}))


def test_a_comparison_of_one_seed_says_that_it_marks_no_best(results, printed):
    runs = [results(mean=0.5), results(mean=0.9, seed=1)]
    assert not comparison_table(runs)[0].best_cells
    text, sentence = printed(print_comparison, records(*runs), width=200), "Each row is one run with one random seed."
    assert sentence in text and "*" not in text
    # Rows of two seeds have a table of their own, which marks what is best.
    both = {"fedavg": [run for of_row in records(*runs).values() for run in of_row]}
    assert sentence not in printed(print_comparison, both, width=200)


@pytest.mark.parametrize("home", ["nothing", "head"])
def test_shared_batchnorm_is_said_beside_runs_that_keep_it_at_home(results, home):
    shared, local = (results(normalization="batch", recipe={"stays_home": one}) for one in (home, "batchnorm"))
    assert "run 1: BatchNorm is shared" in "\n".join(list_limits({"run 1": [shared], "run 2": [local]}))
    assert "BatchNorm is shared" not in "\n".join(list_limits({"run 1": [shared], "run 2": [shared]}))


def records(*results):
    return rows_by_name([RunRecords(Path("run"), one, [], {}, {}) for one in results])


@pytest.mark.parametrize("federated", [0.3, 0.8])
def test_values_at_the_usual_threshold_are_said_to_be_so_where_the_hospitals_own_move_them(joining, federated):
    one = joined(test={"local": 0.7, "federated": federated, "federated_calibrated": 0.8, "chosen": 0.8})
    assert (AT_HALF in list_limits({"run 1": [joining(east=one)]})) == (federated == 0.3)


def test_a_row_whose_models_may_all_have_guessed_is_named(results):
    def tested(accuracy):
        also = {site: {"accuracy": accuracy, "balanced_accuracy": accuracy} for site in ("east", "west")}
        cases = {site: {"healthy": 25, "sick": 25} for site in also}
        return results(metric="accuracy", also=also, label_cases=cases)

    notes = list_limits({"run 1": [tested(0.9)], "run 2": [tested(0.5)], "run 3": [results()]})
    assert [note for note in notes if "guessing" in note] == ["run 2: no model is shown to be better than guessing."]


def test_numbers_are_never_cropped_in_a_narrow_terminal(results, printed):
    sites = {f"a_long_name_of_hospital_{i}": 0.1 * i for i in range(1, 9)}
    text = printed(print_comparison, records(results(sites=sites), results(sites=sites)), width=40)
    assert all(f"{value:.3f}" in text for value in sites.values()) and "…" not in text


def test_a_comparison_has_one_row_a_run_with_its_means(results):
    other = results(algorithm="fedavg", sites={"east": 0.25}, mean=0.25, spread=0.0)
    table, shared = comparison_table([results(), other])
    assert table.columns == ("run", "algorithm", "reported round", "mean", "spread", "pooled") and table.num_text == 2
    assert table.rows[1] == ("2", "fedavg", "2", "0.250", "0.000", "0.700")
    assert shared == "study small, preset recommended, normalization batch, seed 0, status COMPLETE"
    alone, shared = comparison_table([results()])
    assert alone.rows[0][:7] == ("1", "small", "harmofl", "recommended", "batch", "0", "COMPLETE") and shared == ""


def test_a_row_has_the_mean_over_rounds_and_its_deviation_over_seeds(measured, run, results, record):
    plain = read_run(run("b").json("results.json", results()).study().ledger(record(1, drift=None)).path)
    drifting = [read_run(measured("a0", 0.1, 0.3)), read_run(measured("a1", 0.4, 0.4))]
    # means of the seeds .2 and .4: .3, deviation .141
    rows = (("a", "0.3 ± 0.14", "2 ± 0"), ("b", "-", "-"))
    assert compare_drift({"a": drifting, "b": [plain]}).rows == rows
    assert compare_drift({"b": [plain]}) is None


def test_a_comparison_has_a_row_for_what_joining_gave_in_the_seeds_of_each_row(joining, results):
    own = joined("local", 0.9, 0.4, 0.9, "keeps its own model")
    rows = {
        "fedbn": [joining(east=joined(p_below=0.9), west=own), joining(east=joined(p_below=0.9), west=LOSING)],
        "local": [results()],
        "harmofl": [joining(east=joined(p_below=0.02, verdict=WORSE))],
    }
    fedbn, harmofl = compare_joining(rows).table.rows
    # Kept 0.85 and 0.9, then 0.85 and 0.5; alone 0.7 and 0.9, then 0.7 twice; 0.001 times 4 tests.
    assert fedbn[:2] == ("fedbn", "2 better, 1 worse, 1 own model kept")
    assert fedbn[2:] == ("0.750 ± 0.071", "0.700 ± 0.141", "0.775 ± 0.141", "1 of 3", "1")
    test = dict.fromkeys(("federated", "federated_calibrated", "chosen"), 0.9) | {"local": 0.75}
    moved = {"fedbn": [joining(east=joined(test=test | {"local_uncalibrated": 0.5}))]}
    assert compare_joining(moved).table.columns[2:5] == ("alone", "alone at 0.5", "federated")
    assert compare_joining(moved).table.rows[0][2:5] == ("0.750", "0.500", "0.900")
    # It loses by itself, and 0.02 times 3 is above 5 %.
    assert harmofl == ("harmofl", "1 worse", "0.700", "0.800", "0.850", "1 of 1", "0")
    assert compare_joining({"local": [results()]}) is None


def test_no_more_sites_are_below_alone_after_the_correction_than_before_it(joining):
    """Five units that are all worse: too few to say, with p 1 / 32."""
    few = joined(verdict="too few to say", p_below=1 / 32)
    assert compare_joining({"fedbn": [joining(east=few)]}).table.rows[0][-2:] == ("0 of 1", "0")


def test_sites_that_lose_are_named_and_means_over_other_sites_or_seeds_said_to_be_no_rivals(joining):
    both, one = joining(east=joined(), west=joined()), joining(east=joined())
    assert "Do not compare the means of rows" in compare_joining({"fedavg": [both], "fedbn": [one]}).note
    assert "Do not compare the means of rows" not in compare_joining({"fedavg": [both], "fedbn": [both]}).note
    (sentence,) = compare_joining({"fedbn": [one, joining(west=LOSING)]}).losses
    assert sentence.startswith("fedbn, seed 0: west: the model that it keeps scores 0.500, its own model 0.700")


def test_a_comparison_is_printed_with_what_joining_gave_first(joining, printed):
    text = printed(print_comparison, records(joining(east=LOSING), joining(east=joined())), width=200)
    assert text.index("BAD  1: ") < text.index("verdicts") < text.index("reported round")
