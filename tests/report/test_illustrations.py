import pytest

from silofl.report.folder import read_run
from silofl.report.illustrations import (
    case_images,
    comparison_images,
    curve_images,
    feature_image,
    normalization_images,
    run_curve_image,
    run_names,
    shared_case,
    traffic_image,
)


def test_curves_say_which_round_is_reported_and_why(finished):
    images = curve_images(read_run(finished()))
    assert images[0].caption == "The best round on validation is 2: dice 0.500, mean over sites."
    assert "training loss of 2 sites over 2 rounds" in images[0].alt


def test_a_run_with_a_selector_has_curves_of_both_models(finished_super):
    image = curve_images(read_run(finished_super()))[1]
    assert "and the accuracy of the selector" in image.alt and "any other with the global one" in image.caption


def test_without_accuracy_the_curves_of_both_models_do_not_speak_of_it(run, super_results, super_record):
    files = run().json("results.json", super_results()).ledger(super_record(1, None), super_record(2, None))
    image = curve_images(read_run(files.path))[1]
    assert "selector" not in image.alt + image.caption


def test_the_map_says_how_it_was_made_and_what_may_draw_it(finished_super):
    image = feature_image(read_run(finished_super()))
    assert image.alt.startswith("Map of 14 images of the sites east, west, by PCA. 2 of them are taken for another")
    assert "only a simulation" in image.caption


def test_a_run_without_features_has_no_map(finished):
    assert feature_image(read_run(finished())) is None


def test_without_validation_the_reported_round_is_called_the_last(run, results, record):
    files = run().json("results.json", results()).ledger(record(1, (None, None)), record(2, (None, None)))
    assert (
        curve_images(read_run(files.path))[0].caption
        == "The reported round is 2, the last: there are no validation data."
    )


def test_before_the_first_round_there_are_no_curves(run):
    records = read_run(run().json("run.json", {}).path)
    assert curve_images(records) == [] and traffic_image(records) is None and run_curve_image([records]) is None


def test_each_site_has_a_picture_with_its_values_in_words(finished):
    east, west = case_images(read_run(finished()))
    assert (east.caption, west.caption) == ("east", "west")
    assert "dice of the cases: worst 0.200, best 0.800" in east.alt


def test_normalisation_is_shown_only_where_it_changed_an_image(finished, pictures):
    assert normalization_images(read_run(finished("none"))) == []
    (image,) = normalization_images(read_run(finished("some", pictures(shift=0.1))))
    assert "Before and after amplitude normalisation" in image.caption


def test_runs_are_named_by_row_and_algorithm(finished):
    runs = [read_run(finished("a")), read_run(finished("b", algorithm="fedavg"))]
    assert list(run_names(runs)) == ["1: harmofl", "2: fedavg"]


def test_runs_that_differ_in_seed_or_preset_say_so(finished):
    runs = [read_run(finished("a", seed=1)), read_run(finished("b", seed=2, preset="paper"))]
    assert list(run_names(runs)) == ["1: harmofl recommended seed 1", "2: harmofl paper seed 2"]


def test_the_case_that_most_runs_hold_is_shown(pictures):
    shown = {"1": pictures(("a", "b")), "2": pictures(("b", "c")), "3": pictures(("b", "c"))}
    assert shared_case(shown) == ("b", ["1", "2", "3"])


@pytest.mark.parametrize("other", [{"cases": ("x", "y")}, {"labels": (2,)}, {"size": 32}])
def test_a_case_of_another_name_truth_or_size_is_another_case(pictures, other):
    assert shared_case({"1": pictures(("a", "b")), "2": pictures(**{"cases": ("a", "b")} | other)}) is None


def test_no_pictures_hold_no_case():
    assert shared_case({}) is None


def test_a_comparison_names_the_runs_without_the_case(finished, pictures):
    runs = [read_run(finished("a")), read_run(finished("b")), read_run(finished("c", pictures(("x",))))]
    image = comparison_images(runs)[0]
    assert image.caption == "east: a (no picture of it: 3: harmofl)"
    assert "runs 1: harmofl, 2: harmofl" in image.alt
