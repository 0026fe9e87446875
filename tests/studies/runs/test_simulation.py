import json
import shutil
from functools import partial

import pytest

from silofl.base.errors import ConfigError
from silofl.study import load_study
from silofl_desk.phantoms.phantoms import PATIENTS, make_phantoms
from silofl_desk.studies.runs.simulation import (
    Simulation,
    apply_changes,
    changed_study,
    copy_job,
    read_simulation,
    settle_job,
    study_file,
)

from ..conftest import JOB


@pytest.fixture
def refused_run(refused, tmp_path, two_sites):
    """Simulate what must be refused, of two sites; returns the sentence."""

    def run(*options, job=JOB, data=two_sites):
        return refused("simulate", job, "--data", data, "--out", tmp_path / "run", *options)

    return run


def test_a_folder_that_is_no_job_is_refused(refused_run, tmp_path, job):
    assert "which is not there" in refused_run(job=tmp_path / "absent")
    file = tmp_path / "file"
    file.write_text("a job")
    assert "file is no job folder; meta.json is missing" in refused_run(job=file)
    for missing in ("meta.json", "app/config/study.yaml"):
        (job() / missing).unlink()
        assert f"job is no job folder; {missing} is missing" in refused_run(job=tmp_path / "job")


@pytest.mark.parametrize(
    ("job", "folder", "sites"),
    [
        ("harmofl_stains", "stains", ("east", "midland", "north", "south", "west")),
        ("harmofl_phantoms", "phantoms", ("east", "north", "south", "west")),
    ],
)
def test_the_hospitals_that_suit_a_study_are_made_at_first_use(tmp_path, monkeypatch, job, folder, sites):
    monkeypatch.chdir(tmp_path)
    small = partial(make_phantoms, patients=dict.fromkeys(PATIENTS, 6))
    monkeypatch.setattr("silofl_desk.studies.runs.simulation.make_phantoms", small)
    monkeypatch.setattr("silofl_desk.phantoms.stains.PATCHES", 2)
    _, simulation = settle_job(JOB.with_name(job), Simulation(), {})
    assert simulation.data == str(tmp_path / folder) and simulation.sites == sites
    assert all((tmp_path / folder / site / "dataset.json").is_file() for site in sites)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ([], "dataset.json"),
        (["--sites", "nort"], "must be among north, south, not 'nort' (did you mean 'north'?)"),
        (["--sites", "north,xyz"], "not 'xyz'\n"),
        (["--leave-out", "nort"], "--leave-out must be among north, south, not 'nort' (did you mean 'north'?)"),
        (["--leave-out", "coast"], "not 'coast'\n"),
        (["--leave-out", "north", "--sites", "north,south"], "Site 'north' is left out and in --sites"),
        (["--leave-out", "north", "--sites", "nort"], "--sites must be among north, south, not 'nort'"),
        (["--leave-out", "north"], "federation.min_sites must be at most 1"),
        (["--rounds", "0"], "--rounds must be a whole number of at least 1, not '0'"),
        (["--rounds", "x"], "--rounds must be a whole number of at least 1, not 'x'"),
        (["--rounds", ""], "not ''"),
        (["--rounds", "²"], "not '²'"),
        (["--seed", "-1"], "--seed must be a whole number of at least 0, not '-1'"),
    ],
)
def test_what_cannot_run_is_refused_and_leaves_no_run_behind(refused_run, tmp_path, two_sites, options, reason):
    before = sorted(two_sites.rglob("*"))
    assert reason in refused_run(*options)
    assert not (tmp_path / "run").exists() and sorted(two_sites.rglob("*")) == before


def test_a_dot_in_a_sites_name_is_refused_but_with_alone(refused_run, two_sites):
    (two_sites / "north").rename(two_sites / "north.2")
    error = refused_run()
    assert "Site name 'north.2' has a dot" in error and "silofl simulate --in-process" in error
    _, simulation = settle_job(JOB, Simulation(data=str(two_sites), is_in_process=True), {})
    assert simulation.sites == ("north.2", "south")


NO_MODELS = "Site name {!r} is reserved, or has characters other than letters, digits, '.', '_' and '-'"


@pytest.mark.parametrize(
    ("name", "sentence"),
    # That no model could bear at the run's end, that commands a terminal, and that commands another program.
    [(n, NO_MODELS) for n in ("Klinik Nord", "north,south", "K\u00f6ln", "north#2", "it's", "global", "selector")]
    + [(n, "names no folder, is not UTF-8, or has line breaks") for n in ("no\nr", "no\x1b[31mr", "no\udce4r")]
    + [(n, "cannot name a site: it begins with one of") for n in ("=1+1", "@x", "$HOME", "-rf", "%a")],
)
def test_a_site_whose_name_could_do_harm_is_refused_before_the_run(refused_run, two_sites, name, sentence):
    (two_sites / "north").rename(two_sites / name)
    for options in ([], ["--in-process"]):
        error = refused_run(*options)
        assert sentence.format(name) in error and (repr(name) in error or "rename its folder" in error)


@pytest.mark.parametrize("changes", [{"sites": ["../../victim"]}, {"sites": [".."]}, {"left_out": "/victim"}])
def test_a_run_of_sites_whose_names_lead_elsewhere_is_not_gone_on_with(tmp_path, changes):
    settings = {"data": str(tmp_path), "sites": ["north"], "threads": 1} | changes
    (tmp_path / "run.json").write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match="Site name .* names no folder"):
        read_simulation(tmp_path)


@pytest.mark.parametrize("inside", ["", "run.json", "notes.txt", "sites/north/scores.csv"])
def test_a_run_folder_that_is_a_file_or_holds_something_is_refused_and_kept(refused_run, tmp_path, inside):
    kept = tmp_path / "run" / inside
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text("kept")
    error = refused_run()
    assert "already" in error and ("silofl resume" in error) == (inside == "run.json")
    assert kept.read_text() == "kept"


def test_a_study_of_other_labels_or_more_sites_is_refused(refused_run, north_phantoms, job):
    for key in ("min_sites", "sites"):
        assert f"federation.{key} must be at most 2" in refused_run(job=job(federation={key: 9}))
    named = refused_run(job=job(federation={"sites": ["north", "west"]}))
    assert "federation.sites names north, west, but north, south take part" in named
    folder = job(labels={1: "nucleus"}, federation={"min_sites": 1})
    assert "labels" in refused_run(job=folder, data=north_phantoms)


def test_a_site_without_a_dataset_json_is_refused_not_dropped_and_one_must_train(refused_run, two_sites):
    (two_sites / "west").mkdir()
    error = refused_run()
    assert "has folders without a dataset.json: west." in error
    assert error.endswith("or name the sites that take part with simulate --sites.\n")
    for name in ("south", "west"):
        shutil.rmtree(two_sites / name)
    assert "Without 'north', the only site, none is left to train" in refused_run("--leave-out", "north")


# --- changes


def test_dotted_keys_are_put_in_place_and_the_rest_stays():
    values = {"rounds": 3, "labels": {1: "a"}, "training": {"momentum": 0.9, "betas": [0, 0]}}
    changes = {"rounds": 5, "labels.1": "b", "training.momentum": 0.5, "data.channels": 3}
    wanted = {"rounds": 5, "labels": {1: "b"}, "training": {"momentum": 0.5, "betas": [0, 0]}, "data": {"channels": 3}}
    assert apply_changes(values, changes) == wanted
    assert values["training"]["momentum"] == 0.9
    # A section and a key within it, of which the next study knows nothing.
    section = {"training": {"betas": [0, 1]}}
    assert apply_changes(values, section | {"training.momentum": 0.1})["training"] == {"betas": [0, 1], "momentum": 0.1}
    assert section == {"training": {"betas": [0, 1]}}


def test_another_algorithm_brings_its_own_preset_and_leaves_no_choice_of_the_one_before():
    values = {"rounds": 3, "algorithm": {"name": "fedprox", "preset": "paper", "weights": "uniform", "fedprox": {}}}
    assert apply_changes(values, {"algorithm.name": "ditto"})["algorithm"] == {"name": "ditto"}
    # What the changes set stays, in whatever order; and so does all where the name is the job's own.
    for keys in (["algorithm.server_lr", "algorithm.name"], ["algorithm.name", "algorithm.server_lr"]):
        changes = {key: {"algorithm.name": "ditto", "algorithm.server_lr": 0.5}[key] for key in keys}
        assert apply_changes(values, changes)["algorithm"] == {"name": "ditto", "server_lr": 0.5}
    assert apply_changes(values, {"algorithm.name": "fedprox"}) == values
    # A key of release 0.4 and a change of it by its new name are one key.
    assert apply_changes({"guard": False}, {"baseline_comparison": True}) == {"baseline_comparison": True}
    assert apply_changes(values, {"algorithm.server_lr": 0.5})["algorithm"]["weights"] == "uniform"


def test_a_copied_job_is_that_job_byte_by_byte_where_nothing_is_changed(tmp_path):
    assert copy_job(JOB, tmp_path / "copy", {}) == load_study(study_file(JOB))
    files = {path.relative_to(JOB) for path in JOB.rglob("*") if path.is_file()}
    assert files == {path.relative_to(tmp_path / "copy") for path in (tmp_path / "copy").rglob("*") if path.is_file()}
    assert all((JOB / name).read_bytes() == (tmp_path / "copy" / name).read_bytes() for name in files)


def test_a_copied_job_has_the_changes_and_the_components_of_its_algorithm(tmp_path):
    with pytest.raises(ConfigError, match="round.*did you mean 'rounds'"):
        copy_job(JOB, tmp_path / "copy", {"round": 2})
    assert not (tmp_path / "copy").exists()
    study = copy_job(JOB, tmp_path / "copy", {"rounds": 2, "algorithm.name": "harmofl", "model.normalization": "batch"})
    assert (study.rounds, study.algorithm.name) == (2, "harmofl")
    assert load_study(study_file(tmp_path / "copy")) == study
    assert "silofl.flare.harmofl." in study_file(tmp_path / "copy").with_name("config_fed_client.json").read_text()


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("training.lr", "training.learning_rate"),
        ("lr", "training.learning_rate"),
        ("train.lr", "training.learning_rate"),
        ("learning_rate", "training.learning_rate"),
        ("training.optimiser", "training.optimizer"),
        ("model.batch_size", "training.batch_size"),
        ("federation.timeout", "federation.task_timeout_s"),
        ("round", "rounds"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest_whole_one(key, nearest):
    with pytest.raises(ConfigError, match=f"^{key} is not a known key .did you mean '{nearest}'"):
        changed_study(JOB, {key: 1})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("training.learning_rate", -1, "training.learning_rate must be greater than 0, not -1"),
        ("training.learning_rate.now", 1, "training.learning_rate must be a valid number"),
        ("rounds", "many", "rounds must be a valid integer"),
        ("labels.2", 5, "labels.2 must be a text, not 5"),
        ("algorithm.perturbation.alpha", 0.1, "a key of algorithm must be one of .*, not 'perturbation'"),
    ],
)
def test_a_value_is_checked_as_that_of_the_file(key, value, message):
    with pytest.raises(ConfigError, match=message):
        changed_study(JOB, {key: value})


def test_a_study_that_only_asks_sites_is_no_simulation(refused_run):
    sentence = refused_run(job=JOB.parent / "survey_hospitals")
    assert "survey_hospitals only asks sites and trains no model. Give it to silofl run." in sentence
