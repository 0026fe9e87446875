import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer

from silofl.flare.components import GENERIC
from silofl.setup.site import Server, Site
from silofl_desk.flare.workspace import other_classes, prepare_workspace

JOBS = sorted((Path(__file__).resolve().parents[2] / "jobs").glob("*/app/config/config_fed_*.json"))
SITE = Site(data="/data/{site}", state_dir="/state/{study}/{site}", device="cpu", has_progress=False)
SERVER = Server(run_dir="/runs/{study}/{run}")


@pytest.fixture
def workspace(tmp_path):
    prepare_workspace(tmp_path / "workspace", SITE, SERVER)
    return tmp_path / "workspace"


@pytest.fixture
def authorize(workspace):
    """Ask NVFlare itself whether a site with this workspace builds a class."""
    resources = str(workspace / "local" / "resources.json")
    asked = SimpleNamespace(get_resources_file_path=lambda: resources, get_root_dir=lambda: str(workspace))
    return lambda path: ComponentPathAuthorizer().authorize_component_config({"path": path}, workspace=asked)


def class_paths(config):
    if isinstance(config, dict):
        found = [config["path"]] if "path" in config else []
        return found + [path for value in config.values() for path in class_paths(value)]
    return [path for value in config for path in class_paths(value)] if isinstance(config, list) else []


def test_simulated_sites_build_only_named_classes(workspace):
    allowed = json.loads((workspace / "local" / "resources.json").read_text())["class_allow_list"]
    named = {path for job in JOBS for path in class_paths(json.loads(job.read_text()))}
    filters = {"silofl.flare.egress.RunNote", "silofl.flare.egress.Egress", "silofl.flare.filters.ExcludeBatchNorm"}
    assert {*allowed} == {*named, *filters, *GENERIC.values()}


@pytest.mark.parametrize("path", ["subprocess.Popen", "silofl_desk.studies.runs.processes.ProcessTree"])
def test_nvflare_refuses_all_other_classes(authorize, path):
    with pytest.raises(UnsafeComponentError, match="not in allow_list"):
        authorize(path)


def test_trusted_jobs_classes_are_built_and_no_others(workspace, authorize, tmp_path):
    (tmp_path / "app" / "config").mkdir(parents=True)
    components = [{"path": "silofl.flare.controller.RoundsController"}, {"path": "mlflow.Run"}]
    (tmp_path / "app" / "config" / "config_fed_server.json").write_text(json.dumps({"components": components}))
    others = other_classes(tmp_path)
    assert others == ["mlflow.Run"]
    prepare_workspace(workspace, SITE, SERVER, others)
    authorize("mlflow.Run")
    with pytest.raises(UnsafeComponentError, match="not in allow_list"):
        authorize("mlflow.Client")
