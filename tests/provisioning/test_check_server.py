"""What `silofl server check` says of a server's machine, and that its timer hears of it."""

import contextlib
import json
import os
import socket
import ssl
import subprocess
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import yaml

from silofl.command_line.cli import main
from silofl.flare.job_loop import HEALTH
from silofl.flare.kit import read_kit
from silofl.flare.stores import set_stores
from silofl_hospital.site import check_server, machine, network

GIB, RECEIVER = 1 << 30, "nvflare.app_common.logging.job_log_receiver.JobLogReceiver"


@pytest.fixture
def server(kits, tmp_path, monkeypatch, free_port):
    """Install a server's kit; the packages of the tests need not be those of its lock."""
    (kit,) = (read_kit(folder) for folder in kits.iterdir() if folder.name == "server")
    local, home = kit.folder / "local", tmp_path / "home"
    resources = json.loads((local / "resources.json").read_text())
    set_stores(resources, str(home))
    (local / "resources.json").write_text(json.dumps(resources))
    (local / "server.yaml").write_text(yaml.safe_dump({"run_dir": f"{home}/runs/{{study}}/{{run}}"}))
    for name in ("snapshots", "jobs", "runs"):
        (home / name).mkdir(parents=True)
    subprocess.run(["chmod", "-R", "go=", kit.folder, home], check=True)
    monkeypatch.setitem(check_server.CHECKS, "versions", lambda server: check_server.ok("as the lock says"))
    kit = replace(kit, address=replace(kit.address, port=free_port()))
    monkeypatch.setattr(check_server, "read_kit", lambda *_: kit)
    return kit, home


def checked(kit, capsys, code):
    """Check a server; returns check -> status and sentence."""
    assert main(["server", "check", "--kit", str(kit.folder), "--json"]) == code
    found = json.loads(capsys.readouterr().out)
    assert found["may_serve"] is (code == 0)
    return {one["check"]: (one["status"], one["sentence"]) for one in found["checks"]}


def test_a_server_installed_as_it_should_be_can_serve(server, capsys):
    kit, _ = server
    found = checked(kit, capsys, 0)
    assert {status for name, (status, _) in found.items() if name != "disk"} == {"ok"}
    assert found["port"][1].endswith("is free: the server does not run")
    assert main(["server", "check", "--kit", str(kit.folder)]) == 0
    assert capsys.readouterr().out.endswith("can serve its network\n")


def expose(kit, home, monkeypatch):
    (home / "jobs" / "model.pt").touch(mode=0o644)


def replace_resources(change, value):
    def carry_out(kit, home, monkeypatch):
        path = kit.folder / "local" / "resources.json"
        resources = json.loads(path.read_text())
        change(resources, value)
        path.write_text(json.dumps(resources))

    return carry_out


def add_component(resources, path):
    others = [one for one in resources["components"] if one["path"] != "silofl.flare.site_logs.SiteLogs"]
    resources["components"] = [*others, {"id": "x", "path": path, "args": {}}]


def expire(kit, home, monkeypatch):
    later = datetime.now(UTC) + timedelta(days=340)
    monkeypatch.setattr(network, "datetime", type("Later", (), {"now": staticmethod(lambda zone: later)}))


def let_key_be_read(kit, home, monkeypatch):
    kit.key_path.chmod(0o640)


@pytest.mark.parametrize(
    ("change", "check", "sentence"),
    [
        (expose, "modes", "1 of"),
        (
            lambda kit, home, _: (home / "jobs").rmdir(),
            "folders",
            "the folder of jobs is missing; install -d -m 700 ",
        ),
        (
            replace_resources(set_stores, "/tmp/nvflare"),
            "folders",
            "is lost at a restart of the machine",
        ),
        (replace_resources(dict.update, {"class_allow_list": ["*"]}), "classes", "lets every class in"),
        (replace_resources(dict.pop, "app_validator"), "job_files", "app_validator"),
        (replace_resources(add_component, RECEIVER), "components", "put silofl.flare.site_logs.SiteLogs there"),
        (expire, "certificate", "days, fewer than 30"),
        (let_key_be_read, "certificate", "other accounts can read"),
    ],
)
def test_what_is_wrong_is_named_with_its_remedy(server, capsys, monkeypatch, change, check, sentence):
    change(*server, monkeypatch)
    status, said = checked(server[0], capsys, 1)[check]
    assert status != "ok" and sentence in said
    if change in (expose, let_key_be_read):
        subprocess.run(said[said.index("chmod") :], shell=True, check=True)
        checked(server[0], capsys, 0)


def test_a_server_that_runs_shows_the_certificate_of_its_kit(server, capsys):
    kit, _ = server
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(kit.certificate_path, kit.key_path)
    with socket.create_server(("localhost", kit.address.port)) as line:

        def answer():
            with contextlib.suppress(OSError):
                while True:
                    context.wrap_socket(line.accept()[0], server_side=True).close()

        threading.Thread(target=answer, daemon=True).start()
        found = checked(kit, capsys, 0)
    assert found["port"] == ("ok", f"the server runs, and shows the kit's certificate at port {kit.address.port}")


def test_a_full_disk_is_a_warning(server, capsys, monkeypatch):
    monkeypatch.setattr(check_server.shutil, "disk_usage", lambda place: type("Usage", (), {"free": GIB}))
    found = checked(server[0], capsys, 0)
    assert found["disk"][0] == "warning" and "1.0 GiB are free" in found["disk"][1]


@pytest.mark.parametrize(
    ("said", "status", "words"),
    [
        ("loaded\nactive\n", "ok", "is active"),
        ("loaded\nfailed\n", "failed", "is failed, so that"),
        ("not-found\ninactive\n", "ok", "is not known here"),
        ("", "ok", "is not known here"),
    ],
)
def test_a_firewall_that_failed_to_load_is_found(monkeypatch, said, status, words):
    monkeypatch.setattr(machine.subprocess, "run", lambda *_, **__: type("Done", (), {"stdout": said}))
    found = machine.check_firewall(None)
    assert found.status == status and words in found.sentence


@pytest.mark.parametrize(
    ("fault", "minutes", "code", "found"),
    [
        (None, 0, 0, ("ok", "the server has not run here yet")),
        ("", 1, 0, ("ok", "the server has looked for jobs to start within the last 2 minutes")),
        ("", 5, 0, ("warning", "has looked for no job to start for 5 minutes")),
        ("jobs cannot be started: full", 1, 1, ("failed", "(jobs cannot be started: full); mend that")),
    ],
)
def test_whether_jobs_are_started_is_said(server, capsys, fault, minutes, code, found):
    kit, _ = server
    if fault is not None:
        path = kit.folder / HEALTH
        path.write_text(fault)
        path.chmod(0o600)
        os.utime(path, (time.time() - 60 * minutes,) * 2)
    status, said = checked(kit, capsys, code)["jobs"]
    assert status == found[0] and found[1] in said
