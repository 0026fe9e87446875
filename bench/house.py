"""Figures of the house: sizes, comments and names of the source, files that mention each algorithm, words of the pages.

    python bench/house.py [COMMIT ...]
    python bench/house.py --check

One column a commit, the working tree last; each is read from git, so that anybody can measure any two states. With
``--check`` it fails where the working tree is above a ceiling in ``house.json``. A ceiling is raised in a commit of its
own that says why, and lowered whenever something goes.
"""

import argparse
import ast
import io
import json
import re
import statistics
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE, JOBS, TESTS = "custom/silofl/", "jobs/", "tests/"
WHEELS = (PACKAGE, "custom/silofl_desk/", "custom/silofl_clinic/")
# What an algorithm answers, the server's half and the site's, and what it is given: class -> its file.
PROTOCOL = {
    "AlgorithmOption": f"{PACKAGE}core/algorithm_option.py",
    "Part": f"{PACKAGE}parts/part.py",
    "Run": f"{PACKAGE}parts/part.py",
    "SitePart": f"{PACKAGE}parts/work.py",
}
# What a hospital installs.
LOCK = "provisioning/site.lock"
CEILINGS = ROOT / "bench/house.json"
# Folders with pages for people.
ROOMS = (".", "bench", "docs", "jobs", "provisioning", "site_configs")
# Pages of the site that lie elsewhere, or only grow.
ELSEWHERE = ("CHANGELOG.md", ".github/CODE_OF_CONDUCT.md", "provisioning/monitoring/README.md")
# Pages of keys; an entry is looked up, as those of the API are.
REFERENCES = ("docs/results.md", "docs/study.md", "site_configs/README.md")
ENTRY = re.compile(r"(?m)^ *- [`*].*(?:\n  .*)*")
ALGORITHMS = ("harmofl", "fedsm", "adafed", "fedprox", "scaffold", "fedopt")
Sources = dict[str, str]


def main() -> None:
    """Print the figures as a Markdown table, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commits", nargs="*", metavar="COMMIT")
    parser.add_argument("--check", action="store_true", help="fail where the working tree is above a ceiling")
    options = parser.parse_args()
    if options.check:
        sys.exit("\n".join(exceed(bounded_figures(of_tree()), json.loads(CEILINGS.read_text()))) or 0)
    columns = {commit: figures(of_commit(commit)) for commit in options.commits} | {"now": figures(of_tree())}
    print(f"| | {' | '.join(columns)} |")
    print(f"|---|{'---|' * len(columns)}")
    for name in columns["now"]:
        print(f"| {name} | {' | '.join(column.get(name, '-') for column in columns.values())} |")


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
    found = [path for top in (*WHEELS, JOBS, TESTS) for path in (ROOT / top).rglob("*") if path.is_file()]
    found += [path for room in ROOMS for path in (ROOT / room).glob("*.md")]
    paths = {LOCK, *ELSEWHERE, *(str(path.relative_to(ROOT)) for path in found)}
    return {path: (ROOT / path).read_text() for path in sorted(paths) if is_counted(path)}


def is_counted(path: str) -> bool:
    """Return whether a file is source of the package or of its tests, part of a job, or a page."""
    is_source = path.startswith((*WHEELS, TESTS)) and path.endswith(".py")
    return is_source or path.startswith(JOBS) or is_page(path) or path in (LOCK, *ELSEWHERE)


def is_page(path: str) -> bool:
    """Return whether a file is a page for people; the changelog, which only grows, is none."""
    page = Path(path)
    return page.suffix == ".md" and str(page.parent) in ROOMS and page.name != "CHANGELOG.md"


def exceed(found: dict[str, int], ceilings: dict[str, int]) -> list[str]:
    """Return a sentence for each figure above its ceiling, or without one."""
    return [
        f"{name} must be at most {ceilings.get(name, 0)}, not {count}; take something out, or raise the ceiling in "
        f"{CEILINGS.relative_to(ROOT)} in a commit that says why"
        for name, count in found.items()
        if count > ceilings.get(name, 0)
    ]


def bounded_figures(sources: Sources) -> dict[str, int]:
    """Return the figures that have ceilings: lines, members of the protocol, words, packages."""
    lines: Counter[str] = Counter()
    for path, text in sources.items():
        if path.endswith(".py"):
            count, (wheel, *inside) = len(text.splitlines()), Path(path.removeprefix("custom/")).parts
            lines[f"lines of {wheel}"] += count
            if path.startswith(PACKAGE):
                lines[f"lines of {wheel}/{inside[0] if len(inside) > 1 else '*.py'}"] += count
    members = {f"members of {name}": count_members(ast.parse(sources[path]), name) for name, path in PROTOCOL.items()}
    words = sum(len(text.split()) for path, text in sources.items() if is_page(path))
    return {
        **dict(sorted(lines.items())),
        **members,
        "words of the pages": words,
        "words of the site without its references": count_site_words(sources),
        "packages of a site": sources[LOCK].count("=="),
    }


def count_site_words(sources: Sources) -> int:
    """Return the words of all pages of the site but the API's and the entries of references."""
    pages = {path: text for path, text in sources.items() if is_page(path) or path in ELSEWHERE}
    read = [ENTRY.sub("", text) if path in REFERENCES else text for path, text in pages.items()]
    # A sign alone, as the bar of a table, is no word.
    return sum(any(map(str.isalnum, word)) for text in read for word in text.split())


def figures(sources: Sources) -> dict[str, str]:
    """Return the name of each figure with its value."""
    package = {path: text for path, text in sources.items() if path.startswith(WHEELS)}
    sizes = sorted(len(text.splitlines()) for path, text in package.items() if not path.endswith("__init__.py"))
    trees = {path: ast.parse(text) for path, text in package.items()}
    functions = sorted(length for tree in trees.values() for length in function_lengths(tree))
    lines = [line.strip() for text in package.values() for line in text.splitlines()]
    comments = sum(line.startswith("#") for line in lines)
    names = Counter(name for tree in trees.values() for name in {node.name for node in top_definitions(tree)})
    mentions = {name: sum(name in text.lower() for text in package.values()) for name in ALGORITHMS}
    lengths = f"{statistics.median(functions):.0f}, {percentile(functions)}"
    report = [text for path, text in package.items() if path.startswith(f"{PACKAGE}report/")]
    flare = [text for path, text in package.items() if path.startswith(f"{PACKAGE}flare/")]
    jobs = {path: text for path, text in sources.items() if path.startswith(JOBS) and not is_page(path)}
    tests = sum(len(text.splitlines()) for path, text in sources.items() if path.startswith(TESTS))
    members = sum(count_members(trees[path], name) for name, path in PROTOCOL.items() if path in trees)
    words = {path: len(text.split()) for path, text in sorted(sources.items()) if is_page(path)}
    return {
        "files of the wheels": f"{len(sizes)}",
        "lines of the wheels": f"{sum(sizes)}",
        "lines of the tests, and by line of the wheels": f"{tests}, {tests / sum(sizes):.2f}",
        "members of the protocol of parts": f"{members}",
        "lines of a file, median and 90th percentile": f"{statistics.median(sizes):.0f}, {percentile(sizes)}",
        "lines of a function without docstring, the same": lengths,
        "lines that are comments": f"{100 * comments / len(lines):.1f} %",
        "public and private names defined in more than one file": f"{sum(count > 1 for count in names.values())}",
        **{f"files that mention {name}": f"{count}" for name, count in mentions.items()},
        "`.get(` in report/": f"{sum(text.count('.get(') for text in report)}",
        "files of report/": f"{len(report)}",
        "files of flare/, and those that import NVFlare": f"{len(flare)}, {sum(map(imports_nvflare, flare))}",
        "jobs": f"{len({path.split('/')[1] for path in jobs})}",
        "lines of jobs/": f"{sum(len(text.splitlines()) for text in jobs.values())}",
        "words of all pages, as `wc -w` counts them": f"{sum(words.values())}",
        **{f"words of {path}": f"{count}" for path, count in words.items()},
    }


def count_members(tree: ast.Module, name: str) -> int:
    """Return how many public attributes and functions a class has."""
    body = next((node.body for node in top_definitions(tree) if node.name == name), [])
    members = [getattr(node, "name", "") or getattr(getattr(node, "target", None), "id", "") for node in body]
    return sum(bool(member) and not member.startswith("_") for member in members)


def imports_nvflare(text: str) -> bool:
    """Return whether a source imports NVFlare."""
    return "import nvflare" in text or "from nvflare" in text


def function_lengths(tree: ast.Module) -> Iterator[int]:
    """Yield the lines of every function, its docstring left out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            docstring = ast.get_docstring(node)
            yield node.end_lineno - node.lineno + 1 - (len(docstring.splitlines()) + 1 if docstring else 0)


def top_definitions(tree: ast.Module) -> list[ast.FunctionDef | ast.ClassDef]:
    """Return the functions and classes of a module."""
    return [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]


def percentile(values: list[int], share: float = 0.9) -> int:
    """Return the value below which a share of the sorted values lies."""
    return values[int(share * len(values))]


if __name__ == "__main__":
    main()
