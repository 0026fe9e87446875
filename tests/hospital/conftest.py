"""A provisioned federation of one site, a server that speaks TLS with its kit, and a site with a few tiny images."""

import json
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from silofl.flare.policy import JOB_FILES, SITE_CLASSES
from silofl_hospital.site.candidate import read_candidate

from ..conftest import SMALL_UNET

BUILDERS = ("workspace.WorkspaceBuilder", "static_file.StaticFileBuilder", "cert.CertBuilder")
SITE_CONFIGS = Path(__file__).parents[2] / "site_configs"
STUDY = {
    "name": "small",
    "task": "segmentation",
    "labels": {1: "blob"},
    "rounds": 4,
    "baseline_comparison": False,
    "device": "cpu",
    "model": SMALL_UNET,
    "training": {"batch_size": 2, "learning_rate": 0.01},
    "algorithm": {"name": "fedavg"},
}


def provision(folder, port):
    """Provision a server on this machine and the site ``north``; returns the folder of the kits."""
    folder.mkdir()
    participants = [
        {"name": "localhost", "type": "server", "org": "lead", "fed_learn_port": port},
        {"name": "north", "type": "client", "org": "north"},
        {"name": "lead@example.org", "type": "admin", "org": "lead", "role": "project_admin"},
    ]
    builders = [{"path": f"nvflare.lighter.impl.{name}", "args": {}} for name in BUILDERS]
    builders[1]["args"] = {"config_folder": "config"}
    project = {"api_version": 3, "name": "small", "participants": participants, "builders": builders}
    (folder / "project.yml").write_text(yaml.safe_dump(project))
    nvflare = Path(sys.executable).parent / "nvflare"
    command = [nvflare, "provision", "-p", "project.yml", "-w", "ws", "--force"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=300)
    return folder / "ws" / "small" / "prod_00"


@pytest.fixture(scope="session")
def federation(tmp_path_factory, free_port):
    return provision(tmp_path_factory.mktemp("federation") / "own", free_port())


@pytest.fixture(scope="session")
def strangers(tmp_path_factory):
    """The kits of another project, whose root nobody here trusts."""
    return provision(tmp_path_factory.mktemp("strangers") / "other", 8002)


@pytest.fixture
def serve():
    """Speaking TLS as the server of some kits."""

    @contextmanager
    def run(kits, port):
        startup = kits / "localhost" / "startup"
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(startup / "rootCA.pem"))
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(startup / "server.crt", startup / "server.key")

        def answer(listener):
            while True:
                try:
                    line, _ = listener.accept()
                except OSError:
                    return
                try:
                    with line, context.wrap_socket(line, server_side=True) as secured:
                        secured.recv(4096)
                        secured.sendall(b"HTTP/1.1 404 Not Found\r\n\r\n")
                except OSError:
                    continue

        listener = socket.create_server(("localhost", port))
        thread = threading.Thread(target=answer, args=(listener,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            # Only shutdown wakes the thread that waits in accept.
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            thread.join(timeout=10)

    return run


@pytest.fixture
def kit(federation, tmp_path):
    """A copy of the site's kit that lets SiloFL in and no other code."""
    folder = tmp_path / "kit"
    shutil.copytree(federation / "north", folder)
    resources = json.loads((folder / "local" / "resources.json.default").read_text())
    resources["class_allow_list"] = list(SITE_CLASSES)
    resources["allow_log_streaming"] = False
    resources["app_validator"] = {"path": JOB_FILES}
    (folder / "local" / "resources.json").write_text(json.dumps(resources))
    policy = {"format_version": "1.0", "permissions": {"lead": {"byoc": "none"}}}
    (folder / "local" / "authorization.json").write_text(json.dumps(policy))
    shutil.copy(SITE_CONFIGS / "hospital" / "privacy.json", folder / "local")
    site = {"data": f"{tmp_path}/data", "state_dir": f"{tmp_path}/state", "min_patients": 3}
    (folder / "local" / "site.yaml").write_text(yaml.safe_dump(site))
    (folder / "requirements.lock").write_text("# of the kit")
    return folder


def change_site(kit, **changes):
    """Change keys of a kit's site.yaml."""
    path = kit / "local" / "site.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changes))


def write_pictures(folder, **counts):
    """Write pictures with masks, so many of each part and each of another patient; every name in it is a secret."""
    random = np.random.default_rng(0)
    folder.mkdir()
    content = {"task": "segmentation", "labels": {"1": "blob"}}
    for part, count in counts.items():
        content[part] = []
        for i in range(count):
            truth = np.zeros((32, 32), np.uint8)
            truth[8 + i : 20 + i, 8:20] = 1
            name = f"secret-{part}{i}"
            Image.fromarray(random.integers(0, 255, (32, 32)).astype(np.uint8)).save(folder / f"{name}.png")
            Image.fromarray(truth).save(folder / f"{name}_mask.png")
            content[part].append({"image": f"{name}.png", "label": f"{name}_mask.png", "patient": name})
    (folder / "dataset.json").write_text(json.dumps(content))
    return folder


@pytest.fixture
def pictures(tmp_path):
    """Five training, two validation and two test pictures."""
    return write_pictures(tmp_path / "data", training=5, validation=2, test=2)


@pytest.fixture
def study_file(tmp_path):
    """Write a study; returns its file."""

    def write(**changes):
        path = tmp_path / "study.yaml"
        path.write_text(yaml.safe_dump(STUDY | changes))
        return path

    return write


@pytest.fixture
def candidate(kit, pictures, study_file):
    def read(**changes):
        return read_candidate(kit, study_file(**changes), None)

    return read
