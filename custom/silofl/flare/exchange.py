"""Conversion between our messages and NVFlare's models: arrays become parameters, all else goes to the meta data."""

from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

from silofl.parts.task import Message

# NVFlare adds keys of its own to a model's meta data; ours travel under one key.
META = "silofl"


def to_model(message: Message, is_difference: bool) -> FLModel:
    """Return a message as an NVFlare model: a weight difference from a site, full weights from the server."""
    params_type = ParamsType.DIFF if is_difference else ParamsType.FULL
    number = message.meta.get("round")
    return FLModel(
        params_type=params_type, params=dict(message.arrays), current_round=number, meta={META: message.meta}
    )


def from_model(model: FLModel) -> Message:
    """Return the message that `to_model` packed."""
    return Message(dict(model.params or {}), dict(model.meta.get(META, {})))
