"""An evaluation that is killed, or whose disk is full, leaves no half folder, and can be done again."""

import errno
import json
from functools import partial

import pytest

from silofl.inference.directory import write_model_folder

from ..studies.test_evaluate import classify
from .conftest import silofl
from .started import Fault, kill

pytestmark = pytest.mark.faults


def fill_the_disk():
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(("name", "action"), [("_write_page", kill), ("write_cases", fill_the_disk)])
def test_what_was_written_of_an_evaluation_that_ended_is_no_folder(tmp_path, windows, name, action):
    write_model_folder(tmp_path / "model", classify())
    evaluate = partial(silofl, "evaluate", tmp_path / "model", windows / "eva", "--out", tmp_path / "out")
    code, said = evaluate(fault=Fault(f"silofl_hospital.site.evaluate:{name}", action=action))
    assert code != 0 and not (tmp_path / "out").exists() and "Traceback" not in said
    if action is fill_the_disk:
        # Nor is anything else.
        assert [path.name for path in tmp_path.iterdir()] == ["model"]
    code, said = evaluate()
    assert code == 0 and json.loads((tmp_path / "out" / "evaluation.json").read_text())["num_cases"] == 16, said
    assert (tmp_path / "out" / "cases.csv").is_file() and (tmp_path / "out" / "evaluation.html").is_file()
