import io
import json

import pytest
from rich.console import Console

from silofl.base.schema import dump_record
from silofl.federation.ledger import FILE, Round
from silofl.federation.outcome import unscored_results
from silofl_desk.studies.runs.print_results import print_beginning, print_notes
from silofl_desk.studies.runs.simulation import changed_study

from ..conftest import JOB

UNSCORED = unscored_results("small", "FAILED", ["study.yaml cannot be read"])


def test_what_the_ledger_notes_of_a_site_is_printed_at_the_end_of_a_run(tmp_path):
    text = io.StringIO()
    print_notes(tmp_path, UNSCORED, Console(file=text))
    rounds = [Round(1, notes=["west: its images' mean is far from all others'"]), Round(2)]
    (tmp_path / FILE).write_text(json.dumps(dump_record(rounds)))
    print_notes(tmp_path, UNSCORED, Console(file=text))
    assert text.getvalue() == "round 1: west: its images' mean is far from all others'\n"


@pytest.mark.parametrize("patience", [None, 7])
def test_a_training_that_may_end_early_says_before_its_first_round_what_ends_it(patience):
    study, text = changed_study(JOB, {"rounds": 30, "federation.patience": patience}), io.StringIO()
    print_beginning(study, ["north", "south"], Console(file=text, width=300))
    sentence = (
        "Training takes at most 30 rounds. It ends when none of the last 7 has raised the sites' validation by more "
        "than 0.005; the line of each round says what it took, and the most that is left.\n"
    )
    assert (sentence in text.getvalue()) == (patience == 7)
