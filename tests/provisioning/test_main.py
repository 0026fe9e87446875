import re

import pytest

from provisioning.__main__ import COMMANDS, main
from provisioning.workspace import REPOSITORY

README = (REPOSITORY / "provisioning" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_explains_itself_and_is_in_the_guide(name, capsys):
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0 and f"usage: python -m provisioning {name}" in capsys.readouterr().out
    assert re.search(rf"^\| `{name}[ `]", README, flags=re.MULTILINE)


def test_the_guide_names_no_other_command():
    assert set(re.findall(r"python -m provisioning\s+([a-z-]+)", README)) <= set(COMMANDS)
    assert set(re.findall(r"^\| `([a-z-]+) ", README, flags=re.MULTILINE)) <= set(COMMANDS)


def test_a_command_that_does_not_exist_is_bad_input(capsys):
    with pytest.raises(SystemExit) as end:
        main(["make-kit"])
    assert end.value.code == 2 and "make-kits" in capsys.readouterr().err
