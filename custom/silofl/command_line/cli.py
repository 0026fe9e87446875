"""The command line: ``python -m silofl COMMAND``.

The further wheels announce the commands; a command's module is imported once its arguments are checked.
"""

import argparse
import atexit
import errno
import gc
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from silofl import __version__
from silofl.base.environment import prepare_environment
from silofl.base.errors import ExitCode, SiloFLError, make_printable, one_line, quote_value, suggest_nearest
from silofl.command_line.command import CLINIC_WHEEL, DESK_WHEEL, HOSPITAL_WHEEL, LACKS, Command, load_announced

prepare_environment()
# Command -> the wheel that has it: this one has none itself.
ELSEWHERE = {
    **dict.fromkeys(("import", "site", "server", "predict", "home-statistics", "evaluate"), HOSPITAL_WHEEL),
    **dict.fromkeys(("doctor", "schema"), HOSPITAL_WHEEL),
    **dict.fromkeys(("demo", "new-study", "survey", "tune", "pretrain", "simulate", "prepare"), DESK_WHEEL),
    **dict.fromkeys(("resume", "compare", "cross-test", "report", "export", "estimate"), DESK_WHEEL),
    **dict.fromkeys(("evaluation-job", "withdraw", "run", "watch", "continue"), DESK_WHEEL),
    **dict.fromkeys(("receive", "fetch", "serve", "monitor"), CLINIC_WHEEL),
}
ANNOUNCED = load_announced("silofl.commands")
# Whose commands -> name -> the command.
ROLES: Mapping[str, Mapping[str, Command]] = {
    **ANNOUNCED.get("desk", {}),
    **ANNOUNCED.get("hospital", {}),
    **ANNOUNCED.get("clinic", {}),
}
COMMANDS = {name: command for commands in ROLES.values() for name, command in commands.items()}
LONGEST_ERROR = 1500
# A disk, an account or a file takes no more: work was begun by then.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# No system opens a path of such a length; a sentence repeats what was given all the same.
LONG_WORD = re.compile(r"(\S{200})\S{600,}")
# argparse names an argument so; the sentences on some values name it themselves.
OF_ARGUMENT = re.compile(r"^argument (\S+): (?:\1 )?must ")


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one sentence."""

    def error(self, message: str) -> NoReturn:
        """Exit with code 2."""
        message = OF_ARGUMENT.sub(r"\1 must ", LONG_WORD.sub(r"\1...", message))
        # argparse repeats a bad value whole.
        self.exit(ExitCode.BAD_INPUT, f"{self.prog}: {one_line(message, LONGEST_ERROR)}; see {self.prog} --help\n")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Refuse a value that is none of an argument's choices, the commands among them, with the nearest one."""
        if action.choices is not None and value not in action.choices:
            choices = list(action.choices)
            sentence = f"must be one of {', '.join(map(str, choices))}, not {quote_value(value)}"
            raise argparse.ArgumentError(action, sentence + suggest_nearest(value, choices))


class CommandParser(Parser):
    """The parser of a command, or of a group of them, which gets its arguments at first use.

    Args:
        fill: Adds the arguments.
        options: As for `argparse.ArgumentParser`.
    """

    def __init__(self, *, fill: Callable[[argparse.ArgumentParser], None], **options: Any) -> None:  # noqa: ANN401
        super().__init__(**options)
        # A shell leaves the ~ of --data=~/set to the program.
        self.register("type", Path, lambda text: Path(os.path.expanduser(text)))
        self._fill: Callable[[argparse.ArgumentParser], None] | None = fill

    def load(self) -> None:
        """Add the arguments."""
        if self._fill is not None:
            fill = self._fill
            # It is taken away first: arguments that are added may ask for the parser again.
            self._fill = None
            fill(self)

    def parse_known_args(self, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        """Load the command, then parse its arguments; argparse calls this for the chosen command only."""
        self.load()
        options, unknown = super().parse_known_args(*arguments, **named)
        if unknown:
            # argparse would refuse them in the name of all commands.
            nearest = suggest_nearest(unknown[0], self._option_string_actions)
            self.error(f"{quote_value(unknown[0])} is no argument of this command{nearest}")
        return options, unknown


def add_commands(parser: argparse.ArgumentParser, groups: Mapping[str, Mapping[str, Command]]) -> None:
    """Add commands, and list them by group at the end of the parser's help.

    Args:
        groups: Heading -> name -> command; names as ``site check`` are commands of ``site``.
    """
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "\n\n".join(_list_purposes(heading, commands) for heading, commands in groups.items())
    subparsers = parser.add_subparsers(
        title="command",
        metavar="COMMAND",
        required=True,
        parser_class=CommandParser,
        help=f"one of those below; {parser.prog} COMMAND --help explains its arguments",
    )
    for heading, commands in groups.items():
        # `site check` becomes the command check of a command site, which has a list of its own.
        inner: dict[str, dict[str, Command]] = {}
        for name, command in commands.items():
            group, _, rest = name.partition(" ")
            if rest:
                inner.setdefault(group, {})[rest] = command
            else:
                subparsers.add_parser(name, fill=command.add_arguments, description=command.purpose)
        for group, of_group in inner.items():
            subparsers.add_parser(group, fill=partial(add_commands, groups={heading: of_group}))


def _list_purposes(heading: str, commands: Mapping[str, Command]) -> str:
    lines = [f"  {name:<19}{command.purpose}" for name, command in commands.items()]
    return "\n".join([f"{heading}:", *lines])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 success, 1 failed, 2 bad input, 3 incomplete, 4 do not use."""
    if arguments is None:
        # Python looks through all objects as it ends, which takes a second after an import of torch.
        atexit.register(gc.freeze)
        # No command opens a window; a notebook names a way to draw that this environment may not have.
        os.environ["MPLBACKEND"] = "agg"
    parser = Parser(prog="silofl", description="Federated learning of medical-image models on NVFlare.")
    parser.add_argument("--version", action="version", version=f"silofl {__version__}")
    add_commands(parser, ROLES)
    given = list(sys.argv[1:] if arguments is None else arguments)
    for text in given:
        # Python brings bytes that are no text as half characters, which no record, page or terminal can hold.
        if text.encode(errors="ignore").decode() != text:
            parser.error(f"{quote_value(text)} is not text in UTF-8")
    if given and given[0] in ELSEWHERE.keys() - {name.partition(" ")[0] for name in COMMANDS}:
        parser.error(f"{given[0]} {LACKS.format(ELSEWHERE[given[0]])}")
    options = parser.parse_args(given)
    return run_command("silofl", options.command, options)


def run_command(program: str, command: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Run a command and return its exit code; an error of its input is printed as one sentence."""
    # What libraries write too can be read by this account only.
    before = os.umask(0o077)
    try:
        code = command(options)
        # It is flushed here and not at the interpreter's end, where a full disk is a traceback.
        sys.stdout.flush()
        return code
    except SiloFLError as error:
        sentence = LONG_WORD.sub(r"\1...", make_printable(str(error)))
        print(f"{program}: {sentence}", file=sys.stderr)
        return ExitCode.BAD_INPUT
    except BrokenPipeError:
        # The program that reads along has enough.
        _drop_output()
        return ExitCode.FAILED
    except OSError as error:
        if error.filename is None:
            # Standard output may be what takes no more.
            _drop_output()
        file = f"{one_line(error.filename, LONGEST_ERROR)}: " if error.filename else ""
        print(f"{program}: {file}{error.strerror or error}; name another file or folder, or make room", file=sys.stderr)
        # A disk that fills up is no fault of what was given.
        return ExitCode.FAILED if error.errno in FULL else ExitCode.BAD_INPUT
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    finally:
        os.umask(before)


def _drop_output() -> None:
    # When the interpreter ends it writes what standard output still holds, which must go nowhere.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
