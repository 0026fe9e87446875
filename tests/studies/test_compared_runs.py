import json

import pytest
import yaml

from silofl.cli import main
from silofl.errors import ConfigError
from silofl.settings import parse
from silofl.studies.compared_runs import METHODS, Comparison, planned
from silofl.studies.simulate import study_file
from silofl.study import Study

from .conftest import JOB


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_an_algorithm_that_takes_the_place_of_a_jobs(name):
    values = yaml.safe_load(study_file(JOB).read_text())
    study = parse(Study, values | {"model": {"normalization": "instance"}, "algorithm": METHODS[name]}, "study.yaml")
    assert study.algorithm.name == METHODS[name]["name"]


def test_the_help_names_every_method(capsys):
    with pytest.raises(SystemExit):
        main(["compare", "--help"])
    assert " ".join(["methods:", *METHODS]) in " ".join(capsys.readouterr().out.split())


def test_runs_are_planned_in_the_order_of_the_rows_with_all_seeds_of_one_behind_one_another(tmp_path, phantoms):
    asked = Comparison((JOB,), ("local", "fedprox"), (3, 1), rounds=2, data=str(phantoms))
    runs = planned(asked, tmp_path)
    names = ["fedavg_phantoms", "local", "fedprox"]
    assert [run.path.relative_to(tmp_path / "runs").name for run in runs] == [
        f"{n}-seed{k}" for n in names for k in (3, 1)
    ]
    assert runs[0].changes == {"seed": 3, "rounds": 2}
    assert runs[-1].changes == {"algorithm": {"name": "fedprox"}, "seed": 1, "rounds": 2}
    assert not list(tmp_path.iterdir())


def test_the_place_of_a_run_that_holds_something_else_is_refused(tmp_path, phantoms):
    kept = tmp_path / "runs" / "fedavg_phantoms-seed0" / "notes.txt"
    kept.parent.mkdir(parents=True)
    kept.write_text("kept")
    with pytest.raises(ConfigError, match="must hold a run or nothing, not something else"):
        planned(Comparison((JOB,), data=str(phantoms)), tmp_path)
    assert kept.read_text() == "kept"


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_run_whose_settings_are_broken_is_refused(tmp_path, phantoms, training, content):
    run = tmp_path / "runs" / "fedavg_phantoms-seed0"
    assert main(["compare", str(JOB), "--data", str(phantoms), "--out", str(tmp_path), "--seeds", "0"]) == 0
    (run / "run.json").write_text(content)
    with pytest.raises(ConfigError, match="run.json must be the run.json that silofl wrote"):
        planned(Comparison((JOB,), data=str(phantoms)), tmp_path)


def test_an_earlier_run_on_other_sites_is_refused(tmp_path, phantoms, training):
    assert main(["compare", str(JOB), "--data", str(phantoms), "--out", str(tmp_path), "--seeds", "0"]) == 0
    path = tmp_path / "runs" / "fedavg_phantoms-seed0" / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"sites": ["north"]}))
    with pytest.raises(
        ConfigError, match="must be a run of what is asked for, not one that differs in sites of the run"
    ):
        planned(Comparison((JOB,), data=str(phantoms)), tmp_path)
