"""``silofl prepare``: what NVFlare's own simulator and POC need to run a job."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from silofl.base.files import read_json
from silofl.base.settings import load_settings
from silofl.flare.egress import check_scope, effective_scope
from silofl.flare.kit import read_kit
from silofl.flare.policy import SERVER_CLASSES, SITE_CLASSES, read_class_policy
from silofl.setup.site import Server, Site

from .conftest import JOB, RECEIVER

NVFLARE = Path(sys.executable).with_name("nvflare")


# --- the simulator


def test_a_workspace_of_the_simulator_says_what_may_run_and_where_data_and_results_are(
    silofl, monkeypatch, tmp_path, phantoms
):
    monkeypatch.setenv("PATH", str(NVFLARE.parent))
    code, out, error = silofl("prepare", "ws", JOB, "--data", phantoms)
    assert code == 0, error
    local = tmp_path / "ws" / "local"
    assert {path.name for path in local.iterdir()} == {"resources.json", "site.yaml", "server.yaml"}
    assert f"\nnvflare simulator {JOB} -w ws -c north,south -t 2\n" in out
    assert f"results: {tmp_path / 'ws-results'}\n" in out
    # A site is called by its own name, or by the number that NVFlare gives it.
    assert "site-1 is north, site-2 is south" in out
    site = load_settings(Site, local / "site.yaml")
    for name, hospital in {"south": "south", "site-1": "north", "site-2": "south"}.items():
        assert site.data_folder("harmofl_phantoms", name).samefile(phantoms / hospital)
    # Decoded once, whatever the site is called.
    assert site.cache_dir == f"{phantoms}/.silofl-cache"


def test_preparing_a_workspace_again_drops_the_sites_that_no_longer_take_part(
    silofl, monkeypatch, tmp_path, phantoms, job
):
    small = job(federation={"min_sites": 1})
    silofl("prepare", "ws", small, "--data", phantoms)
    monkeypatch.setenv("PATH", "/nowhere")
    code, out, _ = silofl("prepare", "ws", small, "--data", phantoms, "--sites", "south")
    assert code == 0 and {path.name for path in (tmp_path / "ws-results" / "data").iterdir()} == {"south", "site-1"}
    # The shell does not find it.
    assert f"\n{NVFLARE} simulator " in out


def test_a_trusted_jobs_other_classes_may_run_and_decoded_images_go_where_they_are_told(
    silofl, refused, tmp_path, phantoms, receiving_job
):
    command = ["prepare", "ws", receiving_job, "--data", phantoms, "--cache", tmp_path / "cache"]
    assert RECEIVER in refused(*command) and not (tmp_path / "ws").exists()
    assert silofl(*command, "--trust-code")[0] == 0
    assert RECEIVER in read_json(tmp_path / "ws" / "local" / "resources.json")["class_allow_list"]
    assert any((tmp_path / "cache").iterdir())


def test_a_folder_that_the_simulator_would_empty_is_no_workspace(refused, silofl, tmp_path, phantoms):
    """NVFlare's simulator deletes all of its workspace but local/ and startup/."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    for folder in (tmp_path / "mine", phantoms):
        error = refused("prepare", folder, JOB, "--data", phantoms)
        assert "the workspace must be a new folder, or one that was prepared before, not" in error
        assert not (folder / "local").exists()
    assert not (tmp_path / "mine-results").exists()
    # One that is empty, and its own workspace with what a run has left in it.
    (tmp_path / "empty").mkdir()
    assert silofl("prepare", "empty", JOB, "--data", phantoms)[0] == 0
    (tmp_path / "empty" / "server").mkdir()
    assert silofl("prepare", "empty", JOB, "--data", phantoms)[0] == 0


def test_a_workspace_must_be_named_for_the_simulator_alone_by_a_path_that_nvflares_commands_keep_whole(
    refused, tmp_path, phantoms
):
    error = refused("prepare", "lauf 1", JOB, "--data", phantoms)
    assert "the path of the workspace must have no ' '" in error and "lauf 1" in error
    assert not (tmp_path / "lauf 1").exists()
    assert "WORKSPACE must be given" in refused("prepare", JOB)
    assert "NVFLARE_POC_WORKSPACE" in refused("prepare", "ws", JOB, "--poc")


# --- POC


@pytest.fixture(scope="module")
def provision(tmp_path_factory):
    """Return a function that makes a workspace of ``nvflare poc prepare``, for a site by name and one by number."""

    def make(*options):
        folder = tmp_path_factory.mktemp("poc")
        places = {"HOME": str(folder / "home"), "NVFLARE_POC_WORKSPACE": str(folder / "workspace")}
        (folder / "home").mkdir()
        command = [str(NVFLARE), "poc", "prepare", "-c", "north", "site-2", *options]
        subprocess.run(command, env=os.environ | places, check=True, capture_output=True, timeout=60)
        return places

    return make


@pytest.fixture(scope="module")
def provisioned(provision):
    return provision()


@pytest.fixture
def poc(monkeypatch, provisioned):
    """Take part in a POC; returns its workspace."""
    for name, value in provisioned.items():
        monkeypatch.setenv(name, value)
    return Path(provisioned["NVFLARE_POC_WORKSPACE"])


@pytest.fixture
def prepared(silofl, poc, phantoms):
    """Prepare the POC; returns kits by name and what was printed."""
    code, out, error = silofl("prepare", "--poc", JOB, "--data", phantoms)
    assert (code, error) == (0, "")
    (prod,) = poc.glob("*/prod_00")
    return {name: read_kit(prod / name) for name in ("server", "north", "site-2")}, out


def test_a_poc_may_run_silofls_classes_once_each_besides_nvflares_own(prepared, silofl, phantoms):
    kits, _ = prepared
    assert silofl("prepare", "--poc", JOB, "--data", phantoms)[0] == 0
    for name, classes in {"server": SERVER_CLASSES, "north": SITE_CLASSES, "site-2": SITE_CLASSES}.items():
        policy = read_class_policy(kits[name])
        assert policy.file == "resources.json" and all(policy.allows(one) for one in classes)
        assert len(policy.allowed) == len({*policy.allowed})
        # NVFlare's own jobs run there as before.
        assert policy.allows("nvflare.app_common.workflows.fedavg.FedAvg")
        assert not policy.allows("silofl_desk.studies.processes.ProcessTree")


def test_a_poc_keeps_all_that_it_writes_in_its_workspace_and_reads_the_hospitals_data(prepared, poc, phantoms):
    kits, out = prepared
    server = load_settings(Server, kits["server"].folder / "local" / "server.yaml")
    assert server.run_folder("harmofl_phantoms", "run-1") == poc / "results" / "run-1"
    assert server.is_downloadable
    assert "/var/lib" not in yaml.safe_dump(read_json(kits["server"].folder / "local" / "resources.json"))
    assert f"results: {poc / 'results'}\n" in out and "site-2 is south" in out
    for name, hospital in {"north": "north", "site-2": "south"}.items():
        site = load_settings(Site, kits[name].folder / "local" / "site.yaml")
        assert site.state_folder("harmofl_phantoms", name) == poc / "results" / "sites" / name
        assert site.data_folder("harmofl_phantoms", name) == phantoms / hospital


def test_what_leaves_a_site_of_a_poc_is_recorded_as_at_a_hospital(prepared):
    kits, _ = prepared
    check_scope(effective_scope(kits["north"]))
    hospital = Path(__file__).resolve().parents[2] / "site_configs" / "hospital"
    assert read_json(kits["north"].folder / "local" / "privacy.json") == read_json(hospital / "privacy.json")
    assert not (kits["server"].folder / "local" / "privacy.json").exists()


def test_a_poc_has_sites_whose_data_are_there(refused, poc, north_phantoms, job):
    error = refused("prepare", "--poc", job(federation={"min_sites": 1}), "--data", north_phantoms)
    assert "site 'site-2'" in error and "among north, whose data" in error and "nvflare poc prepare" in error


def test_a_poc_is_made_by_nvflare_before_it_is_prepared(refused, monkeypatch, tmp_path, phantoms):
    monkeypatch.setenv("NVFLARE_POC_WORKSPACE", str(tmp_path / "none"))
    error = refused("prepare", "--poc", JOB, "--data", phantoms)
    assert f"{tmp_path / 'none'} must be" in error and "nvflare poc prepare" in error


def test_a_poc_of_fewer_sites_than_the_study_waits_for_is_told_what_helps(
    refused, monkeypatch, poc, tmp_path, phantoms
):
    shutil.copytree(poc, tmp_path / "workspace", ignore=shutil.ignore_patterns("site-2"))
    monkeypatch.setenv("NVFLARE_POC_WORKSPACE", str(tmp_path / "workspace"))
    error = refused("prepare", "--poc", JOB, "--data", phantoms)
    assert "federation.min_sites must be at most 1, " in error and "(north), not 2" in error
    # The command has no --set.
    assert "lower it in study.yaml, for one run with simulate --set" in error and "let more sites take part" in error


def test_a_poc_in_containers_is_refused(refused, monkeypatch, provision, phantoms):
    for name, value in provision("-d", "flare:latest").items():
        monkeypatch.setenv(name, value)
    error = refused("prepare", "--poc", JOB, "--data", phantoms)
    assert "must run without Docker" in error and "'flare:latest'" in error
    assert "nvflare poc prepare --force" in error and "without -d" in error
