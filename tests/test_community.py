"""What people meet who cite SiloFL, report a fault, or send a change."""

import re
from pathlib import Path

import yaml

from silofl import __version__

ROOT = Path(__file__).resolve().parents[1]


def read(*place):
    return yaml.safe_load(ROOT.joinpath(*place).read_text(encoding="utf-8"))


def find_paper(algorithm):
    """Return the arXiv number of an algorithm's paper, which its docstring names first."""
    text = (ROOT / "custom" / "silofl" / "algorithms" / algorithm / "__init__.py").read_text(encoding="utf-8")
    return re.search(r"arXiv:(\d{4}\.\d{5})", text)[1]


def test_the_citation_is_of_this_version_on_its_day():
    cited = read("CITATION.cff")
    assert cited.keys() >= {"cff-version", "message", "title", "authors", "license"} and cited["type"] == "software"
    assert cited["version"] == __version__ and cited["authors"] == [{"name": "SiloFL maintainers"}]
    heading = re.search(r"^## (\d.+)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1]
    assert heading == f"{__version__} - {cited['date-released']}"


def test_the_citation_has_the_papers_of_the_three_methods():
    papers = read("CITATION.cff")["references"]
    for paper, algorithm in zip(papers, ("harmofl", "fedsm", "adafed"), strict=True):
        assert paper["url"].partition("/abs/")[2].partition("v")[0] == find_paper(algorithm)
        assert paper["title"] and len(paper["authors"]) >= 3
        assert all({*one} == {"given-names", "family-names"} for one in paper["authors"])
    firsts = [(paper["authors"][0]["family-names"], paper["year"]) for paper in papers]
    assert firsts == [("Jiang", 2022), ("Xu", 2022), ("Chen", 2021)]


def test_a_change_is_checked_by_the_projects_own_script_and_by_pinned_actions():
    steps = [step for job in read(".github", "workflows", "ci.yml")["jobs"].values() for step in job["steps"]]
    called = [step["uses"] for step in steps if "uses" in step]
    assert called and all(re.fullmatch(r"actions/[a-z-]+@v\d+\.\d+\.\d+", one) for one in called)
    scripts = [step["run"] for step in steps if "run" in step]
    wheel = ["make .venv/installed", ".venv/bin/python -m provisioning build-wheel dist"]
    assert scripts == [".ci/run", "make site", *wheel] and (ROOT / ".ci" / "run").stat().st_mode & 0o111
