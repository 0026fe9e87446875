import json
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from silofl.base.errors import ConfigError
from silofl.models import build_plain_model
from silofl.study import load_study
from silofl_desk.studies.comparisons.compared_runs import ComparisonPlan, plan_runs
from silofl_desk.studies.runs import simulate
from silofl_desk.studies.runs.simulation import changed_study, study_file

from ..conftest import JOB

MASKS = JOB.with_name("fedavg_masks")


def test_runs_are_planned_row_by_row_with_all_seeds_of_each(tmp_path, phantoms):
    # What the job does by itself is no row of its own.
    methods = ("local", "fedavg", "harmofl:paper")
    asked = ComparisonPlan((JOB,), methods, seeds=(3, 1), changes={"rounds": 2}, data=str(phantoms))
    runs = plan_runs(asked, tmp_path)
    names = ["fedavg_phantoms", "local", "harmofl-paper"]
    assert [run.path.relative_to(tmp_path / "runs").name for run in runs] == [
        f"{n}-seed{k}" for n in names for k in (3, 1)
    ]
    assert runs[0].name == "fedavg" and runs[0].changes == {"seed": 3, "rounds": 2}
    assert runs[-1].name == "harmofl:paper"
    assert runs[-1].changes == {"algorithm": {"name": "harmofl", "preset": "paper"}, "seed": 1, "rounds": 2}
    assert not list(tmp_path.iterdir())


def test_extra_rounds_count_among_the_studys_where_all_rows_get_as_many(tmp_path, phantoms):
    methods = ("finetuning", "fedsm-finetuning", "fedsm-perfedavg", "fedsm-extra", "local")
    changes = {"rounds": 60, "model.normalization": "group"}
    asked = ComparisonPlan((JOB,), methods, seeds=(0,), changes=changes, data=str(phantoms), has_equal_rounds=True)
    runs = {run.name: run for run in plan_runs(asked, tmp_path)}
    extra = changed_study(JOB, {"algorithm": {"name": "finetuning"}}).recipe.extra_rounds
    # fedsm-extra has 50 extra rounds
    rounds = {"fedavg": 60, "finetuning": 60 - extra, "fedsm-extra": 10, "local": 60}
    rounds |= {"fedsm-finetuning": 60 - extra, "fedsm-perfedavg": 60}
    assert extra > 0 and {name: run.changes["rounds"] for name, run in runs.items()} == rounds
    assert {changed_study(run.job, run.changes).total_rounds for run in runs.values()} == {60}
    with pytest.raises(ConfigError, match="fedsm-extra: rounds must be more than its 50"):
        plan_runs(replace(asked, changes=changes | {"rounds": 50}), tmp_path)


def test_the_place_of_a_run_that_holds_something_else_is_refused(tmp_path, phantoms):
    kept = tmp_path / "runs" / "fedavg_phantoms-seed0" / "notes.txt"
    kept.parent.mkdir(parents=True)
    kept.write_text("kept")
    with pytest.raises(ConfigError, match="holds something that is no run"):
        plan_runs(ComparisonPlan((JOB,), data=str(phantoms)), tmp_path)
    assert kept.read_text() == "kept"


def test_an_earlier_run_on_other_sites_or_with_broken_settings_is_refused(tmp_path, phantoms, training):
    (run,) = plan_runs(ComparisonPlan((JOB,), seeds=(0,), data=str(phantoms)), tmp_path)
    simulate.start_simulation(run.job, run.path, run.wanted, run.changes, Console(quiet=True))
    path = run.path / "run.json"
    other = json.dumps(json.loads(path.read_text()) | {"sites": ["north"]})
    for content, sentence in (
        (other, "holds another run, which differs in sites of the run"),
        ("{", "run.json is broken JSON"),
        ("[]", "run.json must be keys and values"),
    ):
        path.write_text(content)
        with pytest.raises(ConfigError, match=sentence):
            plan_runs(ComparisonPlan((JOB,), data=str(phantoms)), tmp_path)


@pytest.mark.parametrize("has_weights", [False, True])
def test_rows_begin_with_the_pretrained_model_or_the_weights(windows, write_windows_job, tmp_path, has_weights):
    job, file = write_windows_job("adafed_activity"), str(tmp_path / "f.pt")
    torch.save(build_plain_model(load_study(study_file(job)), 1).state_dict(), file)
    methods, weights = ("local", "local-pretrained", "fedavg", "d-adafed"), file if has_weights else None
    asked = ComparisonPlan((job,), methods, seeds=(0,), data=str(windows), pretrained=file, weights=weights)
    runs = {run.name: run for run in plan_runs(asked, tmp_path / "out")}
    assert runs["local-pretrained"].changes["algorithm"] == {"name": "local", "start_from_pretrained": True}
    assert {name: (run.wanted.pretrained, run.wanted.weights) for name, run in runs.items()} == {
        **dict.fromkeys(("adafed:paper", "local-pretrained", "d-adafed"), (file, None)),
        **dict.fromkeys(("local", "fedavg"), (None, weights)),
    }


def test_a_method_that_keeps_batchnorm_at_home_gets_it(phantoms, tmp_path):
    """As found: ``--methods fedbn`` of a study with GroupNorm trained FedAvg once more."""
    at_home, others = ("fedbn", "harmofl", "f-adafed"), ("local", "fedper", "harmofl:paper")
    asked = ComparisonPlan((MASKS,), (*at_home, *others), seeds=(0,), data=str(phantoms))
    runs = plan_runs(asked, tmp_path)
    found = {run.name: changed_study(run.job, run.changes).model.normalization for run in runs}
    assert found == dict.fromkeys(("fedavg", *others), "group") | dict.fromkeys(at_home, "batch")
