"""Two jobs at a site with one GPU, by NVFlare's own steps: check, and free after the job."""

import pytest
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.resource_managers.gpu_resource_manager import GPUResourceManager

from silofl.flare.gpus import WholeGPU


def ask(manager, requirement=None):
    is_free, token = manager.check_resources(requirement or {}, FLContext())
    return is_free and manager.allocate_resources(requirement or {}, token, FLContext())


@pytest.mark.parametrize(("kind", "second"), [(GPUResourceManager, {}), (WholeGPU, False)])
def test_undemanding_job_waits_for_the_free_gpu(kind, second):
    manager = kind(num_of_gpus=1, mem_per_gpu_in_GiB=8, ignore_host=True)
    first = ask(manager)
    assert ask(manager) == second
    manager.free_resources(first, "", FLContext())
    assert bool(ask(manager)) is (kind is WholeGPU)


def test_two_gpus_are_two_places_or_named_shares():
    manager = WholeGPU(num_of_gpus=2, mem_per_gpu_in_GiB=8, ignore_host=True)
    assert [ask(manager) for _ in range(3)] == [{0: 7.2}, {1: 7.2}, False]
    manager = WholeGPU(num_of_gpus=1, mem_per_gpu_in_GiB=8, ignore_host=True)
    share = {"num_of_gpus": 1, "mem_per_gpu_in_GiB": 4}
    assert [ask(manager, share) for _ in range(3)] == [{0: 4}, {0: 4}, False]


def test_a_job_gets_as_many_gpus_as_the_site_says():
    manager = WholeGPU(num_of_gpus=5, mem_per_gpu_in_GiB=8, gpus_per_job=2, ignore_host=True)
    assert [ask(manager) for _ in range(3)] == [{0: 7.2, 1: 7.2}, {2: 7.2, 3: 7.2}, False]
