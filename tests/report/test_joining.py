"""What joining gave: the table, the sentences above and below it, and how to go on."""

import shutil
from dataclasses import replace
from pathlib import Path

from silofl.core.gain import BETTER
from silofl_desk.report.result_tables import site_table
from silofl_desk.report.run_page import make_run_page
from silofl_desk.report.run_records import RunRecords
from silofl_desk.report.sentences import (
    describe_problems,
    joining_table,
    lead_sentence,
    more_rounds_sentence,
)
from silofl_desk.studies.runs.print_results import print_results
from silofl_hospital.report.page import Tiles
from tests.conftest import JOBS
from tests.report.conftest import joined


def test_a_row_of_a_site_without_a_label_says_its_false_alarms(joining):
    result = joining(sites={"east": 0.8, "west": 0.0}, east=joined(), west=joined(kept=0.0, num_test_units=0))
    empty = replace(result.tests["west"], num_empty=12, num_false_positive=3, value_with_truth=None)
    result = replace(result, sites=dict(result.sites) | {"west": empty})
    row = joining_table(result).rows[1]
    assert row[4:7] == ("false alarms in 3 of 12 cases without organ", "-", "-") and row[1] == "- federated"
    assert not any("west" in sentence for _, sentence in describe_problems(result))


def test_each_site_has_a_row_with_verdict_and_interval(joining):
    own = joined("local", 0.9, 0.4, 0.9, "keeps its own model", difference=None, is_one_person=True, unit="case")
    own = replace(own, lead=-0.5, num_units=1)
    # A number that rounds to nothing is not less than nothing.
    none = joined(lead=-0.0002, difference=-0.0001, low=-0.0003, high=-0.0001)
    table = joining_table(joining(sites={"east": 0.8, "west": 0.4, "south": 0.8}, east=joined(), west=own, south=none))
    assert table.columns[:3] == ("site", "kept", "verdict")
    assert table.rows[0] == (
        "east",
        "0.850 federated",
        BETTER,
        "0.800, local 0.700; lead +0.000 on 9 patients",
        "25 patients",
        *("0.700", "0.800", "+0.150", "+0.010 to +0.200"),
    )
    assert table.rows[1] == (
        "west",
        "0.900 local",
        "keeps its own model",
        "0.400, local 0.900; lead -0.500 on 1 case",
        "25 cases within one person",
        *("0.900", "0.400", "-", "-"),
    )
    assert table.rows[2][-2:] == ("+0.000", "+0.000 to +0.000")


def test_a_table_says_at_which_thresholds_its_values_are(joining, results):
    own = joined("local", 0.9, 0.4, 0.9, "keeps its own model")
    moved = joined(test={"local": 0.7, "federated": 0.3, "federated_calibrated": 0.8, "chosen": 0.85})
    still, shown = (
        site_table(joining(sites={"east": 0.8, "west": 0.4}, east=one, west=own)) for one in (joined(), moved)
    )
    # (0.85 + 0.9) / 2
    assert still.columns[1] == "dice" and still.rows[-1][:2] == ("kept by 2 sites, mean", "0.875")
    assert shown.columns[1] == "dice at 0.5" and shown.rows[-1][0] == "kept by 2 sites, mean, at their thresholds"
    assert (still.num_summary, site_table(results()).num_summary) == (4, 3)
    page = make_run_page(RunRecords(Path("run"), joining(sites={"east": 0.3, "west": 0.6}, east=moved), [], {}, {}))
    (tiles,) = (block for one in page.sections for block in one.blocks if isinstance(block, Tiles))
    assert tiles.facts[:4] == [
        ("local, mean over 1 site", "0.700"),
        ("federated, mean over 1 site", "0.800"),
        ("at 0.5, mean over 1 site", "0.300"),
        ("kept, mean over 1 site", "0.850"),
    ]


def test_page_and_terminal_open_with_all_hospitals(joining, printed):
    short = joined(verdict="not trained to the end", unfinished=("own",))
    found = joining(sites={"east": 0.8, "west": 0.8}, east=joined(), west=short)
    # Twice 0.15 with an error of 0.05: 2.011 * 0.05 / sqrt(2) = 0.071 of 48 degrees of freedom.
    sentence = "Over all 2 hospitals (50 test patients) the mean difference, federated"
    end = "More rounds may raise the models at west: run the study with more rounds, now 2."
    lead = lead_sentence(found)
    assert lead.startswith(sentence) and "is +0.150 (0.079 to 0.221) in this start" in lead and lead.endswith(end)
    assert "what joining gives is not known before both models are trained to the end" in lead
    assert joining_table(found).rows[1][2] == "local not trained to the end"
    page = make_run_page(RunRecords(Path("run"), found, [], {}, {}))
    assert page.opening[0].lead == lead and lead in printed(print_results, found, 1000)


def test_joining_that_gave_nothing_is_said(joining):
    worse = joined("local", 0.81, 0.0, 0.81, "keeps its own model")
    lead = "Joining gave nothing: the federated model is worse at the only hospital (0.000, local 0.810)."
    assert lead_sentence(joining(sites={"east": 0.0}, east=worse)) == lead


def test_more_rounds_are_a_command_where_they_can_be_trained(joining, tmp_path):
    short = joined(verdict="not trained to the end", unfinished=("own",), local_rounds=200, local_best_round=199)
    sites = {"east": 0.8, "west": 0.8}
    found, ended = joining(sites=sites, east=short, west=joined()), joining(sites=sites, east=joined(), west=joined())
    assert more_rounds_sentence(tmp_path, found, []) == ""
    job = shutil.copytree(JOBS / "fedavg_phantoms", tmp_path / "job")
    command = f"python -m silofl continue {tmp_path} --kit KIT"
    # Twice the 200 rounds of the local model, as the study has fewer.
    assert more_rounds_sentence(tmp_path, found, []) == f"To go on with more rounds: {command} --rounds 400"
    assert more_rounds_sentence(tmp_path, ended, []) == ""
    study = job / "app" / "config" / "study.yaml"
    study.write_text(study.read_text().replace("training:", "training:\n  schedule: poly", 1))
    assert more_rounds_sentence(tmp_path, found, []) == ""
