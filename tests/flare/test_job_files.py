"""The files of jobs, deployed by NVFlare's own deployer, as an attacker and as a study lead would send them."""

import io
import json
import zipfile
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, SiteType
from nvflare.apis.fl_context import FLContext
from nvflare.apis.workspace import Workspace
from nvflare.fuel.sec.authz import AuthorizationService
from nvflare.fuel.utils.config import ConfigFormat
from nvflare.fuel.utils.config_factory import ConfigFactory
from nvflare.private.fed.app.fl_app_validator import FLAppValidator
from nvflare.private.fed.app.fl_conf import create_privacy_manager
from nvflare.private.fed.server.job_meta_validator import JobMetaValidator
from nvflare.private.fed.utils.app_authz import AppAuthzService
from nvflare.private.fed.utils.app_deployer import AppDeployer
from nvflare.private.json_configer import JsonConfigurator
from nvflare.private.privacy_manager import PrivacyService
from nvflare.security.security import FLAuthorizer

from silofl.base.errors import ConfigError
from silofl.base.files import hold_lock
from silofl.flare import job_files
from silofl.flare.job_files import FILES, SIGNATURES, JobFiles
from silofl.flare.paths import JOB_LOCK

ROOT = Path(__file__).resolve().parents[2]
APP = ROOT / "jobs" / "harmofl_phantoms" / "app"
LEAD = {"submitter_name": "lead@study.example.org", "submitter_org": "study", "submitter_role": "lead"}
# As NVFlare begins with, before any test of this process has let it read less.
FORMS = dict(ConfigFactory._fmt2Loader)
PLAIN = {f"config/{name}": (APP / "config" / name).read_text(encoding="utf-8") for name in FILES}


@pytest.fixture(autouse=True)
def forms(monkeypatch):
    """Let NVFlare read what it reads at first, and put back after a test what it read before."""
    monkeypatch.setattr(ConfigFactory, "_fmt2Loader", dict(FORMS))


@pytest.fixture
def kit(tmp_path, monkeypatch):
    """A hospital's kit with the policies of site_configs; what NVFlare's processes share is put back after the test."""
    services = {"app_validator": AppAuthzService, "manager": PrivacyService, "the_authorizer": AuthorizationService}
    for name, service in services.items():
        monkeypatch.setattr(service, name, getattr(service, name, None), raising=False)
    folder = tmp_path / "kit"
    (folder / "startup").mkdir(parents=True)
    (folder / "local").mkdir()
    for name in ("resources.json", "privacy.json", "authorization.json"):
        (folder / "local" / name).write_text((ROOT / "site_configs/hospital" / name).read_text(encoding="utf-8"))
    return folder


def test_a_site_that_has_begun_holds_its_kit(kit):
    context = FLContext()
    context.set_prop(FLContextKey.WORKSPACE_OBJECT, Workspace(root_dir=str(kit), site_name="north"))
    context.set_prop(FLContextKey.SITE_OBJ, SimpleNamespace(cell=SimpleNamespace(get_fqcn=lambda: "north")))
    validator = JobFiles()
    validator.handle_event(EventType.SYSTEM_BOOTSTRAP, context)
    with pytest.raises(ConfigError, match="is in use"), hold_lock(kit / JOB_LOCK):
        pass
    del validator


@pytest.fixture
def deploy(kit):
    """Deploy an app from its files, and return why it was refused, None where it was not."""
    workspace = Workspace(root_dir=str(kit), site_name="north")
    PrivacyService.initialize(create_privacy_manager(workspace, names_only=True))
    policy = json.loads((kit / "local/authorization.json").read_text(encoding="utf-8"))
    AuthorizationService.initialize(FLAuthorizer("north_hospital", policy))

    def send(files, job=None, validators=None):
        checks = [JobFiles()] if validators is None else validators
        AppAuthzService.initialize(FLAppValidator(site_type=SiteType.CLIENT, custom_validators=checks))
        data, job = io.BytesIO(), job or str(uuid4())
        with zipfile.ZipFile(data, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        return AppDeployer().deploy(workspace, job, LEAD | {"job_id": job}, "app", data.getvalue(), None)

    return send


def left(kit):
    return sorted(path.name for path in kit.iterdir())


def test_every_job_of_ours_is_let_in(deploy):
    apps = sorted((ROOT / "jobs").glob("*/app"))
    for app in apps:
        files = {path.relative_to(app).as_posix(): path.read_bytes() for path in app.rglob("*") if path.is_file()}
        assert deploy(files) is None, app
    assert apps


@pytest.fixture
def app(tmp_path):
    """Write an app's files into a folder."""

    def write(files):
        for name, content in files.items():
            path = tmp_path / "app" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        return str(tmp_path / "app")

    return write


@pytest.mark.parametrize("name", ["pretrained.pt", "start.pth", "start.safetensors", *SIGNATURES])
def test_a_model_to_begin_from_and_signatures_are_let_in(app, name):
    assert JobFiles().validate(app(PLAIN | {f"config/{name}": "x"})) == ("", {})


@pytest.mark.parametrize(
    "name",
    [
        "config/evil.py",
        "config/resources.json",
        "config/config_fed_client.conf",
        "config/more/study.yaml",
        "study.yaml",
        "resources.json",
        "model.pt",
        "custom/evil.py",
        "config/custom/evil.py",
        "local/resources.json",
    ],
)
def test_any_other_file_is_refused_and_nothing_stays(deploy, kit, name):
    reason = deploy(PLAIN | {name: "{}"})
    assert reason.startswith("a job of SiloFL must hold config_fed_client.json") and left(kit) == ["local", "startup"]


def hocon(path):
    """Return an app whose configuration would tell what is in a file, by the error that it ends in."""
    return {"config/config_fed_client.conf": f'x {{ include file("{path}") }}\ny = [1] ${{x}}\n'}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_configuration_cannot_read_the_hospitals_files(deploy, tmp_path):
    secret = tmp_path / "dataset.json"
    secret.write_text('{"training": [{"image": "DOE_JOHN_1960.nii.gz"}]}')
    with pytest.raises(Exception, match="DOE_JOHN"):
        deploy(hocon(secret), validators=[])
    assert deploy(hocon(secret)).startswith("Missing required config")


def test_leads_words_cannot_read_the_servers(kit, tmp_path):
    secret = tmp_path / "fed_server.json"
    secret.write_text('{"DOE": 1}')
    archive = tmp_path / "job.zip"
    with zipfile.ZipFile(archive, "w") as job:
        job.writestr("job/meta.conf", f'x {{ include file("{secret}") }}\ny = [1] ${{x}}\n')
    assert ConfigFormat.PYHOCON in ConfigFactory._fmt2Loader
    JobFiles()
    assert list(ConfigFactory._fmt2Loader) == [ConfigFormat.JSON]
    with pytest.raises(AttributeError) as refused:
        JobMetaValidator().validate("job", archive.read_bytes())
    assert "DOE" not in str(refused.value)


def test_a_job_that_fills_the_disk_is_refused_and_deleted(deploy, kit, monkeypatch):
    monkeypatch.setattr(job_files, "MOST_BYTES", 2**20)
    assert deploy(PLAIN | {"config/start.pt": b"\0" * 2**21}) == "a job must have at most 0 GiB, not 0.0"
    assert left(kit) == ["local", "startup"]


def test_a_link_is_refused(app, tmp_path):
    folder = Path(app(PLAIN))
    (folder / "config" / "start.pt").symlink_to(tmp_path)
    assert "not 'config/start.pt'" in JobFiles().validate(str(folder))[0]


def test_a_lab_may_let_in_code_of_its_own_people(app):
    folder = app(PLAIN | {"custom/net.py": "", "custom/parts/loss.py": ""})
    assert JobFiles(has_custom=True).validate(folder) == ("", {})
    assert "not 'config/evil.py'" in JobFiles(has_custom=True).validate(app({"config/evil.py": ""}))[0]


@pytest.mark.parametrize("kind", ["hospital", "hospital_gpu", "research_lab", "server"])
def test_nvflare_builds_it_from_every_sites_resources(kit, kind):
    resources = json.loads((ROOT / "site_configs" / kind / "resources.json").read_text(encoding="utf-8"))
    configurator = JsonConfigurator(str(kit / "local/resources.json"), [], [], exclude_libs=True)
    validator = configurator.build_component(resources["app_validator"])
    assert isinstance(validator, JobFiles) and ("custom" in validator._folders) is (kind == "research_lab")
