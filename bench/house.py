"""Figures of the house: statements, sentences and refusals of each room, its lines, keys, fields, members and words.

    python bench/house.py [COMMIT ...]
    python bench/house.py --check
    python bench/house.py --lower

The first prints the figures of commits beside those of the working tree. Each figure has two numbers in ``house.json``:
``now``, above which ``--check`` fails, and ``goal``. After something went, ``--lower`` writes the lower figures. A
``now`` rises only in a commit that changes nothing else and says what it is for, and in the end nothing is larger than
at the last release: ``--check`` reads both from git.

Statements are counted rather than lines, so that a fuller line wins nothing; docstrings are no statements. A sentence
is a text of at least six words outside docstrings and refusals; a refusal is a ``raise`` with words.
"""

import argparse
import ast
import io
import json
import re
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

ROOT = Path(__file__).parents[1]
PACKAGE, TESTS, BENCH = "custom/silofl/", "tests/", "bench/"
WHEELS = "custom/"
# What an algorithm answers, the server's half and the site's, what it is given, and the records of a run:
# class -> its file.
PROTOCOL = {
    "AlgorithmOption": f"{PACKAGE}core/algorithm_option.py",
    "Part": f"{PACKAGE}parts/part.py",
    "Run": f"{PACKAGE}parts/part.py",
    "SitePart": f"{PACKAGE}parts/work.py",
}
RECORDS = {"Results": f"{PACKAGE}federation/results.py", "Round": f"{PACKAGE}federation/ledger.py"}
# What a hospital installs.
LOCK = "provisioning/site.lock"
CEILINGS = "bench/house.json"
VERSION = f"{PACKAGE}__init__.py"
# Folders with pages for people.
ROOMS = (".", "bench", "docs", "jobs", "provisioning", "site_configs")
# Pages of keys, each of which is an entry of a list.
KEYS = {"study.yaml": "docs/study.md", "site.yaml": "site_configs/README.md"}
KEY = re.compile(r"(?m)^ *- `")
WORDS_OF_A_SENTENCE = 6
DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
Sources = dict[str, str]


class Ceiling(TypedDict):
    """What a figure may be now, and what it is to become."""

    now: int
    goal: int


Ceilings = dict[str, Ceiling]


def main() -> None:
    """Print the figures as a Markdown table, check them, or lower their ceilings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commits", nargs="*", metavar="COMMIT")
    parser.add_argument("--check", action="store_true", help="fail where the working tree is above a ceiling")
    parser.add_argument("--lower", action="store_true", help="lower each ceiling to the figure of the working tree")
    options = parser.parse_args()
    if options.check:
        ceilings = json.loads((ROOT / CEILINGS).read_text())
        sys.exit("\n".join([*exceed(figures(of_tree()), ceilings), *check_history()]) or 0)
    if options.lower:
        ceilings = lower(figures(of_tree()), json.loads((ROOT / CEILINGS).read_text()))
        (ROOT / CEILINGS).write_text(write_ceilings(ceilings))
        return
    columns = {commit: figures(of_commit(commit)) for commit in options.commits} | {"now": figures(of_tree())}
    print(f"| | {' | '.join(columns)} |")
    print(f"|---|{'---|' * len(columns)}")
    for name in columns["now"]:
        print(f"| {name} | {' | '.join(str(column.get(name, '-')) for column in columns.values())} |")


def of_commit(commit: str) -> Sources:
    """Return path -> text of all files of a commit that are counted."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True)
    if archive.returncode:
        sys.exit(f"COMMIT must be one of this repository, not {commit!r}: git log lists them")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        members = [member for member in tar.getmembers() if member.isfile() and is_counted(member.name)]
        return {member.name: tar.extractfile(member).read().decode() for member in members}


def of_tree() -> Sources:
    """Return path -> text of all files of the working tree that are counted."""
    found = [path for top in (WHEELS, TESTS, BENCH) for path in (ROOT / top).rglob("*.py")]
    found += [path for room in ROOMS for path in (ROOT / room).glob("*.md")]
    paths = {LOCK, *(str(path.relative_to(ROOT)) for path in found)}
    return {path: (ROOT / path).read_text() for path in sorted(paths) if is_counted(path)}


def is_counted(path: str) -> bool:
    """Return whether a file is a source of the wheels, of tests or of bench, a page, or the lock."""
    is_source = path.startswith((WHEELS, TESTS, BENCH)) and path.endswith(".py")
    return is_source or is_page(path) or path == LOCK


def is_page(path: str) -> bool:
    """Return whether a file is a page for people; the changelog, which only grows, is none."""
    page = Path(path)
    return page.suffix == ".md" and str(page.parent) in ROOMS and page.name != "CHANGELOG.md"


def room_of(path: str) -> str:
    """Return the wheel of a source with its folder there, as ``silofl/core``; of all wheels but the first the wheel."""
    wheel, *inside = Path(path).relative_to(WHEELS).parts
    if not path.startswith(PACKAGE):
        return wheel
    return f"{wheel}/{inside[0]}" if len(inside) > 1 else f"{wheel}/*.py"


def figures(sources: Sources) -> dict[str, int]:
    """Return the name of each figure with its value."""
    rooms: dict[str, Counter[str]] = {}
    wheels, tests, bench = Counter(), Counter(), Counter()
    for path, text in sources.items():
        if not path.endswith(".py"):
            continue
        counts = count(text)
        if path.startswith(WHEELS):
            wheels += counts
            rooms[room_of(path)] = rooms.get(room_of(path), Counter()) + counts
        elif path.startswith(TESTS):
            tests += counts
        else:
            bench += counts
    found = {f"{unit} of all wheels": wheels[unit] for unit in ("statements", "lines", "sentences", "refusals")}
    found |= {f"{unit} of tests": tests[unit] for unit in ("statements", "lines")}
    found["lines of bench"] = bench["lines"]
    found["words of the pages"] = sum(len(text.split()) for path, text in sources.items() if is_page(path))
    found["packages of a site"] = sources[LOCK].count("==")
    for name, page in KEYS.items():
        found[f"keys of {name}"] = len(KEY.findall(sources.get(page, "")))
    for name, path in RECORDS.items():
        found[f"fields of {name}"] = count_fields(ast.parse(sources.get(path, "")), name)
    for name, path in PROTOCOL.items():
        found[f"members of {name}"] = count_members(ast.parse(sources.get(path, "")), name)
    for room, counts in sorted(rooms.items()):
        for unit in ("statements", "sentences", "refusals"):
            found[f"{unit} of {room}"] = counts[unit]
    return found


def count(text: str) -> Counter[str]:
    """Return how many lines, statements, sentences and refusals a source has."""
    tree = ast.parse(text)
    documentation = set(map(id, list_docstrings(tree)))
    counts = Counter(lines=len(text.splitlines()))
    passed_over = set(documentation)
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise):
            counts["refusals"] += any(words_of(part) for part in ast.walk(node))
            passed_over.update(map(id, ast.walk(node)))
        elif isinstance(node, ast.JoinedStr):
            # Its parts are counted as one text.
            passed_over.update(map(id, node.values))
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            counts["statements"] += not (isinstance(node, ast.Expr) and id(node.value) in documentation)
        elif id(node) not in passed_over:
            counts["sentences"] += len(words_of(node)) >= WORDS_OF_A_SENTENCE
    return counts


def list_docstrings(tree: ast.Module) -> Iterator[ast.expr]:
    """Yield the docstrings of a module and of all classes and functions in it."""
    for node in ast.walk(tree):
        if isinstance(node, DEFINITIONS) and ast.get_docstring(node) is not None:
            yield node.body[0].value


def words_of(node: ast.AST) -> list[str]:
    """Return the constant words of a text or of a formatted one; none of another node."""
    if isinstance(node, ast.JoinedStr):
        return " ".join(part.value for part in node.values if isinstance(part, ast.Constant)).split()
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.split()
    return []


def find_class(tree: ast.Module, name: str) -> list[ast.stmt]:
    """Return the statements of a class; none where the module has no such class."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node.body
    return []


def count_fields(tree: ast.Module, name: str) -> int:
    """Return how many fields a record has."""
    # A ClassVar, such as the former names of keys, is no field.
    fields = [node for node in find_class(tree, name) if isinstance(node, ast.AnnAssign)]
    return sum("ClassVar" not in ast.unparse(node.annotation) for node in fields)


def count_members(tree: ast.Module, name: str) -> int:
    """Return how many public attributes and functions a class has."""
    body = find_class(tree, name)
    members = [getattr(node, "name", "") or getattr(getattr(node, "target", None), "id", "") for node in body]
    return sum(bool(member) and not member.startswith("_") for member in members)


def exceed(found: dict[str, int], ceilings: Ceilings) -> list[str]:
    """Return a sentence for each figure above its ceiling, or without one."""
    sentences = []
    for name, value in found.items():
        most = ceilings[name]["now"] if name in ceilings else 0
        if value > most:
            sentences.append(
                f"{name} must be at most {most}, not {value}; take something out, or raise now in {CEILINGS} in a "
                "commit of its own that says what it is for"
            )
    return sentences


def lower(found: dict[str, int], ceilings: Ceilings) -> Ceilings:
    """Return the ceilings of all figures, none above its figure; a new figure is its own ceiling."""
    lowered = {}
    for name, value in found.items():
        old = ceilings.get(name, {"now": value, "goal": value})
        lowered[name] = {"now": min(old["now"], value), "goal": old["goal"]}
    return lowered


def write_ceilings(ceilings: Ceilings) -> str:
    """Return the text of ``house.json``, a figure a line."""
    return "{\n" + ",\n".join(f"  {json.dumps(name)}: {json.dumps(both)}" for name, both in ceilings.items()) + "\n}\n"


def check_history() -> list[str]:
    """Return a sentence for each raise since the last release that is not alone, and for totals that have grown."""
    if git("rev-parse", "--is-shallow-repository") != "false":
        print(f"{CEILINGS}: only now is checked, for this copy has no history")
        return []
    release = git("log", "-1", "--format=%H", "-G", "^__version__ =", "--", VERSION)
    history = []
    for commit in git("log", "--reverse", "--no-merges", "--format=%h", f"{release}..HEAD", "--", CEILINGS).split():
        ceilings = json.loads(git("show", f"{commit}:{CEILINGS}"))
        # Until then each figure had one number.
        if all(isinstance(both, dict) for both in ceilings.values()):
            history.append((commit, ceilings))
    sentences = []
    for (_, before), (commit, after) in zip(history, history[1:], strict=False):
        raised = find_raised(before, after)
        if raised and git("show", "--format=", "--name-only", commit) != CEILINGS:
            sentences.append(
                f"{commit} raises {', '.join(raised)} beside other changes; raise it in a commit of its own"
            )
    if history:
        # A room may grow by what another gives, and a package may take the place of our own code.
        raised = find_raised(history[0][1], history[-1][1])
        grown = [name for name in raised if "silofl" not in name and not name.startswith("packages")]
        sentences += [f"{name} must not be larger than at the last release; take something out" for name in grown]
    return sentences


def find_raised(before: Ceilings, after: Ceilings) -> list[str]:
    """Return the figures whose ``now`` is higher than it was."""
    return [name for name, both in after.items() if name in before and both["now"] > before[name]["now"]]


def git(*words: str) -> str:
    """Return what a command of git prints; nothing where it fails."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
