import dataclasses
import io

import pytest
from PIL import Image

from silofl.report import rounds
from silofl.report.canvas import LINE_COLOURS
from silofl.report.rounds import (
    ROUND_TEST,
    VALIDATION,
    curve_images,
    draw_drift_curves,
    draw_model_curves,
    draw_round_tests,
    draw_traffic_bars,
    draw_training_curves,
    list_incidents,
    mean_over_sites,
    participation_table,
    selector_accuracy,
    traffic_image,
    traffic_table,
)
from silofl.report.run_records import read_run
from silofl.training.site_score import SiteScore


def has_colour(png, colour):
    """Whether a picture holds a colour, given as #rrggbb."""
    wanted = tuple(bytes.fromhex(colour[1:]))
    return wanted in {pixel for _, pixel in Image.open(io.BytesIO(png)).convert("RGB").getcolors(2**20)}


def test_each_site_has_a_line_of_its_own_colour(record):
    png = draw_training_curves([record(1), record(2)], ["east", "west"], "dice", 2)
    assert has_colour(png, LINE_COLOURS[0]) and has_colour(png, LINE_COLOURS[1])
    assert not has_colour(png, LINE_COLOURS[2])


def test_what_the_sites_keep_is_a_line_across_all_rounds_of_validation(record, monkeypatch):
    monkeypatch.setattr(rounds, "encode_png", lambda figure: figure)
    validation, loss = draw_training_curves([record(1), record(2)], ["east", "west"], "dice", 2, 0.625).axes
    without = draw_training_curves([record(1), record(2)], ["east", "west"], "dice", 2).axes[0]
    assert len(validation.lines) == len(without.lines) + 1
    assert any(list(line.get_ydata()) == [0.625, 0.625] for line in validation.lines)
    assert not any(list(line.get_ydata()) == [0.625, 0.625] for line in loss.lines)


def test_curves_draw_a_run_of_one_round_and_sites_without_values(record):
    assert has_colour(
        draw_training_curves([record(1, (None, 0.5))], ["east", "west", "new"], "dice", None), LINE_COLOURS[1]
    )


def test_with_differential_privacy_what_is_spent_is_drawn_in_place_of_the_loss(record):
    spent = {"east": {"epsilon": 0.5}, "west": {"epsilon": 0.7}}
    ledger = [dataclasses.replace(record(number), metrics=spent) for number in (1, 2)]
    png = draw_training_curves(ledger, ["east", "west"], "dice", 2)
    assert has_colour(png, LINE_COLOURS[0]) and has_colour(png, LINE_COLOURS[1])
    lost = [dataclasses.replace(one, metrics={}) for one in ledger]
    assert draw_training_curves(lost, ["east", "west"], "dice", 2) != png


def test_the_best_round_changes_the_picture(record):
    ledger = [record(i) for i in range(1, 4)]
    pictures = {draw_training_curves(ledger, ["east", "west"], "dice", best) for best in (None, 1, 3)}
    assert len(pictures) == 3


@pytest.mark.parametrize("best", [1, 3])
def test_the_number_of_the_best_round_covers_no_value(record, monkeypatch, best):
    monkeypatch.setattr(rounds, "encode_png", lambda figure: figure)
    ledger = [record(number, (0.5, 0.5)) for number in range(1, 4)]
    ledger[best - 1] = record(best, (0.9, 0.9))
    figure = draw_training_curves(ledger, ["east", "west"], "dice", best)
    figure.draw_without_rendering()
    axes = figure.axes[0]
    (label,) = axes.texts
    # 4.5 points is the size of a marker
    radius = 4.5 / 2 / 72 * figure.dpi
    assert label.get_window_extent().y0 > axes.transData.transform((best, 0.9))[1] + radius


def test_drift_is_drawn_where_a_round_measured_it(record):
    without = {"east": {"loss": 0.5}, "west": {"loss": 0.5}}
    assert has_colour(draw_drift_curves([record(1), record(2, metrics=without)], ["east", "west"]), LINE_COLOURS[0])
    assert draw_drift_curves([record(1, metrics=without, drift=None)], ["east", "west"]) is None


def test_global_and_personalised_models_have_curves_of_their_own(super_record):
    png = draw_model_curves([super_record(1), super_record(2)], ["east", "west"], "dice", 2)
    assert has_colour(png, LINE_COLOURS[0]) and has_colour(png, LINE_COLOURS[1])


def test_a_selector_that_learns_later_has_no_accuracy_to_draw(super_record):
    with_accuracy, without = ([super_record(1, accuracy), super_record(2, accuracy)] for accuracy in (0.5, None))
    assert selector_accuracy(with_accuracy[0], "east") == 0.5 and selector_accuracy(without[0], "east") is None
    assert draw_model_curves(with_accuracy, ["east"], "dice", None) != draw_model_curves(
        without, ["east"], "dice", None
    )


def test_a_single_model_has_no_curves_beside_it(record):
    assert draw_model_curves([record(1), record(2)], ["east"], "dice", 2) is None


def test_traffic_shows_both_ways(record):
    png = draw_traffic_bars([record(1), record(2)])
    assert has_colour(png, LINE_COLOURS[0]) and has_colour(png, LINE_COLOURS[5])


def test_the_mean_is_over_the_sites_that_validated(record):
    assert mean_over_sites(VALIDATION.scores(record(1, (None, 0.5)))) == 0.5
    assert mean_over_sites(VALIDATION.scores(record(1, (None, None)))) is None


def test_a_test_in_every_round_has_a_figure_that_says_that_it_chose_nothing(run, results, record):
    def scored(**values):
        return {site: SiteScore(value=value, num_cases=1, num_excluded=0) for site, value in values.items()}

    ledger = [record(1, test=scored(east=0.25, west=0.5)), record(2, test=scored(east=0.75, west=0.5))]
    # (0.25 + 0.5) / 2
    assert mean_over_sites(ROUND_TEST.scores(ledger[0])) == 0.375 and ROUND_TEST.scores(record(1)) == {}
    assert has_colour(draw_round_tests(ledger, ["east"], "dice", 2), LINE_COLOURS[0])
    assert draw_round_tests([record(1), record(2)], ["east"], "dice", 2) is None
    images = curve_images(read_run(run().json("results.json", results()).ledger(*ledger).path))
    (image,) = [image for image in images if image.alt == "Test dice of 2 sites over 2 rounds."]
    assert "These scores chose nothing" in image.caption


def test_participation_counts_rounds_by_what_became_of_the_site(record):
    ledger = [
        record(1),
        record(2, answered=["east"], late=["west"], examples={"east": 10}),
        record(3, answered=["east"], failed={"west": "no data"}, examples={"east": 12}),
        record(4, answered=["east"], refused={"west": "not finite"}, examples={"east": 12}),
    ]
    table = participation_table(ledger, ["east", "west"])
    assert table.columns[1:] == ("asked", "answered", "late", "failed", "refused", "training examples")
    assert table.rows == (("east", "4", "4", "0", "0", "0", "12"), ("west", "4", "1", "1", "1", "1", "30"))


def test_a_site_that_never_answered_has_no_training_examples(record):
    assert participation_table([record(1, examples={})], ["east"]).rows[0][-1] == "-"


def test_the_same_incident_is_told_once_with_its_rounds(record):
    ledger = [record(i, failed={"west": "disk full"}) for i in (1, 2, 3, 5)] + [record(6, late=["east"])]
    assert list_incidents(ledger) == [
        "west: failed in rounds 1-3, 5: disk full",
        "east: late in round 6: no answer in time",
    ]


def test_withheld_names_are_counted_and_the_first_shown(record):
    names = ["a.weight", "b.weight", "c.weight", "d.weight"]
    (sentence,) = list_incidents([record(1, withheld={"east": names})])
    assert sentence == "east: withheld by its policy in round 1: 4 arrays (a.weight, b.weight, c.weight, ...)"


def test_who_is_unlike_the_others_is_told_once_with_the_rounds(record):
    ledger = [record(i, unlike={"west": {"cosine": -0.1 * i, "amplitude": 10.0}}) for i in (1, 2)]
    assert list_incidents(ledger) == [
        "west: unlike the others in rounds 1-2: its update points away from their mean",
        "west: unlike the others in rounds 1-2: its amplitude",
    ]


def test_a_smooth_run_has_no_incidents(record):
    assert list_incidents([record(1), record(2)]) == []


def test_the_traffic_after_the_last_round_is_said_to_be_left_out(record, run):
    records = read_run(run().ledger(record(1)).path)
    assert "sent after the last round, to be validated and tested, are not counted" in traffic_image(records).caption


def test_traffic_adds_up_over_rounds_and_sites(record):
    rows = traffic_table([record(1), record(2)], ["east", "west"]).rows
    # two rounds of 1 MB to and 0.5 MB from each site
    assert rows[0] == ("east", "2.0 MB", "1.0 MB", "1.5 MB")
    assert rows[-1] == ("all sites", "4.0 MB", "2.0 MB", "3.0 MB")


def test_a_note_is_told_with_its_rounds(record):
    note = "site 'b' shares no statistics (fewer than 20 examples): it listens to all sites equally"
    assert list_incidents([record(i, notes=[note]) for i in (3, 4)]) == [f"noted in rounds 3-4: {note}"]


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


def test_without_validation_the_reported_round_is_called_the_last(run, results, record):
    files = run().json("results.json", results()).ledger(record(1, (None, None)), record(2, (None, None)))
    assert (
        curve_images(read_run(files.path))[0].caption
        == "The reported round is 2, the last: there are no validation data."
    )


def test_before_the_first_round_there_are_no_curves(run):
    records = read_run(run().json("run.json", {}).path)
    assert curve_images(records) == [] and traffic_image(records) is None
