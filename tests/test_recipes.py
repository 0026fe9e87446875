"""Recipes: the study that their arguments make, the job that they export, and what they prepare or refuse."""

import hashlib
import re
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path

import pytest
from nvflare.app_common.filters.exclude_vars import ExcludeVars
from nvflare.recipe import SimEnv, add_experiment_tracking

from silofl import read_results
from silofl.base.errors import ConfigError
from silofl.base.files import save_tensors
from silofl.models.networks import build_plain_model
from silofl.recipes import AdaFedRecipe, FedSMRecipe, HarmoFLRecipe, StudyRecipe
from silofl.study import load_study
from silofl_desk.phantoms.phantoms import make_phantoms
from silofl_desk.studies.runs import simulation
from silofl_desk.studies.runs.simulation import copy_job, study_file

from .studies.conftest import write_result

JOBS = Path(__file__).resolve().parents[1] / "jobs"
JOB = JOBS / "harmofl_phantoms"


@pytest.fixture(scope="module")
def phantoms(tmp_path_factory):
    folder = tmp_path_factory.mktemp("phantoms") / "data"
    return make_phantoms(folder, seed=7, patients={"north": 6, "south": 6})


def files_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- arguments


@pytest.mark.parametrize(
    ("recipe", "arguments", "section", "wanted"),
    [
        (HarmoFLRecipe, {"alpha": 0.2}, "perturbation", {"alpha": 0.2}),
        (HarmoFLRecipe, {"band": 3, "momentum": 0.5}, "amplitude", {"band": 3, "momentum": 0.5}),
        (FedSMRecipe, {"self_weight": 0.9}, "softpull", {"self_weight": 0.9}),
        (FedSMRecipe, {"threshold": 0.25}, "super_model", {"threshold": 0.25}),
        (AdaFedRecipe, {"self_weight": 0.4}, "statistics", {"self_weight": 0.4}),
    ],
)
def test_the_papers_constants_are_arguments(recipe, arguments, section, wanted):
    study = recipe(JOBS / f"{recipe.algorithm}_phantoms", **arguments).study
    assert wanted.items() <= vars(study.recipe.option(section)).items()


def test_the_training_is_an_argument_and_every_other_key_a_change():
    given = {"rounds": 3, "seed": 7, "local_epochs": 2, "batch_size": 4, "learning_rate": 0.01}
    study = StudyRecipe(JOB, changes={"training.optimizer": "sgd"}, **given).study
    training = study.training
    assert (study.rounds, study.seed, training.optimizer) == (3, 7, "sgd")
    assert (training.local_epochs, training.batch_size, training.learning_rate) == (2, 4, 0.01)


def test_a_recipe_runs_its_own_algorithm_on_the_study_of_another():
    recipe = HarmoFLRecipe(JOBS / "adafed_phantoms", preset="paper", alpha=0.2)
    assert (recipe.study.algorithm.name, recipe.study.algorithm.preset) == ("harmofl", "paper")
    assert load_study(study_file(recipe.folder)) == recipe.study
    assert "HarmoFLExecutor" in study_file(recipe.folder).with_name("config_fed_client.json").read_text()


@pytest.fixture
def start(tmp_path):
    """Return a function that writes the state of a recipe's network to a file and returns the file."""

    def write(study):
        file = tmp_path / "f.pt"
        save_tensors(file, build_plain_model(study, seed=1).state_dict())
        return file

    return write


def test_a_pretrained_model_goes_with_the_job_and_is_checked_when_it_is_given(tmp_path, start):
    plain = AdaFedRecipe("adafed_phantoms", preset="paper")
    file = start(plain.study)
    recipe = AdaFedRecipe("adafed_phantoms", preset="paper", pretrained=file)
    assert recipe.study == plain.study
    recipe.export(str(tmp_path / "out"))
    job = tmp_path / "out" / "adafed_phantoms"
    assert study_file(job).with_name("pretrained.pt").read_bytes() == file.read_bytes()
    file.write_bytes(b"broken")
    with pytest.raises(ConfigError, match=r"f\.pt does not hold the tensors .* save its state_dict.. with"):
        AdaFedRecipe("adafed_phantoms", preset="paper", pretrained=file)
    with pytest.raises(ConfigError, match=r"^harmofl_phantoms needs no pretrained model"):
        HarmoFLRecipe(JOB, pretrained=file)


def test_weights_that_everybody_starts_from_go_with_the_job(start):
    file = start(StudyRecipe(JOB).study)
    recipe = StudyRecipe(JOB, weights=file.parent / "f.pt", rounds=2)
    assert study_file(recipe.folder).with_name("weights.pt").read_bytes() == file.read_bytes()
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert (recipe.study.model.weights_sha256, recipe.study.rounds) == (digest, 2)
    with pytest.raises(ConfigError, match=r"^--weights must be a file of weights, a bundle"):
        StudyRecipe(JOB, weights=file.parent)


# --- the job


def test_a_changed_job_is_exported_as_a_command_would_change_it(tmp_path):
    HarmoFLRecipe(JOB, rounds=3, alpha=0.2).export(str(tmp_path / "out"))
    copy_job(JOB, tmp_path / "wanted", {"rounds": 3, "algorithm.perturbation.alpha": 0.2})
    assert files_of(tmp_path / "out" / "harmofl_phantoms") == files_of(tmp_path / "wanted")


def test_what_nvflare_would_add_to_a_job_is_refused_and_not_left_out(tmp_path):
    recipe = StudyRecipe(JOB)
    with pytest.raises(ConfigError, match=r"a recipe's job takes no ExcludeVars; add it to config_fed_client.json"):
        recipe.add_client_output_filter(ExcludeVars())
    with pytest.raises(ConfigError, match="a recipe's job takes no TBAnalyticsReceiver"):
        add_experiment_tracking(recipe, "tensorboard")
    with pytest.raises(ConfigError, match="takes no"):
        recipe.add_client_file(str(JOB / "meta.json"))


# --- environments


def test_a_simulation_of_unknown_sites_is_refused(tmp_path, phantoms):
    environment = SimEnv(workspace_root=str(tmp_path / "runs"), clients=["north", "soth"])
    with pytest.raises(ConfigError, match=r"--sites must be among north, south, not 'soth'"):
        StudyRecipe(JOB, data=phantoms).execute(environment)


@pytest.mark.parametrize(("code", "is_done"), [(0, True), (3, True), (1, False)])
def test_a_simulation_is_that_of_the_command_in_the_place_of_an_earlier_one(
    tmp_path, phantoms, monkeypatch, code, is_done
):
    """NVFlare takes each code but 0 for a failure."""
    recipe, run = StudyRecipe(JOB, data=phantoms), tmp_path / "harmofl_phantoms" / "server" / "simulate_job" / "silofl"
    run.mkdir(parents=True)
    (run / "results.json").write_text("old")

    def carry_out(folder, simulation, study, simulator, console):
        assert (folder, simulation.sites, study) == (run, ("north", "south"), recipe.study)
        write_result(folder, study, sites={"north": 0.5, "south": 0.5})
        return code

    monkeypatch.setattr("silofl_desk.studies.runs.simulate._run_prepared_job", carry_out)
    environment = SimEnv(clients=["north", "south"], workspace_root=str(tmp_path))
    with nullcontext() if is_done else pytest.raises(RuntimeError, match="return code 1"):
        done = recipe.execute(environment)
        assert read_results(done.get_result()).values == {"north": 0.5, "south": 0.5}


# --- docs/python.md

PAGE = (JOBS.parent / "docs" / "python.md").read_text(encoding="utf-8")
(SIMULATED, _) = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def test_the_pages_simulation_is_carried_out_and_its_result_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = make_phantoms(tmp_path / "small", seed=7, patients={"north": 6, "east": 6})
    monkeypatch.setattr(simulation, "_provide_phantoms", lambda study: small)
    given = []

    def deploy(environment, job):
        folder = tmp_path / "runs" / job.name / "server" / "simulate_job" / "silofl"
        folder.mkdir(parents=True)
        write_result(folder, load_study(study_file(JOB)), sites={"north": 0.5})
        given.append((environment.clients, job.name))
        return job.name

    monkeypatch.setattr(SimEnv, "deploy", deploy)
    names = {}
    exec(compile(SIMULATED, "docs/python.md", "exec"), names)
    assert given == [(["north", "east"], "harmofl_phantoms")]
    study = names["recipe"].study
    assert (study.rounds, study.recipe.option("perturbation").alpha) == (2, 0.1)
    assert names["results"].values == {"north": 0.5}


def test_the_page_names_each_recipe_with_its_own_arguments():
    lines = [re.findall(r"`(\w+)`", line) for line in PAGE.splitlines() if line.startswith("| `")]
    rows = {row[0]: row[1:] for row in lines}
    common = {one.name for one in fields(StudyRecipe)}
    for recipe in (HarmoFLRecipe, FedSMRecipe, AdaFedRecipe, StudyRecipe):
        assert {*rows[recipe.__name__]} == {one.name for one in fields(recipe)} - common
    assert {*rows} == {"HarmoFLRecipe", "FedSMRecipe", "AdaFedRecipe", "StudyRecipe"}
