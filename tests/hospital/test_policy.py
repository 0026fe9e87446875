import json

import pytest

from silofl.errors import ConfigError
from silofl.hospital.policy import allowed_classes, brought_code


def write(kit, name, content):
    (kit / "local" / name).write_text(json.dumps(content))


def test_a_list_that_holds_the_package_lets_it_in(candidate):
    assert allowed_classes(candidate()).status == "ok"


def test_nvflares_own_list_does_not_let_the_package_in(candidate, kit):
    (kit / "local" / "resources.json").unlink()
    answer = allowed_classes(candidate())
    assert answer.status == "failed" and "must hold 'silofl.'" in answer.sentence


def test_the_name_without_its_dot_is_not_the_package(candidate, kit):
    write(kit, "resources.json", {"class_allow_list": ["silofl"]})
    assert allowed_classes(candidate()).status == "failed"


def test_a_list_that_lets_everything_in_is_worth_a_look(candidate, kit):
    write(kit, "resources.json", {"class_allow_list": ["*"]})
    assert allowed_classes(candidate()).status == "warning"
    write(kit, "resources.json", {"class_allow_list": ["silofl."], "class_list_enforcement_mode": "warn"})
    assert "must be 'enforce', not 'warn'" in allowed_classes(candidate()).sentence


def test_roles_that_may_bring_code_are_named(candidate, kit):
    assert brought_code(candidate()).status == "ok"
    (kit / "local" / "authorization.json").unlink()
    answer = brought_code(candidate())
    # NVFlare's default: the project admin may do anything, a lead may bring code, an org admin may not.
    assert (answer.status, answer.facts["roles"]) == ("warning", ["lead", "project_admin"])


def test_a_list_that_nvflare_cannot_enforce_lets_nothing_in(candidate, kit):
    write(kit, "resources.json", {"class_allow_list": ["silofl."], "class_list_enforcement_mode": "sometimes"})
    answer = allowed_classes(candidate())
    assert answer.status == "failed" and "must be 'enforce', not 'sometimes'" in answer.sentence
    write(kit, "resources.json", {"class_allow_list": "silofl."})
    assert allowed_classes(candidate()).status == "failed"


def test_an_authorization_that_nvflare_cannot_read_is_refused(candidate, kit):
    write(kit, "authorization.json", {"permissions": {"lead": {"byoc": "none"}}})
    with pytest.raises(ConfigError, match=r"local/authorization.json of 'north' must be a policy; .*format_version"):
        brought_code(candidate())
