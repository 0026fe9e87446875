"""A recipe of a job in a folder, in environments that carry out nothing."""

import json
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from nvflare.recipe import PocEnv, SimEnv, poc_env
from nvflare.recipe.session_mgr import SessionManager

from silofl.base.files import read_json
from silofl_desk.flare.folder_recipe import FolderRecipe


class Recorded(FolderRecipe):
    """A recipe that writes down what it is asked for."""

    def __init__(self, folder):
        super().__init__("small", folder)
        self.asked = []

    def prepare_simulation(self, workspace, sites):
        self.asked.append((workspace, sites))

    def follow_simulation(self, workspace):
        return nullcontext()

    def prepare_poc(self):
        self.asked.append("prepare")
        return 2

    def check_submission(self):
        self.asked.append("check")


@pytest.fixture
def recipe(tmp_path):
    folder = tmp_path / "job"
    (folder / "app" / "config").mkdir(parents=True)
    (folder / "meta.json").write_text(json.dumps({"name": "small"}))
    return Recorded(folder)


def test_a_simulation_is_prepared_where_nvflare_will_run_it(recipe, tmp_path, monkeypatch):
    run = []
    monkeypatch.setattr(recipe._job.job, "simulator_run", lambda workspace, **options: run.append(workspace))
    done = recipe.run(SimEnv(clients=["north", "south"], workspace_root=str(tmp_path)))
    assert recipe.asked == [(tmp_path / "small", ("north", "south"))]
    assert run == [done.get_result()] == [str(tmp_path / "small")]


def test_a_poc_is_prepared_once_its_kits_are_made_and_before_they_start(recipe, tmp_path, monkeypatch):
    monkeypatch.setenv("NVFLARE_POC_WORKSPACE", str(tmp_path / "poc"))
    step = recipe.asked.append

    def provision(**options):
        step("provision")

    monkeypatch.setattr(poc_env, "prepare_poc_provision", provision)
    monkeypatch.setattr(poc_env, "_start_poc", lambda **options: step("start"))
    monkeypatch.setattr(poc_env, "time", SimpleNamespace(sleep=lambda seconds: None))
    monkeypatch.setattr(PocEnv, "_get_admin_startup_kit_path", lambda env: "kit")

    def submit(manager, job):
        job.export_job(str(tmp_path / "submitted"))
        step("submit")
        return "1"

    monkeypatch.setattr(SessionManager, "submit_job", submit)
    recipe.run(PocEnv(num_clients=2))
    assert recipe.asked == ["check", "provision", "prepare", "start", "submit"]
    # Of a job that begins with the first site NVFlare would tell the second one nothing.
    assert read_json(tmp_path / "submitted" / "small" / "meta.json") == {"name": "small", "min_clients": 2}
    recipe.export(str(tmp_path / "out"))
    assert read_json(tmp_path / "out" / "small" / "meta.json") == {"name": "small"}
    # NVFlare's own recipes go on as before.
    assert poc_env.prepare_poc_provision is provision
