"""Launchers of jobs in Docker containers that are the machine's own choice: NVFlare 2.9 lets a job name the image.

Whoever names the image of a hospital's container has the images and the state that are mounted into it.
"""

from collections.abc import Mapping
from typing import Any

from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import JobMetaKey
from nvflare.apis.job_launcher_spec import JobHandleSpec, JobLauncherSpec
from nvflare.app_opt.job_launcher import docker_launcher
from nvflare.utils.job_launcher_utils import PORTABLE_RESOURCE_KEYS


class OwnContainer(JobLauncherSpec):
    """Refuses a job that says more of its container than how much of the machine it needs."""

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> JobHandleSpec:
        """Start the job's container.

        Raises:
            RuntimeError: The job names an image, an account or anything else of a container.
        """
        check_container(job_meta)
        return super().launch_job(job_meta, fl_ctx)


class ClientDockerJobLauncher(OwnContainer, docker_launcher.ClientDockerJobLauncher):
    """A hospital's."""


class ServerDockerJobLauncher(OwnContainer, docker_launcher.ServerDockerJobLauncher):
    """The server's."""


def check_container(job_meta: Mapping[str, Any]) -> None:
    """Refuse a job that chooses its container, by its ``meta.json``.

    Raises:
        RuntimeError: As `OwnContainer.launch_job`.
    """
    resources = job_meta.get(JobMetaKey.RESOURCE_SPEC.value) or {}
    named = {key for site in resources.values() for key in site or ()} - set(PORTABLE_RESOURCE_KEYS)
    named |= {JobMetaKey.JOB_LAUNCHER_SPEC.value} if job_meta.get(JobMetaKey.JOB_LAUNCHER_SPEC.value) else set()
    if named:
        raise RuntimeError(
            f"meta.json of the job has {sorted(named)[0]!r}; delete it, because each machine chooses the container of "
            "a job itself"
        )
