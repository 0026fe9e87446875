"""What people meet who cite SiloFL, report a fault, or send a change."""

import re
from pathlib import Path

import yaml

from silofl import __version__
from silofl.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


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


def test_every_template_can_be_filled_in_and_that_of_a_fault_asks_for_what_doctor_prints():
    assert [path.stem for path in TEMPLATES] == ["fault", "wish"] and "doctor" in COMMANDS
    for path in TEMPLATES:
        template = read(".github", "ISSUE_TEMPLATE", path.name)
        assert {"name", "description", "body"} == template.keys()
        asked = [one for one in template["body"] if one["type"] != "markdown"]
        assert len({one["id"] for one in asked}) == len(asked) and all(one["attributes"]["label"] for one in asked)
    first = next(one for one in read(".github", "ISSUE_TEMPLATE", "fault.yml")["body"] if one["type"] == "textarea")
    assert "`silofl doctor`" in first["attributes"]["label"] and first["validations"] == {"required": True}


def test_a_change_is_checked_by_the_projects_own_script_and_by_pinned_actions():
    steps = [step for job in read(".github", "workflows", "ci.yml")["jobs"].values() for step in job["steps"]]
    called = [step["uses"] for step in steps if "uses" in step]
    assert called and all(re.fullmatch(r"actions/[a-z-]+@v\d+\.\d+\.\d+", one) for one in called)
    scripts = [step["run"] for step in steps if "run" in step]
    wheel = ["make .venv/installed", ".venv/bin/python -m provisioning build-wheel dist"]
    assert scripts == [".ci/run", "make site", *wheel] and (ROOT / ".ci" / "run").stat().st_mode & 0o111


def test_the_links_of_the_code_of_conduct_lead_somewhere():
    page = ROOT / ".github" / "CODE_OF_CONDUCT.md"
    links = re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    assert links and all((page.parent / link).exists() for link in links)
