import json

import pytest

from silofl.errors import ConfigError
from silofl.flare.kit import read_kit


def test_a_kit_says_who_the_site_is_and_where_its_server_is(kit, federation):
    found = read_kit(kit)
    target = json.loads((federation / "north" / "startup" / "fed_client.json").read_text())["servers"][0]["service"]
    assert (found.site, f"{found.host}:{found.port}") == ("north", target["target"])
    assert (found.security, found.server) == ("mtls", "localhost")
    # NVFlare's certificates hold for 360 days.
    assert (found.valid_until - found.valid_from).days in (359, 360)


def test_a_file_of_the_kit_stands_before_its_default(kit):
    assert read_kit(kit).local("resources.json")[0] == "resources.json"
    (kit / "local" / "resources.json").unlink()
    assert read_kit(kit).local("resources.json")[0] == "resources.json.default"


def test_a_folder_that_is_no_sites_kit_is_refused(tmp_path, federation):
    with pytest.raises(ConfigError, match=r"fed_client.json must exist; .* that nvflare provision wrote for the site"):
        read_kit(tmp_path)
    with pytest.raises(ConfigError, match=r"fed_client.json must exist"):
        read_kit(federation / "localhost")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("startup/fed_client.json", "{", "must hold a JSON object"),
        ("startup/fed_client.json", '{"servers": [], "client": {}}', "must name a server as host:port"),
        ("startup/client.crt", "none", "client.crt must hold a certificate"),
    ],
)
def test_a_broken_part_of_a_kit_is_named(kit, name, text, message):
    (kit / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_kit(kit)


def test_a_local_file_that_is_nowhere_is_named(kit):
    with pytest.raises(ConfigError, match=r"local/nothing.json or its default"):
        read_kit(kit).local("nothing.json")
