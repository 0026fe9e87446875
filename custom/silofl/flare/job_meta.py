"""What a lead may say of a job in its ``meta.json``, checked by the server before it takes the job.

NVFlare 2.9 lets the lead choose the job's id, which is the name of the folder that each machine deletes and fills, and
begins no job of anybody any more while one waits whose values it cannot count with.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from nvflare.apis.job_def import ALL_SITES, USER_SETTABLE_JOB_META_KEYS, JobMetaKey
from nvflare.private.fed.utils.fed_utils import extract_participants
from nvflare.utils.job_launcher_utils import get_resource_manager_spec

from silofl.base.errors import quote_value

# The server sets the study itself, whatever a job says.
OF_LEADS = {
    *USER_SETTABLE_JOB_META_KEYS,
    *(JobMetaKey.JOB_NAME, JobMetaKey.DEPLOY_MAP, JobMetaKey.MIN_CLIENTS, JobMetaKey.MANDATORY_CLIENTS),
    JobMetaKey.STUDY,
}
OF_SERVER = frozenset(key.value for key in JobMetaKey if key not in OF_LEADS)
LONGEST_NAME = 200


def refuse_meta(meta: Mapping[str, Any]) -> str | None:
    """Return why a server does not take a job, by its ``meta.json``; None where it may."""
    key = min(OF_SERVER & meta.keys(), default=None)
    if key is not None:
        return f"meta.json of the job has {key}, which the server sets; remove it"
    name = meta.get(JobMetaKey.JOB_NAME.value)
    # NVFlare's console prints it as it is.
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= LONGEST_NAME:
        return (
            f"meta.json of a job must have a name of 1 to {LONGEST_NAME} printable characters, not {quote_value(name)}"
        )
    count = meta.get(JobMetaKey.MIN_CLIENTS.value, 1)
    if type(count) is not int:
        return f"meta.json of a job must have a whole number as min_clients, not {quote_value(count)}"
    resources = meta.get(JobMetaKey.RESOURCE_SPEC.value) or {}
    site = next((site for site in resources if not _is_readable(meta, site)), None)
    if site is not None:
        return (
            f"meta.json of a job must have keys and values as resource_spec of each site, not as of {quote_value(site)}"
        )
    return None


def find_unreached(meta: Mapping[str, Any], named: Sequence[str]) -> list[str]:
    """Return the hospitals that a job does not go to by its deploy_map, of those that its study names."""
    apps = meta.get(JobMetaKey.DEPLOY_MAP.value)
    targets = apps.values() if isinstance(apps, dict) else ()
    try:
        reached = {site for names in targets for site in extract_participants(names)}
    except ValueError:
        # NVFlare takes no such job.
        reached = set()
    return [] if ALL_SITES in reached else [site for site in named if site not in reached]


def _is_readable(meta: Mapping[str, Any], site: str) -> bool:
    try:
        return isinstance(get_resource_manager_spec(dict(meta), site), dict)
    except Exception:  # NVFlare checks none of it before it counts with it
        return False
