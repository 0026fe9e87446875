"""A site's policies as NVFlare reads them: which classes jobs may use, and which rights people have."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.apis.workspace import Workspace
from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST
from nvflare.app_common.widgets.component_path_authorizer import ALLOW_ALL, ComponentPathAuthorizer
from nvflare.fuel.sec.authz import AuthzContext, Person
from nvflare.security.security import FLAuthorizer

from silofl.base.errors import ConfigError
from silofl.flare.components import list_components
from silofl.flare.kit import Kit

# All that SiloFL's jobs have NVFlare build. Exact classes: an entry is a prefix, and NVFlare calls whatever a job names
# below it (functions and imported names too) with the job's own arguments.
SERVER_CLASSES = (
    *list_components("config_fed_server.json"),
    "nvflare.app_opt.tracking.tb.tb_receiver.TBAnalyticsReceiver",
)
JOB_FILES = "silofl.flare.job_files.JobFiles"
# A sentence for site check and check-kits.
WITHOUT_JOB_FILES = (
    f"app_validator in local/resources.json must be {JOB_FILES}, which keeps out a job's other files, code among them; "
    "take it from the resources.json of site_configs/"
)
STREAMER = "nvflare.app_common.logging.site_log_streamer.SiteLogStreamer"
LAUNCHERS, NVFLARE_LAUNCHERS = "silofl.flare.launchers", "nvflare.app_opt.job_launcher"
# Component of NVFlare's -> the one that stands in its place, and what NVFlare's does.
REPLACED = {
    "nvflare.app_common.logging.job_log_receiver.JobLogReceiver": (
        "silofl.flare.site_logs.SiteLogs",
        "by which whoever has a site's kit takes and overwrites the server's files",
    ),
    STREAMER: ("silofl.flare.site_logs.FinishedLog", "which adds a class to every job that no allow list has"),
    **{
        f"{NVFLARE_LAUNCHERS}.docker_launcher.{side}DockerJobLauncher": (
            f"{LAUNCHERS}.{side}DockerJobLauncher",
            "by which a job names the image that gets this machine's folders",
        )
        for side in ("Client", "Server")
    },
    # A pod or a batch job needs none of them: jobs are processes in the one in which the site is.
    **{
        f"{NVFLARE_LAUNCHERS}.{module}.{side}{launcher}JobLauncher": (
            f"nvflare.app_common.job_launcher.{side.lower()}_process_launcher.{side}ProcessJobLauncher",
            does,
        )
        for module, launcher, does in (
            ("k8s_launcher", "K8s", "which needs all secrets of the namespace, and by which a job names its image"),
            ("slurm", "Slurm", "by which a job names an image and a command of its own"),
        )
        for side in ("Client", "Server")
    },
}
# NVFlare's classes by which a job starts programs, or runs files, that it names itself. A list from an earlier release
# may name those that are no longer there.
COMMAND_CLASSES = frozenset(
    {
        *("ClientAPIExecutor", "ExternalProcessBackend", "TaskScriptRunner"),
        *("MultiProcessExecutor", "PTMultiProcessExecutor", "CommandDescriptor", "ProcessManager"),
        *("FlowerController", "FlowerExecutor", "FlowerClientApplet", "FlowerServerApplet"),
        *("AZCVMAuthorizer", "SNPAuthorizer", "TDXAuthorizer"),
        *("ProcessJobLauncher", "ClientProcessJobLauncher", "ServerProcessJobLauncher", "SlurmJobLauncher"),
        *("DockerJobLauncher", "ClientDockerJobLauncher", "ServerDockerJobLauncher"),
        *("K8sJobLauncher", "ClientK8sJobLauncher", "ServerK8sJobLauncher"),
        # Of NVFlare before 2.9.
        *("SubprocessLauncher", "LauncherExecutor", "ClientAPILauncherExecutor", "InProcessClientAPIExecutor"),
        *("PTClientAPILauncherExecutor", "PTInProcessClientAPIExecutor"),
        *("TFClientAPILauncherExecutor", "TFInProcessClientAPIExecutor"),
    }
)
# Rights of roles in an authorization.json of 0.3.0 that nobody has since -> what stands against them.
TAKEN_BACK = {
    ("submit_job", "project_admin"): "as leads alone submit studies",
    ("clone_job", "project_admin"): "as leads alone submit studies",
    ("operate", "lead"): "who could stop sites",
}
SITE_CLASSES = (*list_components("config_fed_client.json"), "silofl.flare.filters.BatchNormStaysHome")


@dataclass(frozen=True)
class ClassPolicy:
    """The classes that jobs may have a site build.

    Attributes:
        kit: The site's kit.
        file: The file of ``local/`` that decides.
        allowed: Its ``class_allow_list``.
        mode: Its ``class_list_enforcement_mode``.
    """

    kit: Kit
    file: str
    allowed: tuple[Any, ...]
    mode: str

    @property
    def gap(self) -> str | None:
        """Why unreviewed code can still get in, with the remedy; None where it cannot."""
        if ALLOW_ALL in self.allowed:
            return (
                f"class_allow_list in local/{self.file} must name the classes that may run, not {ALLOW_ALL!r}, which "
                "lets every class in; take the list of site_configs/"
            )
        for entry in self.allowed:
            if str(entry).endswith(".") or _is_module(str(entry)):
                return (
                    f"class_allow_list in local/{self.file} must name exact classes, not {entry!r}, which lets a job "
                    "call everything below it, a shell too; take the list of site_configs/"
                )
            if _starts_programs(str(entry)):
                return (
                    f"class_allow_list in local/{self.file} names {entry!r}, by which a job starts any program with "
                    "this account's rights; delete it, as SiloFL's jobs need none"
                )
        if self.mode != "enforce":
            return f"class_list_enforcement_mode in local/{self.file} must be 'enforce', not {self.mode!r}; change it"
        return None

    @property
    def others(self) -> list[str]:
        """The entries that no job of SiloFL needs."""
        return sorted(str(entry) for entry in {*self.allowed} - {*SERVER_CLASSES, *SITE_CLASSES})

    def allows(self, name: str) -> bool:
        """Ask NVFlare whether the site builds a class."""
        workspace = Workspace(root_dir=str(self.kit.folder))
        try:
            ComponentPathAuthorizer().authorize_component_config({"path": name}, workspace=workspace)
        except UnsafeComponentError:
            return False
        return True


def read_class_policy(kit: Kit) -> ClassPolicy:
    """Read which classes a site lets jobs build.

    Raises:
        ConfigError: The site has no resources.json, or it cannot be read.
    """
    file, resources = kit.local("resources.json")
    allowed = resources.get("class_allow_list", DEFAULT_CLASS_ALLOW_LIST)
    # NVFlare builds nothing where the list is none.
    entries = tuple(allowed) if isinstance(allowed, list | tuple) else ()
    return ClassPolicy(kit, file, entries, resources.get("class_list_enforcement_mode", "enforce"))


def checks_files(kit: Kit) -> bool:
    """Return whether a site refuses jobs that bring other files than SiloFL's.

    Raises:
        ConfigError: The site has no resources.json, or it cannot be read.
    """
    validator = kit.local("resources.json")[1].get("app_validator")
    return isinstance(validator, dict) and validator.get("path") == JOB_FILES


def count_job_gpus(kit: Kit) -> int:
    """Return how many GPUs a site's NVFlare offers to jobs.

    Raises:
        ConfigError: The site has no resources.json, or it cannot be read.
    """
    most = 0
    for component in kit.local("resources.json")[1].get("components") or ():
        number = (component.get("args") or {}).get("num_of_gpus")
        if type(number) is int:
            most = max(most, number)
    return most


def launches_containers(kit: Kit) -> bool:
    """Return whether a kit was prepared to start each job in a container, by SiloFL's launcher.

    Raises:
        ConfigError: The site has no resources.json, or it cannot be read.
    """
    parts = kit.local("resources.json")[1].get("components") or ()
    return any(str(part.get("path")).startswith(f"{LAUNCHERS}.") for part in parts)


def list_replaced(kit: Kit) -> Iterator[str]:
    """Yield a sentence for each component of NVFlare's in local/resources.json that ours must stand in place of."""
    for part in kit.local("resources.json")[1].get("components") or ():
        # A streamer that may send nothing changes no job either.
        if (path := part.get("path")) in REPLACED and (path != STREAMER or streams_logs(kit)):
            replacement, does = REPLACED[path]
            yield (
                f"local/resources.json has {path}, {does}; put {replacement} there, as in the resources.json of "
                "site_configs/"
            )


def streams_logs(kit: Kit) -> bool:
    """Return whether a site lets its log, which may name a patient's file, go to the server while a job runs.

    Raises:
        ConfigError: The site has no resources.json, or it cannot be read.
    """
    # NVFlare reads it so, and lets logs out where the file says nothing.
    return bool(kit.local("resources.json")[1].get("allow_log_streaming", True))


@dataclass(frozen=True)
class Rights:
    """The rights of people at a site.

    Attributes:
        file: The file of ``local/`` that decides.
        authorizer: NVFlare's reading of it.
    """

    file: str
    authorizer: FLAuthorizer

    @property
    def roles(self) -> list[str]:
        """The roles that it names."""
        return list(self.authorizer.get_policy().get_roles())

    def has(self, right: str, name: str, org: str, role: str) -> bool:
        """Ask NVFlare whether a person has a right, for jobs of their own."""
        person = Person(name, org, role)
        return bool(self.authorizer.evaluate(AuthzContext(right, person, person))[0])


def read_site_rights(kit: Kit) -> Rights:
    """Read the rights of people at a site.

    Raises:
        ConfigError: The site has no authorization.json, or it is no policy.
    """
    file, policy = kit.local("authorization.json")
    try:
        return Rights(file, FLAuthorizer(kit.org, policy))
    except SyntaxError as error:
        raise ConfigError(f"local/{file} of {kit.name!r} is no policy: {error}; correct it") from None


def list_old_rights(kit: Kit) -> Iterator[str]:
    """Yield a sentence for each right at a site that an earlier release gave to a role, and none gives any more.

    Raises:
        ConfigError: The site has no authorization.json, or it is no policy.
    """
    rights = read_site_rights(kit)
    for (right, role), reason in TAKEN_BACK.items():
        if role in rights.roles and rights.has(right, "anybody", kit.org, role):
            yield f"{right} in local/{rights.file} is not none for {role}, {reason}; set it to none"


def _is_module(name: str) -> bool:
    """Return whether a dotted name is a module here, so that NVFlare reads it as a prefix of all that is in it."""
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _starts_programs(name: str) -> bool:
    """Return whether what an allow list names starts programs by a job's own arguments, as far as is known."""
    package, *_, class_name = name.split(".")
    # What the standard library has under exact names is no component: `subprocess.Popen`, `os.system`.
    return package in sys.stdlib_module_names or class_name in COMMAND_CLASSES
