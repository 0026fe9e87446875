"""The keys of study.yaml that have another name since release 0.4; the old ones are read until release 0.6."""

import copy
from collections.abc import Mapping
from typing import Any

# Sections of `algorithm`, which have the names of their algorithms now.
FORMER_SECTIONS = {
    "contrast": "moon",
    "control": "scaffold",
    "dynamic": "feddyn",
    "envelope": "pfedme",
    "head_then_body": "fedrep",
    "meta_step": "perfedavg",
    "mixture": "apfl",
    "normalized_steps": "fednova",
    "proximal": "fedprox",
    "pull": "ditto",
    "server_optimizer": "fedopt",
}
FORMER_KEYS = {
    "guard": "baseline_comparison",
    "training.has_batch_dice": "training.batch_dice",
    "training.is_nesterov": "training.nesterov",
    "algorithm.stays_home": "algorithm.stays",
    # Before its section, so that each sentence names what the file has.
    "algorithm.server_optimizer.is_nesterov": "algorithm.server_optimizer.nesterov",
    **{f"algorithm.{old}": f"algorithm.{new}" for old, new in FORMER_SECTIONS.items()},
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


def rename_former_recipe(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recipe of a result, which has the keys of `algorithm` and its answers by section, in today's names."""
    renamed: dict[str, Any] = rename_former_keys({"algorithm": recipe})[0]["algorithm"]
    if "constants" in renamed:
        renamed["constants"] = rename_former_keys({"algorithm": renamed["constants"]})[0]["algorithm"]
    for answer in ("input", "step", "mixing"):
        if answer in renamed:
            renamed[answer] = FORMER_SECTIONS.get(renamed[answer], renamed[answer])
    if "parts" in renamed:
        renamed["parts"] = [FORMER_SECTIONS.get(part, part) for part in renamed["parts"]]
    return renamed
