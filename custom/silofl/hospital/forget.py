"""``silofl forget``: delete what a site keeps of a study (models, optimisers, scores, pictures), but never its data."""

from __future__ import annotations

import argparse
import re
import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from silofl.errors import ConfigError, ExitCode
from silofl.federation.egress_log import LOCK
from silofl.files import held
from silofl.settings import Section, load, parse
from silofl.site import Site
from silofl.study import Name

# As the server names a run: study, time and four random digits.
RUN = "{study}-[0-9]{{8}}-[0-9]{{6}}-[0-9a-f]{{4}}"


class Wanted(Section):
    """The study and the site whose files are to be deleted.

    Attributes:
        study: Name of the study.
        site: Name of the site; needed where ``{site}`` stands in a folder of site.yaml.
    """

    study: Name
    site: Name | None = None


@dataclass(frozen=True)
class Kept:
    """What a site keeps of a study.

    Attributes:
        folders: Folder to be deleted -> the number of its files and of their bytes.
        shared: Folder -> why it is not deleted, of folders that may hold something of the study.
    """

    folders: dict[Path, tuple[int, int]]
    shared: dict[Path, str]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl forget``."""
    parser.add_argument("study", metavar="STUDY", help="name of the study")
    parser.add_argument("--site-config", type=Path, default=Path("local/site.yaml"), help="the site's site.yaml")
    parser.add_argument("--site", metavar="NAME", help="of this site, where {site} stands in site.yaml")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(options: argparse.Namespace) -> int:
    """List what the site keeps of a study and delete it once the user agrees."""
    kept = kept_of(load(Site, options.site_config), options.study, options.site)
    lines = [f"{folder}: {files} files, {size} bytes" for folder, (files, size) in kept.folders.items()]
    print("\n".join(lines or [f"this site keeps nothing of study {options.study}"]))
    if lines and (options.yes or _is_agreed("delete this, the record of what left the site included? [y/N] ")):
        forget(kept)
        print("deleted: all of the above; results and the mixed models stay at the server")
    elif lines:
        print("nothing was deleted")
    for folder, reason in kept.shared.items():
        print(f"not deleted: {folder}; {reason}")
    return ExitCode.COMPLETE


def _is_agreed(question: str) -> bool:
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:
        raise ConfigError("--yes must be given where nobody can answer; nothing was deleted") from None


def kept_of(site: Site, study: str, name: str | None) -> Kept:
    """Return what a site keeps of a study, without touching it.

    Raises:
        ConfigError: A name is none, the site's name is needed, or the data lies in a folder that would be deleted.
    """
    wanted = parse(Wanted, {"study": study, "site": name}, "the command line")
    cache_dir = site.cache_dir or site.state_dir
    roots = site.data_by_study(study).values()
    if wanted.site is None and any("{site}" in template for template in (site.state_dir, cache_dir, *roots)):
        raise ConfigError("--site must name the site, because {site} stands in site.yaml; give its name")
    state, cache = site.state_folder(study, name or ""), site.cache_folder(study, name or "")
    is_own = "{study}" in site.state_dir
    folders = [state] if is_own else sorted(_runs(state, study))
    shared = {}
    # A cache within the study's own state folder is deleted with it.
    if not cache.is_relative_to(state) or not is_own:
        if "{study}" in cache_dir:
            folders.append(cache)
        elif cache.is_dir():
            shared[cache] = "other studies use it too: put {study} into cache_dir, or delete it by hand"
    _check_holds_no_data(folders, site, study, name or "")
    return Kept({folder: _size(folder) for folder in folders if folder.is_dir()}, shared)


def forget(kept: Kept) -> None:
    """Delete the folders.

    Raises:
        ConfigError: A run still uses one of them; then none is deleted.
    """
    with ExitStack() as stack:
        # All locks before the first deletion: one run that still goes on keeps everything.
        for folder in kept.folders:
            for lock in sorted(folder.rglob(LOCK)):
                stack.enter_context(held(lock))
        for folder in kept.folders:
            shutil.rmtree(folder)


def _runs(state: Path, study: str) -> list[Path]:
    """Return the folders of a study's runs in a state folder that several studies share."""
    pattern = re.compile(RUN.format(study=re.escape(study)))
    return [path for path in state.glob("*") if path.is_dir() and pattern.fullmatch(path.name)]


def _check_holds_no_data(folders: list[Path], site: Site, study: str, name: str) -> None:
    """Refuse to delete a folder around the data of any study that site.yaml names."""
    known = [site.data_folder(other, name) for other in site.data_by_study(study)]
    for folder in folders:
        for data in known:
            if data.resolve().is_relative_to(folder.resolve()):
                raise ConfigError(
                    f"the data must lie outside of what is deleted, not {data} in {folder}; change site.yaml, and "
                    "delete the state by hand"
                )


def _size(folder: Path) -> tuple[int, int]:
    # A link counts by itself: what it leads to is not deleted.
    sizes = [path.lstat().st_size for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()]
    return len(sizes), sum(sizes)
