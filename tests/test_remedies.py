"""What the program's own sentences tell a user to type exists: commands, options, keys of settings, make's targets."""

import argparse
import ast
import re
from functools import cache
from pathlib import Path

from docs.site.study_page import study_keys
from silofl.base.settings import Section
from silofl.command_line.cli import COMMANDS
from silofl.setup.site import Server, Site

ROOT = Path(__file__).resolve().parents[1]
# Programs of others whose options the sentences name.
OTHERS = r"\bnvflare\b|monai\.bundle|--hash=|sysctl"


def text_of(node):
    """Return the text of a constant, a template or a sum of them, each field of a template as ``{}``; None of more."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        sides = text_of(node.left), text_of(node.right)
        return None if None in sides else "".join(sides)
    return None


def texts_in(tree):
    """Yield the texts of a module with their lines, each once and without docstrings."""
    parts = set()
    for node in ast.walk(tree):
        if id(node) in parts:
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            parts.add(id(node.value))
        elif (text := text_of(node)) is not None:
            parts.update(map(id, ast.walk(node)))
            yield node.lineno, text


@cache
def sentences():
    """Return (place, text) of every text of words in the package."""
    return [
        (f"{path.relative_to(ROOT)}:{line}", text)
        for path in sorted((ROOT / "custom").rglob("*.py"))
        for line, text in texts_in(ast.parse(path.read_text(encoding="utf-8")))
        if " " in text
    ]


@cache
def options_by_command():
    """Return command -> its options."""

    def list_options(command):
        parser = argparse.ArgumentParser()
        command.add_arguments(parser)
        return {name for action in parser._actions for name in action.option_strings}

    return {name: list_options(command) for name, command in COMMANDS.items()}


@cache
def known_options():
    return set().union(*options_by_command().values())


def test_every_command_that_a_sentence_names_exists_with_the_options_that_follow_it():
    found = 0
    names = "|".join(sorted(COMMANDS, key=len, reverse=True))
    for place, text in sentences():
        if "monai.bundle run" in text:
            continue
        for command in re.findall(r"\bsilofl (?!(?:is|of|that)\b)((?:(?:site|server) )?[a-z][a-z-]+)\b", text):
            found += 1
            assert command in COMMANDS, (place, command)
        for command, option in re.findall(rf"(?<!nvflare poc )\b({names}) (--[a-z][a-z-]+)", text):
            found += 1
            assert option in options_by_command()[command], (place, command, option)
    assert found > 30


def test_a_path_in_a_command_to_type_is_quoted_for_the_shell():
    found = {place.partition(":")[0] for place, text in sentences() if re.search(r"\bsilofl [a-z -]+\{\}", text)}
    assert found and all("import quote" in (ROOT / file).read_text(encoding="utf-8") for file in found), found


def test_every_option_that_a_sentence_names_exists():
    found = 0
    for place, text in sentences():
        if re.search(OTHERS, text):
            continue
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text):
            found += 1
            assert option in known_options(), (place, option)
    assert found > 100


def keys_of(section):
    return {*section.model_fields} if issubclass(section, Section) else set()


def test_every_key_that_a_sentence_names_exists():
    keys = {key.name for key in study_keys()}
    keys |= {name.removeprefix("algorithm.") for name in keys}
    sections, found = {name.partition(".")[0] for name in keys if "." in name}, 0
    places = {"site.yaml": keys_of(Site), "server.yaml": keys_of(Server)}
    for place, text in sentences():
        for section, key in re.findall(r"(?<![\w./{}-])([a-z_]+)\.([a-z_]+)(?![\w./(])", text):
            if section in sections and key not in ("yaml", "json", "py", "md", "pt", "csv", "txt", "html"):
                found += 1
                whole = any(f"{section}.{key}" == name or name.startswith(f"{section}.{key}.") for name in keys)
                assert whole, (place, f"{section}.{key}")
        for key, file in re.findall(r"\b([a-z]+_[a-z_]+) (?:of|in|into|with) (site\.yaml|server\.yaml)", text):
            found += 1
            assert key in places[file], (place, key, file)
    assert found > 100


def test_every_target_of_make_and_file_of_the_repository_that_a_sentence_names_exists():
    targets = re.findall(r"^([\w./-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    for place, text in sentences():
        for target in re.findall(r"`make ([a-z-]+)`|(?:^|: )make ([a-z-]+)$", text):
            assert {*target} & {*targets}, (place, target)
        for path in re.findall(r"\b(?:docs|bench|site_configs|jobs|provisioning)/[\w./-]*\w", text):
            assert (ROOT / path).exists(), (place, path)
