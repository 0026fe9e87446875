import json
from pathlib import Path

import pytest
import yaml
from nvflare.app_opt.job_launcher.study_runtime import load_study_runtime_file

from provisioning.__main__ import main
from silofl.base.errors import ConfigError
from silofl.base.settings import load_settings
from silofl.flare import launchers
from silofl.flare.kit import read_kit
from silofl.flare.launchers import OwnContainer
from silofl.setup.site import PinnedStudy, Site

pytestmark = pytest.mark.long

IMAGE = "registry.example.org/silofl:0.3.0"


def prepare(kit, out, *options):
    return main(["prepare-containers", str(kit), str(out), "--image", IMAGE, *options])


SOCKET = "--docker-socket"
FOLDERS = ("--data", "/srv/images", "--state", "/srv/state")


@pytest.fixture(scope="module")
def prepared(provisioned_once, tmp_path_factory):
    """A hospital and the server, prepared."""
    kits, out = provisioned_once / "silofl" / "prod_00", tmp_path_factory.mktemp("out")
    assert prepare(kits / "north", out / "north", SOCKET, *FOLDERS) == 0
    assert prepare(kits / "server", out / "server", SOCKET) == 0
    return out


def test_jobs_run_in_containers_with_the_hospitals_folders(prepared):
    local = prepared / "north" / "local"
    study = yaml.safe_load((local / "study_runtime.yaml").read_text())["studies"]["default"]
    assert study["container"]["image"] == IMAGE
    read = load_study_runtime_file(str(local / "study_runtime.yaml"), launcher_mode="docker")["default"]
    mounts = {(mount.dataset, mount.source, mount.mode) for mount in read.datasets}
    assert mounts == {("images", "/srv/images", "ro"), ("state", "/srv/state", "rw")}
    site = yaml.safe_load((local / "site.yaml").read_text())
    assert (site["data"], site["state_dir"]) == ("/data/default/images/{study}", "/data/default/state/{study}")


@pytest.mark.parametrize(("name", "side"), [("north", "Client"), ("server", "Server")])
def test_no_job_chooses_image_files_or_classes(prepared, kits, name, side):
    found = json.loads((prepared / name / "local" / "resources.json.default").read_text())
    (launcher,) = [part for part in found["components"] if part["id"].endswith("launcher")]
    assert launcher["path"] == f"silofl.flare.launchers.{side}DockerJobLauncher"
    assert issubclass(getattr(launchers, launcher["path"].rpartition(".")[2]), OwnContainer)
    assert found["app_validator"]["path"] == "silofl.flare.job_files.JobFiles"
    before = json.loads((kits / name / "local" / "resources.json").read_text())
    assert found["class_allow_list"] == before["class_allow_list"]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (FOLDERS, "--docker-socket must be given, by which the process that talks to the network is root"),
        ((SOCKET,), "hospital 'north' must have data and state"),
    ],
)
def test_no_process_gets_the_docker_socket_unasked(kits, tmp_path, capsys, given, sentence):
    assert prepare(kits / "north", tmp_path / "out", *given) == 2 and not (tmp_path / "out").exists()
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("name", ["north", "server"])
def test_a_prepared_kit_is_right(kits, tmp_path, capsys, name):
    assert prepare(kits / name, tmp_path / "out", SOCKET, *FOLDERS) == 0
    assert (tmp_path / "out" / "startup" / read_kit(kits / name).key_path.name).stat().st_mode & 0o777 == 0o600
    capsys.readouterr()
    assert main(["check-kits", str(tmp_path / "out")]) == 0, capsys.readouterr().out
    # Docker mounts it elsewhere.
    (tmp_path / "out").rename(tmp_path / "my out")
    assert main(["check-kits", str(tmp_path / "my out")]) == 0


def test_a_prepared_site_takes_part_in_the_same_studies(kits, tmp_path):
    path = kits / "north" / "local" / "site.yaml"
    pin = {"sha256": "0" * 64, "lead": "lead@study.example.org"}
    changed = {"data": {"nuclei": "/srv/host/n", "liver": "/srv/host/l"}, "cache_dir": "/srv/host/cache"}
    changed |= {"studies": {"nuclei": pin, "spleen": pin | {"data": "/srv/host/s"}}, "paused": ["liver"]}
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changed))
    assert prepare(kits / "north", tmp_path / "out", SOCKET, *FOLDERS) == 0
    found = tmp_path / "out" / "local" / "site.yaml"
    assert "/srv/host" not in found.read_text()
    before, after = load_settings(Site, path), load_settings(Site, found)
    assert after.data_folder("liver", "north") == Path("/data/default/images/liver")
    assert after.data_folder("spleen", "north") == Path("/data/default/images/spleen")
    with pytest.raises(ConfigError, match="names no folder for study 'other', only for liver, nuclei, spleen"):
        after.data_folder("other", "north")
    assert after.cache_folder("liver", "north") == Path("/data/default/state/liver/cache")
    for study in ("nuclei", "spleen"):
        assert after.studies[study].model_copy(update={"data": None}) == PinnedStudy(**pin)
    assert after.paused == before.paused == ("liver",)
