"""INSTALL.md, followed literally: every command of its ten steps, on a copy of this machine that nobody else sees."""

import re
import shlex
import shutil
import socket
import subprocess
import sys
import textwrap
import time
from configparser import RawConfigParser
from dataclasses import replace
from pathlib import Path

import pytest

from provisioning.__main__ import main
from provisioning.build_wheel import build_wheels
from provisioning.fill_kits import Contents, fill_kit
from provisioning.guide import write_guide
from provisioning.make_kits import make_kits, make_project
from provisioning.namespaces import Namespaces, are_possible
from provisioning.network import start_command
from provisioning.wheelhouse import fill_wheelhouse
from provisioning.workspace import PROJECT, REPOSITORY, find_kits, kits_folder
from silofl.base.settings import load_settings
from silofl.flare.kit import read_kit
from silofl.setup.site import Site
from silofl.study import load_study
from silofl_desk.phantoms.phantoms import make_phantoms
from silofl_desk.studies.runs.processes import ProcessTree
from silofl_hospital.site import resources
from silofl_hospital.site.candidate import Candidate

JOBS = REPOSITORY / "jobs"
STUDY = JOBS / "harmofl_phantoms" / "app" / "config" / "study.yaml"
KIT = "/var/lib/silofl/kit"
INDEX, WHEELHOUSE = "--extra-index-url", "--no-index"
WORD = r"\b[A-Z]{2,}(?:_[A-Z]+)*\b"
PYTHON = Path(sys.base_prefix, "bin")


def steps(page):
    """Return the number of each step of INSTALL.md -> its blocks of commands."""
    parts = re.split(r"(?m)^(\d+)\. ", page)
    numbered = dict(zip(map(int, parts[1::2]), parts[2::2], strict=True))
    blocks = {number: re.findall(r"(?m)(?:^ {7,}\S.*\n)+", text) for number, text in numbered.items()}
    return {number: [textwrap.dedent(block) for block in found] for number, found in blocks.items()}


class Machine:
    """A hospital's machine: it reads this one's files, changes copies of them, and has a network of its own.

    Args:
        folder: For what it changes.
        spaces: Where its network is, under the name ``north``.
    """

    def __init__(self, folder, spaces):
        self.root, self._spaces = folder / "root", spaces
        for name in ("root", "changes", "work"):
            (folder / name).mkdir(parents=True)
        mount = f"""
            mount -t overlay overlay -o lowerdir=/,upperdir={folder}/changes,workdir={folder}/work {self.root}
            for place in proc sys dev; do mount --rbind /$place {self.root}/$place; done
            touch {folder}/is_ready
            exec sleep infinity"""
        self._holder = subprocess.Popen(["unshare", "--mount", "bash", "-e", "-c", mount])
        wait_for(lambda: (folder / "is_ready").exists() or self._holder.poll() is not None, 60)
        if self._holder.poll() is not None:
            pytest.skip("needs a file system on which overlays can be mounted")

    def __enter__(self):
        return self

    def __exit__(self, *reason):
        # With the last process in it the mounts are gone.
        self._holder.kill()
        self._holder.wait()

    def command(self, script, is_online=False):
        """Return the command that runs a script as root; online it sees this machine's own network instead."""
        path = f"{PYTHON}:/usr/sbin:/usr/bin:/sbin:/bin"
        inside = ["nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt", "chroot", str(self.root)]
        environment = ["HOME=/root", "LANG=C.UTF-8", "SYSTEMD_OFFLINE=1", f"PATH={path}"]
        inside += ["env", "-i", *environment, "bash", "-e", "-c", script]
        return inside if is_online else self._spaces.inside("north", inside)

    def run(self, script, is_online=False, cwd="/"):
        """Run a script as root; returns what it printed."""
        command = self.command(f"cd {cwd}\n{script}", is_online)
        done = subprocess.run(command, capture_output=True, text=True, timeout=1500)
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout

    def read(self, path):
        return self.run(f"cat {path}")


def wait_for(is_there, seconds):
    deadline = time.monotonic() + seconds
    while not is_there():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def as_service(unit, command):
    """Return a script that runs a command as systemd would by the unit: account, folder, what is writable, umask."""
    section = RawConfigParser(strict=False)
    section.optionxform = str
    section.read_string(unit)
    service = section["Service"]
    assert service["ProtectSystem"] == "strict" and service["PrivateTmp"] == "yes"
    account, folder = service["User"], service["WorkingDirectory"]
    writable = "\n".join(f"mount --bind {place} {place}" for place in service["ReadWritePaths"].split())
    inner = f"umask {service['UMask']}; cd {folder}; exec {command}"
    script = f"""
        mount --make-rprivate /
        {writable}
        mount -o remount,bind,ro /
        mount -t tmpfs -o mode=1777 tmpfs /tmp
        exec setpriv --reuid {account} --regid {service["Group"]} --init-groups --no-new-privs --bounding-set -all \
            env -i HOME=/var/lib/silofl {service["Environment"]} bash -c {shlex.quote(inner)}"""
    return f"exec unshare --mount bash -e -c {shlex.quote(script)}"


def commands_of(unit, key):
    return re.findall(rf"(?m)^{key}=(.*)$", unit)


@pytest.fixture(scope="module")
def spaces():
    if not are_possible():
        pytest.skip("needs root on Linux: mounts and network namespaces of its own")
    if not all(map(shutil.which, ("nft", "systemctl", "setpriv"))):
        pytest.skip("needs nftables, systemd and util-linux, which INSTALL.md calls")
    with Namespaces(["north"]) as made:
        yield made


@pytest.fixture(scope="module")
def running(tmp_path_factory, spaces, free_port):
    """The kits of a network whose server runs; the lead gives hospitals the study."""
    folder = tmp_path_factory.mktemp("lead")
    project = make_kits(make_project(PROJECT, spaces.server_address, free_port()), folder / "workspace")
    wheel = build_wheels(folder / "wheel")[0]
    found = {kit.name: kit for kit in find_kits(kits_folder(project))}
    fill_kit(found["server"], Contents(wheel, data_root=folder))
    fill_kit(found["north"], Contents(wheel, study=STUDY))
    fill_wheelhouse(found["north"].folder)
    server = ProcessTree(start_command(found["server"]), folder / "server.txt")
    yield kits_folder(project)
    server.end()


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_phantoms(tmp_path_factory.mktemp("images"), seed=7, patients={"north": 10}) / "north"


@pytest.fixture
def arrived(running, tmp_path):
    """The kit as it comes to the hospital."""
    return Path(shutil.copytree(running / "north", tmp_path / "arrived"))


@pytest.fixture
def mirror(arrived, tmp_path):
    """A package index of torch for the CPU, as a hospital's mirror has it."""
    folder = tmp_path / "mirror" / "torch"
    folder.mkdir(parents=True)
    (wheel,) = (arrived / "wheelhouse").glob("torch-*.whl")
    shutil.copy(wheel, folder)
    (folder / "index.html").write_text(f'<a href="{wheel.name.replace("+", "%2B")}">{wheel.name}</a>')
    return folder.parent.as_uri()


@pytest.fixture
def machine(tmp_path, spaces):
    with Machine(tmp_path / "machine", spaces) as made:
        # What is on a hospital's machine: a Python that every account can run, and a pip that takes from its index.
        made.run("".join(f"chmod o+x {place}\n" for place in PYTHON.parents))
        made.run("rm -f /root/.config/pip/pip.conf /root/.pip/pip.conf", is_online=True)
        yield made


def page_of(kit):
    return (kit / "INSTALL.md").read_text()


@pytest.fixture
def fill_again(kits, wheel):
    """Fill the kit of `north` once more, with further options."""

    def fill_it(*options):
        code = main(["fill-kits", str(kits / "north"), "--wheel", str(wheel), *map(str, options)])
        return kits / "north" if code == 0 else None

    return fill_it


@pytest.mark.parametrize(("name", "options"), [("north", ()), ("north", ("--study", STUDY)), ("server", ())])
def test_install_md_has_ten_steps_and_explains_its_words(kits, fill_again, name, options):
    fill_again(*options)
    kit, page = kits / name, page_of(kits / name)
    blocks = [block for found in steps(page).values() for block in found]
    assert list(steps(page)) == list(range(1, 11))
    explained = set(re.findall(r"(?m)^\| `([A-Z_]+)` \|", page))
    assert {word for block in blocks for word in re.findall(WORD, block)} == explained
    named = {word for block in blocks for word in block.split() if word.startswith(("system/", "local/", "startup/"))}
    assert {"system/silofl.service", "system/silofl-firewall.nft", "startup/rootCA.pem"} < named
    assert [name for name in named if not (kit / name).is_file()] == []
    assert not (kit / "readme.txt").exists()
    (stops,) = re.findall(r"bin/nvflare ([^`]+)`", page)
    subprocess.run([sys.executable, "-m", "nvflare.cli", *stops.split(), "--help"], check=True, capture_output=True)


def test_a_study_comes_with_its_digest_and_disk(fill_again):
    kit = fill_again("--study", STUDY)
    study, page = load_study(STUDY), page_of(kit)
    assert (kit / "study.yaml").read_bytes() == STUDY.read_bytes()
    assert f"| digest of study `harmofl_phantoms` | `{study.digest}` |" in page
    candidate = Candidate(read_kit(kit), study, STUDY, load_settings(Site, kit / "local" / "site.yaml"))
    assert f"keeps {resources.check_disk(candidate).facts['state_bytes'] / 2**30:.2f} GiB" in page
    assert "cp -r IMAGES /var/lib/silofl/data/harmofl_phantoms" in page
    # A kit that is filled again keeps its study.
    assert page_of(fill_again()) == page


def test_services_may_write_only_where_site_yaml_keeps_state(fill_again, tmp_path):
    standard = (fill_again() / "system" / "silofl.service").read_text()
    assert "\nReadWritePaths=/var/lib/silofl\n" in standard
    kit = fill_again("--data-root", tmp_path)
    for name in ("silofl.service", "silofl-weekly.service"):
        service = (kit / "system" / name).read_text()
        assert f"\nReadWritePaths=/var/lib/silofl {tmp_path}/.silofl\n" in service
        assert "\nUser=silofl\n" in service and "\nUMask=0077\n" in service


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("echo started; echo Gracefully shutdown.", 0),
        ("echo started; echo 'System is in trouble and unable to start the task!!!!!'; rm -f pid.fl; exit", 1),
        ("echo started; exit 3", 3),
    ],
)
def test_a_site_that_keeps_crashing_is_a_failed_service(fill_again, script, code):
    kit = fill_again()
    # The sentence is NVFlare's; without it a crash would look like a shutdown.
    assert "unable to start the task" in (kit / "startup" / "sub_start.sh").read_text()
    (kit / "startup" / "sub_start.sh").write_text(script)
    (command,) = commands_of((kit / "system" / "silofl.service").read_text(), "ExecStart")
    found = subprocess.run(shlex.split(command), cwd=kit, capture_output=True, text=True)
    assert found.returncode == code and found.stdout.startswith("started\n")


@pytest.mark.parametrize(
    ("address", "rule"),
    [
        (("hub.example.net", 443), "ip daddr hub.example.net tcp dport 443 accept"),
        (("2001:db8::7", 8002), "ip6 daddr 2001:db8::7 tcp dport 8002 accept"),
    ],
)
def test_the_firewall_lets_the_account_reach_the_servers_port_alone(kits, address, rule):
    kit = read_kit(kits / "north")
    there = replace(kit, address=replace(kit.address, host=address[0], port=address[1]))
    write_guide(there, {"packages": [{"name": "w", "checksum": "c"}], "lock_checksum": "l"})
    lines = [line.strip() for line in (kits / "north" / "system" / "silofl-firewall.nft").read_text().splitlines()]
    assert [line for line in lines if "daddr" in line] == [rule]
    assert lines[lines.index(rule) + 1] == "reject"


def test_the_servers_services_check_it_and_connect_to_nobody(kits):
    system = kits / "server" / "system"
    service, weekly = ((system / f"silofl{name}.service").read_text() for name in ("", "-weekly"))
    assert commands_of(weekly, "ExecStart") == ["/opt/silofl/bin/python -m silofl server check --kit ."]
    assert commands_of(service, "ReadWritePaths") == ["/var/lib/silofl"] and "UMask=0077" in service
    assert commands_of(service, "Requires") == ["silofl-firewall.service"]
    page, rules = page_of(kits / "server"), (system / "silofl-firewall.nft").read_text()
    assert "site check" not in page and "install -d -m 700 -o silofl -g silofl /var/lib/silofl/server/jobs" in page
    assert "ct state established,related accept" in rules and "daddr" not in rules
    assert not any("{%" in path.read_text() for path in system.iterdir())


def test_no_address_takes_all_connections_or_files_of_the_server(kits):
    kit = read_kit(kits / "server")
    rules, unit = ((kit.folder / "system" / f"silofl{name}").read_text() for name in ("-firewall.nft", ".service"))
    limits = re.findall(rf"tcp dport {kit.address.port} ct state new .* ct count over (\d+) \}} reject", rules)
    assert limits == ["64", "64"] and 'iifname "lo" accept' in rules
    # So many addresses, some of them a stranger's, still leave files for jobs.
    assert int(commands_of(unit, "LimitNOFILE")[0]) > 64 * 1000 and commands_of(unit, "MemoryMax") == ["90%"]


def fill(block, words):
    """Write what a person writes instead of the words in capitals."""
    return re.sub(WORD, lambda found: str(words.get(found[0], found[0])), block)


def is_reachable(machine, account, address):
    script = f"exec setpriv --reuid {account} --clear-groups timeout 5 bash -c 'exec 3<>/dev/tcp/{address}'"
    return subprocess.run(machine.command(script), capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("way", [INDEX, WHEELHOUSE])
def test_whoever_follows_install_md_joins(machine, arrived, mirror, images, spaces, tmp_path, way):
    words = {"FOLDER": arrived, "CPU_INDEX": mirror, "IMAGES": images, "NEW_CERTIFICATE": "/root/new.crt"}
    machine.run(f"cp {arrived}/startup/client.crt /root/new.crt")
    if way == INDEX:
        shutil.rmtree(arrived / "wheelhouse")
    blocks = {
        number: [fill(block, words) for block in found if not {INDEX, WHEELHOUSE} - {way} & {*block.split()}]
        for number, found in steps((arrived / "INSTALL.md").read_text()).items()
    }
    assert list(blocks) == list(range(1, 11))

    def follow(*numbers, cwd=KIT, is_online=False):
        return machine.run("".join(block for number in numbers for block in blocks[number]), is_online, cwd)

    said = follow(1, 2, 3, cwd="/")
    assert "whl: OK" in said
    machine.run(f"test ! -e {arrived}")
    # Without an index the machine has no way out while it installs.
    follow(4, is_online=way == INDEX)
    said = follow(5, 6, 7, 8, 9)
    assert "Site north may join harmofl_phantoms" in said
    assert machine.run(f"stat -c '%a %U' {KIT}/startup/client.key") == "600 silofl\n"

    with socket.create_server((spaces.server_address, 0)) as other:
        elsewhere = f"{spaces.server_address}/{other.getsockname()[1]}"
        assert is_reachable(machine, "root", elsewhere) and not is_reachable(machine, "silofl", elsewhere)

    names = ("silofl.service", "silofl-weekly.service", "silofl-weekly.timer", "silofl-firewall.service")
    machine.run(f"cd /etc/systemd/system; systemd-analyze verify {' '.join(names)}")
    enabled = machine.run("systemctl is-enabled silofl.service silofl-weekly.timer silofl-firewall.service").split()
    assert enabled == ["enabled"] * 3
    site, weekly = (machine.read(f"/etc/systemd/system/{name}") for name in names[:2])
    # A file of a process that a power cut has ended, under the number of another that lives.
    machine.run(f"cd {KIT}; for name in pid.fl daemon_pid.fl; do echo 1 > $name; chown silofl $name; done")
    for command in commands_of(site, "ExecStartPre"):
        machine.run(as_service(site, command))
    (start,) = commands_of(site, "ExecStart")
    service = ProcessTree(machine.command(as_service(site, start)), tmp_path / "service.txt")
    try:
        registered, *others = blocks[10]
        wait_for(lambda: service.poll() is None and has_passed(machine, registered), 120)
        assert machine.run(f"stat -c '%a %U' {KIT}/log.txt") == "600 silofl\n"
        said = "".join(machine.run(as_service(weekly, command)) for command in commands_of(weekly, "ExecStart"))
        assert (
            "0 job folders, full logs and half rounds are older than 365 days" in said and "Site north may join" in said
        )
        for block in others:
            machine.run(block, cwd=KIT)
    finally:
        service.end()


def has_passed(machine, script):
    return subprocess.run(machine.command(f"cd {KIT}\n{script}"), capture_output=True).returncode == 0
