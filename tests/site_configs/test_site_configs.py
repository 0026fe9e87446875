"""The policies of each kind of site, read by NVFlare's own readers."""

import importlib
import json
import shutil
from itertools import product
from pathlib import Path

import pytest
import yaml
from nvflare.apis.fl_constant import FilterKey
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.apis.workspace import Workspace
from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer
from nvflare.fuel.sec.authz import AuthzContext, Person
from nvflare.lighter import templates
from nvflare.private.fed.app.fl_conf import create_privacy_manager
from nvflare.security.security import FLAuthorizer

from silofl.base.settings import load_settings
from silofl.core.presets import algorithm_names
from silofl.flare.components import GENERIC
from silofl.flare.egress import Egress, RunNote
from silofl.flare.policy import SERVER_CLASSES, SITE_CLASSES
from silofl.parts.load import list_outbound_payloads
from silofl.setup.site import Server, Site
from silofl_desk.studies.runs.simulation import changed_study

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "site_configs"
SITES = ("hospital", "hospital_gpu", "research_lab")
KINDS_OF_SITE = (*SITES, "server")
JOBS = sorted((ROOT / "jobs").glob("*/app/config/config_fed_*.json"))
ALGORITHMS = algorithm_names()
# The one way of training that every algorithm allows.
PLAIN_SGD = {"training.optimizer": "sgd", "training.momentum": 0.0, "training.local_epochs": 2}
LEAD = Person("lead@study.org", "study", "lead")
SERVER_COMMANDS = ["cat", "ls", "grep", "shutdown", "restart", "remove_client", "disable_client"]


def read(kind, name):
    return json.loads((CONFIGS / kind / name).read_text(encoding="utf-8"))


def class_paths(config):
    """Return all classes that a configuration names."""
    if isinstance(config, dict):
        return ([config["path"]] if "path" in config else []) + class_paths(list(config.values()))
    return [path for value in config for path in class_paths(value)] if isinstance(config, list) else []


@pytest.fixture
def workspace(tmp_path):
    """A site's NVFlare workspace with the policies of one kind in ``local/``."""

    def make(kind):
        (tmp_path / "startup").mkdir()
        shutil.copytree(CONFIGS / kind, tmp_path / "local")
        return Workspace(str(tmp_path), "north")

    return make


def test_every_kind_of_site_has_all_four_files():
    found = {folder.name: {path.name for path in folder.iterdir()} for folder in CONFIGS.iterdir() if folder.is_dir()}
    policies = {"resources.json", "authorization.json", "privacy.json"}
    assert found == {kind: policies | {"server.yaml" if kind == "server" else "site.yaml"} for kind in KINDS_OF_SITE}


# --- site.yaml, server.yaml


EVALUATION = {"rounds": 0, "model.pretrained_sha256": "0" * 64}


@pytest.mark.parametrize("kind", SITES)
def test_a_sites_settings_let_leave_what_algorithms_send(kind):
    site = load_settings(Site, CONFIGS / kind / "site.yaml")
    studies = [
        changed_study(ROOT / "jobs" / "adafed_pneumonia", PLAIN_SGD | change)
        for change in (*({"algorithm.name": name} for name in ALGORITHMS), EVALUATION)
    ]
    assert site.min_patients == 5
    assert set(site.may_leave) == {sent.name for study in studies for sent in list_outbound_payloads(study)}
    assert len({site.data_folder(study, "north") for study in ("a", "b")}) == 2
    assert len({site.state_folder(study, "north") for study in ("a", "b")}) == 2


def test_only_the_hospital_with_a_gpu_insists_on_one():
    devices = {kind: load_settings(Site, CONFIGS / kind / "site.yaml").device for kind in SITES}
    gpus = {kind: read(kind, "resources.json")["components"][0]["args"]["num_of_gpus"] for kind in SITES}
    assert devices == {"hospital": "cpu", "hospital_gpu": "cuda", "research_lab": "auto"}
    assert gpus == {"hospital": 0, "hospital_gpu": 1, "research_lab": 0}


# --- resources.json


@pytest.mark.parametrize("kind", KINDS_OF_SITE)
def test_a_sites_allow_list_is_what_jobs_build(kind):
    resources, side = read(kind, "resources.json"), "server" if kind == "server" else "client"
    assert resources["class_list_enforcement_mode"] == "enforce"
    wanted = SERVER_CLASSES if kind == "server" else SITE_CLASSES
    assert resources["class_allow_list"] == list(wanted)
    jobs = [json.loads(path.read_text()) for path in JOBS if path.stem.endswith(side)]
    # a study of any other algorithm names the class that all are made of
    assert {*class_paths(jobs), GENERIC[f"config_fed_{side}.json"]} == set(wanted)
    for path in wanted:
        module, _, name = path.rpartition(".")
        assert isinstance(getattr(importlib.import_module(module), name), type), path


@pytest.mark.parametrize("kind", KINDS_OF_SITE)
def test_a_job_can_have_nothing_else_built(workspace, kind):
    place = workspace(kind)
    for path in (
        "subprocess.Popen",
        "silofl_desk.studies.runs.processes.ProcessTree",
        "silofl.setup.site._fill_template",
        "silofl.flare.executor.read_job_study",
        "nvflare.app_common.widgets.convert_to_fed_event.ConvertToFedEvent",
    ):
        with pytest.raises(UnsafeComponentError, match="not in allow_list"):
            ComponentPathAuthorizer().authorize_component_config({"path": path}, workspace=place)


@pytest.mark.parametrize("kind", KINDS_OF_SITE)
def test_a_sites_resources_have_the_keys_of_nvflares_default(kind):
    template = yaml.safe_load((Path(templates.__file__).parent / "master_template.yml").read_text())
    default = template["local_server_resources" if kind == "server" else "local_client_resources"]
    for key in ("class_allow_list", "allow_log_streaming", "num_gpus", "gpu_mem"):
        default = default.replace(f"{{~~{key}~~}}", "0")
    default, own = json.loads(default), read(kind, "resources.json")
    assert own.keys() == default.keys() | {"app_validator"}
    wanted = {part["id"] for part in default["components"]}
    left_out = {"site_log_streamer"} if kind.startswith("hospital") else set()
    added = {"left_sites"} if kind == "server" else set()
    assert {part["id"] for part in own["components"]} == wanted - left_out | added


@pytest.mark.parametrize("kind", ["hospital", "hospital_gpu"])
def test_a_hospitals_log_stays_at_home(kind):
    assert read(kind, "resources.json")["allow_log_streaming"] is False


def test_the_servers_stores_outlive_a_restart_of_the_machine():
    resources = read("server", "resources.json")
    jobs = next(part for part in resources["components"] if part["id"] == "job_manager")["args"]["uri_root"]
    snapshots = resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"]
    runs = load_settings(Server, CONFIGS / "server" / "server.yaml").run_folder("study", "run")
    for place in (jobs, snapshots, runs):
        assert Path(place).is_relative_to("/var/lib/silofl/server")


# --- authorization.json


def is_permitted(kind, person, right, org="north"):
    """Ask NVFlare whether a person has a right at a site of an organisation."""
    return FLAuthorizer(org, read(kind, "authorization.json")).authorize(AuthzContext(right, person, LEAD))[0]


def people(org):
    """One person of each role in an organisation."""
    return [Person("someone", org, role) for role in ("project_admin", "org_admin", "lead", "member")]


ADMIN, IT = Person("admin", "study", "project_admin"), Person("someone", "north", "org_admin")
EVERYBODY = [*people("study"), *people("north")]
# Kinds of sites, persons, rights, whether they have them, and the organisation of the site.
RIGHTS = {
    "no hospital runs code of a job": (["hospital", "hospital_gpu", "server"], EVERYBODY, ["byoc"], False, "north"),
    "a lab runs code of its own people": (["research_lab"], [Person("someone", "lab", "lead")], ["byoc"], True, "lab"),
    "and of nobody else": (["research_lab"], [Person("someone", "study", "lead")], ["byoc"], False, "lab"),
    "a lead submits": (KINDS_OF_SITE, [LEAD], ["submit_job", "clone_job"], True, "north"),
    "nobody else does": (
        KINDS_OF_SITE,
        [one for one in people("north") if one.role != "lead"],
        ["submit_job", "clone_job"],
        False,
        "north",
    ),
    "the administrator runs the network": (KINDS_OF_SITE, [ADMIN], ["operate"], True, "north"),
    "no lead stops a site": (
        SITES,
        [Person("someone", "north", "lead")],
        ["shutdown", "restart", "remove_client"],
        False,
        "north",
    ),
    "its IT does": (SITES, [IT], ["shutdown", "restart", "remove_client"], True, "north"),
    "a lead reads no files at the server": (["server"], [LEAD], SERVER_COMMANDS, False, "study"),
    "the administrator does": (["server"], [ADMIN], SERVER_COMMANDS, True, "study"),
    "a job's log is its submitter's": (["server"], [LEAD], ["get_job_log"], True, "north"),
    "and of nobody else's": (
        ["server"],
        [Person("other@study.org", "study", "lead"), *people("study")[1:]],
        ["get_job_log"],
        False,
        "north",
    ),
    "nobody reads a site's log": (SITES, [LEAD], ["get_job_log"], False, "north"),
    "nobody reads a site's files": (SITES, EVERYBODY, ["shell_commands"], False, "north"),
}


@pytest.mark.parametrize(("kinds", "persons", "rights", "is_allowed", "org"), RIGHTS.values(), ids=RIGHTS)
def test_a_person_has_the_rights_of_the_role(kinds, persons, rights, is_allowed, org):
    for kind, person, right in product(kinds, persons, rights):
        assert is_permitted(kind, person, right, org) is is_allowed, (kind, person.role, right)


# --- privacy.json


@pytest.mark.parametrize("kind", SITES)
def test_every_job_passes_the_egress_filter_last(workspace, kind):
    manager = create_privacy_manager(workspace(kind), names_only=False)
    scope = manager.get_scope(None)
    assert [type(one) for one in scope.task_data_filters[FilterKey.IN]] == [RunNote]
    assert type(scope.task_result_filters[FilterKey.OUT][-1]) is Egress
    assert manager.is_policy_defined() and list(manager.name_to_scopes) == ["silofl"]
    assert manager.get_scope("other") is None


def test_the_server_knows_the_scope_and_filters_nothing(workspace):
    manager = create_privacy_manager(workspace("server"), names_only=False, is_server=True)
    assert manager.get_scope("silofl") is manager.get_scope(None)
    assert manager.get_scope(None).task_result_filters == {FilterKey.IN: [], FilterKey.OUT: []}


# --- README.md
