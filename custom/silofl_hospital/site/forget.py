"""``silofl site forget``: delete what a site keeps of a study, or of one patient, but never its data."""

import argparse
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from silofl.base.errors import ConfigError, ExitCode, suggest_nearest
from silofl.base.files import hold_lock
from silofl.base.settings import Name, Section, load_settings, parse
from silofl.federation.egress_log import LOCK
from silofl.flare.paths import JOB_LOCK
from silofl.setup.site import Site
from silofl_hospital.site import forget_patient
from silofl_hospital.site.kept import find_runs, find_studies, require_site_name

NO_TRACE = (
    "no cache, picture or score of this site names the patient: correct the ID or --site where that is a slip; with "
    "--cases more is found"
)


class StudyAtSite(Section):
    """The study and the site whose files are to be deleted.

    Attributes:
        study: Name of the study; None for all, where a patient is to be forgotten.
        site: Name of the site; needed where ``{site}`` stands in a folder of site.yaml.
    """

    study: Name | None
    site: Name | None = None


@dataclass(frozen=True)
class KeptFolders:
    """What a site keeps of a study.

    Attributes:
        folders: Folder to be deleted -> the number of its files and of their bytes.
        shared: Folder -> why it is not deleted, of folders that may hold something of the study.
    """

    folders: dict[Path, tuple[int, int]]
    shared: dict[Path, str]


def run(options: argparse.Namespace) -> int:
    """List what the site keeps of a study, or of a patient, and delete it once the user agrees."""
    site = load_settings(Site, options.site_config)
    with _hold_stopped(options.site_config.absolute().parent.parent):
        return _forget(site, options)


@contextmanager
def _hold_stopped(kit: Path) -> Iterator[None]:
    with ExitStack() as stack:
        for lock in (kit / JOB_LOCK, *kit.glob(f"*/{JOB_LOCK}")):
            if not lock.is_file():
                continue
            try:
                stack.enter_context(hold_lock(lock))
            except ConfigError as error:
                raise ConfigError(
                    f"the site still runs ({error}), and nothing was deleted; stop it, as with systemctl stop silofl, "
                    "and call this again"
                ) from None
        yield


def _forget(site: Site, options: argparse.Namespace) -> int:
    if options.patient:
        return _forget_patient(site, options)
    if options.study is None or options.cases:
        raise ConfigError("STUDY or, with --cases, --patient is missing; see silofl site forget --help")
    kept = find_kept(site, options.study, options.site)
    if not kept.folders and not kept.shared:
        known = find_studies(site, require_site_name(site, options.study, options.site))
        # A name with a slip must not look like a deletion.
        raise ConfigError(
            f"This site keeps nothing of study {options.study!r}{suggest_nearest(options.study, known)}; nothing was "
            "deleted. Correct STUDY, --site or --site-config."
        )
    lines = [f"{folder}: {files} files, {size} bytes" for folder, (files, size) in kept.folders.items()]
    if _is_agreed(lines or [f"no folder is of study {options.study} alone"], bool(lines), options.yes):
        delete_kept(kept)
        print("deleted: all of the above; results and the mixed models stay at the server")
    for folder, reason in kept.shared.items():
        print(f"not deleted: {folder}; {reason}")
    return ExitCode.INCOMPLETE if kept.shared else ExitCode.COMPLETE


def _forget_patient(site: Site, options: argparse.Namespace) -> int:
    wanted = parse(StudyAtSite, {"study": options.study, "site": options.site}, "the command line")
    name = require_site_name(site, wanted.study or "", wanted.site)
    studies = [options.study] if options.study else find_studies(site, name)
    traces = forget_patient.find_traces(site, name, studies, options.patient, options.cases)
    lines = forget_patient.describe_traces(traces)
    if _is_agreed(lines if traces.is_found else [NO_TRACE, *lines], bool(lines), options.yes):
        forget_patient.remove_traces(traces)
        print("deleted: all of the above; a cache is made anew at the next start, without the patient")
    print(f"\nWhat stays, in {', '.join(studies) or 'no study'}:")
    for sentence in forget_patient.describe_remaining(traces):
        print(f"- {sentence}")
    return ExitCode.COMPLETE if traces.is_found else ExitCode.INCOMPLETE


def _is_agreed(lines: list[str], is_found: bool, is_yes: bool) -> bool:
    """Print what would be deleted, and ask where the user has not agreed before."""
    print("\n".join(lines))
    if not is_found or is_yes:
        return is_found
    try:
        answer = input("delete this, a study's record of what left included? [y/N] ")
    except EOFError:
        raise ConfigError("--yes is missing where nobody can answer; nothing was deleted") from None
    if answer.strip().lower() in ("y", "yes"):
        return True
    print("nothing was deleted")
    return False


def find_kept(site: Site, study: str, name: str | None) -> KeptFolders:
    """Return what a site keeps of a study, without touching it.

    Raises:
        ConfigError: A name is none, the site's name is needed, or the data lies in a folder that would be deleted.
    """
    wanted = parse(StudyAtSite, {"study": study, "site": name}, "the command line")
    name = require_site_name(site, study, wanted.site)
    cache_dir = site.cache_dir or site.state_dir
    state = site.state_folder(study, name)
    cache = site.cache_folder(study, name)
    # Without {study} all studies share the folder, and only some of its runs are this study's.
    is_own = "{study}" in site.state_dir
    folders = [state] if is_own else find_runs(site, study, name)
    shared = {}
    # A cache within the study's own state folder is deleted with it.
    if not cache.is_relative_to(state) or not is_own:
        if "{study}" in cache_dir:
            folders.append(cache)
        elif cache.is_dir():
            shared[cache] = (
                "decoded images of any study lie there: put {study} into cache_dir, and delete these by hand"
            )
    _check_holds_no_data(folders, site, study, name)
    return KeptFolders({folder: _measure_folder(folder) for folder in folders if folder.is_dir()}, shared)


def delete_kept(kept: KeptFolders) -> None:
    """Delete the folders.

    Raises:
        ConfigError: A run still uses one of them; then none is deleted.
    """
    with ExitStack() as stack:
        # All locks before the first deletion: one run that still goes on keeps everything.
        for folder in kept.folders:
            for lock in sorted(folder.rglob(LOCK)):
                stack.enter_context(hold_lock(lock))
        for folder in kept.folders:
            # rmtree refuses a link: what it leads to goes first, then the link.
            shutil.rmtree(folder.resolve())
            if folder.is_symlink():
                folder.unlink()


def _check_holds_no_data(folders: list[Path], site: Site, study: str, name: str) -> None:
    """Refuse to delete a folder around the data of any study that site.yaml names."""
    data_folders = [site.data_folder(named, name) for named in site.data_by_study(study)]
    for folder in folders:
        for data in data_folders:
            if data.resolve().is_relative_to(folder.resolve()):
                raise ConfigError(
                    f"the data {data} lies in {folder}, which would be deleted; change site.yaml, and delete the state "
                    "by hand"
                )


def _measure_folder(folder: Path) -> tuple[int, int]:
    # A link counts by itself: what it leads to is not deleted.
    sizes = [path.lstat().st_size for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()]
    return len(sizes), sum(sizes)
