import os
import subprocess

import pytest

from provisioning import namespaces
from provisioning.namespaces import Namespaces, are_possible


@pytest.fixture
def own_numbers(monkeypatch):
    """Numbers of networks that no other process takes from."""
    first = 100 + os.getpid() % 30 * 5
    monkeypatch.setattr(namespaces, "NUMBERS", range(first, first + 5))
    if not are_possible():
        pytest.skip("this account makes no network namespaces")


def devices():
    """Return the names of all network devices and namespaces of this machine."""
    links = subprocess.run(["ip", "-brief", "link"], check=True, capture_output=True, text=True).stdout
    spaces = subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True).stdout
    return {line.split()[0].partition("@")[0] for line in [*links.splitlines(), *spaces.splitlines()]}


def reach(spaces, name, address):
    """Return whether one packet comes back from an address."""
    command = spaces.inside(name, ["bash", "-c", f"exec 3<>/dev/tcp/{address}/9"])
    said = subprocess.run(command, capture_output=True, text=True, timeout=20).stderr
    # A machine that is there refuses the port at once; to one that is not there is no way.
    return "Connection refused" in said


def test_a_hospital_reaches_the_server_and_nothing_else(own_numbers):
    with Namespaces(("north", "south")) as spaces:
        assert reach(spaces, "north", spaces.server_address)
        assert not reach(spaces, "north", "192.0.2.1")
        bridge = f"silofl{spaces.server_address.split('.')[2]}"
        assert devices() >= {bridge, f"{bridge}-2", f"{bridge}-3", f"{bridge}-north", f"{bridge}-south"}
    assert not {name for name in devices() if name.partition("-")[0] == bridge}


def test_a_wire_has_its_share_of_the_line_both_ways(own_numbers):
    with Namespaces(("north", "south"), 16e6) as spaces:
        wire = f"silofl{spaces.server_address.split('.')[2]}-2"
        for command in (["tc", "qdisc", "show", "dev", wire], spaces.inside("north", ["tc", "qdisc", "show"])):
            assert "tbf" in (said := subprocess.run(command, capture_output=True, text=True).stdout)
            assert "rate 8Mbit" in said


def test_networks_at_a_time_leave_each_other_alone(own_numbers):
    with Namespaces(("north",)) as first:
        with Namespaces(("north",)) as second:
            assert first.server_address != second.server_address
            assert are_possible()
        assert reach(first, "north", first.server_address)


def test_what_a_killed_process_left_behind_is_taken_away_first(own_numbers):
    with Namespaces(("north",)) as spaces:
        number = spaces.server_address.split(".")[2]
    for command in (["link", "add", f"silofl{number}", "type", "bridge"], ["netns", "add", f"silofl{number}-west"]):
        subprocess.run(["ip", *command], check=True)
    with Namespaces(("north",)) as spaces:
        assert spaces.server_address.split(".")[2] == number
        assert f"silofl{number}-west" not in devices()
