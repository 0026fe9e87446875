"""Figures of the house: sizes, comments and names of the source, files that mention each algorithm, words of the pages.

    python bench/house.py [COMMIT ...]

One column a commit, the working tree last; each is read from git, so that anybody can measure any two states.
"""

import ast
import io
import statistics
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE, JOBS, TESTS = "custom/silofl/", "jobs/", "tests/"
# What an algorithm answers: the server's half and the site's.
PROTOCOL = {f"{PACKAGE}parts/part.py": "Part", f"{PACKAGE}parts/work.py": "SitePart"}
# Folders with pages for people.
ROOMS = (".", "bench", "docs", "jobs", "provisioning", "site_configs")
ALGORITHMS = ("harmofl", "fedsm", "adafed", "fedprox", "scaffold", "fedopt")
Sources = dict[str, str]


def main() -> None:
    """Print the figures as a Markdown table."""
    columns = {commit: figures(of_commit(commit)) for commit in sys.argv[1:]} | {"now": figures(of_tree())}
    print(f"| | {' | '.join(columns)} |")
    print(f"|---|{'---|' * len(columns)}")
    for name in columns["now"]:
        print(f"| {name} | {' | '.join(column.get(name, '-') for column in columns.values())} |")


def of_commit(commit: str) -> Sources:
    """Return path -> text of all files of a commit that are counted."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        members = [member for member in tar.getmembers() if member.isfile() and is_counted(member.name)]
        return {member.name: tar.extractfile(member).read().decode() for member in members}


def of_tree() -> Sources:
    """Return path -> text of all files of the working tree that are counted."""
    found = [path for top in (PACKAGE, JOBS, TESTS) for path in (ROOT / top).rglob("*") if path.is_file()]
    found += [path for room in ROOMS for path in (ROOT / room).glob("*.md")]
    paths = {str(path.relative_to(ROOT)) for path in found}
    return {path: (ROOT / path).read_text() for path in sorted(paths) if is_counted(path)}


def is_counted(path: str) -> bool:
    """Return whether a file is source of the package or of its tests, part of a job, or a page."""
    return (path.startswith((PACKAGE, TESTS)) and path.endswith(".py")) or path.startswith(JOBS) or is_page(path)


def is_page(path: str) -> bool:
    """Return whether a file is a page for people; the changelog, which only grows, is none."""
    page = Path(path)
    return page.suffix == ".md" and str(page.parent) in ROOMS and page.name != "CHANGELOG.md"


def figures(sources: Sources) -> dict[str, str]:
    """Return the name of each figure with its value."""
    package = {path: text for path, text in sources.items() if path.startswith(PACKAGE)}
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
    members = sum(count_members(trees[path], name) for path, name in PROTOCOL.items() if path in trees)
    words = {path: len(text.split()) for path, text in sorted(sources.items()) if is_page(path)}
    return {
        "files of the package": f"{len(sizes)}",
        "lines of the package": f"{sum(sizes)}",
        "lines of the tests, and by line of the package": f"{tests}, {tests / sum(sizes):.2f}",
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
