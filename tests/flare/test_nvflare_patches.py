"""What of NVFlare's own code SiloFL replaces or overrides is what was read before it was replaced."""

import hashlib
import inspect
import pkgutil

import nvflare
import pytest

from silofl.flare import nvflare_patches

# Read the new code first, then whether the replacement still does what its docstring says; only then change a digest.
READ = {
    # Replaced by nvflare_patches.
    "nvflare.fuel.f3.communicator:Communicator": "3bd875246101",
    "nvflare.fuel.f3.sfm.conn_manager:ConnManager": "232edb3417fa",
    "nvflare.fuel.f3.drivers.aio_http_driver:AioHttpDriver": "225dada2ecca",
    "nvflare.fuel.f3.drivers.driver_manager:DriverManager": "e94eeab63b5b",
    "nvflare.private.fed.server.job_meta_validator:JobMetaValidator": "ee279c061a5a",
    "nvflare.private.fed.server.job_cmds:JobCommandModule.submit_job": "387c829a3133",
    "nvflare.private.fed.client.client_req_processors:ClientRequestProcessors": "13ed003d856b",
    "nvflare.app_common.decomposers.numpy_decomposers:NumpyArrayDecomposer": "cfc204f69ff5",
    "nvflare.fuel.f3.streaming.byte_streamer:TxTask": "ba54491358d7",
    "nvflare.fuel.f3.streaming.byte_receiver:RxTask": "27ac2d5eecce",
    "nvflare.private.fed.server.server_runner:ServerRunner._process_submission": "05d6a5674f14",
    "nvflare.apis.impl.wf_comm_server:WFCommServer": "afa404ca8d36",
    "nvflare.private.fed.server.job_runner:JobRunner": "6330dc4fb7b0",
    "nvflare.private.fed.client.client_runner:ClientRunner": "2786d4890112",
    # Private methods that SiloFL's classes override.
    "nvflare.app_common.workflows.base_model_controller:BaseModelController": "3631a60544dd",
    "nvflare.app_common.resource_managers.gpu_resource_manager:GPUResourceManager": "487d0dc8f81b",
    "nvflare.app_common.logging.job_log_receiver:JobLogReceiver": "1126f588044d",
    "nvflare.private.fed.client.training_cmds:DeployProcessor": "2255fa9d7f1f",
    "nvflare.private.fed.client.training_cmds:DeleteRunNumberProcessor": "e5831c4135e7",
}


def digest(name):
    return hashlib.sha256(inspect.getsource(pkgutil.resolve_name(name)).encode()).hexdigest()[:12]


@pytest.mark.parametrize("name", READ)
def test_replaced_code_of_nvflare_is_what_was_read(name):
    assert digest(name) == READ[name]


def test_the_page_of_patches_names_nvflares_version():
    assert f"NVFlare {nvflare.__version__}" in nvflare_patches.__doc__
