from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from nvflare.apis.workspace import Workspace

from silofl.base.errors import ConfigError
from silofl.flare.paths import read_job_study, read_server_settings, read_site_settings
from silofl.setup.site import Server, Site

STUDY = {"name": "small", "task": "segmentation", "labels": {1: "a"}, "rounds": 2, "algorithm": {"name": "fedavg"}}
JOB_ID = "7c6d"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    monkeypatch.delenv("SILOFL_DATA", raising=False)


def context(root, name="north"):
    """Return as much of NVFlare's context as is asked for, over one of its own workspaces."""
    for folder in ("startup", "local"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    engine = SimpleNamespace(get_workspace=lambda: Workspace(str(root), name))
    return SimpleNamespace(get_engine=lambda: engine, get_job_id=lambda: JOB_ID, get_identity_name=lambda: name)


def write(path, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(values))


def test_the_study_lies_beside_the_jobs_configuration(tmp_path):
    fl_ctx = context(tmp_path)
    with pytest.raises(ConfigError, match="study.yaml does not exist"):
        read_job_study(fl_ctx)
    write(tmp_path / JOB_ID / "app_north" / "config" / "study.yaml", STUDY)
    assert read_job_study(fl_ctx).name == "small" and read_job_study(fl_ctx).rounds == 2


def test_own_file_goes_before_workspace_and_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("SILOFL_DATA", "/environment")
    write(tmp_path / "local" / "site.yaml", {"data": "/data/{site}", "state_dir": "/state"})
    write(tmp_path / "north" / "local" / "site.yaml", {"data": "/own", "state_dir": "/state"})
    assert read_site_settings(context(tmp_path / "north")) == Site(data="/own", state_dir="/state")
    assert read_site_settings(context(tmp_path / "south")).data_folder("small", "south") == Path("/data/south")


@pytest.mark.parametrize("value", [None, ""])
def test_a_site_without_any_settings_is_refused_by_its_name(tmp_path, monkeypatch, value):
    if value is not None:
        monkeypatch.setenv("SILOFL_DATA", value)
    with pytest.raises(ConfigError, match="site 'south' has no local/site.yaml.*set SILOFL_DATA"):
        read_site_settings(context(tmp_path / "south", "south"))


@pytest.mark.parametrize("settings", [{"data": "/data"}, {"data": "/data", "state_dir": "/s", "dta": "/d"}])
def test_a_wrong_file_is_refused_and_not_passed_over(tmp_path, monkeypatch, settings):
    monkeypatch.setenv("SILOFL_DATA", "/all")
    write(tmp_path / "local" / "site.yaml", settings)
    with pytest.raises(ConfigError, match="site.yaml: "):
        read_site_settings(context(tmp_path))


def test_without_server_settings_results_lie_in_job_folder(tmp_path):
    fl_ctx = context(tmp_path / "server", "server")
    folder = read_server_settings(fl_ctx).run_folder("small", "r1")
    assert folder == tmp_path / "server" / JOB_ID / "silofl"
    write(tmp_path / "local" / "server.yaml", {"run_dir": "/runs/{run}"})
    assert read_server_settings(context(tmp_path, "server")) == Server(run_dir="/runs/{run}")
    assert read_server_settings(fl_ctx) == Server(run_dir="/runs/{run}")
