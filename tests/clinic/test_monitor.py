import json
from datetime import datetime

import numpy as np
import pytest

from silofl.base.errors import ExitCode
from silofl.base.files import write_json
from silofl.command_line.cli import main
from silofl_clinic.monitor import find_alarms
from silofl_hospital.inference.answers import group_months, read_answers

LOOK, FINGERPRINT = "the look of the image to the network", "f" * 64


def record(month, look=0.0, number=0, warnings=(), fallback=False, **more):
    """Return an entry of prediction.json, as predict writes it."""
    time = datetime(2027 + month // 12, month % 12 + 1, 3).isoformat() + "+00:00"
    entry = {"input": f"scan{month}-{number}.nii.gz", "time": time, "super_model": FINGERPRINT, "model": "north"}
    entry |= {"scores": {"north": 0.9, "south": 0.1}, "is_fallback": fallback, "warnings": [*warnings]}
    return entry | {"deviations": {LOOK: look}} | more


@pytest.fixture
def clinic(tmp_path):
    """Write a model, and a year of 20 answers a month; return a function that changes them and calls the command."""
    test = {"north": {"choices": {"north": 49, "global": 1}}}
    write_json(tmp_path / "model" / "model.json", {"fingerprint": FINGERPRINT, "facts": {"test": test}})

    def monitor(change=lambda month: {}, *options, months=12):
        rng = np.random.default_rng(0)
        for month in range(months):
            changed = {"look": 0.0} | change(month)
            entries = [
                record(month, number=n, **changed | {"look": float(rng.normal(changed["look"]))}) for n in range(20)
            ]
            write_json(tmp_path / "records" / f"m{month}" / "prediction.json", entries)
        return main(["monitor", str(tmp_path / "records"), "--model", str(tmp_path / "model"), *map(str, options)])

    return monitor


@pytest.mark.parametrize(("months", "sentence"), [(12, "no change since 2027-03"), (3, "too early to say")])
def test_months_without_a_change_raise_no_alarm(clinic, capsys, months, sentence):
    assert clinic(months=months) == ExitCode.COMPLETE
    assert sentence in capsys.readouterr().out


def test_a_new_scanner_is_seen_in_its_first_month(clinic, capsys):
    assert clinic(lambda month: {"look": 1.5 * (month >= 8)}, "--json") == ExitCode.INCOMPLETE
    printed = capsys.readouterr().out
    alarms = json.loads(printed[printed.index('{"months"') :])["alarms"]
    assert alarms[0]["month"] == "2027-09" and {alarm["measure"] for alarm in alarms} == {LOOK}
    assert "images look different to the network: scanner, protocol or reconstruction" in printed


@pytest.mark.parametrize(
    "sentence", ["the file states another body part than training's files", "the size of organ is unusual"]
)
def test_a_warning_that_was_rare_and_becomes_frequent_is_named(clinic, capsys, sentence):
    change = lambda month: {"warnings": (f"{sentence}: head",) if month >= 8 else ()}  # noqa: E731
    assert clinic(change) == ExitCode.INCOMPLETE
    assert f"2027-09: {sentence}: 100%, at first 0%" in capsys.readouterr().out


def test_a_clinic_unlike_the_models_own_test_is_told(clinic, capsys):
    assert clinic(lambda month: {"look": 2.6, "fallback": True}) == ExitCode.INCOMPLETE
    printed = " ".join(capsys.readouterr().out.split())
    assert f"from the beginning, {LOOK} lies +2." in printed
    # one of fifty there
    assert "answers of the global model, as a fallback are 100%, in the model's own test 2%" in printed


def test_who_had_answers_of_which_model_is_listed(clinic, tmp_path):
    foreign = record(0, number=99, super_model="e" * 64, dicom={"study": "1.2.3", "patient": "p7"})
    write_json(tmp_path / "records" / "before" / "prediction.json", [foreign])
    clinic(lambda month: {}, "--answers", tmp_path / "answers.csv", months=4)
    lines = (tmp_path / "answers.csv").read_text().splitlines()
    assert len(lines) == 1 + 1 + 4 * 20
    assert f"2027-01-03 00:00,scan0-99.nii.gz,1.2.3,p7,{'e' * 64},north" in lines


def test_records_without_time_and_broken_models_are_refused(clinic, tmp_path, capsys):
    write_json(tmp_path / "records" / "old" / "prediction.json", [{"input": "a.png"}])
    assert clinic(months=4) == ExitCode.BAD_INPUT
    assert "old/prediction.json has no answers with their time" in capsys.readouterr().err
    write_json(tmp_path / "model" / "model.json", {})
    assert clinic(months=4) == ExitCode.BAD_INPUT
    assert "--model must be a super model with a model.json" in capsys.readouterr().err


def test_refused_inputs_count_and_have_no_numbers(tmp_path):
    entry = {"input": "x", "time": "2027-01-03T00:00:00+00:00", "super_model": FINGERPRINT, "error": "x must be whole"}
    write_json(tmp_path / "prediction.json", [entry])
    (answer,) = read_answers(tmp_path)
    assert answer.measures == {"refused inputs": True} and find_alarms(group_months([answer])) == []
