"""The command line: ``python -m silofl COMMAND``.

Each command is a module with the functions ``add_options`` and ``run``, loaded only when the command is given.
"""

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from silofl import __version__
from silofl.errors import ExitCode, SiloFLError, make_printable, one_line, quote_value

# Command -> its module and what it does.
COMMANDS = {
    "demo": ("silofl.studies.demo", "train on simulated hospitals and write one report"),
    "import": ("silofl.studies.import_data", "turn a known public layout into sites with a dataset.json each"),
    "new-study": ("silofl.studies.new_study", "write a job for own data, from another job and what the data say"),
    "advise": ("silofl.studies.advise", "measure in what the sites' training data differ"),
    "plan": ("silofl.studies.plan", "plan grid, patch, network and batch from the data of all sites"),
    "simulate": ("silofl.studies.simulate", "run a job with all its sites on this machine"),
    "prepare": ("silofl.studies.prepare", "make a workspace of nvflare simulator or nvflare poc ready for a job"),
    "resume": ("silofl.studies.resume", "go on with an interrupted run"),
    "run": ("silofl.studies.run", "run a job on a network of hospitals as its study lead"),
    "watch": ("silofl.studies.watch", "follow a job that runs on a network, as the lead who submitted it"),
    "continue": ("silofl.studies.continue_run", "go on with a run that was stopped on a network"),
    "compare": ("silofl.studies.compare", "run jobs and methods with several seeds and print one table"),
    "cross-test": ("silofl.analyses.cross_test", "test each site's model of a run on every site's test data"),
    "layer-statistics": ("silofl.analyses.layer_statistics", "compare BatchNorm's statistics with inputs' in a run"),
    "pretrain": ("silofl.studies.pretrain", "train a model on pooled data for AdaFed: simulation only"),
    "landscape": ("silofl.analyses.landscape", "draw the loss around the models of finished simulated runs"),
    "report": ("silofl.report.pages", "write report.html of one run, or compare several"),
    "predict": ("silofl.inference.command", "label new images with a trained super model"),
    "export": ("silofl.inference.export", "write a super model for PyTorch alone, in a MONAI bundle"),
    "forget": ("silofl.hospital.forget", "delete what this site keeps of a study or a patient; never its data"),
    "prune": ("silofl.hospital.prune", "delete old job folders and full logs in this site's kit, as keep_days says"),
    "egress-check": ("silofl.hospital.egress_check", "say whether the record of what left a site is as it was written"),
    "check-site": ("silofl.hospital.check_site", "say whether a site may join a study, before it does"),
    "estimate": ("silofl.studies.estimate", "say what a job needs of lines, disks, memory and time"),
}


LONGEST_ERROR = 1500
# Of a path that no system opens; a sentence repeats what was given all the same.
LONG_WORD = re.compile(r"(\S{200})\S{600,}")


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one sentence."""

    def error(self, message: str) -> None:
        """Exit with code 2."""
        # argparse repeats a bad value whole.
        message = one_line(message, LONGEST_ERROR)
        self.exit(ExitCode.BAD_INPUT, f"{self.prog}: {message}; see {self.prog} --help\n")


class CommandParser(Parser):
    """The parser of one command, which imports the command's module at first use: torch and NVFlare take seconds.

    Args:
        module: The command's module.
        options: As for `argparse.ArgumentParser`.
    """

    def __init__(self, *, module: str, **options: str) -> None:
        super().__init__(**options)
        # A shell leaves the ~ of --data=~/set to the program.
        self.register("type", Path, lambda text: Path(os.path.expanduser(text)))
        self._module: str | None = module

    def load(self) -> None:
        """Add the command's options."""
        if self._module is not None:
            module, self._module = import_module(self._module), None
            module.add_options(self)
            self.set_defaults(command=module.run)

    def parse_known_args(self, *arguments: object, **named: object) -> tuple[argparse.Namespace, list[str]]:
        """Load the command, then parse its arguments; argparse calls this for the chosen command only."""
        self.load()
        return super().parse_known_args(*arguments, **named)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 success, 1 failed, 2 bad input, 3 incomplete, 130 interrupted."""
    parser = Parser(prog="silofl", description="Federated learning of medical-image models on NVFlare.")
    parser.add_argument("--version", action="version", version=f"silofl {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=CommandParser)
    for name, (module, purpose) in COMMANDS.items():
        commands.add_parser(name, module=module, help=purpose, description=purpose)
    given = list(sys.argv[1:] if arguments is None else arguments)
    for text in given:
        # Python brings bytes that are no text as half characters, which no record, page or terminal can hold.
        if text.encode(errors="ignore").decode() != text:
            parser.error(f"every argument must be text in UTF-8, not {quote_value(text)}")
    options = parser.parse_args(given)
    return run_command("silofl", options.command, options)


def run_command(program: str, command: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Run a command and return its exit code; an error of its input is printed as one sentence."""
    try:
        code = command(options)
        # Here and not at the interpreter's end, where a full disk is a traceback.
        sys.stdout.flush()
        return code
    except SiloFLError as error:
        sentence = LONG_WORD.sub(r"\1...", make_printable(str(error)))
        print(f"{program}: {sentence}", file=sys.stderr)
        return ExitCode.BAD_INPUT
    except BrokenPipeError:
        # Who reads along has enough.
        _drop_output()
        return ExitCode.FAILED
    except OSError as error:
        # An error of another file may have no name either.
        if error.filename is None and not _can_print():
            _drop_output()
            print(
                f"{program}: standard output must take what is printed; the system said {error.strerror!r}: make room, "
                "or send it elsewhere; files that were written are whole",
                file=sys.stderr,
            )
            return ExitCode.FAILED
        place = f"{one_line(error.filename, LONGEST_ERROR)}: " if error.filename else ""
        reason = error.strerror or error
        print(f"{program}: {place}{reason}; name another file or folder, or make room", file=sys.stderr)
        return ExitCode.BAD_INPUT
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def _can_print() -> bool:
    """Return whether standard output takes one more line, an empty one."""
    try:
        print(flush=True)
    except OSError:
        return False
    return True


def _drop_output() -> None:
    """Have the interpreter write what standard output still holds to nowhere when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
