"""A super model in one file beside study.yaml, and in messages: its model.json, and its weights by ``model/name``."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from silofl.base.errors import ConfigError
from silofl.base.settings import parse
from silofl.core.mixing import Arrays
from silofl.inference.contents import Contents
from silofl.inference.directory import build_contents, check_facts, plain_study, read_model_folder
from silofl.inference.names import HEAD
from silofl.models.roles import SELECTOR, read_role, select_role
from silofl.study import STORED, Study

# These keys decide an answer, its score, or which scores are sent. Where the file lies decides nothing.
DECIDING = ("task", "labels", "regions", "metric", "data", "model", "algorithm", "operating_point", "do_not_use")
FILE_KEYS = ("pretrained", "pretrained_sha256", "weights", "weights_sha256")


def pack_model(folder: Path) -> dict[str, Tensor]:
    """Return a super model's folder as tensors for one file, `HEAD` as its bytes; the errors of `read_model_folder`."""
    contents = read_model_folder(folder)
    states = dict(contents.models)
    if contents.selector is not None:
        states[SELECTOR] = contents.selector
    head = np.frombuffer((folder / HEAD).read_bytes(), np.uint8)
    # A copy, as torch does not take bytes that nobody may write.
    tensors = {HEAD: torch.from_numpy(head.copy())}
    for name, state in states.items():
        tensors |= {f"{name}/{key}": value for key, value in state.items()}
    return tensors


def split_model(arrays: Mapping[str, np.ndarray]) -> tuple[dict[str, Any], Arrays]:
    """Return the model.json and the weights of what `pack_model` packed.

    Raises:
        ConfigError: There is no model.json.
    """
    try:
        facts = json.loads(bytes(arrays[HEAD]))
        return dict(facts), {name: array for name, array in arrays.items() if name != HEAD}
    except (KeyError, TypeError, ValueError):
        raise ConfigError(
            "model.pretrained must be a finished model with its model.json, with rounds: 0, not other weights; have "
            "silofl evaluation-job write the job"
        ) from None


def join_model(facts: Mapping[str, Any], arrays: Arrays, study: Study) -> Contents:
    """Return the super model of a model.json and its weights.

    Args:
        facts: The content of model.json.
        arrays: ``model/name`` -> array.
        study: The study that tests it, which must prepare and score images as the model's own.

    Raises:
        ConfigError: They do not fit together, or to the study.
    """
    states = {}
    for name in dict.fromkeys(map(read_role, arrays)):
        states[name] = {key: torch.from_numpy(np.array(value)) for key, value in select_role(name, arrays).items()}
    try:
        # The same checks as of a folder: the file may come from anybody.
        check_facts(facts, HEAD)
        own = parse(Study, facts["study"], HEAD, STORED)
        contents = build_contents(facts, own, states)
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{error} in {HEAD} of model.pretrained is missing or of another kind; have silofl evaluation-job write "
            "the job anew"
        ) from None
    theirs = _list_deciding(own)
    ours = _list_deciding(study)
    for key in DECIDING:
        if theirs[key] != ours[key]:
            raise ConfigError(
                f"{key} of study.yaml must be as in the study {own.name!r} of the model that is tested, not otherwise; "
                "have silofl evaluation-job write the job anew"
            )
    return contents


def _list_deciding(study: Study) -> dict[str, Any]:
    plain = plain_study(study)
    for key in FILE_KEYS:
        plain["model"].pop(key, None)
    return {key: plain.get(key) for key in DECIDING}
