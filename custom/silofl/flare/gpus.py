"""The GPUs of a site, of which each job has its own."""

from typing import Any

from nvflare.app_common.resource_managers.gpu_resource_manager import GPUResourceManager

# Of a GPU's memory, which is never free to the last byte.
SHARE = 0.9


class WholeGPU(GPUResourceManager):
    """NVFlare's manager of GPUs, which gives GPUs of its own to a job that does not say how many it needs.

    NVFlare's begins such a job, as all that come with SiloFL are, beside any other: two studies then share a GPU whose
    memory is enough for one. Here the second waits. The arguments are NVFlare's, and ``gpus_per_job``, 1 by default.
    """

    def __init__(self, num_of_gpus: int, mem_per_gpu_in_GiB: float, **options: Any) -> None:  # noqa: ANN401, N803
        number = options.pop("gpus_per_job", 1)
        super().__init__(num_of_gpus, mem_per_gpu_in_GiB, **options)
        whole = {self.num_gpu_key: number, self.gpu_mem_key: SHARE * mem_per_gpu_in_GiB}
        self._usual = whole if num_of_gpus else {}

    def _check_required_resource_available(self, resource_requirement: dict[str, Any]) -> bool:
        return bool(super()._check_required_resource_available(resource_requirement or self._usual))

    def _reserve_resource(self, resource_requirement: dict[str, Any]) -> dict[int, float]:
        return dict(super()._reserve_resource(resource_requirement or self._usual))
