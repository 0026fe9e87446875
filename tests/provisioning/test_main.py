import re

import pytest

from provisioning.__main__ import COMMANDS, main
from provisioning.workspace import REPOSITORY

README = (REPOSITORY / "provisioning" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_explains_itself_and_is_in_the_guide(name, capsys):
    for words, said in (([name, "--help"], rf"usage: python -m provisioning {name}"), (["--help"], rf"  {name} +\w+")):
        with pytest.raises(SystemExit) as end:
            main(words)
        assert end.value.code == 0 and re.search(said, capsys.readouterr().out)
    assert "python -m provisioning --help" in README
