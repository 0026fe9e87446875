"""The keys of study.yaml that have another name since release 0.4; the old ones are read until release 0.6."""

import copy
from collections.abc import Mapping
from typing import Any

FORMER_KEYS = {
    "guard": "baseline_comparison",
    "training.has_batch_dice": "training.batch_dice",
    "training.is_nesterov": "training.nesterov",
    "algorithm.stays_home": "algorithm.stays",
    # Sections have the names of their algorithms.
    "algorithm.contrast": "algorithm.moon",
    "algorithm.control": "algorithm.scaffold",
    "algorithm.dynamic": "algorithm.feddyn",
    "algorithm.envelope": "algorithm.pfedme",
    "algorithm.head_then_body": "algorithm.fedrep",
    "algorithm.meta_step": "algorithm.perfedavg",
    "algorithm.mixture": "algorithm.apfl",
    "algorithm.normalized_steps": "algorithm.fednova",
    "algorithm.proximal": "algorithm.fedprox",
    "algorithm.pull": "algorithm.ditto",
    "algorithm.server_optimizer": "algorithm.fedopt",
    "algorithm.fedopt.is_nesterov": "algorithm.fedopt.nesterov",
}


def rename_former_keys(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a study's values with the new names of its keys, and a sentence for each key that had an old one."""
    # The values are the caller's: a copy is changed.
    renamed = copy.deepcopy(dict(values))
    sentences = []
    for old, new in FORMER_KEYS.items():
        *sections, key = old.split(".")
        inner: Any = renamed
        for section in sections:
            inner = inner.get(section) if isinstance(inner, dict) else None
        new_key = new.split(".")[-1]
        # With both names the old one is refused as an unknown key.
        if isinstance(inner, dict) and key in inner and new_key not in inner:
            inner[new_key] = inner.pop(key)
            sentences.append(f"{old} of study.yaml is now {new}: change it; release 0.6 will not read {old}")
    return renamed, sentences
