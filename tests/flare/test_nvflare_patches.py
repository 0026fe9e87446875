"""What of NVFlare's own code SiloFL replaces or overrides is what was read before it was replaced."""

import ast
import hashlib
import inspect
from importlib import import_module

import nvflare
import pytest

from silofl.flare import nvflare_patches

# Read the new code first, then whether the replacement still does what its docstring says; only then change a digest.
READ = {
    # Replaced by nvflare_patches.
    "nvflare.fuel.utils.config_factory:ConfigFactory": "fd600ffc8883",
    "nvflare.fuel.f3.communicator:Communicator": "d35077434d42",
    "nvflare.fuel.f3.sfm.conn_manager:ConnManager": "d6c94c7f2808",
    "nvflare.fuel.f3.drivers.aio_http_driver:AioHttpDriver": "6881e7e5ca09",
    "nvflare.fuel.f3.drivers.driver_manager:DriverManager": "bb93fb9e8a46",
    "nvflare.private.fed.server.job_meta_validator:JobMetaValidator": "fc1acedaee3e",
    "nvflare.private.fed.server.job_cmds:JobCommandModule.submit_job": "337cc1226536",
    "nvflare.private.fed.client.client_req_processors:ClientRequestProcessors": "c36332e9b992",
    "nvflare.app_common.decomposers.numpy_decomposers:NumpyArrayDecomposer": "f4a58e061788",
    "nvflare.fuel.f3.streaming.byte_streamer:TxTask": "d0a3f1920a65",
    "nvflare.fuel.f3.streaming.byte_receiver:RxTask": "e47b684d1972",
    "nvflare.private.fed.server.server_runner:ServerRunner._process_submission": "83288a25d46d",
    "nvflare.apis.impl.wf_comm_server:WFCommServer": "9dec399492a8",
    "nvflare.private.fed.server.job_runner:JobRunner": "172bb9900654",
    "nvflare.private.fed.client.client_runner:ClientRunner": "a8b895a8b7e8",
    # Private methods that SiloFL's classes override.
    "nvflare.app_common.workflows.base_model_controller:BaseModelController": "f8f8815386b4",
    "nvflare.app_common.resource_managers.gpu_resource_manager:GPUResourceManager": "5f6ce54c5afd",
    "nvflare.app_common.logging.job_log_receiver:JobLogReceiver": "05aed01a1d64",
    "nvflare.private.fed.client.training_cmds:DeployProcessor": "3135d91a2476",
    "nvflare.private.fed.client.training_cmds:DeleteRunNumberProcessor": "352d536a4076",
}


def digest(name):
    """Return the digest of a class's or function's source in its file, which a patch of this process leaves alone."""
    module, _, path = name.partition(":")
    source = inspect.getsource(import_module(module))
    node = ast.parse(source)
    for part in path.split("."):
        (node,) = (inner for inner in node.body if getattr(inner, "name", None) == part)
    return hashlib.sha256(ast.get_source_segment(source, node).encode()).hexdigest()[:12]


@pytest.mark.parametrize("name", READ)
def test_replaced_code_of_nvflare_is_what_was_read(name):
    assert digest(name) == READ[name]


def test_the_page_of_patches_names_nvflares_version():
    assert f"NVFlare {nvflare.__version__}" in nvflare_patches.__doc__
