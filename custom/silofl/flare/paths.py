"""Where a running job finds its study, and the settings of the machine that it runs on."""

import fcntl
import logging
import os
from pathlib import Path
from typing import IO, Any

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import JobMetaKey
from nvflare.lighter.utils import verify_folder_signature_and_get_signers

from silofl.base.errors import ConfigError, PinError
from silofl.base.files import open_own
from silofl.base.settings import S, load_settings
from silofl.core.mixing import Arrays
from silofl.flare.job_meta import find_unreached
from silofl.models.weights import read_start
from silofl.setup.extensions import list_allowed_extensions
from silofl.setup.site import Server, Site
from silofl.study import Study, load_study

# In a kit, held by the site's lasting process for as long as it lives, and in a job's folder by the job's.
JOB_LOCK = "silofl.lock"

logger = logging.getLogger(__name__)


def read_job_study(fl_ctx: FLContext) -> Study:
    """Read the job's study.yaml, which is in the folder of the job's configuration."""
    return load_study(_config_folder(fl_ctx) / "study.yaml")


def read_job_pretrained(fl_ctx: FLContext, study: Study) -> Arrays | None:
    """Read the pretrained model or the weights in the folder of study.yaml, where the study names such a file."""
    start = read_start(_config_folder(fl_ctx), study)
    if start is None:
        return None
    if start.sentence:
        logger.info(start.sentence)
    return start.arrays


def read_job_lead(fl_ctx: FLContext) -> str | None:
    """Return who submitted the running job, by the name in the certificate; None in the simulator."""
    meta = fl_ctx.get_prop(FLContextKey.JOB_META) or {}
    return meta.get(JobMetaKey.SUBMITTER_NAME.value)


def check_pinned(fl_ctx: FLContext, study: Study, site: Site) -> None:
    """Refuse a study that is not as the site has pinned it; the errors of `Site.check_pinned`."""
    root = _workspace(fl_ctx).get_file_path_in_startup("rootCA.pem")
    # The site's own proof, beside the server's word. An unsigned configuration is signed by nobody.
    is_signed, signers = verify_folder_signature_and_get_signers(str(_config_folder(fl_ctx)), root)
    names = {name for name, _, _ in signers} if is_signed else {None}
    site.check_pinned(study.name, study.digest, {read_job_lead(fl_ctx), *names}, study.federation.named)
    check_deployed(fl_ctx, study)


def check_deployed(fl_ctx: FLContext, study: Study) -> None:
    """Refuse a job that does not go to more of the hospitals that its study names than may be missing.

    Raises:
        PinError: It does not.
    """
    meta = fl_ctx.get_prop(FLContextKey.JOB_META) or {}
    settings = study.federation
    missing = find_unreached(meta, settings.named)
    # A simulated job says nothing of whom it goes to.
    if meta.get(JobMetaKey.DEPLOY_MAP.value) and len(missing) > settings.may_miss:
        raise PinError(
            f"deploy_map of the job leaves out {', '.join(missing)}, which federation.sites of study {study.name!r} "
            f"names; at most {settings.may_miss} may be missing (federation.may_miss): submit it to all"
        )


def find_job_folder(fl_ctx: FLContext) -> Path:
    """Return the running job's folder."""
    return Path(_workspace(fl_ctx).get_run_dir(fl_ctx.get_job_id()))


def mark_in_use(folder: Path) -> IO[str] | None:
    """Mark a job's folder, or a kit, as in use, until the returned file is closed or the process ends.

    Returns:
        The open file; None where the disk knows no locks or the folder is not there.
    """
    try:
        lock = open_own(folder / JOB_LOCK, "a")
        fcntl.flock(lock, fcntl.LOCK_SH)
    except OSError as error:
        logger.warning("%s could not be marked as in use: %s", folder.name, error.strerror)
        return None
    return lock


def read_site_settings(fl_ctx: FLContext) -> Site:
    """Read the site's ``local/site.yaml``; without one, ``SILOFL_DATA`` must name the data of all simulated sites."""
    root = os.environ.get("SILOFL_DATA")
    state = f"{root}/.silofl/{{study}}/{{site}}"
    default = None
    if root:
        alone = {"min_patients": 0, "min_partners": 0}
        default = Site(data=f"{root}/{{site}}", state_dir=state, extensions=list_allowed_extensions(), **alone)
    return _read_local(fl_ctx, "site.yaml", Site, default, "or set SILOFL_DATA to the folder of the sites' data")


def read_server_settings(fl_ctx: FLContext) -> Server:
    """Read the server's ``local/server.yaml``; without one, results go to the job's folder."""
    default = Server(run_dir=str(download_folder(fl_ctx)), extensions=list_allowed_extensions())
    return _read_local(fl_ctx, "server.yaml", Server, default, "")


def download_folder(fl_ctx: FLContext) -> Path:
    """Return the folder in the job's folder at the server that ``job download`` brings to the study lead."""
    return find_job_folder(fl_ctx) / "silofl"


def _read_local(fl_ctx: FLContext, name: str, section: type[S], default: S | None, remedy: str) -> S:
    path = local_file(Path(_workspace(fl_ctx).get_root_dir()), name)
    if path is not None:
        return load_settings(section, path)
    if default is None:
        raise ConfigError(f"site {fl_ctx.get_identity_name()!r} has no local/{name}; write it, {remedy}")
    return default


def local_file(root: Path, name: str) -> Path | None:
    """Return a file in the ``local/`` folder of a site's workspace, or in that of all simulated sites around it."""
    # The simulator's sites share the local folder of the workspace that holds theirs.
    for folder in (root, root.resolve().parent):
        path = folder / "local" / name
        if path.is_file():
            return path
    return None


def _config_folder(fl_ctx: FLContext) -> Path:
    return Path(_workspace(fl_ctx).get_app_config_dir(fl_ctx.get_job_id()))


def _workspace(fl_ctx: FLContext) -> Any:  # noqa: ANN401
    return fl_ctx.get_engine().get_workspace()
