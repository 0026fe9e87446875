"""A recipe of NVFlare whose job lies in a folder, in place of one that is put together from Python objects."""

from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvflare.job_config.api import FedJob
from nvflare.job_config.fed_job_config import FedJobConfig
from nvflare.recipe.poc_env import PocEnv
from nvflare.recipe.sim_env import SimEnv
from nvflare.recipe.spec import ExecEnv, Recipe

from silofl.base.errors import ConfigError
from silofl.base.files import copy_folder
from silofl_desk.flare.download import keep_downloads_inside

Simulate = Callable[[Path, tuple[str, ...]], int]


class FolderRecipe(Recipe):
    """A recipe whose job lies in a folder.

    Args:
        name: The job's name.
        folder: The job's folder.
    """

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(_FolderJob(name, folder, self.simulate))

    def export(
        self,
        job_dir: str,
        server_exec_params: dict[str, Any] | None = None,
        client_exec_params: dict[str, Any] | None = None,
        env: ExecEnv | None = None,
    ) -> None:
        """Write the job to a new folder of its name, whatever environment will carry it out.

        Args:
            job_dir: Where that folder goes.
            server_exec_params: None; a job in a folder takes no others.
            client_exec_params: The same.
            env: Not prepared: data and kits need not be on this machine.

        Raises:
            ConfigError: The folder exists.
        """
        super().export(job_dir, server_exec_params, client_exec_params)

    def process_env(self, env: ExecEnv) -> None:
        """Check what is submitted to a network; NVFlare calls it.

        Raises:
            ConfigError: The job cannot run there.
        """
        # An environment downloads results too.
        keep_downloads_inside()
        if isinstance(env, PocEnv):
            raise ConfigError("A recipe does not run in PocEnv. Take SimEnv, or ProdEnv with a kit.")
        if isinstance(env, SimEnv) and not env.clients:
            raise ConfigError("SimEnv numbers the sites with num_clients; name them in clients")
        if not isinstance(env, SimEnv):
            self.check_submission()

    @abstractmethod
    def simulate(self, workspace: Path, sites: tuple[str, ...]) -> int:
        """Carry out a simulation, and return its exit code.

        Args:
            workspace: Folder of the simulation.
            sites: What the environment calls its clients.
        """

    @abstractmethod
    def check_submission(self) -> None:
        """Refuse a job that no network takes."""


class _FolderJob(FedJob):
    """A job whose files lie in a folder."""

    def __init__(self, name: str, folder: Path, simulate: Simulate) -> None:
        super().__init__(name=name)
        self.job = _FolderConfig(name, folder, simulate)

    def to(self, obj: Any, target: str, id: Any = None, **kwargs: Any) -> Any:  # noqa: A002, ANN401
        """Refuse what would be left out of the job, as a filter or a tracker.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            f"a recipe's job takes no {type(obj).__name__}; add it to config_fed_client.json or config_fed_server.json "
            "in the job's folder, and make the recipe of that folder"
        )

    def add_file_to(self, src_path: str, target: str, dest_dir: Any = None, app_folder_type: Any = None) -> None:  # noqa: ANN401
        """Refuse a file that would be left out of the job; the errors of `to`."""
        self.to(src_path, target)

    def _set_all_apps(self) -> None:
        """Leave the apps as they lie in the folder."""


class _FolderConfig(FedJobConfig):
    """NVFlare's writer of a job, of one that lies in a folder."""

    def __init__(self, name: str, folder: Path, simulate: Simulate) -> None:
        super().__init__(name, min_clients=1)
        self._folder = folder
        self._simulate = simulate

    def simulator_run(self, workspace: str, clients: str, **options: Any) -> int:  # noqa: ANN401
        """Carry out the job in the recipe's simulation, and return its exit code.

        Raises:
            ConfigError: It is to share GPUs out.
        """
        if options.get("gpu"):
            raise ConfigError("A recipe takes no gpu_config. Name the GPUs of all sites in CUDA_VISIBLE_DEVICES.")
        return self._simulate(Path(workspace), tuple(clients.split(",")))

    def generate_job_config(self, job_root: str) -> None:
        """Copy the job to a new folder of its name.

        Raises:
            ConfigError: The folder exists.
        """
        target = Path(job_root) / self.job_name
        if target.exists():
            raise ConfigError(f"{target} already exists; export the job to another folder")
        copy_folder(self._folder, target)
