import numpy as np
import pytest
from nvflare.apis.dxo import DataKind, from_shareable
from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.app_common.decomposers import common_decomposers
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.fuel.utils import fobs

from silofl.flare.exchange import from_model, to_model
from silofl.parts.task import Message

META = {"round": 3, "run": "r-1", "wants_amplitude": True, "best_round": None, "metrics": {"loss": 0.5, "test": {}}}
MESSAGES = {
    "several arrays": Message(
        {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "a.bias": np.array([1e-30, -2], np.float64)}, META
    ),
    "an array without elements": Message({"a": np.zeros((0, 3), np.float32)}, META),
    "an array without axes": Message({"a": np.array(2.5, np.float32)}, META),
    "no arrays": Message({}, {"round": 1, "error": "the site's data has a fault"}),
    "nothing": Message(),
}


@pytest.fixture(scope="module", autouse=True)
def decomposers():
    """What NVFlare itself registers when a process of it starts."""
    flare_decomposers.register()
    common_decomposers.register()


def over_the_wire(model):
    return FLModelUtils.from_shareable(fobs.loads(fobs.dumps(FLModelUtils.to_shareable(model))))


@pytest.mark.parametrize("is_difference", [False, True])
@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_comes_back_from_nvflare_as_it_went(name, is_difference):
    message = MESSAGES[name]
    received = from_model(over_the_wire(to_model(message, is_difference)))
    assert received.meta == message.meta
    assert list(received.arrays) == list(message.arrays)
    for key, array in message.arrays.items():
        np.testing.assert_array_equal(received.arrays[key], array, strict=True)


def test_answers_are_differences_and_tasks_whole_weights():
    for is_difference, kind in ((True, DataKind.WEIGHT_DIFF), (False, DataKind.WEIGHTS)):
        for message in MESSAGES.values():
            dxo = from_shareable(FLModelUtils.to_shareable(to_model(message, is_difference)))
            assert dxo.data_kind == kind and dxo.data.keys() == message.arrays.keys()


def test_nvflares_meta_is_dropped_and_filters_may_drop_arrays():
    model = over_the_wire(to_model(MESSAGES["several arrays"], True))
    model.meta["client_name"] = "north"
    del model.params["a.bias"]
    assert from_model(model).meta == META and list(from_model(model).arrays) == ["a.weight"]
