from dataclasses import replace
from pathlib import Path

from silofl.core.gain import WORSE
from silofl_desk.report.run_records import RunRecords
from silofl_desk.studies.comparisons.hospitals import conclude, hospital_table, list_losses, unseen_tables
from tests.report.conftest import joined


def test_the_table_has_a_row_per_method_and_hospital_with_the_verdicts_numbers(chosen_run):
    kept = joined("local", local=0.75, federated=0.5, kept=0.75, verdict="keeps its own model")
    rows = {"fedavg": [chosen_run(unseen=0.5, north=joined(local=0.5, federated=0.625, kept=0.75), south=kept)]}
    table = hospital_table(rows)
    assert table.columns == ("method", "hospital", "kept", "verdict", "local", "federated")
    # federated minus local is 0.75 - 0.5 = 0.25, and its interval is joined()'s 0.01 to 0.2
    assert table.rows == (
        ("fedavg", "north", "0.750", "better +0.250 [0.010, 0.200]", "0.500", "0.625"),
        ("fedavg", "south", "0.750", "local model kept +0.000", "0.750", "0.500"),
    )


def test_values_are_of_the_units_that_are_compared_and_at_the_hospitals_threshold(chosen_run):
    """As found on nuclei: 0.002 at the usual threshold is no judgement on a model that has 0.697 with its own."""
    test = {"local": 0.915, "federated": 0.002, "federated_calibrated": 0.697, "chosen": 0.915}
    run = chosen_run(fluo=joined("local", kept=0.915, verdict="keeps its own model", test=test))
    assert hospital_table({"harmofl": [run]}).rows[0][4:] == ("0.915", "0.697")
    assert "harmofl 0.697 (local 0.915)" in conclude({"harmofl": [run]})[1]
    # Alone 0.818 over cases and 0.766 over patients: 0.909 - 0.766 is the difference, and no other.
    by_unit = {"local": 0.766, "federated": 0.909, "federated_calibrated": 0.909, "chosen": 0.909}
    one = joined(local=0.818, federated=0.91, kept=0.91, difference=0.143, by_unit=by_unit)
    (row,) = hospital_table({"fedavg": [chosen_run(north=one)]}).rows
    assert row[4:] == ("0.766", "0.909") and row[2] == "0.909" and "+0.143" in row[3]


def test_methods_that_may_only_guess_are_named_and_nothing_is_concluded_from_them(chosen_run):
    def tested(value, count):
        also, cases = {"north": {"accuracy": value}}, {"north": {"ill": count, "well": count}}
        changes = {"metric": "accuracy", "also": also, "label_cases": cases}
        return chosen_run(changes=changes, north=joined(local=value - 0.25, federated=value, kept=value))

    # 6 of 8 right cases show nothing.
    guess, good = tested(0.75, 4), tested(0.7, 100)
    sentence = "fedavg: no model is shown to be better than guessing."
    assert conclude({"fedavg": [guess]}) == [sentence]
    *_, last = conclude({"fedavg": [guess], "fedbn": [good]})
    assert last == sentence
    assert not any("starts" in one for one in conclude({"fedavg": [guess, guess]}))


def test_a_run_without_a_choice_has_no_row_and_no_run_no_table(results):
    bare = {"fedavg": [RunRecords(Path("run"), results(), [], {}, {})]}
    assert hospital_table(bare) is None and conclude(bare) == [] and list_losses(bare) == []


def test_the_conclusion_counts_verdicts_and_federated_models_below_local_ones_and_names_losses(chosen_run):
    lost = joined(local=0.75, federated=0.5, kept=0.625, verdict=WORSE, p_below=0.001)
    same = joined(local=0.5, federated=0.75, kept=0.75)
    rows = {
        "fedavg": [chosen_run(unseen=0.5, north=joined(local=0.5, federated=0.25, kept=0.75), south=lost)],
        "adafed": [chosen_run(unseen=0.625, north=joined(local=0.5, federated=0.75, kept=0.75), south=same)],
    }
    unseen, kept, federated = conclude(rows)
    # fedavg: 1 of 2 gains, 1 loses; adafed: 2 of 2
    assert kept == (
        "In 3 of 4 pairs of hospital and run, the model that the hospital keeps is better for its test patients "
        "than its local model (2.5 % level; fedavg 1 of 2, adafed 2 of 2), and 1 worse. One start of the training "
        "cannot tell whether joining made the difference."
    )
    # (0.25 + 0.5) / 2 = 0.375 against (0.5 + 0.75) / 2 = 0.625 alone
    assert "1 of 2 methods would be worse on average than training alone: fedavg 0.375 (local 0.625)." in federated
    assert unseen == "At coast, which took no part in the training: federated models 0.500 (fedavg) to 0.625 (adafed)."
    (loss,) = list_losses(rows)
    assert loss.startswith("fedavg: south: the model that it keeps scores 0.625, its local model 0.750")
    assert "no method would be worse on average" in conclude({"adafed": rows["adafed"]})[2]


def test_own_models_and_the_mean_of_their_answers_stand_before_the_federated_ones_where_nobody_trained(chosen_run):
    own = {"fedavg": {"north": 0.125, "south": None, "ensemble": 0.25}, "fedsm": {"north": 0.375, "ensemble": 0.5}}
    rows = {}
    for name, value in (("fedavg", 0.5), ("fedsm", 0.75)):
        run = chosen_run(unseen=value, north=joined())
        rows[name] = [replace(run, unseen=replace(run.unseen, own=own[name]))]
    assert conclude(rows)[0] == (
        "At coast, which took no part in the training: the others' local models 0.125 to 0.375, the mean of their "
        "answers 0.250 to 0.500, federated models 0.500 (fedavg) to 0.750 (fedsm)."
    )
    (table,) = unseen_tables(rows)
    assert table.columns == ("dice at coast", "local: north", "local: south", "local: mean", "federated")
    assert table.rows == (("fedavg", "0.125", "-", "0.250", "0.500"), ("fedsm", "0.375", "-", "0.500", "0.750"))
    # Hospitals that took no part are told apart.
    (run,) = rows["fedsm"]
    rows["fedsm"] = [replace(run, unseen=replace(run.unseen, site="hills"))]
    assert [said.partition(",")[0] for said in conclude(rows)[:2]] == ["At coast", "At hills"]


def test_where_no_models_were_trained_to_their_end_that_is_the_conclusion(chosen_run):
    short = joined(verdict="not trained to the end", unfinished=("federated",))
    first = conclude({"fedavg": [chosen_run(north=short, south=short)]})[0]
    assert first.startswith("What joining gives is not known, as not all models were trained to their end.")


def test_of_several_starts_of_one_data_it_is_said_who_gains_by_joining(chosen_run):
    """Two starts with differences of 0.14 and 0.16: the starts' variance is 0.0002 / 2, the units' 0.01 squared."""
    starts = [
        chosen_run(
            changes={"seed": seed},
            north=joined(kept=kept, difference=gain, standard_error=0.01),
            south=joined("local", difference=-0.1),
        )
        for seed, (gain, kept) in enumerate(((0.14, 0.5), (0.16, 0.75)))
    ]
    first, second, *_ = conclude({"fedavg": starts})
    assert first.startswith(
        "fedavg, 2 starts: 1 of 2 hospitals gain by joining after Holm; the mean difference is +0.0"
    )
    assert second.startswith("If every hospital had to use the federated model")
    north, south = hospital_table({"fedavg": starts}).rows
    assert north[2] == "0.625 ± 0.177" and north[3].startswith("gains +0.150 [0.1")
    assert south[3].startswith("no gain shown -0.100 [")
    # Of a model that was not trained to its end nothing is said.
    short = chosen_run(changes={"seed": 2}, north=joined(unfinished=("own",)), south=joined("local", difference=-0.1))
    assert conclude({"fedavg": [*starts, short]})[0].startswith("fedavg, 3 starts: 0 of 1 hospitals gain")
    assert hospital_table({"fedavg": [*starts, short]}).rows[0][3] == "3 better"


def test_gains_over_starts_are_corrected_over_all_rows_of_a_comparison(chosen_run):
    """Of one row north gains; beside three rows of nothing the same numbers are no longer enough."""

    def row(gain):
        return [
            chosen_run(changes={"seed": seed}, north=joined(difference=gain + luck, standard_error=0.02))
            for seed, luck in enumerate((-0.005, 0.005))
        ]

    # 0.06 beside sqrt(0.02^2 + 0.00005 / 2) = 0.0206 is 2.9 errors: p = 0.008, and below 0.05 after twofold at most.
    assert "1 of 1 hospitals gain by joining after Holm" in conclude({"fedavg": row(0.06)})[0]
    many = {"fedavg": row(0.06)} | {f"method {number}": row(0.0) for number in range(9)}
    assert all("0 of 1 hospitals gain by joining after Holm;" in sentence for sentence in conclude(many)[:10])
    assert not any(row[3].startswith("gains") for row in hospital_table(many).rows)
