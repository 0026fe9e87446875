import json

import pytest

from silofl.core.presets import find_recipe
from silofl_desk.studies.method_rows import make_method_rows
from silofl_desk.studies.method_table import methods_notes, methods_table, methods_values, rank_columns


def join(*methods):
    return {name: runs for method in methods for name, runs in method.items()}


def twice(method, name, *values, **changes):
    """Build a method with the same values at east and west with two seeds, so that the seeds' spread is 0."""
    return method(name, values, values, **changes)


def test_rows_stay_in_the_order_they_were_given_and_one_without_any_result_has_dashes(method):
    table = methods_table(twice(method, "second", 0.1, 0.1) | twice(method, "first", 0.9, 0.9), 2)
    assert [row[0] for row in table.rows] == ["second", "first", "winner"]
    assert table.columns == ("method", "east", "west", "client average", "pooled", "sites won")
    table = methods_table(method("fedavg", (0.5, 0.75)) | {"fedprox": []}, 1)
    assert table.rows[1] == ("fedprox", "-", "-", "-", "-")


def test_each_site_names_its_winner_and_each_method_its_sites(method):
    values = {"a": (0.5, 0.75), "b": (0.75, 0.5), "c": (0.25, 0.75)}
    table = methods_table(join(*(twice(method, name, *both) for name, both in values.items())), 2)
    assert table.columns[-1] == "sites won" and table.num_summary == 1
    # a and c are level at west
    assert [row[-1] for row in table.rows] == ["0", "1", "0", ""]
    # means 0.625, 0.625 and 0.5; pooled (0.5 + 3) / 5 = 0.7, (0.75 + 2) / 5 = 0.55 and (0.25 + 3) / 5 = 0.65
    assert table.rows[-1] == ("winner", "b", "none: 2 level", "none: 2 level", "a", "")
    assert table.best_cells == {(1, 1), (0, 4)}
    assert table.level_cells == {(0, 2), (2, 2), (0, 3), (1, 3)}


def test_rows_that_may_be_guesses_win_nothing_however_high_they_are(method):
    def tested(name, value, counts):
        values = {"also": {"accuracy": value}, "label_cases": dict.fromkeys(("ill", "well"), counts)}
        by_site = {key: dict.fromkeys(("east", "west"), one) for key, one in values.items()}
        return twice(method, name, value, value, metric="accuracy", **by_site)

    # Of 8 cases 6 right ones show nothing.
    guesses = tested("a", 0.75, 2) | tested("b", 0.5, 2)
    table = methods_table(guesses, 2)
    assert not table.best_cells | table.level_cells and "sites won" not in table.columns
    assert all(not row["sites_won"] and not row["sites_level"] for row in methods_values(guesses, 2))
    text = "\n".join(methods_notes(guesses, (0, 1)))
    assert "No value is marked as the best: no model is shown to be better than guessing.\n" in text
    # Where a guess leads another row nobody wins.
    mixed = tested("a", 0.75, 2) | tested("c", 0.7, 100)
    assert not methods_table(mixed, 2).best_cells
    text = "\n".join(methods_notes(mixed, (0, 1)))
    assert "Rows that may be guesses win nothing." in text and "\na: no model is shown to be better" in text
    assert methods_table(tested("a", 0.75, 2) | tested("c", 0.8, 100), 2).rows[-1][1:5] == ("c",) * 4


def test_a_lead_within_the_seeds_spread_is_none(method):
    # at east 0.6 and 0.5, deviations 0.1 * sqrt(2) = 0.141 and 0; at west 0.9 and 0.5, and 0.9 leads
    table = methods_table(method("a", (0.5, 0.9), (0.7, 0.9)) | twice(method, "b", 0.5, 0.5), 2)
    assert table.rows[-1][1:3] == ("none: 2 level", "a")
    assert table.best_cells >= {(0, 2)} and table.level_cells >= {(0, 1), (1, 1)}


def test_one_seed_marks_nothing_and_says_so(method):
    methods = method("a", (0.9, 0.9)) | method("b", (0.1, 0.1))
    table = methods_table(methods, 1)
    assert not table.best_cells | table.level_cells and "sites won" not in table.columns
    assert "No value is marked as the best: with one seed a difference can be chance" in notes(methods)


def test_local_training_can_win_and_pooled_data_cannot(method):
    local = twice(method, "local", 0.9, 0.9, recipe={"stays_home": "everything"})
    pooled = twice(method, "centralised", 1.0, 1.0)
    table = methods_table(local | twice(method, "a", 0.5, 0.75) | pooled, 2)
    assert table.rows[-1][1:5] == ("local",) * 4
    assert table.rows[2] == ("centralised (data pooled: simulation only)", *["1.000 ± 0.000"] * 4, "0")


def test_nobody_wins_where_values_say_different_things_or_nobody_is_compared(method):
    one, other = twice(method, "a", 0.5, 0.75), twice(method, "b", 0.75, 0.5)
    for table in (methods_table(one | other, 2, is_ranked=False), methods_table(one, 2)):
        assert table.best_cells == frozenset() and "sites won" not in table.columns
        assert "winner" not in [row[0] for row in table.rows]


def test_many_sites_stand_in_rows_with_their_winner_beside_them(results):
    def run(*values):
        sites = {f"s{i}": value for i, value in enumerate(values)}
        return [results(sites=sites, pooled=0.5, recipe={"stays_home": "nothing"})] * 2

    table = methods_table({"a": run(*[0.5] * 8, 0.25), "b": run(*[0.25] * 8, 0.5)}, 2)
    assert table.columns == ("site", "a", "b", "winner")
    assert table.rows[0] == ("s0", "0.500 ± 0.000", "0.250 ± 0.000", "a")
    assert table.rows[8] == ("s8", "0.250 ± 0.000", "0.500 ± 0.000", "b")
    # (8 * 0.5 + 0.25) / 9 and (8 * 0.25 + 0.5) / 9
    assert table.rows[9] == ("client average", "0.472 ± 0.000", "0.278 ± 0.000", "a")
    assert table.rows[10] == ("pooled", "0.500 ± 0.000", "0.500 ± 0.000", "none: 2 level")
    assert table.rows[11:] == (("sites won", "8", "1", ""),) and table.num_summary == 3
    assert table.best_cells == {*((i, 1) for i in range(8)), (8, 2), (9, 1)}
    assert table.level_cells == {(10, 1), (10, 2)}


def test_averages_beside_the_metric_turn_the_table_because_their_names_are_long(method):
    also = {site: {"balanced_accuracy": 0.5} for site in ("east", "west")}
    methods = (twice(method, name, 0.5, 0.75, metric="accuracy", also=also) for name in ("a", "b", "c"))
    table = methods_table(join(*methods), 2)
    assert table.columns == ("site", "a", "b", "c", "winner")
    assert table.rows[-2] == ("balanced accuracy (site average)", *["0.500 ± 0.000"] * 3, "none: 3 level")


def test_the_rows_are_plain_values_for_programs(method, fedsm):
    values = methods_values(method("fedavg", (0.5, 0.75), (0.75, 0.75)) | fedsm, 2)
    assert json.loads(json.dumps(values, allow_nan=False)) == values
    east = values[0]["sites"]["east"]
    # mean 0.625, deviation 0.125 * sqrt(2)
    assert east == {"mean": 0.625, "std": pytest.approx(0.125 * 2**0.5), "values": [0.5, 0.75]}
    assert values[1]["name"] == "fedsm super" and values[1]["client_average"]["std"] is None
    assert values[0]["is_federated"] and not values[0]["needs_pooled_data"]


def test_the_rows_for_programs_name_the_sites_won_and_the_averages_beside(method):
    also = {"east": {"balanced_accuracy": 0.5}, "west": {"balanced_accuracy": 0.25}}
    a = twice(method, "a", 0.5, 0.75, metric="accuracy", also=also)
    methods = a | twice(method, "b", 0.75, 0.75, metric="accuracy")
    a, b = methods_values(methods, 2)
    assert (a["sites_won"], b["sites_won"]) == ([], ["east"])
    assert a["sites_level"] == b["sites_level"] == ["west"]
    # (0.5 + 0.25) / 2
    assert a["also"] == {"balanced_accuracy": {"mean": 0.375, "std": 0.0, "values": [0.375, 0.375]}}
    assert b["also"]["balanced_accuracy"]["values"] == []
    others = methods_values(methods, 2, is_ranked=False)
    assert [row["sites_won"] + row["sites_level"] for row in others] == [[], []]


def test_a_row_is_compared_where_it_has_every_seed(method):
    rows = make_method_rows(
        method("a", (0.9, 0.9), (0.9, None), (0.9, 0.9))
        | method("b", *[(0.5, 0.5)] * 3)
        | method("c", *[(0.6, 0.4)] * 3)
    )
    east, west, average, _ = rank_columns(rows, 3)
    assert (east, west) == ([0], [1])
    # the average of a counts only where each site has a value
    assert average == [1, 2] and rank_columns([], 1) == []


FEDERATED = {"stays_home": "nothing", "extra_rounds": 0}


@pytest.fixture
def described(results):
    def build(name="fedavg", seeds=(0,), **changes):
        return {name: [results(**{"recipe": FEDERATED, "seed": seed, **changes}) for seed in seeds]}

    return build


def notes(*methods, seeds=(0,), is_ranked=True):
    return "\n".join(methods_notes(join(*methods), seeds, is_ranked))


def test_notes_say_split_normalisation_and_rounds(described):
    text = notes(described(), described("fedprox"))
    for line in ("Split: by patient.", "Normalization: batch.", "Rounds: 2.", "Metric: dice;"):
        assert line in text


def test_a_split_that_is_not_by_patient_is_a_note(described):
    assert "Split: by slices, same person in training and test." in notes(described(split_unit="slices"))


def test_one_seed_is_called_one_seed(described):
    assert "One seed: 3." in notes(described(seeds=(3,)), seeds=(3,))
    assert "Seeds 0, 1: mean ± standard deviation" in notes(described(seeds=(0, 1)), seeds=(0, 1))


def test_what_differs_is_said_of_each_method(described):
    changes = {"normalization": "instance", "regions": {"all": [1]}}
    text = notes(described(), described("fedsm-extra", recipe=FEDERATED | {"extra_rounds": 50}, **changes))
    assert "Rounds: 2 (fedavg); 2 and 50 extra (fedsm-extra)." in text
    early = notes(described(), described("fedprox", ended_early="training ended after round 1 of 2"))
    assert "Rounds: 2 (fedavg); at most 2 (fedprox)." in early
    assert "Regions: each label (fedavg); all (organ) (fedsm-extra)." in text and "Regions" not in notes(described())
    assert "Normalization: batch (fedavg); instance (fedsm-extra)." in text
    early = "the run ended after round 1 of 2 by federation.patience"
    assert f"fedsm, seed 0: {early}." in notes(described(), described("fedsm", ended_early=early))


def test_a_row_has_one_entry_in_the_line_of_rounds_whenever_its_seeds_sites_ended(described):
    local = {"own_models": {"east": {"best_round": 3, "rounds": 5, "is_finished": True}}}
    (first,), (second,) = (described("local", (seed,), **one)["local"] for seed, one in enumerate((local, {})))
    text = notes(described(seeds=(0, 1)), {"local": [second, first]}, seeds=(0, 1))
    assert "Rounds: 2 (fedavg); 2, then each site alone to its end, up to round 5 (local)." in text


def test_rows_that_need_pooled_data_or_a_pretrained_model_are_named(described):
    centralised = described("centralised")
    assert "centralised: these rows need the data of all sites pooled" in notes(described(), centralised)
    assert "these rows" not in notes(described())
    text = notes(described(), described("adafed", recipe=find_recipe("adafed", "paper", {}).as_dict()))
    assert "adafed: these rows use a pretrained model" in text


def test_an_incomplete_run_is_told_with_its_reasons(described):
    text = notes(described(status="INCOMPLETE", reasons=["site west missed rounds [2]"]))
    assert "fedavg, seed 0: INCOMPLETE: site west missed rounds [2]" in text


def test_local_training_that_wins_on_average_is_said_plainly(described):
    home = {"stays_home": "everything"}
    # (0.5 + 0.75) / 2
    numbers = "local has 0.900, the highest federated row, fedavg, 0.625."
    local = described("local", (0, 1), recipe=home, sites={"east": 0.9, "west": 0.9})
    assert f"Local training wins on average: {numbers}" in notes(described(seeds=(0, 1)), local, seeds=(0, 1))
    once = described("local", recipe=home, sites={"east": 0.9, "west": 0.9})
    assert f"Local training is ahead on average, with one seed: {numbers}" in notes(described(), once)
    worse = described("local", recipe=home, sites={"east": 0.1, "west": 0.1})
    assert "Local training" not in notes(described(), worse)


def test_local_training_is_not_ahead_of_rows_that_measure_something_else(described):
    home = {"stays_home": "everything"}
    changes = {"recipe": home, "sites": {"east": 0.9, "west": 0.9}, "metric": "dice_with_background"}
    local, federated = described("local", (0, 1), **changes), described(seeds=(0, 1))
    pooled = described("centralised", (0, 1), sites={"east": 0.9, "west": 0.9})
    text = notes(federated, local, pooled, seeds=(0, 1), is_ranked=False)
    assert "Local training" not in text and "Training on pooled data" not in text
    assert "the runs differ in metric, regions, split or test data" in text
    sentence = "Training on pooled data wins on average: centralised (data pooled: "
    assert sentence in notes(federated, pooled, seeds=(0, 1))


def test_local_training_that_leads_by_less_than_the_spread_is_level(method):
    # means 0.65 and 0.6; the deviation of local is 0.1 * sqrt(2)
    local = method("local", (0.55, 0.55), (0.75, 0.75), recipe={"stays_home": "everything"})
    sentence = "Local training is level with the federation on average, within the seeds' spread: local has 0.650"
    assert sentence in notes(twice(method, "fedavg", 0.6, 0.6), local, seeds=(0, 1))


def test_the_averages_beside_the_metric_are_explained(described):
    also = {site: {"balanced_accuracy": 0.5, "auroc": 0.5} for site in ("east", "west")}
    everyone = {"accuracy": 0.5, "balanced_accuracy": 0.5, "num_cases": 4}
    text = notes(described(metric="accuracy", also=also, everyone=everyone))
    assert "balanced accuracy (site average): Recall of each class" in text
    assert "AUROC (site average, where defined): Area under the ROC curve" in text
    assert "balanced accuracy on all sites' test data: Each site's model is tested" in text
    assert "AUROC" not in notes(described())


def test_shared_or_excluded_batchnorm_is_said_of_the_methods_it_concerns(described):
    fedbn = described("fedbn", recipe={"stays_home": "batchnorm"})
    assert "\nfedavg: BatchNorm is shared" in notes(described(), fedbn)
    assert "BatchNorm is shared" not in notes(described(), described("fedprox"))
    beside = described("ditto", recipe={"stays_home": "nothing", "keeps_personal": True})
    assert "\nfedavg: BatchNorm is shared" in notes(described(), beside)
    sentence = "BatchNorm excluded at east: what some sites still send is mixed over these"
    text = notes(described(batchnorm=sentence), described("fedprox"))
    assert f"\nfedavg: {sentence}." in text and "fedprox: BatchNorm" not in text
