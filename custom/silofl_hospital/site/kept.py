"""What a site keeps: the studies of which there is anything, and the folders of their runs."""

import re
from glob import escape, glob
from pathlib import Path

from silofl.base.errors import ConfigError
from silofl.base.settings import NAME
from silofl.setup.site import Site

# It stands for a study's name while folders are looked for.
MARK = "anystudyofthesite"
# As the server names a run: study, time and four random digits.
RUN = re.compile(rf"(?P<study>{NAME[1:-1]})-[0-9]{{8}}-[0-9]{{6}}-[0-9a-f]{{4}}")


def find_studies(site: Site, name: str) -> list[str]:
    """Return the studies that a site's settings name, or of which it keeps anything."""
    studies = {*site.studies}
    if isinstance(site.data, dict):
        studies.update(site.data)
    for folder in (site.state_folder(MARK, name), site.cache_folder(MARK, name), find_data_folder(site, MARK, name)):
        if folder:
            studies |= _match_studies(folder)
    # Where all studies share a folder, the names of the runs say whose they are.
    if "{study}" not in site.state_dir:
        for path in site.state_folder("", name).glob("*"):
            if run := RUN.fullmatch(path.name):
                studies.add(run["study"])
    return sorted(studies)


def find_runs(site: Site, study: str, name: str) -> list[Path]:
    """Return the folders of a study's runs at a site."""
    state = site.state_folder(study, name)
    cache = site.cache_folder(study, name)
    # The cache may lie among the runs.
    folders = sorted(path for path in state.glob("*") if path.is_dir() and path != cache)
    if "{study}" in site.state_dir:
        return [path for path in folders if not path.is_symlink()]
    return [path for path in folders if (run := RUN.fullmatch(path.name)) and run["study"] == study]


def find_data_folder(site: Site, study: str, name: str) -> Path | None:
    """Return the folder of a study's data; None where the site has none for it."""
    return site.data_folder(study, name) if study in site.data_by_study(study) else None


def require_site_name(site: Site, study: str, name: str | None) -> str:
    """Return the site's name; nothing where no folder of its settings needs it.

    Raises:
        ConfigError: A folder does, and it is not given.
    """
    folders = (site.state_dir, site.cache_dir or "", *site.data_by_study(study).values())
    if name is None and any("{site}" in folder for folder in folders):
        raise ConfigError("--site is missing, and {site} stands in site.yaml; give the site's name")
    return name or ""


def _match_studies(folder: Path) -> set[str]:
    """Return the studies for which a folder is there, by the folder of the study `MARK`."""
    if MARK not in str(folder):
        return set()
    # A path may name the study several times, always the same one.
    pattern = re.escape(str(folder)).replace(MARK, f"(?P<study>{NAME[1:-1]})", 1).replace(MARK, "(?P=study)")
    matches = [re.fullmatch(pattern, path) for path in glob(escape(str(folder)).replace(MARK, "*"))]
    return {match["study"] for match in matches if match}
