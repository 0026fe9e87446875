"""What a shell completes: all that the command line has, from a file that starts no program."""

import subprocess

import pytest

from silofl.cli import COMMANDS, make_parser
from silofl.completion import list_words


@pytest.fixture
def complete(silofl, tmp_path):
    """Return what bash offers for the last of some words, with no program within its reach."""
    code, script, _ = silofl("completion")
    assert code == 0
    (tmp_path / "completion").write_text(script)

    def ask(*words):
        line = f'. {tmp_path}/completion; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _silofl; echo "${{COMPREPLY[@]}}"'
        command = ["/bin/bash", "-c", line, "bash", "silofl", *words]
        done = subprocess.run(command, env={"PATH": ""}, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return done.stdout.split()

    return ask


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["si"], ["simulate", "site"]),
        (["simulate", "--al"], ["--alone"]),
        (["simulate", "fedavg_phantoms", "--out", "runs/a", "--rou"], ["--rounds"]),
        (["site", "ch"], ["check"]),
        (["site", "check", "--ki"], ["--kit"]),
        (["import", "folders", "--lab"], ["--labels"]),
        (["schema", ""], ["--help", "study", "site", "dataset"]),
        (["report", "runs/"], []),
    ],
)
def test_the_shell_offers_commands_options_and_choices(complete, words, offered):
    assert complete(*words) == offered


def test_every_command_has_its_words():
    found = dict(list_words(make_parser()))
    assert {" ".join(names) for names in found} >= COMMANDS.keys()
    assert all("--help" in words for words in found.values())
