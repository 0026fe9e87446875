from argparse import ArgumentTypeError, Namespace
from pathlib import Path

import pytest
from rich.live import Live
from rich.table import Table
from rich.text import Text

from silofl.base.options import expect_path, make_console
from silofl_desk.options import format_set_options, parse_setting

COMMAND = "\x1b[2J\x1b]0;all is right\x07\u202e"


def test_no_text_commands_the_terminal_however_it_is_printed(capsys):
    console = make_console(Namespace())
    table = Table()
    table.add_column(Text(f"a{COMMAND}"))
    table.add_row(f"b{COMMAND}")
    for one in (f"c{COMMAND}", Text(f"d{COMMAND}"), table):
        console.print(one)
    with Live(Text(f"e{COMMAND}"), console=console):
        console.print(f"f{COMMAND}\ng", style="yellow")
    predicted = capsys.readouterr().out
    assert all(line.isprintable() for line in predicted.splitlines()) and predicted.count("[2J ]0;all is") == 6
    assert "c [2J ]0;all is right" in predicted and predicted.splitlines()[-2] == "g"


def test_the_path_of_a_file_or_folder_is_read(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "study.yaml").touch()
    for text, path in (("~/set", tmp_path / "set"), (f"{tmp_path}/set/study.yaml", tmp_path / "set" / "study.yaml")):
        assert expect_path("a set")(text) == path


@pytest.mark.parametrize("name", ["x" * 5000, "a/b/c", "half\udce4"])
def test_a_path_that_is_not_there_is_refused(tmp_path, name):
    with pytest.raises(ArgumentTypeError, match="must be a set, not .*, which is not there$"):
        expect_path("a set")(str(tmp_path / name))


def test_a_path_with_a_slip_has_the_nearest_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("nuclei").mkdir()
    with pytest.raises(ArgumentTypeError, match=r"not nucelei, which is not there \(did you mean 'nuclei'\?\)"):
        expect_path("a set")("nucelei")


def test_settings_are_written_as_they_are_read():
    changes = {"a": "poly", "b": "true", "c": "0.1", "d": "a b", "e": 0.003, "f": {"name": "x"}, "g": [1, 2], "h": None}
    words = format_set_options(changes)
    assert words[:6] == ["--set", "a=poly", "--set", 'b="true"', "--set", 'c="0.1"']
    assert dict(map(parse_setting, words[1::2])) == changes
