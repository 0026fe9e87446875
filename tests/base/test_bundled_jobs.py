import shutil

import pytest

from silofl.base.bundled_jobs import JOBS as BUNDLED
from silofl.base.bundled_jobs import find_job, list_bundled_jobs
from silofl.base.files import read_json
from silofl.study import load_study

from ..conftest import JOBS


def test_a_bundled_job_is_found_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_job("harmofl_nuclei") == BUNDLED / "harmofl_nuclei"
    for path in (tmp_path / "harmofl_nuclei", "own/harmofl_nuclei", "nowhere", ".", ".."):
        assert str(find_job(path)) == str(path)


def test_a_job_folder_here_goes_before_the_bundled_job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "harmofl_nuclei").mkdir()
    assert find_job("harmofl_nuclei") == BUNDLED / "harmofl_nuclei"
    shutil.copytree(JOBS / "harmofl_nuclei", tmp_path / "harmofl_nuclei", dirs_exist_ok=True)
    assert str(find_job("harmofl_nuclei")) == "harmofl_nuclei"


def test_a_shells_home_is_filled_in(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_job("~/job") == tmp_path / "job"


def test_the_bundled_jobs_are_those_of_the_folder_jobs():
    assert list_bundled_jobs() == sorted(path.parent.name for path in JOBS.glob("*/meta.json"))


@pytest.mark.parametrize(
    "command",
    [
        ("new-study", "{data}", "own", "--from", "harmofl_nucli"),
        ("estimate", "HarmoFL_nuclei", "--sites", "2"),
        ("pretrain", "harmofl_nuclei2", "--data", "{data}", "--out", "f.pt"),
    ],
    ids=lambda command: command[0],
)
def test_every_command_takes_a_jobs_name_and_suggests_the_nearest(refused, site_data, tmp_path, command):
    error = refused(*(argument.format(data=site_data) for argument in command))
    assert "must be a job folder with meta.json and app/config/study.yaml" in error
    assert "(did you mean 'harmofl_nuclei'?)" in error
    assert not any((tmp_path / name).exists() for name in ("run", "own", "runs", "f.pt"))


def test_a_name_like_no_other_is_refused(refused):
    error = refused("estimate", "xyz", "--sites", "2")
    assert "xyz, which is not there; bundled jobs: adafed_activity, " in error and "harmofl_volumes" in error


@pytest.mark.parametrize("job", list_bundled_jobs())
def test_a_bundled_job_begins_once_enough_sites_are_there(job):
    study = load_study(JOBS / job / "app" / "config" / "study.yaml")
    meta = read_json(JOBS / job / "meta.json")
    assert meta["min_clients"] == study.federation.min_sites


def test_every_job_names_what_a_workspace_of_nvflare_lacks():
    result = [
        read_json(path)["workflows"][0].get("needs", path) for path in JOBS.glob("*/app/config/config_fed_server.json")
    ]
    assert len(result) == len(list_bundled_jobs()) and len({*result}) == 1
    assert "silofl prepare WORKSPACE JOB" in result[0]
