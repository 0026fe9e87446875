import pytest
import torch

from silofl.base.errors import ExitCode
from silofl.command_line.cli import main
from silofl.data.data_profile import DataProfile
from silofl.federation.server import ServerRounds
from silofl.inference.contents import Contents
from silofl.inference.directory import read_fingerprint, write_model_folder
from silofl.inference.model_file import join_model, split_model
from silofl.models import build_model
from silofl.models.weights import read_start
from silofl.study import load_study
from silofl_desk.flare.submission import check_job
from silofl_desk.studies.runs.simulation import study_file

SHAPE = (1, 32, 32)


@pytest.fixture
def write(tmp_path, make_study):
    """Write the job of a model that an algorithm trained; return the job's folder and the model's contents."""

    def give(**algorithm):
        study = make_study(baseline_comparison=True, **algorithm)
        state = build_model(study, SHAPE, seed=3).state_dict()
        contents = Contents(study, SHAPE, {"global": state}, "only", data_profile=DataProfile(kinds=("volumes",)))
        write_model_folder(tmp_path / "model", contents)
        assert main(["evaluation-job", str(tmp_path / "model"), "--out", str(tmp_path / "job")]) == ExitCode.COMPLETE
        return tmp_path / "job", contents

    return give


@pytest.mark.parametrize("name", ["fedavg", "harmofl", "fedbn"])
def test_the_job_holds_the_model_as_it_is_and_raises_no_doubt(write, tmp_path, capsys, name):
    job, contents = write(name=name)
    study = load_study(study_file(job))
    assert (study.name, study.rounds, study.compares_with_baseline) == ("small-evaluation", 0, False)
    # what a lead is told before the job is submitted
    digest, *others = check_job(job, study)
    assert study.digest in digest and study.digest in capsys.readouterr().out and others == []
    facts, arrays = split_model(read_start(study_file(job).parent, study).arrays)
    found = join_model(facts, arrays, study)
    assert found.models["global"].keys() == contents.models["global"].keys()
    for key, value in contents.models["global"].items():
        assert torch.equal(found.models["global"][key], value)
    assert (found.data_profile, found.rule) == (contents.data_profile, "only")
    assert facts["fingerprint"] == read_fingerprint(tmp_path / "model")
    # The digest is of the model too.
    model = study.model.model_copy(update={"pretrained_sha256": "0" * 64})
    other = load_study(study_file(job)).model_copy(update={"model": model})
    assert study.digest != other.digest
    # The server has no part but the evaluation.
    server = ServerRounds.start(study, "run", ["east"], read_start(study_file(job).parent, study).arrays)
    assert [*server.parts] == ["evaluation"] and server.test.task == "evaluation"
    # A job is not written over another.
    assert main(["evaluation-job", str(tmp_path / "model"), "--out", str(job)]) == ExitCode.BAD_INPUT
    assert "already exists. Name a new folder with --out" in capsys.readouterr().err


def test_hospitals_divide_their_cases_by_the_groups_that_the_lead_names(write, tmp_path, capsys):
    write(name="fedavg")
    job = ["evaluation-job", str(tmp_path / "model"), "--out", str(tmp_path / "divided")]
    assert main([*job, "--by", "scanner"]) == ExitCode.BAD_INPUT
    assert "--by scanner has no groups" in capsys.readouterr().err
    assert main([*job, "--by", "age", "--by", "scanner=GE,SIEMENS"]) == ExitCode.COMPLETE
    found = load_study(study_file(tmp_path / "divided")).subgroups
    assert found == {"age": (18.0, 40.0, 65.0), "scanner": ("GE", "SIEMENS")}
