from dataclasses import replace
from pathlib import Path

from silofl.core.gain import WORSE
from silofl_desk.report.result_pictures import hospitals_image
from silofl_desk.report.run_records import RunRecords
from silofl_desk.report.sentences import joining_table
from silofl_desk.studies.hospitals import conclude, explain_losses, hospital_table
from tests.report.conftest import joined


def test_the_table_has_a_row_per_method_and_hospital_with_the_verdicts_numbers(chosen_run):
    kept = joined("local", local=0.75, federated=0.5, kept=0.75, verdict="keeps its own model")
    runs = {"fedavg": chosen_run(unseen=0.5, north=joined(local=0.5, federated=0.625, kept=0.75), south=kept)}
    table = hospital_table(runs)
    assert table.columns == ("method", "hospital", "kept", "verdict", "alone", "federated", "unseen")
    # federated minus alone is 0.75 - 0.5 = 0.25, and its interval is joined()'s 0.01 to 0.2; unseen is the run's
    assert table.rows == (
        ("fedavg", "north", "0.750", "better +0.250 [0.010, 0.200]", "0.500", "0.625", "0.500"),
        ("", "south", "0.750", "own model kept +0.000", "0.750", "0.500", ""),
    )


def test_the_federated_model_has_a_threshold_as_the_others_do_and_stands_at_the_usual_one_beside_it(chosen_run):
    """As found on nuclei: 0.002 at the usual threshold is no judgement on a model that has 0.697 with its own."""
    test = {"local": 0.915, "federated": 0.002, "federated_calibrated": 0.697, "chosen": 0.915}
    runs = {"harmofl": chosen_run(fluo=joined("local", kept=0.915, verdict="keeps its own model", test=test))}
    table = hospital_table(runs)
    assert (table.columns[2], *table.columns[4:7]) == ("kept", "alone", "federated", "at 0.5")
    assert (table.rows[0][2], *table.rows[0][4:7]) == ("0.915", "0.915", "0.697", "0.002")
    assert hospital_table(runs, shows_half=False).rows[0][4:6] == ("0.915", "0.697")
    # It is the one with a threshold that is compared with training alone.
    assert "harmofl 0.697 (alone 0.915)" in conclude({"harmofl": list(runs.values())})[1]


def test_values_beside_a_difference_are_of_the_same_units(chosen_run, joining):
    """Alone 0.818 over cases and 0.766 over patients: 0.909 - 0.766 is the difference, and no other."""
    by_unit = {"local": 0.766, "federated": 0.909, "federated_calibrated": 0.909, "chosen": 0.909}
    one = joined(local=0.818, federated=0.91, kept=0.91, difference=0.143, by_unit=by_unit)
    (row,) = hospital_table({"fedavg": chosen_run(north=one)}).rows
    assert row[4:6] == ("0.766", "0.909") and row[2] == "0.909" and "+0.143" in row[3]
    (row,) = joining_table(joining(east=one)).rows
    assert row[5:8] == ("0.766", "0.909", "+0.143") and row[1].startswith("0.909")


def test_a_verdict_on_other_numbers_than_the_tables_names_what_it_compares(chosen_run):
    run = chosen_run(north=joined(local=0.5, federated=0.625, kept=0.75), changes={"metric": "auroc"})
    assert hospital_table({"fedavg": run}).columns[3] == "verdict by accuracy"
    (kept, *_) = conclude({"fedavg": [run]})
    assert kept.startswith("In 1 of 1 pairs of hospital and method, ") and "own model by accuracy (2.5 % level" in kept


def test_methods_that_may_only_guess_are_named_and_nothing_is_concluded_from_them(chosen_run):
    def tested(value, count):
        also, cases = {"north": {"accuracy": value}}, {"north": {"ill": count, "well": count}}
        changes = {"metric": "accuracy", "also": also, "label_cases": cases}
        return chosen_run(changes=changes, north=joined(local=value - 0.25, federated=value, kept=value))

    # 6 of 8 right cases show nothing.
    guess, good = tested(0.75, 4), tested(0.7, 100)
    sentence = "fedavg: no model is shown to be better than guessing."
    assert conclude({"fedavg": [guess]}) == [sentence] and explain_losses({"fedavg": guess}) == []
    kept, *_, last = conclude({"fedavg": [guess], "fedbn": [good]})
    assert "fedbn has the highest mean of what hospitals keep: 0.700" in kept and last == sentence
    assert not any("starts" in one for one in conclude({"fedavg": [guess, guess]}))


def test_no_method_is_named_where_hospitals_keep_what_they_have_alone(chosen_run):
    own = joined(local=0.75, federated=0.5, kept=0.75)
    (first, *_) = conclude({name: [chosen_run(north=own, south=own)] for name in ("fedavg", "fedbn")})
    assert "with no method is the mean of what hospitals keep above that alone, 0.750." in first


def test_a_run_without_a_choice_has_no_row_and_no_run_no_table(chosen_run, results):
    bare = RunRecords(Path("run"), results(), [], {}, {})
    assert hospital_table({"fedavg": bare}) is None and hospitals_image({"fedavg": [bare]}) is None
    assert conclude({"fedavg": [bare]}) == [] and explain_losses({"fedavg": bare}) == []


def test_the_conclusion_counts_verdicts_compares_means_and_names_the_best_at_the_unseen_hospital(chosen_run):
    lost = joined(local=0.75, federated=0.5, kept=0.625, verdict=WORSE)
    same = joined(local=0.5, federated=0.75, kept=0.75)
    runs = {
        "fedavg": [chosen_run(unseen=0.5, north=joined(local=0.5, federated=0.25, kept=0.75), south=lost)],
        "adafed": [chosen_run(unseen=0.625, north=joined(local=0.5, federated=0.75, kept=0.75), south=same)],
    }
    third, first, second = conclude(runs)
    # fedavg: 1 of 2 gains, 1 loses; adafed: 2 of 2. Means kept: (0.75 + 0.625) / 2 = 0.6875 and 0.75
    assert "3 of 4" in first and "adafed 2 of 2" in first and "fedavg 1 of 2" in first and "1 worse" in first
    assert "adafed has the highest mean of what hospitals keep: 0.750, against 0.500 alone" in first
    # federated: (0.25 + 0.5) / 2 = 0.375 against (0.5 + 0.75) / 2 = 0.625 alone
    assert "1 of 2 methods would be worse" in second
    assert "fedavg 0.375 (alone 0.625)" in second and "adafed" not in second
    assert third == ("At coast, which took no part in the training: federated models 0.500 (fedavg) to 0.625 (adafed).")


def test_own_models_and_the_mean_of_their_answers_stand_before_the_federated_ones_where_nobody_trained(chosen_run):
    runs = {name: chosen_run(unseen=value, north=joined()) for name, value in (("fedavg", 0.5), ("fedsm", 0.75))}
    own = ({"north": 0.125, "south": None, "ensemble": 0.25}, {"north": 0.375, "ensemble": 0.5})
    rows = {
        name: [replace(run, unseen=replace(run.unseen, own=one))]
        for (name, run), one in zip(runs.items(), own, strict=True)
    }
    assert conclude(rows)[0] == (
        "At coast, which took no part in the training: the others' own models 0.125 to 0.375, the mean of their "
        "answers 0.250 to 0.500, federated models 0.500 (fedavg) to 0.750 (fedsm)."
    )


def test_no_mean_is_the_highest_beside_those_of_other_hospitals_seeds_or_data(chosen_run):
    """As found: a method with a choice at its easy hospital alone was said to lead."""
    both = chosen_run(east=joined(kept=0.9), west=joined(kept=0.5))
    for other in (chosen_run(east=joined(kept=0.88)), chosen_run(east=joined(kept=0.88), changes={"seed": 7})):
        first = conclude({"fedavg": [both], "harmofl": [other]})[0]
        assert "the highest mean of" not in first and "unlike hospitals, seeds, data or metrics" in first


def test_hospitals_that_took_no_part_are_told_apart(chosen_run):
    fedavg, fedsm = chosen_run(unseen=0.8, east=joined()), chosen_run(unseen=0.6, east=joined())
    elsewhere = replace(fedsm, unseen=replace(fedsm.unseen, site="hills"))
    assert conclude({"fedavg": [fedavg], "fedsm": [elsewhere]})[:2] == [
        "At coast, which took no part in the training: federated model 0.800 (fedavg).",
        "At hills, which took no part in the training: federated model 0.600 (fedsm).",
    ]


def test_where_no_models_were_trained_to_their_end_that_is_the_conclusion(chosen_run):
    short = joined(verdict="not trained to the end", unfinished=("federated",))
    first = conclude({"fedavg": [chosen_run(north=short, south=short)]})[0]
    assert first.startswith("What joining gives is not known, as not all models were trained to their end; fedavg has")


def test_nothing_is_said_of_what_did_not_happen(chosen_run):
    first, second = conclude({"adafed": [chosen_run(north=joined(local=0.5, federated=0.75, kept=0.75))]})
    assert "worse" not in first
    assert first.endswith("One start of the training cannot tell whether joining made the difference.")
    assert (
        second
        == "If every hospital had to use the federated model, no method would be worse on average than training alone."
    )


def test_a_loss_where_the_reason_is_known_beforehand_names_that_reason(chosen_run):
    runs = {"fedavg": chosen_run(south=joined("local", local=0.75, federated=0.25))}
    (sentence,) = explain_losses(runs, {"south": "Its contrast is reversed."})
    assert sentence == "fedavg: worst at south (federated 0.250, alone 0.750). Its contrast is reversed."


def test_several_seeds_of_a_method_are_one_count_and_one_mean(chosen_run):
    runs = [
        chosen_run(north=joined(local=0.5, kept=kept), changes={"seed": seed}) for seed, kept in enumerate((0.75, 0.5))
    ]
    # (0.75 + 0.5) / 2
    assert "In 2 of 2 pairs of hospital and run, " in conclude({"fedavg": runs})[1]


def test_of_several_starts_of_one_data_it_is_said_who_gains_by_joining(chosen_run):
    """Two starts with differences of 0.14 and 0.16: the starts' variance is 0.0002 / 2, the units' 0.01 squared."""
    starts = [
        chosen_run(
            changes={"seed": seed},
            north=joined(difference=gain, standard_error=0.01),
            south=joined("local", difference=-0.1),
        )
        for seed, gain in enumerate((0.14, 0.16))
    ]
    first, second, *_ = conclude({"fedavg": starts})
    assert first.startswith("fedavg, 2 starts: 1 of 2 hospitals gain by joining after Holm: north +0.150 (0.1")
    assert "One start" not in second
    # Of a model that was not trained to its end nothing is said.
    short = chosen_run(changes={"seed": 2}, north=joined(unfinished=("own",)), south=joined("local", difference=-0.1))
    assert conclude({"fedavg": [*starts, short]})[0].startswith("fedavg, 3 starts: 0 of 1 hospitals gain")


def test_gains_over_starts_are_corrected_over_all_rows_of_a_comparison(chosen_run):
    """Of one row north gains; beside three rows of nothing the same numbers are no longer enough."""

    def row(gain):
        return [
            chosen_run(changes={"seed": seed}, north=joined(difference=gain + luck, standard_error=0.02))
            for seed, luck in enumerate((-0.005, 0.005))
        ]

    # 0.06 beside sqrt(0.02^2 + 0.00005 / 2) = 0.0206 is 2.9 errors: p = 0.008, and below 0.05 after twofold at most.
    alone = conclude({"fedavg": row(0.06)})[0]
    assert "1 of 1 hospitals gain by joining after Holm: north +0.060" in alone
    many = {"fedavg": row(0.06)} | {f"method {number}": row(0.0) for number in range(9)}
    assert all("0 of 1 hospitals gain by joining after Holm;" in sentence for sentence in conclude(many)[:10])
