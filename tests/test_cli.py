"""What all commands have in common; each command's own tests mirror its module."""

import os
import subprocess
import sys

import pytest

from silofl import __version__
from silofl.base.errors import ConfigError, ExitCode
from silofl.command_line.cli import COMMANDS, ELSEWHERE, ROLES, CommandParser
from silofl.command_line.command import CLINIC_WHEEL, DESK_WHEEL, HOSPITAL_WHEEL
from silofl_desk.studies.comparisons.methods import method_names
from silofl_hospital.importing.importers import LAYOUTS

from .conftest import JOBS

ENDINGS = {"import": LAYOUTS, "compare": method_names()}


def arguments_of(command):
    """Return all arguments of a command's real parser but --help."""
    parser = CommandParser(fill=COMMANDS[command].add_arguments, prog=f"silofl {command}")
    parser.load()
    return [action for action in parser._actions if action.dest != "help"]


def test_help_names_every_command_and_its_purpose(silofl):
    code, out, _ = silofl("--help")
    assert code == 0
    for role, commands in ROLES.items():
        (listed,) = [part.splitlines() for part in out.split("\n\n") if part.startswith(f"{role}:")]
        assert [line.split(command, 1)[1].strip() for line, command in zip(listed[1:], commands, strict=True)] == [
            command.purpose for command in commands.values()
        ]


def test_a_command_draws_despite_a_missing_notebook_backend():
    code = "import sys; sys.argv = ['silofl', 'schema', 'site']; from silofl.command_line.cli import main; main()"
    code += "; import matplotlib"
    env = {**os.environ, "MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_path_may_begin_with_the_home_folder(refused, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert f"--data must be a folder that holds one folder a site, not {tmp_path / 'home' / 'set'}" in refused(
        "simulate", JOBS / "fedavg_phantoms", "--data=~/set", "--out=~/run"
    )
    # Nobody has such a name.
    assert "not ~nobody-at-all/run, which is not there" in refused("report", "~nobody-at-all/run")


def test_an_unknown_argument_is_refused_in_the_commands_name(refused):
    assert refused("simulate", "fedavg_phantoms", "--out=x", "--round-count=3") == (
        "silofl simulate: '--round-count=3' is no argument of this command (did you mean '--rounds'?); see silofl "
        "simulate --help\n"
    )
    assert refused("schema", "site", "--keep-all").startswith("silofl schema: '--keep-all' is no argument")


def test_help_of_every_command_explains_every_argument(silofl):
    for command in COMMANDS:
        code, out, error = silofl(*command.split(), "--help")
        assert (code, error) == (0, "")
        printed = " ".join(out.split())
        assert f"silofl {command}" in printed and COMMANDS[command].purpose in printed
        for argument in arguments_of(command):
            name = argument.option_strings[-1] if argument.option_strings else argument.metavar or argument.dest
            assert name in printed and argument.help and " ".join(argument.help.split()) in printed, (command, name)
        assert [name for name in ENDINGS.get(command, ()) if name not in printed] == []


def test_help_of_all_commands_loads_none_of_them():
    code = "import sys; from silofl.command_line.cli import main\n"
    code += "try: main(['--help'])\nexcept SystemExit: print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name for name in done.stdout.splitlines()[-1].split() if name.startswith(("silofl.", "torch", "numpy"))}
    command_line = {"silofl.command_line", "silofl.command_line.cli", "silofl.command_line.command"}
    assert loaded == command_line | {"silofl.base", "silofl.base.environment", "silofl.base.errors"}


def test_a_missing_wheel_is_named_for_its_command(silofl, monkeypatch, refused):
    wheels = {"silofl_hospital": HOSPITAL_WHEEL, "silofl_desk": DESK_WHEEL, "silofl_clinic": CLINIC_WHEEL}
    package = {name: command.module.partition(".")[0] for name, command in COMMANDS.items()}
    assert ELSEWHERE == {name.partition(" ")[0]: wheels[one] for name, one in package.items()}
    monkeypatch.setattr("silofl.command_line.cli.COMMANDS", {})
    sentence = f"simulate needs the wheel silofl-desk; install silofl-desk {__version__}"
    assert sentence in refused("simulate", "job")
    assert "site needs the wheel silofl-hospital" in refused("site", "check")


# Each takes a second and more, and none is needed to say what is wrong with a path or a name.
SLOW = {"torch", "monai", "nvflare", "matplotlib", "scipy", "sklearn", "SimpleITK", "nibabel", "pydicom"}
NONE = "no/such"
# Command -> a line that names a path that is not there, and, last, the argument that the sentence begins with.
WRONG = {
    "import": ["folders", NONE, "target", "SOURCE"],
    "prepare": ["workspace", NONE, "JOB"],
    "new-study": [NONE, "target", "--from", NONE, "DATA"],
    "survey": [NONE, "DATA"],
    "tune": [NONE, "JOB"],
    "pretrain": [NONE, "--out", "f.pt", "JOB"],
    "simulate": [NONE, "JOB"],
    "resume": [NONE, "RUN"],
    "compare": [NONE, "--out", "out", "JOB"],
    "cross-test": [NONE, "RUN"],
    "report": [NONE, "RUN"],
    "estimate": [NONE, "--sites", "2", "JOB"],
    "run": [NONE, "--kit", ".", "--out", "out", "JOB"],
    "watch": ["5e0e1a4c", "--kit", NONE, "--kit"],
    "continue": ["5e0e1a4c", "--kit", NONE, "--kit"],
    "server check": ["--kit", NONE, "--kit"],
    "site check": ["--kit", NONE, "--study", NONE, "--kit"],
    "site dossier": ["--kit", NONE, "--study", NONE, "--out", NONE, "--kit"],
    "site egress-check": [NONE, "FILE"],
    "site forget": ["study", "--site-config", NONE, "--site-config"],
    "site prune": ["--kit", NONE, "--kit"],
    "predict": [NONE, "image.png", "--out", "out", "SUPERMODEL"],
    "home-statistics": [NONE, "image.png", "--out", "out", "SUPERMODEL"],
    "evaluate": [NONE, ".", "--out", "out", "MODEL"],
    "evaluation-job": [NONE, "--out", "out", "MODEL"],
    "withdraw": ["--kit", NONE, "--kit"],
    "monitor": [NONE, "--model", ".", "RECORDS"],
    "export": [NONE, "--out", "out", "SUPERMODEL"],
    "receive": ["--config", NONE, "--config"],
    "serve": [NONE, "MODEL"],
    "fetch": ["--list", NONE, "--list"],
}


def modules_after(*lines):
    """Return what a fresh process has imported when each line has ended, with what it printed on standard error."""
    code = f"""
import sys
from silofl.command_line.cli import main
for line in {[list(map(str, line)) for line in lines]!r}:
    try:
        main(line)
    except SystemExit:
        pass
print("MODULES", *sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("MODULES")[2].split()), done.stderr


def test_help_and_wrong_arguments_import_nothing_slow():
    # The others take no path of what is there.
    assert WRONG.keys() == COMMANDS.keys() - {"demo", "doctor", "schema"}
    paths = [[*command.split(), *line[:-1]] for command, line in WRONG.items()]
    names = [["simulat"], ["import", "medmist"], ["compare", ".", "--methods", "harmofk"]]
    names.append(["predict", ".", "--device", "x"])
    modules, error = modules_after(*([*command.split(), "--help"] for command in COMMANDS), *paths, *names)
    sentences = error.splitlines()
    assert len(sentences) == len(paths) + len(names) and all(" must be " in sentence for sentence in sentences)
    for (command, line), sentence in zip(WRONG.items(), sentences, strict=False):
        assert sentence.startswith(f"silofl {command}: {line[-1]} must be a") or f"{line[-1]} must be the" in sentence
        assert f"not {NONE}, which is not there" in sentence
    assert SLOW & modules == set()


def test_commands_that_need_no_torch_do_not_load_it():
    names = ("import", "site egress-check", "site check", "doctor", "schema", "receive", "fetch", "monitor", "report")
    modules = [COMMANDS[name].module for name in (*names, "new-study", "survey", "withdraw")]
    code = f"import sys, {', '.join(modules)}; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_version_is_the_packages(silofl):
    assert silofl("--version") == (0, f"silofl {__version__}\n", "")


def test_an_argument_that_is_no_text_is_refused(refused, tmp_path):
    assert r"'run\udce4' is not text in UTF-8" in refused("resume", "run\udce4")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (["simulat"], "(did you mean 'simulate'?)"),
        (["site", "frget"], "not 'frget' (did you mean 'forget'?); see silofl site --help"),
        (["import", "tabel", "a", "b"], "not 'tabel' (did you mean 'table'?)"),
        (["compare", JOBS / "fedavg_phantoms", "--out", "out", "--methods", "local,harmofk"], "mean 'harmofl'?)"),
        (["simulate", JOBS / "fedavg_phantom"], "(did you mean 'fedavg_phantoms'?)"),
    ],
)
def test_a_misspelt_name_is_refused_with_the_nearest_one(refused, line, sentence):
    assert sentence in refused(*line)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["resume"], "RUN"),
        (["report"], "RUN"),
        (["import", "folders", "."], "TARGET"),
        (["resume", ".", "two"], "two"),
        (["resume", ".", "--seeds", "0"], "--seeds"),
        (["simulate", ".", "--out"], "--out"),
    ],
)
def test_an_argument_that_is_missing_or_too_many_is_named(refused, arguments, named):
    assert named in refused(*arguments)


REFUSAL = "the disk must have room, not 0 bytes; free some"


@pytest.mark.parametrize(
    ("result", "code", "error"),
    [
        *((code, code, "") for code in (0, 1, 3, 130)),
        # A fault of the input that shows late, and Ctrl-C.
        (ConfigError(REFUSAL), 2, f"silofl: {REFUSAL}\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_what_a_command_ends_with_is_the_programs_exit_code(silofl, monkeypatch, tmp_path, result, code, error):
    def resume(run, console, moved, trusts_code, changes):
        if isinstance(result, BaseException):
            raise result
        return result

    monkeypatch.setattr("silofl_desk.studies.runs.simulate.resume", resume)
    assert silofl("resume", tmp_path) == (code, "", error)


def printing(lines):
    """Return a program that carries out a command which prints so many lines."""
    code = "from silofl.command_line.cli import run_command; import sys\n"
    code += f"def write(options):\n    for _ in range({lines}): print('a line')\n    return 0\n"
    return code + "sys.exit(run_command('silofl', write, None))"


# Each line is written at once, as of PYTHONUNBUFFERED, or a few when the command has ended, or many while it prints.
@pytest.mark.parametrize(("lines", "option"), [(1, "-u"), (1, "-B"), (100_000, "-B")])
def test_a_full_disk_on_standard_output_is_one_sentence(monkeypatch, lines, option):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    command = [sys.executable, option, "-c", printing(lines)]
    with open("/dev/full", "w") as stream:
        process = subprocess.run(command, stdout=stream, stderr=subprocess.PIPE, text=True)
    assert process.returncode == ExitCode.FAILED
    (sentence,) = process.stderr.splitlines()
    assert sentence == "silofl: No space left on device; name another file or folder, or make room"


def test_a_reader_that_has_enough_is_no_error():
    command = [sys.executable, "-c", printing(100_000)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=60) == 1 and process.stderr.read() == b""
