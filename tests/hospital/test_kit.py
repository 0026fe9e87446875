import json

import pytest

from silofl.base.errors import ConfigError
from silofl.flare.kit import read_kit


def test_a_kit_says_who_the_site_is_and_where_its_server_is(kit, federation):
    found = read_kit(kit)
    target = json.loads((federation / "north" / "startup" / "fed_client.json").read_text())["servers"][0]["service"]
    assert (found.kind, found.name, found.org) == ("hospital", "north", "north")
    assert f"{found.address.host}:{found.address.port}" == target["target"]
    assert (found.address.security, found.address.identity) == ("mtls", "localhost")
    # NVFlare's certificates hold for 360 days.
    assert (found.valid_until - found.valid_from).days in (359, 360)


def test_a_file_of_the_kit_stands_before_its_default_and_one_that_is_nowhere_is_named(kit):
    assert read_kit(kit).local("resources.json")[0] == "resources.json"
    (kit / "local" / "resources.json").unlink()
    assert read_kit(kit).local("resources.json")[0] == "resources.json.default"
    with pytest.raises(ConfigError, match=r"local/nothing.json or its default"):
        read_kit(kit).local("nothing.json")


def test_every_kind_of_kit_names_the_same_server(federation):
    places = {"localhost": "server", "north": "hospital", "lead@example.org": "admin"}
    kits = {name: read_kit(federation / name) for name in places}
    assert {name: kit.kind for name, kit in kits.items()} == places
    assert len({(kit.address.host, kit.address.port, kit.address.identity) for kit in kits.values()}) == 1
    assert {name: kit.role for name, kit in kits.items()}["lead@example.org"] == "project_admin"


def test_a_folder_that_is_no_such_kit_is_refused(tmp_path, federation):
    with pytest.raises(ConfigError, match=r"fed_client.json or fed_admin.json must exist in .*: give the folder"):
        read_kit(tmp_path)
    with pytest.raises(ConfigError, match=r"^fed_client.json must exist in .*/startup; it is not there"):
        read_kit(tmp_path, ("hospital",))
    with pytest.raises(ConfigError, match=r"localhost must be the kit of a hospital, not of the server"):
        read_kit(federation / "localhost", ("hospital",))
    with pytest.raises(ConfigError, match=r"north/startup must be a kit, not the startup folder in it; name .*/north$"):
        read_kit(federation / "north" / "startup")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("startup/fed_client.json", "{", "fed_client.json must be JSON"),
        ("startup/fed_client.json", "[]", "fed_client.json must hold keys and values, not list"),
        ("startup/fed_client.json", '{"servers": [], "client": {}}', "must name a server as host:port"),
        ("startup/client.crt", "none", "client.crt must hold a certificate"),
    ],
)
def test_a_broken_part_of_a_kit_is_named(kit, name, text, message):
    (kit / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_kit(kit)
