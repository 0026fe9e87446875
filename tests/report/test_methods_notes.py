import pytest

from silofl.report.method_rows import Method
from silofl.report.methods_notes import notes_of
from silofl.report.ranking import is_comparable

FEDERATED = {"stays_home": "nothing", "extra_rounds": 0}


@pytest.fixture
def method(results):
    def build(name="fedavg", seeds=(0,), **changes):
        return Method(name, {seed: results(**{"recipe": FEDERATED, "seed": seed, **changes}) for seed in seeds})

    return build


def notes(*methods, seeds=(0,)):
    return "\n".join(notes_of(methods, seeds))


def test_notes_say_split_normalisation_rounds_and_how_the_round_was_chosen(method):
    text = notes(method(), method("fedprox"))
    for line in ("Split: by patient.", "Normalization: batch.", "Rounds: 2.", "Metric: dice;"):
        assert line in text
    assert "Reported round of fedavg, fedprox: best validation, round 2." in text


def test_a_split_by_slices_is_called_what_it_is(method):
    assert "Split: by slices, same person in training and test." in notes(method(split_unit="slices"))


def test_what_differs_is_said_of_each_method(method):
    extra = method("fedsm-extra", recipe=FEDERATED | {"extra_rounds": 50}, normalization="instance")
    text = notes(method(), extra)
    assert "Rounds: 2 (fedavg); 2 and 50 extra (fedsm-extra)." in text
    assert "Normalization: batch (fedavg); instance (fedsm-extra)." in text


def test_the_tuned_threshold_of_each_seed_is_said(method):
    text = notes(method("fedsm", (0, 1), threshold=0.9), seeds=(0, 1))
    assert "Threshold gamma of fedsm super: 0.9 (seed 0); 0.9 (seed 1)." in text


def test_rows_that_need_pooled_data_are_named(method):
    centralised = Method("centralised", method().results, needs_pool=True)
    assert "centralised: these rows need the data of all sites pooled" in notes(method(), centralised)
    assert "None of these rows needs data to be pooled." in notes(method())


def test_one_seed_is_called_one_seed(method):
    assert "One seed, 3: a small difference can be chance" in notes(method(seeds=(3,)), seeds=(3,))
    assert "Seeds 0, 1: mean ± standard deviation" in notes(method(seeds=(0, 1)), seeds=(0, 1))


def test_a_run_without_numbers_and_an_incomplete_one_are_told_with_their_reasons(method):
    failed = Method("fedprox", {}, unfinished={1: "no site joined"})
    text = notes(method(status="INCOMPLETE", reasons=["site west missed rounds [2]"]), failed)
    assert "fedavg, seed 0: INCOMPLETE: site west missed rounds [2]" in text
    assert "fedprox, seed 1: no numbers: no site joined" in text


def test_local_training_that_wins_on_average_is_said_plainly(method):
    local = method("local", recipe={"stays_home": "everything"}, sites={"east": 0.9, "west": 0.9})
    # (0.5 + 0.75) / 2
    sentence = "Local training wins on average: local has 0.900, the best federated row, fedavg, 0.625."
    assert sentence in notes(method(), local)
    worse = method("local", recipe={"stays_home": "everything"}, sites={"east": 0.1, "west": 0.1})
    assert "wins on average" not in notes(method(), worse)


def test_rows_that_use_a_pretrained_model_are_named(method):
    recipe = {"mixing": "adafed", "statistics": "pretrained", "stays_home": "batchnorm"}
    ours = Method("adafed", {seed: run | {"recipe": recipe} for seed, run in method().results.items()})
    text = notes(method(), ours)
    assert "adafed: these rows use a pretrained model" in text and "None of these rows needs data" not in text


def test_methods_that_report_the_same_round_share_a_sentence(method):
    last = {"model": "last round, 9: no validation data"}
    same = [Method(name, {s: run | last for s, run in method().results.items()}) for name in ("one", "two")]
    assert "Reported round of one, two: last round, 9: no validation data." in notes(*same)


def test_pooled_data_that_lead_are_named(method):
    pooled = Method("centralised", method(sites={"east": 0.9, "west": 0.9}).results, needs_pool=True)
    assert "No federated row reaches centralised (data pooled: simulation only) in the client average." in notes(
        method(), pooled
    )


def test_the_averages_beside_the_metric_are_explained(method):
    also = {site: {"balanced_accuracy": 0.5, "auroc": 0.5} for site in ("east", "west")}
    text = notes(method(metric="accuracy", also=also, everyone={"balanced_accuracy": 0.5}))
    assert "balanced accuracy (site average): Share of a class's examples" in text
    assert "AUROC (site average, where defined): Area under the ROC curve" in text
    assert "balanced accuracy on all sites' test data: Each site's model is tested" in text
    assert "AUROC" not in notes(method())


def test_runs_with_other_metrics_are_not_compared_and_that_is_said(method):
    methods = [method(), method("other", metric="accuracy")]
    assert not is_comparable(methods)
    assert "No value is marked as the best" in notes(*methods)


def test_a_site_that_is_missing_in_one_run_does_not_keep_the_others_from_being_compared(method):
    broken = method("broken", sites={"east": 0.5, "west": None}, cases={"east": 1}, excluded_cases={})
    assert is_comparable([method(), method("fedprox"), broken])


def test_shared_batchnorm_is_said_beside_methods_that_keep_it_at_home(method):
    fedbn = method("fedbn", recipe={"stays_home": "batchnorm"})
    assert "\nfedavg: BatchNorm is shared" in notes(method(), fedbn)
    assert "BatchNorm is shared" not in notes(method(), method("fedprox"))


def test_cases_that_do_not_count_are_said_where_models_are_pooled_by_them(method):
    text = notes(method("fedsm", models={"east": {"global": 0.5}, "west": {"global": 0.5}}))
    assert "fedsm: pooled means of its other models count the super model's cases." in text
