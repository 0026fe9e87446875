import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer

from silofl.base.errors import ConfigError
from silofl.flare.components import GENERIC
from silofl.setup.site import Server, Site
from silofl_desk.flare.workspace import name_sites, prepare_workspace, read_simulated_site

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


def test_simulated_sites_may_build_only_what_jobs_name_and_the_sites_filters(workspace):
    allowed = json.loads((workspace / "local" / "resources.json").read_text())["class_allow_list"]
    named = {path for job in JOBS for path in class_paths(json.loads(job.read_text()))}
    filters = {"silofl.flare.egress.RunNote", "silofl.flare.egress.Egress", "silofl.flare.filters.ExcludeBatchNorm"}
    assert {*allowed} == {*named, *filters, *GENERIC.values()}


def test_nvflare_lets_every_jobs_classes_be_built(authorize):
    paths = {job: class_paths(json.loads(job.read_text())) for job in JOBS}
    assert paths and all(any(path.startswith("silofl.") for path in found) for found in paths.values())
    for path in {path for found in paths.values() for path in found}:
        authorize(path)


def test_a_simulated_sites_settings_are_its_own_file_or_else_that_of_all(workspace, tmp_path):
    own = workspace / "north" / "local" / "site.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("data: /data\nstate_dir: /state\npaused: [small]\n")
    assert read_simulated_site(workspace, "north").paused == ("small",)
    assert read_simulated_site(workspace, "south") == SITE
    with pytest.raises(ConfigError, match="site.yaml must exist"):
        read_simulated_site(tmp_path, "north")


def test_a_site_has_its_own_name_and_the_number_that_nvflare_gives_to_sites_without_names():
    assert name_sites(("north", "south")) == {"north": "north", "south": "south", "site-1": "north", "site-2": "south"}
    # Of sites that are called by numbers already, site-2 would be the data of site-1 a second time.
    assert name_sites(("east", "site-1")) == {"east": "east", "site-1": "site-1"}
