"""Each hospital in each method: the table, the figure and the sentences that follow from the numbers."""

from dataclasses import replace
from pathlib import Path

import pytest

from silofl.federation.ledger import Round
from silofl.inference.unseen import UnseenTest
from silofl.report.result_pictures import hospitals_image
from silofl.report.run_records import RunRecords
from silofl.schema import dump_record
from silofl.studies.hospitals import COLUMNS, conclude, explain_losses, hospital_table

from .conftest import SELECTOR_RECIPE
from .test_joining import joined


@pytest.fixture
def run(results):
    """Build the records of a run from its sites' choices."""

    def build(unseen=None, ledger=(), changes=None, **by_site):
        values = {"joining": {site: dump_record(one) for site, one in by_site.items()}}
        values |= {"sites": {site: one.test["federated"] for site, one in by_site.items()}}
        values |= {key: dict.fromkeys(by_site, 0) for key in ("cases", "excluded_cases")}
        values |= {"validation": {site: {"value": 0.5} for site in by_site}}
        found = results(**values | (changes or {}))
        fields = {"site": "coast", "fingerprint": "f", "metric": "dice", "rule": "mean", "num_cases": 3}
        fields |= {"num_counted": 3, "models": {}}
        tested = UnseenTest(value=unseen, **fields) if unseen is not None else None
        return RunRecords(Path("run"), found, list(ledger), {}, {}, unseen=tested)

    return build


def test_the_table_has_a_row_per_method_and_hospital_with_the_verdicts_numbers(run):
    kept = joined("local", local=0.75, federated=0.5, kept=0.75, verdict="keeps its own model")
    runs = {"fedavg": run(unseen=0.5, north=joined(local=0.5, federated=0.625, kept=0.75), south=kept)}
    table = hospital_table(runs)
    assert table.columns == COLUMNS
    # kept minus alone is 0.75 - 0.5 = 0.25, and its interval is joined()'s 0.01 to 0.2; unseen is the run's
    assert table.rows == (
        ("fedavg", "north", "0.500", "0.625", "0.750", "0.500", "gains +0.250 [0.010, 0.200]"),
        ("", "south", "0.750", "0.500", "0.750", "", "keeps its own model"),
    )


def test_a_run_without_a_choice_has_no_row_and_no_run_no_table(run, results):
    bare = RunRecords(Path("run"), results(), [], {}, {})
    assert hospital_table({"fedavg": bare}) is None and hospitals_image({"fedavg": [bare]}) is None
    assert conclude({"fedavg": [bare]}) == [] and explain_losses({"fedavg": bare}) == []


def test_the_conclusion_counts_verdicts_compares_means_and_names_the_best_at_the_unseen_hospital(run):
    lost = joined(local=0.75, federated=0.5, kept=0.625, verdict="loses")
    runs = {
        "fedavg": [run(unseen=0.5, north=joined(local=0.5, federated=0.25, kept=0.75), south=lost)],
        "adafed": [run(unseen=0.625, north=joined(local=0.5, federated=0.75, kept=0.75))],
    }
    first, second, third = conclude(runs)
    # fedavg: 1 of 2 gains, 1 loses; adafed: 1 of 1. Means kept: (0.75 + 0.625) / 2 = 0.6875 and 0.75
    assert "2 of 3" in first and "adafed 1 of 1" in first and "fedavg 1 of 2" in first and "1 loses" in first
    assert "adafed has the highest mean: 0.750, against 0.500 alone" in first
    # federated: (0.25 + 0.5) / 2 = 0.375 against (0.5 + 0.75) / 2 = 0.625 alone
    assert "1 of 2 federated models" in second and "fedavg 0.375 (alone 0.625)" in second and "adafed" not in second
    assert "coast" in third and "adafed scores highest (0.625)" in third and "fedavg lowest (0.500)" in third


def test_nothing_is_said_of_what_did_not_happen(run):
    first, second = conclude({"adafed": [run(north=joined(local=0.5, federated=0.75, kept=0.75))]})
    assert "lose" not in first
    assert second == "No method's federated model scores below training alone on average."


def test_a_federated_model_that_loses_is_explained_by_what_was_measured(run):
    ledger = [Round(1, dissimilarity=3.0), Round(2, dissimilarity=2.0)]
    bad = joined(local=0.75, federated=0.25, kept=0.75)
    recipe = {"stays_home": "nothing"}
    build = {"changes": None}
    records = run(ledger=ledger, north=joined(local=0.75, federated=0.625), south=bad, **build)
    records.results.recipe.update(recipe)
    (sentence,) = explain_losses({"fedavg": records})
    assert sentence.startswith("fedavg: furthest below training alone at south (0.250, alone 0.750).")
    # (3 + 2) / 2
    assert "BatchNorm" in sentence and "dissimilarity 2.5" in sentence


def test_a_loss_by_the_choice_names_the_patients_that_it_was_made_by_and_the_threshold(run):
    lost = joined(local=0.75, federated=0.8, kept=0.625, verdict="loses", num_units=2, lead=0.008, own_gain=0.03)
    (sentence,) = explain_losses({"fedsm": run(south=lost)})
    assert "south loses 0.125" in sentence
    assert "by 2 validation patients, on which the best mean of both models led by 0.008" in sentence
    assert "its own model gains 0.03 by its threshold" in sentence


def test_a_loss_without_a_measured_reason_says_so(run):
    records = run(north=joined(local=0.75, federated=0.5))
    records.results.recipe.update(stays_home="batchnorm")
    records = replace(records, results=replace(records.results, best_round=1))
    (sentence,) = explain_losses({"fedbn": records})
    assert sentence.endswith("The run measured nothing that tells why.")


def test_a_federated_model_whose_best_round_is_the_last_may_need_more(run):
    records = run(north=joined(local=0.75, federated=0.5))
    records.results.recipe.update(stays_home="batchnorm")
    (sentence,) = explain_losses({"fedbn": records})
    assert sentence.endswith("Its best round is the last of 2: more rounds may help.")


def test_a_selector_that_sends_cases_to_a_worse_model_is_named(run):
    models = {"south": {"global": 0.25, "south": 0.75, "north": 0.8}}
    selector = {"outputs": ["north", "south"], "cases": {}, "slices": {}}
    choices = {"south": {"south": 15, "global": 4, "north": 1}}
    changes = {"recipe": SELECTOR_RECIPE, "models": models, "choices": choices}
    changes |= {"selector": selector, "threshold": 0.9, "threshold_without": {}, "by_threshold": []}
    (sentence,) = explain_losses({"fedsm": run(changes=changes, south=joined(local=0.75, federated=0.5))})
    # north's model is the better one for south's cases, so that it explains no loss
    assert "There the selector gave 4 of 20 cases to model global (0.250; its own 0.750)." in sentence


def test_the_figure_says_its_numbers_to_who_does_not_see_it(run):
    image = hospitals_image({"fedavg": [run(north=joined(local=0.5, federated=0.625, kept=0.75))]})
    assert image.png.startswith(b"\x89PNG")
    assert image.alt == (
        "Test dice, mean over the hospitals: fedavg alone 0.500, federated 0.625, kept 0.750 (1 gains)."
    )


def test_the_figure_holds_each_seed_of_each_hospital_with_its_interval(run):
    one, other = (joined(local=0.5, federated=0.625, kept=kept) for kept in (0.75, 0.625))
    runs = [run(north=one), run(north=other, changes={"seed": 1})]
    plot = hospitals_image({"fedavg": runs}).plot
    assert plot.data().columns[:6] == ("method", "hospital", "seed", "alone", "federated", "kept")
    # gain is kept minus alone, its interval joined()'s
    assert plot.data().rows == (
        ("fedavg", "north", 0, 0.5, 0.625, 0.75, 0.25, 0.01, 0.2, "gains"),
        ("fedavg", "north", 1, 0.5, 0.625, 0.625, 0.125, 0.01, 0.2, "gains"),
    )
    (axes,) = plot.draw(5).axes
    intervals = [list(line.get_xdata()) for line in axes.lines if len(line.get_xdata()) == 2]
    # from alone + 0.01 to alone + 0.2
    assert intervals == [[0.51, 0.7], [0.51, 0.7]]


def test_several_seeds_of_a_method_are_one_count_and_one_mean(run):
    runs = [run(north=joined(local=0.5, kept=kept), changes={"seed": seed}) for seed, kept in enumerate((0.75, 0.5))]
    # (0.75 + 0.5) / 2
    assert "2 of 2 cases (fedavg 2 of 2); fedavg has the highest mean: 0.625" in conclude({"fedavg": runs})[0]


def test_methods_share_one_scale_and_one_list_of_hospitals(run):
    first, second = joined(local=0.25, federated=0.5, kept=0.5), joined(local=0.75, federated=0.75, kept=1.0)
    plot = hospitals_image({"a": [run(north=first, south=first)], "b": [run(south=second)]}).plot
    left, right = plot.draw(10).axes
    assert left.get_xlim() == right.get_xlim() and left.get_ylim() == right.get_ylim()
    # south is the second of both lists
    assert {float(line.get_ydata()[0]) for line in right.lines} == {1.0}
