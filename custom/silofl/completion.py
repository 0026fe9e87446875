"""Completion of commands and options in bash and zsh: one file that calls no command when a key is pressed."""

import argparse
from collections.abc import Iterator, Sequence

from silofl import __version__
from silofl.base.errors import ExitCode

SCRIPT = """\
# Commands and options of silofl {version} for bash and zsh: . FILE
if [ -n "$ZSH_VERSION" ]; then autoload -U +X compinit bashcompinit; compinit; bashcompinit; fi
_silofl() {{
    local words
    case "${{COMP_WORDS[*]:1:$((COMP_CWORD - 1))}} " in
{cases}
    esac
    COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _silofl silofl
"""


def run(options: argparse.Namespace) -> int:
    """Print the file."""
    # The command line knows this module by name.
    from silofl.cli import make_parser

    # The longest names first: the first that fits is taken.
    found = sorted(list_words(make_parser()), key=lambda one: -len(one[0]))
    cases = [f'    "{"".join(f"{name} " for name in names)}"*) words="{" ".join(words)}" ;;' for names, words in found]
    print(SCRIPT.format(version=__version__, cases="\n".join(cases)), end="")
    return ExitCode.COMPLETE


def list_words(
    parser: argparse.ArgumentParser, names: Sequence[str] = ()
) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Yield the names of each command and group of commands, and the words that may follow them.

    Args:
        parser: That of the command; one without arguments gets them now.
        names: The command's, as ``site`` and ``check``.
    """
    if load := getattr(parser, "load", None):
        load()
    words = []
    for action in parser._actions:
        words += [option for option in action.option_strings if option.startswith("--")]
        if not action.option_strings and action.choices:
            words += map(str, action.choices)
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from list_words(inner, (*names, name))
    yield tuple(names), words
