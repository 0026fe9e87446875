"""Hooks of mkdocs: the repository's pages under their own paths, and the release's number in their header."""

import re
import tomllib
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PAGES = ("*.md", ".github/*.md", "docs/*.md", "docs/figures/*", "docs/notebooks/*", "CITATION.cff")
PAGES += (
    "bench/*.md",
    "jobs/*.md",
    "provisioning/*.md",
    "provisioning/monitoring/*.md",
    "recipes/*.md",
    "site_configs/*.md",
)
# What make gallery has written -> what it is a report of.
GALLERY = ROOT / "runs/gallery"
REPORTS = {
    "demo/report.html": "The demonstration: five methods at four simulated hospitals, and a fifth that took no part",
    "classes/report.html": "Classes of pictures: stained tissue of three simulated hospitals",
    "volumes/report.html": "Volumes in 3D: five simulated hospitals, two contrasts",
    "network.html": "A network: a server and three hospitals over mutual TLS",
    "evaluation/evaluation.html": "An evaluation: the model of the classes at a hospital that took no part",
}
# What a page would load by itself; a link that a reader follows is none.
LOADED = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=["']?(?:https?:)?//[^>]*>""")

# Inline code; in it what a browser would break after a hyphen, as --seeds.
CODE, HYPHENATED = re.compile(r"(?<!</span>)<code>[^<]+</code>"), re.compile(r"[\w-]*-[\w-]+")


def list_reports() -> list[str]:
    """Return the reports that are there; most checkouts have none."""
    return [name for name in REPORTS if (GALLERY / name).is_file()]


def on_config(config: MkDocsConfig) -> None:
    """Name the release in the header of every page."""
    project = tomllib.loads((ROOT / "custom/pyproject.toml").read_text(encoding="utf-8"))["project"]
    config.site_name = f"SiloFL {project['version']}"
    if list_reports():
        config.nav.append({"Gallery": "gallery.md"})


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the repository's pages, which link to each other as they lie."""
    for path in sorted(path for pattern in PAGES for path in ROOT.glob(pattern)):
        file = File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path))
        # mkdocs leaves out what begins with a dot.
        file.inclusion = InclusionLevel.INCLUDED
        files.append(file)
    if made := list_reports():
        lines = ["# Gallery", "", "For who wants to see a report before a run: `make gallery` made these.", ""]
        lines += [f"- [{REPORTS[name]}](gallery/{name})" for name in made]
        files.append(File.generated(config, "gallery.md", content="\n".join(lines)))
        for name in made:
            files.append(File.generated(config, f"gallery/{name}", abs_src_path=str(GALLERY / name)))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> None:
    """Have the search put answers above, and measurements and old releases below what to do."""
    if page.file.src_uri == "docs/questions.md":
        page.meta["search"] = {"boost": 4}
    if page.file.src_uri.startswith(("bench/", "CHANGELOG")):
        page.meta["search"] = {"boost": 0.1}


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Keep options whole in inline code, and refuse a page that loads something from outside.

    Raises:
        PluginError: It does.
    """
    if found := LOADED.search(output):
        raise PluginError(f"{page} must load nothing from outside, not {found[0]}")
    return CODE.sub(lambda code: HYPHENATED.sub(r'<span class="whole">\g<0></span>', code[0]), output)
