"""``silofl site prune``: delete the folders of ended jobs and the full logs in a site's kit, as ``keep_days`` says.

NVFlare leaves a folder for each job in the kit: the job's configuration, its logs and its audit log. What SiloFL keeps
of a run, the record of what left included, lies in ``state_dir``: of that only rounds that never ended are deleted.
"""

import argparse
import re
import shutil
import time
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path

from silofl.base.errors import ConfigError, ExitCode
from silofl.base.files import hold_lock
from silofl.base.settings import load_settings
from silofl.federation.egress_log import FILE
from silofl.flare.kit import read_kit
from silofl.flare.paths import JOB_LOCK
from silofl.parts.half_round import ANSWER, HALF
from silofl.setup.site import Site
from silofl_hospital.site.kept import find_studies

DAY_S = 86400
# NVFlare names a job by a UUID, and puts its study where our executor reads it.
JOB = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
STUDY = "app_*/config/study.yaml"
# NVFlare numbers its full logs; it still writes to the files without a number.
FULL_LOG = re.compile(r"(log|error_log|log_fl)\.(txt|json)\.\d+")


def run(options: argparse.Namespace) -> int:
    """Delete what is older than ``keep_days`` of site.yaml, or say what would be."""
    kit = read_kit(options.kit, ("hospital",))
    settings = load_settings(Site, options.site_config or kit.folder / "local" / "site.yaml")
    days = settings.keep_days
    if days is None:
        print("nothing was deleted: keep_days is not set in site.yaml, so that everything is kept")
        return ExitCode.COMPLETE
    outdated = find_outdated(kit.folder, days, time.time()) | find_half_rounds(settings, kit.name, days, time.time())
    done = "would be deleted" if options.dry_run else "deleted"
    for path, age in outdated.items():
        reason = _delete(path, options.dry_run)
        print(f"kept: {path}; {reason}" if reason else f"{done}: {path}, last written {age} days ago")
    what = f"{len(outdated)} job folders, full logs and half rounds"
    print(f"{what} are older than {days} days; the record of what left is kept")
    return ExitCode.COMPLETE


def find_outdated(kit: Path, days: int, now: float) -> dict[Path, int]:
    """Return folders of jobs and full logs in a kit that were last written more than so many days ago -> days since.

    Args:
        kit: The site's startup kit.
        now: The present time, in seconds since 1970.
    """
    paths: dict[Path, int] = {}
    for path in sorted(kit.iterdir()):
        age = int((now - _last_written(path)) // DAY_S)
        if path.is_symlink() or age < days:
            continue
        is_job = JOB.fullmatch(path.name) is not None and any(path.glob(STUDY))
        is_log = FULL_LOG.fullmatch(path.name) is not None and path.is_file()
        if is_job or is_log:
            paths[path] = age
    return paths


def find_half_rounds(site: Site, name: str, days: int, now: float) -> dict[Path, int]:
    """Return what rounds that never ended have left in the site's state, and days since: `find_outdated` has the rest.

    Args:
        name: The site's.
    """
    paths: set[Path] = set()
    for study in find_studies(site, name):
        for file in (HALF, ANSWER):
            paths.update(site.state_folder(study, name).glob(f"*/{file}"))
    ages = {path: int((now - _last_written(path)) // DAY_S) for path in sorted(paths)}
    return {path: age for path, age in ages.items() if age >= days}


def _delete(path: Path, is_trial: bool) -> str | None:
    """Delete a file, or the folder of a job that has ended; return why it stays where it does.

    Args:
        is_trial: Whether to look only.
    """
    if any(path.rglob(FILE)):
        return "it holds a record of what left; set state_dir to a folder outside of it"
    lock = path / JOB_LOCK
    try:
        # Held until all is gone: no job begins in it meanwhile. Without a lock no executor of ours was in it.
        with hold_lock(lock) if lock.exists() else nullcontext():
            if is_trial:
                return None
            if path.is_file():
                path.unlink()
            else:
                shutil.rmtree(path)
    except ConfigError:
        return "its job still runs"
    return None


def _last_written(path: Path) -> float:
    """Return when a file, or the last one of a folder, was written, in seconds since 1970."""
    inner: Iterable[Path] = path.rglob("*") if path.is_dir() and not path.is_symlink() else ()
    return max(file.lstat().st_mtime for file in (path, *inner))
