import json
from types import SimpleNamespace

import pytest

from silofl.base.errors import ConfigError
from silofl.flare.kit import is_exposed as is_exposed_key
from silofl.flare.kit import read_kit


def test_a_kit_names_its_site_and_server(kit, federation):
    found = read_kit(kit)
    target = json.loads((federation / "north" / "startup" / "fed_client.json").read_text())["servers"][0]["service"]
    assert (found.kind, found.name, found.org) == ("hospital", "north", "north")
    assert f"{found.address.host}:{found.address.port}" == target["target"]
    assert (found.address.security, found.address.identity) == ("mtls", "localhost")
    # NVFlare's certificates hold for 360 days.
    assert (found.valid_until - found.valid_from).days in (359, 360)


def test_a_file_stands_before_its_default(kit):
    assert read_kit(kit).local("resources.json")[0] == "resources.json"
    (kit / "local" / "resources.json").unlink()
    assert read_kit(kit).local("resources.json")[0] == "resources.json.default"
    with pytest.raises(ConfigError, match=r"neither local/nothing.json nor its default"):
        read_kit(kit).local("nothing.json")


@pytest.mark.parametrize(
    ("mode", "owner", "groups", "is_exposed"),
    [
        (0o400, 1, [7], False),
        (0o440, 1, [7], False),  # as Kubernetes lends a secret
        (0o460, 1, [7], True),
        (0o444, 1, [7], True),
        (0o440, 1, [8], True),
        (0o440, 10001, [7], True),
    ],
)
def test_a_key_is_exposed_unless_root_lends_it(kit, monkeypatch, mode, owner, groups, is_exposed):
    key = read_kit(kit).key_path
    found = SimpleNamespace(st_mode=0o100000 | mode, st_uid=owner, st_gid=7)
    monkeypatch.setattr(type(key), "stat", lambda self, **options: found)
    monkeypatch.setattr("os.geteuid", lambda: 10001)
    monkeypatch.setattr("os.getgroups", lambda: groups)
    assert is_exposed_key(key) == is_exposed


def test_a_folder_that_is_no_such_kit_is_refused(tmp_path, federation):
    with pytest.raises(
        ConfigError, match=r"has no fed_server.json or fed_client.json or fed_admin.json; give the folder"
    ):
        read_kit(tmp_path)
    with pytest.raises(ConfigError, match=r"/startup has no fed_client.json"):
        read_kit(tmp_path, ("hospital",))
    with pytest.raises(ConfigError, match=r"localhost must be the kit of a hospital, not of the server"):
        read_kit(federation / "localhost", ("hospital",))
    with pytest.raises(ConfigError, match=r"north/startup must be a kit, not the startup folder in it; name .*/north$"):
        read_kit(federation / "north" / "startup")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("startup/fed_client.json", "{", "fed_client.json is broken JSON"),
        ("startup/fed_client.json", "[]", "fed_client.json must be keys and values, not list"),
        ("startup/fed_client.json", '{"servers": [], "client": {}}', "names no server as host:port"),
        ("startup/client.crt", "none", "client.crt holds no certificate"),
    ],
)
def test_a_broken_part_of_a_kit_is_named(kit, name, text, message):
    (kit / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_kit(kit)
