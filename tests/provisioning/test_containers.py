"""The container and the pod in which a kit runs as it is, as its ``system/`` describes them."""

import json
import re
import subprocess

import pytest
import yaml

from provisioning.guide import write_guide
from silofl.flare.job_loop import HEALTH
from silofl.flare.kit import read_kit

FACTS = {"packages": [{"name": "w", "checksum": "c"}], "lock_checksum": "l"}
RESTRICTED = {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}}


def objects(kit):
    """Return kind -> object of a kit's ``kubernetes.yaml``."""
    return {one["kind"]: one for one in yaml.safe_load_all((kit / "system" / "kubernetes.yaml").read_text())}


@pytest.mark.parametrize("name", ["server", "north"])
def test_a_pod_has_no_right_over_the_cluster(kits, name):
    found = objects(kits / name)
    assert not {"Role", "ClusterRole", "RoleBinding", "ServiceAccount"} & found.keys()
    pod = found["Deployment"]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert RESTRICTED.items() <= pod["securityContext"].items()
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    labels = found["Namespace"]["metadata"]["labels"]
    assert labels == {"pod-security.kubernetes.io/enforce": "restricted"}
    namespaces = {one["metadata"].get("namespace") for kind, one in found.items() if kind != "Namespace"}
    assert namespaces == {found["Namespace"]["metadata"]["name"]} == {f"silofl-{name}"}


@pytest.mark.parametrize(("fault", "is_alive"), [("", True), ("jobs cannot be started: full", False)])
def test_a_pod_whose_server_starts_no_jobs_is_started_anew(kits, tmp_path, fault, is_alive):
    (container,) = objects(kits / "server")["Deployment"]["spec"]["template"]["spec"]["containers"]
    command = container["livenessProbe"]["exec"]["command"]
    assert command[-1] == f"/var/lib/silofl/kit/{HEALTH}"
    (tmp_path / HEALTH).write_text(fault)
    assert (subprocess.run([*command[:-1], tmp_path / HEALTH]).returncode == 0) is is_alive
    (container,) = objects(kits / "north")["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert "livenessProbe" not in container


@pytest.mark.parametrize("name", ["server", "north"])
def test_policies_and_key_cannot_be_written_from_a_pod(kits, name):
    kit = read_kit(kits / name)
    (container,) = objects(kit.folder)["Deployment"]["spec"]["template"]["spec"]["containers"]
    places = {mount["mountPath"]: mount.get("readOnly", False) for mount in container["volumeMounts"]}
    assert {place for place, is_read_only in places.items() if not is_read_only} == {"/var/lib/silofl", "/tmp"}
    assert {"/var/lib/silofl/kit/local", "/var/lib/silofl/kit/startup"} < places.keys()
    assert ("/var/lib/silofl/data" in places) == (kit.kind == "hospital")


@pytest.mark.parametrize(
    ("host", "to"), [("hub.example.net", None), ("192.0.2.7", "192.0.2.7/32"), ("2001:db8::7", "2001:db8::7/128")]
)
def test_a_site_reaches_the_servers_port_and_name_servers_alone(kits, host, to):
    kit = read_kit(kits / "north")
    settings = kit.folder / "startup" / "fed_client.json"
    settings.write_text(settings.read_text().replace("localhost:8002", f"{host}:443"))
    write_guide(read_kit(kit.folder), FACTS)
    policy = objects(kit.folder)["NetworkPolicy"]["spec"]
    assert (policy["podSelector"], policy["policyTypes"], policy["ingress"]) == ({}, ["Ingress", "Egress"], [])
    names, server = policy["egress"]
    assert {port["port"] for port in names["ports"]} == {53}
    assert server["ports"] == [{"protocol": "TCP", "port": 443}]
    assert server.get("to") == (to and [{"ipBlock": {"cidr": to}}])


def test_a_server_answers_on_its_port_and_connects_to_nobody(kits):
    found = objects(kits / "server")
    policy = found["NetworkPolicy"]["spec"]
    assert (policy["ingress"], policy["egress"]) == ([{"ports": [{"protocol": "TCP", "port": 8002}]}], [])
    assert found["Service"]["spec"]["ports"][0]["targetPort"] == 8002
    assert "Service" not in objects(kits / "north")
    # No account but root may listen on this port without being let.
    settings = kits / "server" / "startup" / "fed_server.json"
    settings.write_text(settings.read_text().replace(":8002", ":443"))
    write_guide(read_kit(kits / "server"), FACTS)
    pod = objects(kits / "server")["Deployment"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["sysctls"] == [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "443"}]


def test_a_pod_gets_the_gpus_of_its_site(kits):
    def limits():
        write_guide(read_kit(kits / "north"), FACTS)
        (container,) = objects(kits / "north")["Deployment"]["spec"]["template"]["spec"]["containers"]
        return container["resources"]["limits"]

    assert "nvidia.com/gpu" not in limits()
    path = kits / "north" / "local" / "resources.json"
    resources = json.loads(path.read_text())
    next(one for one in resources["components"] if one["id"] == "resource_manager")["args"]["num_of_gpus"] = 2
    path.write_text(json.dumps(resources))
    assert limits()["nvidia.com/gpu"] == "2"


def test_the_image_names_no_registry_and_checks_every_package(kits):
    text = (kits / "north" / "system" / "Dockerfile").read_text()
    code = re.sub(r"(?m)^#.*\n", "", text)
    assert "://" not in code and code.count("pip install") == code.count("--require-hashes") == 1
    assert "USER 10001" in code and code.startswith("ARG BASE\nFROM ${BASE}\n")
