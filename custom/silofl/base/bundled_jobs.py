"""The jobs that come with the package, which every command takes by name."""

import os
from glob import iglob
from itertools import islice
from pathlib import Path

from silofl.base.errors import suggest_nearest

# In a clone a link to the folder jobs/ at its top, in a wheel a copy of it.
JOBS = Path(__file__).parents[1] / "jobs"
META = "meta.json"
# Jobs in a folder that are compared with a mistyped name.
MOST_NAMES = 1000


def find_job(job: str | Path) -> Path:
    """Return the folder of a job.

    Args:
        job: A job folder, ``~`` for the home, or the name of a bundled job. Where the name is also that of a job folder
            here, it means that folder.
    """
    path = Path(os.path.expanduser(job))
    is_bundled = path.name in list_bundled_jobs() and len(path.parts) == 1
    if is_bundled and not (path / META).is_file():
        return JOBS / path
    return path


def list_bundled_jobs() -> list[str]:
    """Return the names of the bundled jobs."""
    return sorted(path.parent.name for path in JOBS.glob(f"*/{META}"))


def suggest_job(job: Path) -> str:
    """Return, for a job folder that is not there, which job there or bundled has the nearest name, or all bundled."""
    bundled = list_bundled_jobs()
    neighbours = map(os.path.dirname, iglob(f"*/{META}", root_dir=job.parent))
    nearest = suggest_nearest(job.name, islice(neighbours, MOST_NAMES)) or suggest_nearest(job, bundled)
    return nearest or f"; bundled jobs: {', '.join(bundled)}"
