import json
import os
import re
import subprocess
from datetime import timedelta

import pytest
import yaml
from cryptography import x509
from nvflare.fuel.f3.cellnet import cell_cipher

from provisioning import make_kits
from provisioning.__main__ import main
from provisioning.supply import LOCK, SBOM, digest_file, name_package, read_lock
from provisioning.workspace import PROJECT, SITE_LOCK
from silofl.base.errors import ConfigError
from silofl.flare.kit import read_kit
from silofl.flare.line import make_settings

from ..conftest import readable_by_others, set_umask
from .conftest import desk_beside, hospital_beside, make_small_network

SITES = ("north", "south", "east")


def make(project, workspace, wheel, *options):
    return main(["make-kits", str(project), str(workspace), "--wheel", str(wheel), *options])


def changed_project(path, change):
    project = yaml.safe_load(PROJECT.read_text())
    change(project)
    path.write_text(yaml.safe_dump(project))
    return path


@pytest.mark.parametrize("name", ["-rf", "=1+1", "../north", "north\n", "$(id)", "_north"])
@pytest.mark.parametrize("of", ["project", "hospital"])
def test_a_participants_name_must_be_a_plain_word(tmp_path, name, of):
    def rename(project):
        (project if of == "project" else project["participants"][-1]).update(name=name, type="client")

    with pytest.raises(ConfigError, match="a name must begin with a letter or a digit and hold letters.*; rename it"):
        make_kits.make_project(changed_project(tmp_path / "project.yml", rename), None, None)
    with pytest.raises(ConfigError, match="a name must begin with a letter or a digit"):
        make_kits.check_participants([{"name": name, "type": "client", "org": "west"}])


@pytest.mark.parametrize("name", ["server", "north"])
def test_sha256sum_confirms_the_wheel_of_a_kit(kits, wheel, name):
    assert (kits / name / wheel.name).read_bytes() == wheel.read_bytes()
    command = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    subprocess.run(command, cwd=kits / name, check=True, capture_output=True)
    # What root installs and the service runs came in the same way; the key is in no list.
    listed = {line.split("  ")[1] for line in (kits / name / "SHA256SUMS").read_text().splitlines()}
    assert {"startup/start.sh", "startup/sub_start.sh", "startup/rootCA.pem"} <= listed
    assert {"local/privacy.json", "sbom.json"} <= listed
    assert not any(file.endswith(".key") for file in listed)
    if name in SITES:
        assert "system/silofl.service" in listed
        (kits / name / "startup" / "sub_start.sh").write_text("rm -rf /")
        assert subprocess.run(command, cwd=kits / name, check=False, capture_output=True).returncode == 1


def test_no_other_account_can_read_the_kits(tmp_path, wheel):
    with set_umask(0o022):
        assert make_small_network(tmp_path / "workspace", wheel) == 0
    # NVFlare gives its scripts a mode; there is nothing secret in them.
    assert {path.suffix for path in readable_by_others(tmp_path / "workspace")} <= {".sh"}


@pytest.mark.parametrize("name", ["server", "north"])
def test_what_a_kit_writes_is_for_its_account_only(kits, wheel, tmp_path, name):
    kit, tools = kits / name, tmp_path / "tools"
    assert main(["fill-kits", str(kit), "--wheel", str(wheel)]) == 0
    assert (kit / "startup" / "sub_start.sh").read_text().count("umask 077") == 1
    tools.mkdir()
    stubs = {"python3": f"echo safe=$PYTHONSAFEPATH > {kit}/audit.log; touch {kit}/shutdown.fl", "sleep": ""}
    for stub, does in stubs.items():
        (tools / stub).write_text(f"#!/bin/bash\n{does}\n")
        (tools / stub).chmod(0o755)
    with set_umask(0o022):
        environment = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"}
        subprocess.run(["startup/start.sh"], cwd=kit, env=environment, check=True, capture_output=True, timeout=60)
    assert (kit / "audit.log").read_text() == "safe=1\n" and readable_by_others(kit / "audit.log") == []


def test_the_root_has_a_longer_key_than_the_others(kits):
    # Bytes of a key that it encrypts for a machine, whose RSA key is as long.
    assert cell_cipher.KEY_ENC_LENGTH * 8 == 2048
    for name in ("server", "north", "lead@study.example.org"):
        kit = read_kit(kits / name)
        assert (kit.root.public_key().key_size, kit.certificate.public_key().key_size) == (3072, 2048)
    assert kit.root.not_valid_after_utc - kit.root.not_valid_before_utc == timedelta(days=3650)


def test_each_role_gets_the_wheels_that_it_installs(kits, wheel):
    hospital, desk = hospital_beside(wheel), desk_beside(wheel)
    of_all = {wheel.name, hospital.name}
    installed = {"lead@study.example.org": {*of_all, desk.name}, "admin@study.example.org": of_all}
    installed |= dict.fromkeys((f"it@{site}.example.org" for site in SITES), set())
    for name in ("server", *SITES, *installed):
        kit, wheels = kits / name, installed.get(name, of_all)
        assert {path.name for path in kit.glob("*.whl")} == wheels, name
        assert (kit / LOCK).is_file() is (kit / SBOM).is_file() is (kit / "SHA256SUMS").is_file() is bool(wheels), name
        assert ("--require-hashes" in (kit / "INSTALL.md").read_text()) is bool(wheels), name
    lead = kits / "lead@study.example.org"
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=lead, check=True, capture_output=True)
    own, locked = [name_package(one, digest_file(one)) for one in (wheel, hospital, desk)], read_lock(SITE_LOCK)
    assert read_lock(lead / LOCK) == own + locked
    assert len(json.loads((lead / SBOM).read_text())["components"]) == len(locked) + 2
    assert digest_file(lead / "SHA256SUMS") in (lead / "INSTALL.md").read_text()


def test_without_the_desks_wheel_only_hospitals_get_kits(kits, wheel, tmp_path, capsys):
    alone = kits / "north" / wheel.name
    assert make(PROJECT, tmp_path / "ws", alone) == 2 and not (tmp_path / "ws").exists()
    sentence = f"{desk_beside(alone).name} must be beside {alone}, for the kit of a lead; it is not there: build all"
    assert sentence in capsys.readouterr().err
    before = (kits / "north" / "INSTALL.md").stat().st_mtime_ns
    assert main(["fill-kits", str(kits), "--wheel", str(alone)]) == 2
    assert (kits / "north" / "INSTALL.md").stat().st_mtime_ns == before
    assert main(["fill-kits", str(kits / "south"), "--wheel", str(alone)]) == 0
    assert main(["fill-kits", str(kits / "south"), "--wheel", str(desk_beside(alone))]) == 2


def test_a_further_lead_gets_the_wheels_of_the_first(workspace, kits, wheel, capsys):
    def add(name, *options):
        return main(["add-person", str(workspace), name, "study", "lead", *options])

    assert add("second@study.example.org") == 0
    first, second = kits / "lead@study.example.org", kits / "second@study.example.org"
    for name in (wheel.name, hospital_beside(wheel).name, desk_beside(wheel).name, LOCK, SBOM):
        assert (second / name).read_bytes() == (first / name).read_bytes()
    kit = read_kit(second)
    assert (kit.kind, kit.role, kit.org) == ("admin", "lead", "study") and main(["check-kits", str(workspace)]) == 0
    # As after both have left.
    for lead in (first, second):
        assert main(["remove-kit", str(workspace), lead.name]) == 0
    assert add("third@study.example.org") == 2 and not (kits / "third@study.example.org").exists()
    assert "build all with build-wheel, and name silofl's with --wheel" in capsys.readouterr().err
    assert add("third@study.example.org", "--wheel", str(wheel)) == 0


@pytest.mark.parametrize("name", ["server", "north"])
def test_links_in_a_kits_pages_lead_to_its_files(kits, name):
    pages = [page for page in (kits / name).rglob("*.md") if page.parent != kits / name]
    assert {page.name for page in pages} == {"README.md", "hospital-it.md", "privacy.md", "security.md", "reporting.md"}
    assert "weakness](reporting.md)" in (kits / name / "docs" / "security.md").read_text()
    assert "](security.md#when-something-has-happened)" in (kits / name / "docs" / "reporting.md").read_text()
    for page in pages:
        links = re.findall(r"\]\(([^)#]+)", page.read_text())
        assert [link for link in links if not (page.parent / link).is_file()] == [], page
    assert "(../docs/privacy.md#" in (kits / name / "local" / "README.md").read_text()


def test_install_md_names_the_address_the_checksum_and_the_commands(kits):
    text = (kits / "north" / "INSTALL.md").read_text()
    checksum = (kits / "north" / "SHA256SUMS").read_text().split()[0]
    command = ["openssl", "x509", "-in", str(kits / "north/startup/rootCA.pem"), "-noout", "-fingerprint", "-sha256"]
    fingerprint = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip().partition("=")[2]
    for part in ("**localhost**", "port **8002**", checksum, fingerprint, "./startup/start.sh", "client.crt"):
        assert part in text


def test_host_and_port_reach_certificate_and_kits(tmp_path, wheel, kits):
    assert make_small_network(tmp_path / "ws", wheel, "--host", "hub.example.net", "--port", "443") == 0
    own = tmp_path / "ws" / "silofl" / "prod_00"
    certificate = read_kit(own / "server").certificate
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["hub.example.net"]
    for name in ("server", "north", "lead@study.example.org"):
        assert (read_kit(own / name).address.host, read_kit(own / name).address.port) == ("hub.example.net", 443)
    line = "echo net.ipv4.ip_unprivileged_port_start=443 > /etc/sysctl.d/50-silofl.conf"
    assert line in (own / "server" / "INSTALL.md").read_text()
    assert "unprivileged_port" not in (kits / "server" / "INSTALL.md").read_text()
    assert "tcp dport 443" in (own / "north" / "system" / "silofl-firewall.nft").read_text()


def test_a_data_root_holds_data_state_runs_and_stores(tmp_path, workspace, wheel):
    assert make(PROJECT, workspace, wheel, "--host", "localhost", "--data-root", str(tmp_path / "data")) == 0
    kits, root = workspace / "silofl" / "prod_00", tmp_path / "data"
    site = yaml.safe_load((kits / "north" / "local" / "site.yaml").read_text())
    assert (site["data"], site["state_dir"]) == (f"{root}/{{site}}", f"{root}/.silofl/{{study}}/{{site}}")
    assert "cache_dir" not in site
    server = yaml.safe_load((kits / "server" / "local" / "server.yaml").read_text())
    assert server["run_dir"] == f"{root}/.silofl/server/runs/{{study}}/{{run}}"
    resources = (kits / "server" / "local" / "resources.json").read_text()
    assert f'"{root}/.silofl/server/jobs"' in resources and f'"{root}/.silofl/server/snapshots"' in resources


def test_what_a_site_decided_stays_unless_replaced(kits, wheel, capsys):
    site = kits / "north" / "local" / "site.yaml"
    as_made = site.read_text()
    site.write_text(as_made.replace("paused: []", "paused: [organs]"))
    assert main(["fill-kits", str(kits / "north"), "--wheel", str(wheel)]) == 0
    assert "paused: [organs]\n" in site.read_text()
    assert "north: local/site.yaml stays as it is; --policies replaces it by" in capsys.readouterr().out
    assert main(["fill-kits", str(kits / "north"), "--wheel", str(wheel), "--policies"]) == 0
    assert site.read_text() == as_made


def test_kits_state_a_thin_line_also_when_added_later(workspace, wheel, tmp_path):
    names = ("server", *SITES, "west")
    files = {name: workspace / "silofl/prod_00" / name / "local/comm_config.json" for name in names}
    assert not files["north"].exists()
    thin = changed_project(tmp_path / "project.yml", lambda project: project.update(bandwidth="20Mbit"))
    assert make(thin, workspace, wheel, "--host", "localhost") == 0
    assert main(["add-hospital", str(workspace), "west", "west_hospital"]) == 0
    for name, path in files.items():
        assert json.loads(path.read_text()) == make_settings(20e6, 3), name
    wrong = changed_project(tmp_path / "project.yml", lambda project: project.update(bandwidth=20))
    assert make(wrong, tmp_path / "other", wheel) == 2 and not (tmp_path / "other").exists()


def test_a_second_call_changes_only_what_a_wheel_changes(workspace, wheel, tmp_path, files_of):
    before = files_of(workspace)
    assert make(PROJECT, workspace, wheel, "--host", "localhost") == 0
    assert files_of(workspace) == before
    new = tmp_path / wheel.name
    new.write_bytes(b"next version")
    for beside in (hospital_beside, desk_beside):
        beside(new).write_bytes(beside(wheel).read_bytes())
    assert make(PROJECT, workspace, new, "--host", "localhost") == 0
    after = files_of(workspace)
    changed = {path.name for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert changed == {wheel.name, "SHA256SUMS", "INSTALL.md", "requirements.lock", "sbom.json"}


@pytest.mark.parametrize(
    ("new", "remedy"),
    [
        ({"name": "west", "type": "client", "org": "west_hospital"}, "add it with add-hospital"),
        ({"name": "new@study.example.org", "type": "admin", "org": "study", "role": "lead"}, "add it with add-person"),
    ],
)
def test_another_address_needs_another_workspace(workspace, wheel, tmp_path, capsys, new, remedy):
    assert make(PROJECT, workspace, wheel, "--host", "elsewhere") == 2
    assert "participant 'server' must be as it was provisioned" in capsys.readouterr().err
    project = make_kits.make_project(PROJECT, host="localhost")
    project["participants"].append(new)
    with pytest.raises(ConfigError, match=f"participant '{new['name']}' must have a kit in .*; {remedy}"):
        make_kits.make_kits(project, workspace)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda project: project["participants"][1].update(org="north hospital"), "NVFlare can provision; .*org"),
        (lambda project: project.update(builders=[{"path": "no.such.Builder"}]), "NVFlare can provision; .*no"),
        (
            lambda project: project["participants"].append({"name": "hub", "type": "relay"}),
            "names relay 'hub', which this version no longer has. Remove it, and let its hospitals connect to the serv",
        ),
        (lambda project: project["participants"].pop(0), "must have a name and participants with one server"),
    ],
)
def test_a_project_that_cannot_be_provisioned_leaves_nothing(tmp_path, change, sentence):
    workspace = tmp_path / "ws"
    with pytest.raises(ConfigError, match=sentence):
        make_kits.make_kits(make_kits.make_project(changed_project(tmp_path / "project.yml", change)), workspace)
    assert not workspace.exists() or list(workspace.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("--study", "gone does not exist"),
        ("--wheel", "the wheel must be a file silofl-VERSION-....whl, not"),
        ("--site-configs", "gone/server must hold server.yaml, resources.json"),
        ("--lock", "gone must exist; it is not there: write it with"),
    ],
)
def test_missing_contents_are_refused_before_any_key(tmp_path, capsys, option, sentence):
    arguments = ["make-kits", str(PROJECT), str(tmp_path / "workspace"), option, str(tmp_path / "gone")]
    assert main(arguments) == 2 and not (tmp_path / "workspace").exists()
    assert sentence in capsys.readouterr().err


def test_a_misspelt_key_is_refused_and_nvflares_further_ones_not(tmp_path):
    text = PROJECT.read_text()
    (tmp_path / "project.yml").write_text(text.replace("fed_learn_port: 8002", "fed_lern_port: 9443"))
    wanted = "must not have the key 'fed_lern_port' at 'server'.*did you mean 'fed_learn_port'"
    with pytest.raises(ConfigError, match=wanted):
        make_kits.make_project(tmp_path / "project.yml")
    (tmp_path / "project.yml").write_text(text.replace("fed_learn_port: 8002", "listening_host: a\n    props: {}"))
    assert make_kits.make_project(tmp_path / "project.yml")["name"] == "silofl"
