"""The server's selector (FedSM): what the sites are sent of it, and what their answers make of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from silofl.algorithms.fedsm import AdamState, adam_step
from silofl.algorithms.mixing import Arrays, mix
from silofl.models.members import GLOBAL, SELECTOR, of_role, role_of, with_role
from silofl.models.parts import read_arrays
from silofl.models.selector import build_selector
from silofl.study import Study

MEAN, SQUARE = "selector_mean", "selector_square"
HEAD = ("network.head.weight", "network.head.bias")


@dataclass(frozen=True)
class SelectorRounds:
    """The selector after a step; a step returns the next one.

    Attributes:
        study: Its recipe says how the selector learns.
        outputs: What the outputs stand for: site names, behind ``global`` where the best model is learnt.
        parameters: {parameter name: array}.
        adam: The moments that the server keeps (``gradients``) or averages (``moments``).
    """

    study: Study
    outputs: tuple[str, ...]
    parameters: Arrays
    adam: AdamState

    @classmethod
    def start(cls, study: Study, sites: list[str]) -> SelectorRounds:
        """Draw the selector from the study's seed."""
        outputs = (GLOBAL, *sites) if study.recipe.learns_best_model else tuple(sites)
        model = build_selector(study, len(outputs), study.seed)
        parameters = read_arrays(model.state_dict(), [name for name, _ in model.named_parameters()])
        return cls(study, outputs, parameters, AdamState.zero(parameters))

    def to_send(self) -> Arrays:
        """Return what a site needs to learn from here."""
        arrays = with_role(SELECTOR, self.parameters)
        if self.study.recipe.selector == "moments":
            arrays |= with_role(MEAN, self.adam.mean) | with_role(SQUARE, self.adam.square)
        return arrays

    def after(self, answers: Mapping[str, Arrays], weights: NDArray) -> SelectorRounds:
        """Return the selector after one step.

        Args:
            answers: Site -> its mean gradient (``gradients``), or its differences to what it was sent.
            weights: Aggregation weights, shape (K, K) with equal rows, in the order of ``answers``.
        """
        wanted = self.to_send().keys()
        is_whole = np.array([wanted <= arrays.keys() for arrays in answers.values()])
        if not is_whole.any():
            return self
        chosen = {site: answers[site] for site, whole in zip(answers, is_whole, strict=True) if whole}
        row = weights[0][is_whole] / weights[0][is_whole].sum()
        mean = mix(chosen, np.tile(row, (len(chosen), 1)))[next(iter(chosen))]
        if self.study.recipe.selector == "gradients":
            rate = self.study.recipe.selector_learning_rate
            parameters, adam = adam_step(self.parameters, of_role(SELECTOR, mean), self.adam, rate)
            return SelectorRounds(self.study, self.outputs, parameters, adam)
        # Rounding may leave a square a hair below zero, whose root Adam would take.
        square = {name: np.maximum(array, 0) for name, array in _sum(self.adam.square, mean, SQUARE).items()}
        adam = AdamState(_sum(self.adam.mean, mean, MEAN), square, self.adam.steps + 1)
        return SelectorRounds(self.study, self.outputs, _sum(self.parameters, mean, SELECTOR), adam)

    def joined_by(self, site: str) -> SelectorRounds:
        """Return the selector with one more output, which starts undecided; the others keep theirs."""
        return SelectorRounds(
            self.study,
            (*self.outputs, site),
            _grown(self.parameters),
            AdamState(_grown(self.adam.mean), _grown(self.adam.square), self.adam.steps),
        )

    def state(self) -> dict[str, Any]:
        """Return a checkpoint of plain values and tensors."""
        parts = {"parameters": self.parameters, "mean": self.adam.mean, "square": self.adam.square}
        tensors = {
            key: {name: torch.from_numpy(np.array(a)) for name, a in arrays.items()} for key, arrays in parts.items()
        }
        return {"outputs": list(self.outputs), "steps": self.adam.steps, **tensors}

    @classmethod
    def restore(cls, study: Study, state: Mapping[str, Any]) -> SelectorRounds:
        """Return the selector that `state` described."""
        parts = (
            {name: tensor.numpy() for name, tensor in state[key].items()} for key in ("parameters", "mean", "square")
        )
        parameters, mean, square = parts
        return cls(study, tuple(state["outputs"]), parameters, AdamState(mean, square, state["steps"]))


def is_selectors(name: str) -> bool:
    """Return whether an array that travels belongs to the selector."""
    return role_of(name) in (SELECTOR, MEAN, SQUARE)


def _sum(arrays: Arrays, difference: Arrays, role: str) -> Arrays:
    steps = of_role(role, difference)
    return {name: array + steps[name] if name in steps else array for name, array in arrays.items()}


def _grown(arrays: Arrays) -> Arrays:
    grown = {name: np.concatenate([arrays[name], np.zeros_like(arrays[name][:1])]) for name in HEAD}
    return arrays | grown
