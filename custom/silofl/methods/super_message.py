"""A super model as it travels: ``MODEL/...`` and ``selector/...`` for its arrays, and its facts."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from torch import Tensor

from silofl import schema
from silofl.algorithms.mixing import Arrays
from silofl.data.domain import Domain
from silofl.inference.contents import Contents
from silofl.methods.model import complete_state, filled
from silofl.methods.part import Run
from silofl.models.roles import SELECTOR, of_role, role_of
from silofl.models.selector import build_selector
from silofl.study import Study


def write_facts(run: Run, outputs: Sequence[str]) -> dict[str, Any]:
    """Return the facts of a run's super model, with the outputs of its selector; none without one."""
    return {"outputs": list(outputs), "facts": run.facts(), "domain": schema.plain(run.domain)}


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
    names = dict.fromkeys(role for name in arrays if (role := role_of(name)))
    beside = {name: array for name, array in arrays.items() if not role_of(name)}
    models = dict(known) | {
        name: complete_state(study, image_shape, of_role(name, arrays) | beside) for name in names if name != SELECTOR
    }
    further = {"facts": dict(facts["facts"]), "domain": read_domain(facts)}
    if SELECTOR not in names:
        return Contents(study, image_shape, models, "mean", **further)
    outputs = tuple(facts["outputs"])
    selector = filled(build_selector(study, len(outputs), study.seed), of_role(SELECTOR, arrays))
    return Contents(study, image_shape, models, "selector", selector, outputs, facts.get("threshold"), **further)


def read_domain(facts: Mapping[str, Any]) -> Domain:
    """Return what the super model's images are like."""
    return schema.read(Domain, facts.get("domain", {}), "the domain of the super model")
