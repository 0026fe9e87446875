"""A site of `server_memory` that trains nothing: it sends back a ready-made array for each that it receives.

Of its own, so that the site's process imports nothing but NVFlare, and many fit on one machine.
"""

from typing import Any

import numpy as np
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from silofl.flare.line import wait_for_line
from silofl.flare.pieces import move_in_pieces

# The key of our meta data, as `silofl.flare.exchange` has it.
META = "silofl"
# Seconds that an answer may take.
TIMEOUT_S = 4 * 3600.0
NUMBERS = {"num_examples": 100, "num_patients": 100, "steps": 10, "image_shape": [1, 32, 32], "metrics": {"loss": 0.5}}


class ReadyMade(Executor):
    """A site.

    Args:
        software: What it says that it runs.
        is_plain: Whether it sends its arrays as NVFlare does by itself.
    """

    def __init__(self, software: dict[str, str], is_plain: bool = False) -> None:
        super().__init__()
        if not is_plain:
            move_in_pieces()
        self._software = software

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Wait as a site of ours does."""
        if event_type == EventType.START_RUN:
            wait_for_line(fl_ctx.get_prop(FLContextKey.RUNNER), TIMEOUT_S)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Answer a training task; decline any other."""
        model = FLModelUtils.from_shareable(shareable)
        meta: dict[str, Any] = {"round": model.meta[META]["round"], "software": self._software}
        if task_name != "train":
            answer = FLModel(ParamsType.DIFF, params={}, meta={META: meta | {"error": "it only trains"}})
            return FLModelUtils.to_shareable(answer)
        # The same memory for all.
        largest = np.full(max(array.size for array in model.params.values()), 1e-4, np.float32)
        arrays = {name: largest[: array.size].reshape(array.shape) for name, array in model.params.items()}
        return FLModelUtils.to_shareable(FLModel(ParamsType.DIFF, params=arrays, meta={META: meta | NUMBERS}))
