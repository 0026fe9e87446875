"""A super model as it travels: ``MODEL/...`` and ``selector/...`` for its arrays, and its facts."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from torch import Tensor

from silofl import schema
from silofl.core.mixing import Arrays
from silofl.data.domain import Domain
from silofl.inference.contents import Contents
from silofl.methods.model import complete_state, fill_state
from silofl.methods.part import Run
from silofl.models.roles import SELECTOR, read_role, select_role
from silofl.models.selector import build_selector
from silofl.study import Study


def collect_facts(run: Run, outputs: Sequence[str]) -> dict[str, Any]:
    """Return the facts of a run's super model, with the outputs of its selector; none without one."""
    return {"outputs": list(outputs), "facts": run.facts(), "domain": schema.dump_record(run.domain)}


def read_contents(
    arrays: Arrays,
    facts: Mapping[str, Any],
    study: Study,
    image_shape: tuple[int, ...],
    known: Mapping[str, dict[str, Tensor]] = MappingProxyType({}),
) -> Contents:
    """Build a super model from arrays; models that are not among them are taken from the known ones.

    Raises:
        AggregationError: An array does not fit the study's networks.
    """
    names = dict.fromkeys(role for name in arrays if (role := read_role(name)))
    beside = {name: array for name, array in arrays.items() if not read_role(name)}
    models = dict(known) | {
        name: complete_state(study, image_shape, select_role(name, arrays) | beside)
        for name in names
        if name != SELECTOR
    }
    further = {"facts": dict(facts["facts"]), "domain": read_domain(facts)}
    if SELECTOR not in names:
        return Contents(study, image_shape, models, "mean", **further)
    outputs = tuple(facts["outputs"])
    selector = fill_state(build_selector(study, len(outputs), study.seed), select_role(SELECTOR, arrays))
    return Contents(study, image_shape, models, "selector", selector, outputs, facts.get("threshold"), **further)


def read_domain(facts: Mapping[str, Any]) -> Domain:
    """Return what the super model's images are like."""
    return schema.read_record(Domain, facts.get("domain", {}), "the domain of the super model")
