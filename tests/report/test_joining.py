"""What joining gave: the table, the sentence, and what is bad in a run that is called complete."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from silofl.base.errors import ConfigError
from silofl.base.schema import dump_record
from silofl.core.gain import BETTER, WORSE
from silofl.federation.results import read_results
from silofl_desk.report.result_tables import site_table
from silofl_desk.report.run_page import make_run_page
from silofl_desk.report.run_records import RunRecords
from silofl_desk.report.sentences import (
    describe_problems,
    joining_note,
    joining_table,
    lead_sentence,
    more_rounds_sentence,
)
from silofl_desk.report.verdict_words import ONE_START
from silofl_desk.studies.comparison import JOINING_NOTE
from silofl_desk.studies.hospitals import NOTE
from silofl_desk.studies.print_results import print_results
from silofl_hospital.report.page import Tiles
from tests.conftest import JOBS
from tests.report.conftest import joined

ONE = f"The only hospital keeps a model that is better for its test patients than its own: {ONE_START}. "
REASONS = {"east": "it has no validation data", "west": "no answer in time"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"elsewhere": joined()}, "joining must be of sites of the run, not of 'elsewhere'"),
        ({"east": joined(), "unchosen": {"elsewhere": "no"}}, "unchosen must be of sites of the run, not of 'else"),
        ({"east": joined(), "unchosen": {"east": "no"}}, "unchosen must be of sites without a choice, not of 'east'"),
    ],
)
def test_a_choice_or_a_reason_of_no_site_of_the_run_and_one_beside_the_other_are_refused(joining, given, message):
    with pytest.raises(ConfigError, match=message):
        joining(**given)


def test_each_site_has_a_row_with_its_verdict_its_choice_and_the_interval(joining):
    own = joined("local", 0.9, 0.4, 0.9, "keeps its own model", difference=None, is_one_person=True, unit="case")
    own = replace(own, lead=-0.5, num_units=1)
    table = joining_table(joining(east=joined(lead=0.02), west=own))
    # The two that a phone shows beside the name.
    assert table.columns[:3] == ("site", "kept", "verdict")
    assert table.rows == (
        (
            "east",
            "0.850 federated",
            BETTER,
            "0.800, own 0.700; lead +0.020 on 9 patients",
            "25 patients",
            *("0.700", "0.800", "+0.150", "+0.010 to +0.200"),
        ),
        (
            "west",
            "0.900 own",
            "keeps its own model",
            "0.400, own 0.900; lead -0.500 on 1 case",
            "25 cases within one person",
            *("0.900", "0.400", "-", "-"),
        ),
    )


def test_a_number_that_rounds_to_nothing_is_not_less_than_nothing(joining):
    none = joined(lead=-0.0002, difference=-0.0001, low=-0.0003, high=-0.0001)
    row = joining_table(joining(east=none)).rows[0]
    assert "; lead +0.000" in row[3] and row[-2:] == ("+0.000", "+0.000 to +0.000")


def test_a_lead_that_is_not_in_the_metric_says_what_it_is_in(results):
    """As of a classification, whose own model has the same accuracy."""
    own = joined("local", 1.0, 1.0, 1.0, "keeps its own model", lead=-0.184)
    found = results(metric="accuracy", joining={"east": dump_record(own)})
    cell = joining_table(found).rows[0][3]
    assert cell == "1.000, own 1.000; lead -0.184 in the probability of the true answer on 9 patients"
    assert "leads by more than 0.005 in the probability of the true answer." in joining_note(found)
    assert "leads by more than 0.005 in the mean score." in joining_note(results())


@pytest.mark.parametrize("moved", [0.3, 0.8])
def test_a_table_of_the_usual_threshold_says_so_where_a_sites_own_moves_the_answer(joining, moved):
    one = joined(test={"local": 0.7, "federated": moved, "federated_calibrated": 0.8, "chosen": 0.8})
    table, is_moved = site_table(joining(sites={"east": moved, "west": 0.6}, east=one)), moved == 0.3
    assert table.columns[1] == ("dice at 0.5" if is_moved else "dice")
    assert table.rows[-1][0] == f"kept by 1 site, mean{', at their thresholds' * is_moved}"


@pytest.mark.parametrize(
    ("choices", "unchosen", "sentence"),
    [
        ({}, {}, ""),
        (
            {"east": joined()},
            {"west": "no answer in time"},
            f"{ONE}No choice could be made at west: no answer in time.",
        ),
        ({}, REASONS, "No choice could be made at east: it has no validation data; at west: no answer in time."),
        ({}, dict.fromkeys(REASONS, "it was late"), "No choice could be made at east, west: it was late."),
    ],
)
def test_the_sentence_counts_verdicts_and_says_why_a_site_could_not_choose(
    joining, results, choices, unchosen, sentence
):
    found = joining(unchosen=unchosen, **choices) if choices else results(**{"unchosen": unchosen} if unchosen else {})
    assert lead_sentence(found) == sentence and (joining_table(found) is None) == (not choices)


@pytest.mark.parametrize(
    ("one", "tones"),
    [
        (joined(), []),
        (joined(verdict=WORSE, kept=0.6), ["bad"]),
        (joined(federated=0.6), ["warning"]),
        # below by less than the decimals that are shown
        (joined(federated=0.6998, local=0.7002), []),
        (joined(federated=0.0), ["warning"]),
        (joined(federated=0.0, kept=0.6, verdict="too few to say"), ["warning", "warning"]),
        # what it keeps is named once, and the federated model beside it not again
        (joined(federated=0.6, kept=0.65, verdict="no clear difference"), ["warning"]),
        (joined(kept=0.6998, local=0.7002, verdict="no clear difference"), []),
        (joined(local=0.0, federated=0.0, kept=0.0, verdict="no clear difference"), ["bad"]),
    ],
)
def test_a_site_that_stands_badly_is_named(joining, one, tones):
    found = describe_problems(joining(sites={"east": one.test["federated"]}, east=one))
    assert [tone for tone, _ in found] == tones
    assert all(sentence.startswith("east: ") for _, sentence in found)


@pytest.mark.parametrize(
    ("changes", "tone", "proof"),
    [
        ({"verdict": "too few to say", "num_test_units": 6}, "warning", "6 patients: too few to say"),
        (
            {"verdict": "no clear difference", "is_one_person": True},
            "warning",
            "25 patients within one person: no clear difference",
        ),
        ({"verdict": WORSE}, "bad", "25 patients: worse for its patients"),
    ],
)
def test_a_kept_model_below_the_sites_own_is_named_with_its_numbers_and_with_what_they_prove(
    joining, changes, tone, proof
):
    one = joined(local=0.38, kept=0.332, **changes)
    sentence = f"east: the model that it keeps scores 0.332, its own model 0.380 ({proof})"
    assert describe_problems(joining(sites={"east": 0.8}, east=one)) == [(tone, sentence)]


def test_the_site_table_has_a_row_of_what_the_sites_keep(joining, results):
    own = joined("local", 0.9, 0.4, 0.9, "keeps its own model")
    table = site_table(joining(sites={"east": 0.8, "west": 0.4}, east=joined(kept=0.85), west=own))
    # (0.85 + 0.9) / 2
    assert table.rows[-1][:2] == ("kept by 2 sites, mean", "0.875") and table.num_summary == 4
    assert {len(row) for row in table.rows} == {len(table.columns)}
    assert site_table(results()).num_summary == 3


def test_the_first_tiles_are_alone_federated_and_kept(joining):
    moved = joined(test={"local": 0.7, "federated": 0.3, "federated_calibrated": 0.8, "chosen": 0.85})
    run = RunRecords(Path("run"), joining(sites={"east": 0.3, "west": 0.6}, east=moved), [], {}, {})
    (tiles,) = (block for one in make_run_page(run).sections for block in one.blocks if isinstance(block, Tiles))
    assert tiles.facts[:4] == [
        ("alone, mean over 1 site", "0.700"),
        ("federated, mean over 1 site", "0.800"),
        ("federated at 0.5, mean over 1 site", "0.300"),
        ("kept, mean over 1 site", "0.850"),
    ]


@pytest.mark.parametrize("older", [{"chosen": "fine_tuned", "default": "blend"}, {"chosen": "blend", "lead": 0.2}, 1])
def test_a_choice_of_an_older_version_is_refused_with_what_reads_it(results, tmp_path, older):
    (tmp_path / "results.json").write_text(json.dumps(dump_record(results()) | {"joining": {"east": older}}))
    with pytest.raises(ConfigError, match=r"results.json.*joining.*read it with silofl 0.1.0, which wrote it"):
        read_results(tmp_path)


def test_a_complete_run_with_a_model_near_zero_is_red_without_any_guard_too(results):
    (doubt,) = describe_problems(results(sites={"east": 0.953, "west": 0.0}))
    assert doubt == ("bad", "west: the model that it keeps is near 0, 0.000")
    # Poor is not near 0.
    assert [level for level, _ in describe_problems(results(sites={"east": 0.049, "west": 0.051}))] == ["bad"]


def test_a_federated_model_that_only_needs_a_threshold_is_not_called_useless(joining):
    """As found on nuclei: Dice 0.002 at the usual threshold, 0.697 with the site's own."""
    test = {"local": 0.915, "federated": 0.002, "federated_calibrated": 0.697, "chosen": 0.915}
    kept = joined("local", kept=0.915, verdict="keeps its own model", test=test)
    ((tone, sentence),) = describe_problems(joining(sites={"fluo": 0.002}, fluo=kept))
    assert tone == "warning" and sentence.startswith("fluo: the federated model is near 0 there with the usual")
    assert sentence.endswith("threshold, 0.002; with the site's own 0.697")


@pytest.mark.parametrize(
    ("metric", "lesion", "found"),
    [
        ("dice", (0.0, 0.02), [("warning", "the model cannot find lesion: Dice 0.020 at the best site")]),
        ("dice", (0.0, 0.3), []),
        ("accuracy", (0.0, 0.02), []),
    ],
)
def test_a_label_that_is_found_at_no_site_is_named(results, metric, lesion, found):
    labels = {site: {"organ": 0.9, "lesion": value} for site, value in zip(("east", "west"), lesion, strict=True)}
    assert describe_problems(results(metric=metric, by_label=labels)) == found


def test_the_page_and_the_terminal_open_with_the_answer_of_all_hospitals(joining, printed):
    found = joining(sites={"east": 0.8, "west": 0.8}, east=joined(), west=joined())
    # Twice 0.15 with an error of 0.05: 2.011 * 0.05 / sqrt(2) = 0.071 of 48 degrees of freedom.
    sentence = (
        "Over all 2 hospitals (50 test patients) the mean difference, federated minus local, is +0.150 (0.079 to "
        "0.221) in this start of the training: a clear gain. All 2 hospitals keep a model"
    )
    page = make_run_page(RunRecords(Path("run"), found, [], {}, {}))
    assert page.opening[0].lead.startswith(sentence)
    assert sentence in printed(print_results, found, 1000)


def test_the_terminal_opens_with_it_and_cautions(joining, results, printed):
    text = printed(print_results, joining(east=joined(verdict=WORSE, kept=0.6)))
    assert text.index("east would do better with") < text.index("mean over sites")
    assert "BAD  east: the model that it keeps scores 0.600, its own model 0.700" in " ".join(text.split("\n"))
    text = printed(print_results, joining(east=joined(local=0.38, kept=0.332, verdict="too few to say")))
    assert "CAUTION  east: the model that it keeps scores 0.332, its own model 0.380" in text
    assert "No choice could be made at east: " in printed(print_results, results(unchosen=REASONS))


def test_the_note_says_what_single_units_lack_and_how_cases_with_nothing_to_find_count(results):
    balanced, empty = "A single case has no balanced accuracy:", "counts 1 if the model finds"
    plain, found = joining_note(results(metric="accuracy")), joining_note(results(metric="balanced_accuracy"))
    assert "balanced" not in plain and empty not in plain and balanced in found
    counts = {"empty_cases": {"west": 3}, "false_positive_cases": {"west": 1}, "with_truth": {"west": 0.9}}
    assert f"{empty} nothing in it" in joining_note(results(**counts))
    # The verdict says whether it was.
    assert "trained to its end" not in plain + JOINING_NOTE + NOTE


def test_a_model_that_more_rounds_may_raise_is_named_with_the_remedy(joining):
    measured = {"own_rounds": 96, "own_best_round": 95}
    short = joined(verdict="not trained to the end", unfinished=("own",), **measured)
    found = joining(sites={"east": 0.8, "west": 0.8}, east=short, west=joined())
    text = lead_sentence(found)
    assert "what joining gives is not known before both models are trained to the end" in text
    assert text.endswith(
        " More rounds may raise the hospital's own model at east: run the study with more rounds, now 2."
    )
    both = joined(verdict="not trained to the end", unfinished=("own", "federated"), **measured)
    assert lead_sentence(joining(east=both)).endswith(
        "More rounds may raise the federated model and the hospital's own model at east: run the study with more "
        "rounds, now 2."
    )
    assert joining_table(joining(east=both)).rows[0][2] == "own and federated not trained to the end"


def test_more_rounds_are_a_command_in_a_folder_that_can_go_on_and_none_where_the_rate_falls(joining, tmp_path):
    short = joined(verdict="not trained to the end", unfinished=("own",), own_rounds=200, own_best_round=199)
    sites = {"east": 0.8, "west": 0.8}
    found, ended = joining(sites=sites, east=short, west=joined()), joining(sites=sites, east=joined(), west=joined())
    assert more_rounds_sentence(tmp_path, found, []) == ""
    job = shutil.copytree(JOBS / "fedavg_phantoms", tmp_path / "job")
    command = f"python -m silofl continue {tmp_path} --kit KIT"
    # Twice the 200 rounds of the own model, as the study has fewer.
    assert more_rounds_sentence(tmp_path, found, []) == f"To go on with more rounds: {command} --rounds 400"
    assert more_rounds_sentence(tmp_path, ended, []) == ""
    study = job / "app" / "config" / "study.yaml"
    study.write_text(study.read_text().replace("training:", "training:\n  schedule: poly", 1))
    assert more_rounds_sentence(tmp_path, found, []) == ""


def test_the_headline_has_at_most_three_sentences_whatever_there_is_to_say(joining):
    """As of volumes, whose headline had five."""
    measured = {"own_rounds": 96, "own_best_round": 95}
    both = joined(verdict="not trained to the end", unfinished=("own", "federated"), **measured)
    found = joining(sites={"east": 0.8, "west": 0.8}, unchosen={"west": "no answer in time"}, east=both)
    assert lead_sentence(found).count(". ") == 2
