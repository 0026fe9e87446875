from argparse import Namespace

from rich.live import Live
from rich.table import Table
from rich.text import Text

from silofl.options import make_console

COMMAND = "\x1b[2J\x1b]0;all is right\x07\u202e"


def test_no_text_commands_the_terminal_however_it_is_printed(capsys):
    console, table = make_console(Namespace()), Table()
    table.add_column(Text(f"a{COMMAND}"))
    table.add_row(f"b{COMMAND}")
    for one in (f"c{COMMAND}", Text(f"d{COMMAND}"), table):
        console.print(one)
    with Live(Text(f"e{COMMAND}"), console=console):
        console.print(f"f{COMMAND}\ng", style="yellow")
    said = capsys.readouterr().out
    assert all(line.isprintable() for line in said.splitlines()) and said.count("[2J ]0;all is") == 6
    assert "c [2J ]0;all is right" in said and said.splitlines()[-2] == "g"
