"""All that SiloFL replaces inside NVFlare 2.9.0, for which NVFlare has no setting and no public hook.

Each function names NVFlare's file and what breaks without it. ``tests/flare/test_nvflare_patches.py`` fails as soon as
NVFlare changes what is replaced here, or a private method that one of SiloFL's classes overrides.

NVFlare's modules are imported where they are needed, because each process needs a few of them.
"""

from collections.abc import Callable, Iterable
from typing import Any


def read_json_only() -> None:
    """Have this process read configurations as JSON alone.

    In fuel/utils/config_factory.py. Without it NVFlare reads a job's configuration in forms that nobody has checked,
    before it asks whether the job may be deployed.
    """
    from nvflare.fuel.utils.config import ConfigFormat
    from nvflare.fuel.utils.config_factory import ConfigFactory

    for form in (ConfigFormat.PYHOCON, ConfigFormat.OMEGACONF):
        ConfigFactory._fmt2Loader.pop(form, None)


def replace_connections(manager: type) -> None:
    """Have connections from the next cell on be those of one machine for each name.

    In fuel/f3/communicator.py. Without it the newest connection of a name displaces the one before, and a copy of a
    hospital's kit puts the true one out. NVFlare's filters see a message when the older connection is gone already.

    Args:
        manager: A class in place of ConnManager.
    """
    from nvflare.fuel.f3 import communicator

    communicator.ConnManager = manager


def replace_driver(driver: type) -> None:
    """Have lines from the next connection on be those of another driver.

    In fuel/f3/drivers/aio_http_driver.py, whose module NVFlare asks for its driver when it first connects. Without it a
    server takes messages of 2 GiB before it knows whose they are, and a site uses no proxy.

    Args:
        driver: A class in place of AioHttpDriver.
    """
    from nvflare.fuel.f3.drivers import aio_http_driver

    aio_http_driver.AioHttpDriver = driver


def replace_job_check(validator: type) -> None:
    """Have a server look at each job that a lead submits in another way.

    In private/fed/server/job_cmds.py, which takes the class from its module when a job comes. Without it a job may fill
    the server's disk.

    Args:
        validator: A class in place of JobMetaValidator.
    """
    from nvflare.private.fed.server import job_cmds

    job_cmds.JobMetaValidator = validator


def replace_commands(choose: Callable[[list[Any]], Iterable[Any]]) -> None:
    """Have a hospital carry out other commands.

    In private/fed/client/client_req_processors.py. Without it one command shows any file that the account can read, one
    deletes folders of the kit, and one puts a job in the place of any.

    Args:
        choose: Returns the processors that stay, in place of all.
    """
    from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

    # In place: NVFlare's deployer holds this very list.
    ClientRequestProcessors.request_processors[:] = choose(ClientRequestProcessors.request_processors)


def replace_array_transfer(to_downloadable: Callable[..., Any], download: Callable[..., Any]) -> None:
    """Have this process send and fetch NumPy arrays in another way.

    In app_common/decomposers/numpy_decomposers.py, which has settings for torch's tensors only. Without it either end
    makes some four copies of each array at once, and keeps all that it receives in memory.

    Args:
        to_downloadable: In place of NumpyArrayDecomposer's method of that name.
        download: Likewise.
    """
    from nvflare.app_common.decomposers import numpy_decomposers
    from nvflare.fuel.utils import fobs
    from nvflare.fuel.utils.fobs import dots

    # The handler is there only once NVFlare has registered it.
    numpy_decomposers.register()
    handler = fobs.get_dot_handler(dots.NUMPY_DOWNLOAD)
    handler.to_downloadable = to_downloadable
    handler.download = download


def replace_message_ends(let_go: Callable[..., None], forget_later: Callable[..., None]) -> None:
    """Have this process end the messages that it has sent and received in another way.

    In fuel/f3/streaming/byte_streamer.py and byte_receiver.py. Without it a message that was sent stays in memory until
    Python's collector comes, and each that has come has a thread of its own.

    Args:
        let_go: In place of TxTask.remove_task.
        forget_later: In place of RxTask._schedule_remove_task.
    """
    from nvflare.fuel.f3.streaming.byte_receiver import RxTask
    from nvflare.fuel.f3.streaming.byte_streamer import TxTask

    TxTask.remove_task = let_go
    RxTask._schedule_remove_task = forget_later


def outlive_failures(runner: Any, communicator: Any) -> None:  # noqa: ANN401 - of NVFlare
    """Have a job go on where a site fails, or is silent.

    In private/fed/server/server_runner.py and apis/impl/wf_comm_server.py. Without it the job ends for everybody where
    one site answers that it is unsafe or knows no such task, instead of by the study's quorum; and a site that was not
    heard for eleven minutes loses its task, for which it may return.

    Args:
        runner: The job's ServerRunner.
        communicator: The controller's WFCommServer.
    """
    runner.ABORT_RETURN_CODES = ()
    communicator.process_dead_client_report = lambda name, context: None


def send_uncopied(task: Any) -> None:  # noqa: ANN401 - NVFlare's Task
    """Have a task's model be sent as it is.

    In apis/impl/wf_comm_server.py. Without it NVFlare sends a copy of the model, and makes one for each site.
    """
    task._broadcast_data = task.data


def replace_job_threads(
    runner: Any,  # noqa: ANN401 - NVFlare's JobRunner
    manager: Any,  # noqa: ANN401 - NVFlare's manager of jobs
    start_jobs: Callable[..., None],
    end_jobs: Callable[..., None],
    list_jobs: Callable[..., object],
) -> None:
    """Have a server start and end jobs in another way.

    In private/fed/server/job_runner.py. Without it an error ends the thread that starts jobs, or the one that ends
    them, for good: the server runs on, and all later jobs wait for ever.

    Args:
        runner: Before it runs.
        manager: What the runner asks for jobs in each pass.
        start_jobs: In place of JobRunner.run.
        end_jobs: In place of JobRunner._job_complete_process.
        list_jobs: In place of the manager's get_jobs_to_schedule.
    """
    runner.run = start_jobs
    runner._job_complete_process = end_jobs
    manager.get_jobs_to_schedule = list_jobs


def find_pending_sites(runner: Any, job: str) -> set[str] | None:  # noqa: ANN401 - NVFlare's JobRunner
    """Return the sites whose end a job waits for, to be changed under ``runner.lock``; None where it has ended.

    In private/fed/server/job_runner.py. Without it a server does not wait for a site that came during the job.
    """
    sites: set[str] | None = runner._pending_client_outcomes.get(job)
    return sites


def set_answer_times(runner: Any, submit_s: float, check_s: float) -> None:  # noqa: ANN401 - NVFlare's ClientRunner
    """Set how long a site tries to send an answer, and waits to hear whether it may.

    In private/fed/client/client_runner.py, which reads them from the job before a study is known. Without it an answer
    over a thin line is sent anew after 300 s.
    """
    runner.submit_task_result_timeout = submit_s
    runner.task_check_timeout = check_s
