"""The super model on its way from the server to the sites: every model under its name, the selector beside them."""

from __future__ import annotations

from collections.abc import Mapping

from numpy.typing import NDArray
from torch import Tensor, nn

from silofl.algorithms.mixing import Arrays
from silofl.federation.message import Message
from silofl.inference.contents import Contents
from silofl.models import build_model
from silofl.models.members import GLOBAL, PERSONAL, SELECTOR, of_role, role_of, with_role
from silofl.models.parts import AMPLITUDE, write_arrays
from silofl.models.selector import build_selector
from silofl.study import Study


def super_arrays(models: Mapping[str, Arrays], selector: Arrays | None, amplitude: NDArray | None) -> Arrays:
    """Return all models of a run as one message's arrays: ``global/...``, ``<site>/...``, ``selector/...``."""
    first = next(iter(models))
    arrays = with_role(GLOBAL, of_role(GLOBAL, models[first]))
    for site, own in models.items():
        arrays |= with_role(site, of_role(PERSONAL, own))
    arrays |= with_role(SELECTOR, selector or {})
    return arrays if amplitude is None else arrays | {AMPLITUDE: amplitude}


def holds_global(message: Message) -> bool:
    """Return whether a message carries the models, and not the selector alone."""
    return any(role_of(name) == GLOBAL for name in message.arrays)


def contents_of(
    message: Message, study: Study, image_shape: tuple[int, ...], known: Mapping[str, dict[str, Tensor]]
) -> Contents:
    """Return the super model that a message carries, with the models that are known where it carries none.

    Raises:
        AggregationError: An array does not fit the study's networks.
    """
    amplitude = message.arrays.get(AMPLITUDE)
    names = dict.fromkeys(role_of(name) for name in message.arrays if name != AMPLITUDE)
    models = dict(known) | {
        name: complete_state(study, image_shape, of_role(name, message.arrays), amplitude)
        for name in names
        if name != SELECTOR
    }
    outputs = tuple(message.meta["outputs"])
    facts, threshold = dict(message.meta["facts"]), message.meta["threshold"]
    if SELECTOR not in names:
        return Contents(study, image_shape, models, "mean", facts=facts)
    selector = _filled(build_selector(study, len(outputs), study.seed), of_role(SELECTOR, message.arrays))
    return Contents(study, image_shape, models, "selector", selector, outputs, threshold, facts)


def complete_state(
    study: Study, image_shape: tuple[int, ...], arrays: Arrays, amplitude: NDArray | None
) -> dict[str, Tensor]:
    """Return the whole state dict of a model from what travels of it."""
    model = build_model(study, image_shape, study.seed)
    if amplitude is not None:
        model.input_norm.fix(amplitude)
    return _filled(model, arrays)


def _filled(model: nn.Module, arrays: Arrays) -> dict[str, Tensor]:
    write_arrays(model.state_dict(), arrays)
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
