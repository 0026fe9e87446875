"""The server's part of a run: what each site gets, what its answers become, and which round is the best."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from silofl.algorithms.fedavg import example_weights, server_step, uniform_weights
from silofl.algorithms.harmofl import mean_amplitude
from silofl.algorithms.mixing import Arrays, mix
from silofl.config import Study
from silofl.errors import AggregationError
from silofl.models import build_plain_model
from silofl.models.parts import AMPLITUDE, buffer_names, read_arrays, traveling_names
from silofl.rounds.ledger import Round
from silofl.rounds.message import Message, check_fits, check_numbers

Models = dict[str, Arrays]


@dataclass
class ServerRounds:
    """All that the server knows of a run after its last finished round; `state` and `restore` are its checkpoint.

    Attributes:
        study: The study.
        run: The run's id, under which the sites keep their state.
        models: Site -> its current model, what travels of it; equal models are the same object.
        buffers: Names that are no parameters.
        ledger: One record a round.
        best_round: The finished round with the best validation so far; None before any validation.
        best_models: The models of that round.
        amplitude: The sites' mean amplitude, once it is known.
        informed: Site -> the round from which on it holds the amplitude.
        first_amplitude: The first one that was accepted, whose shape the others must have.
    """

    study: Study
    run: str
    models: Models
    buffers: frozenset[str]
    ledger: list[Round] = field(default_factory=list)
    best_round: int | None = None
    best_models: Models = field(default_factory=dict)
    amplitude: NDArray | None = None
    informed: dict[str, int] = field(default_factory=dict)
    first_amplitude: NDArray | None = None

    @classmethod
    def start(cls, study: Study, run: str, sites: list[str]) -> ServerRounds:
        """Begin a run: the same model, drawn from the study's seed, for every site."""
        model = build_plain_model(study, study.seed)
        arrays = read_arrays(model, traveling_names(model, study.recipe))
        return cls(study, run, dict.fromkeys(sorted(sites), arrays), frozenset(buffer_names(model)))

    @property
    def finished_rounds(self) -> int:
        """The number of the last finished round, 0 before the first."""
        return len(self.ledger)

    def train_task(self, site: str) -> Message:
        """Return the training task of the next round for a site."""
        wants = self.study.recipe.has_amplitude and self.study.recipe.stays_home != "everything"
        meta = {"wants_amplitude": wants and self.amplitude is None, "best_round": self.best_round}
        state = self.finished_rounds
        return self._task(site, self.models[site], state, {"round": state + 1, **meta})

    def evaluation_task(self, site: str, number: int) -> Message:
        """Return the task to validate or test the model of a finished round: the last or the best."""
        models = self.best_models if number == self.best_round else self.models
        return self._task(site, models[site], number, {"round": number})

    def accept(self, site: str, sent: Message, answer: Message) -> None:
        """Check a site's answer to a training task against what it was sent.

        Raises:
            AggregationError: Names the site and what is wrong with its answer.
        """
        reference = dict(sent.arrays)
        if sent.meta.get("wants_amplitude"):
            reference[AMPLITUDE] = self._expected_amplitude(site, answer)
        check_fits(site, answer.arrays, reference)
        check_numbers(site, answer.meta)
        self.first_amplitude = reference.get(AMPLITUDE, self.first_amplitude)
        if AMPLITUDE in sent.arrays:
            self.informed[site] = sent.meta["round"]

    def finish_round(self, record: Round, sent: Mapping[str, Message], answers: Mapping[str, Message]) -> None:
        """Mix the accepted answers into the next models and close the round's record.

        Args:
            record: Who was asked, and who failed how.
            sent: The task of each site that was asked.
            answers: The accepted answer of each site that answered; mixed in the order of site names.
        """
        answers = {site: answers[site] for site in sorted(answers)}
        self.note_validation({site: answer.meta["metrics"].get("validation") for site, answer in answers.items()})
        examples = {site: answer.meta["num_examples"] for site, answer in answers.items()}
        weights = self._weights(list(examples.values()))
        trained = {site: _trained(sent[site], answer) for site, answer in answers.items()}
        withheld = {site: sorted(self.models[site].keys() - arrays.keys()) for site, arrays in trained.items()}
        record.withheld = {site: names for site, names in withheld.items() if names}
        self._mix(trained, weights)
        amplitudes = [answer.arrays[AMPLITUDE] for answer in answers.values() if AMPLITUDE in answer.arrays]
        if self.amplitude is None and amplitudes:
            self.amplitude = mean_amplitude(amplitudes)
        metrics = {site: {key: a.meta["metrics"][key] for key in ("loss", "drift")} for site, a in answers.items()}
        record.close(weights, examples, metrics)
        self.ledger.append(record)

    def note_validation(self, scores: Mapping[str, dict[str, Any] | None]) -> None:
        """Take in the sites' validation of the last finished round's models, and keep them if they are the best."""
        if not self.ledger:
            return
        record = self.ledger[-1]
        record.validation = {site: score for site, score in scores.items() if score}
        best = self.ledger[self.best_round - 1].rank if self.best_round else None
        if record.rank is not None and (best is None or record.rank > best):
            self.best_round, self.best_models = record.round, dict(self.models)

    def reported_round(self) -> int:
        """Return the round whose model is reported: the best on validation, or the last without validation."""
        return self.best_round or self.finished_rounds

    def reported_models(self) -> Models:
        """Return the models of the reported round."""
        return self.best_models if self.best_round else self.models

    def state(self) -> dict[str, Any]:
        """Return a checkpoint of plain values and tensors; arrays that sites share are stored once."""
        tensors: dict[int, torch.Tensor] = {}

        def tensor(array: NDArray) -> torch.Tensor:
            return tensors.setdefault(id(array), torch.from_numpy(np.ascontiguousarray(array)))

        def pack(models: Models) -> dict[str, dict[str, torch.Tensor]]:
            return {site: {name: tensor(a) for name, a in arrays.items()} for site, arrays in models.items()}

        plain = {"run": self.run, "best_round": self.best_round, "informed": self.informed}
        return {
            "json": json.dumps(plain | {"ledger": [record.as_dict() for record in self.ledger]}),
            "models": pack(self.models),
            "best_models": pack(self.best_models),
            "amplitude": None if self.amplitude is None else torch.from_numpy(self.amplitude),
        }

    @classmethod
    def restore(cls, study: Study, state: Mapping[str, Any]) -> ServerRounds:
        """Return the run that `state` described."""
        plain = json.loads(state["json"])
        arrays: dict[int, NDArray] = {}

        def unpack(models: Mapping[str, Mapping[str, torch.Tensor]]) -> Models:
            return {
                site: {name: arrays.setdefault(t.data_ptr(), t.numpy()) for name, t in tensors.items()}
                for site, tensors in models.items()
            }

        return cls(
            study,
            plain["run"],
            unpack(state["models"]),
            frozenset(buffer_names(build_plain_model(study, study.seed))),
            [Round.from_dict(record) for record in plain["ledger"]],
            plain["best_round"],
            unpack(state["best_models"]),
            None if state["amplitude"] is None else state["amplitude"].numpy(),
            plain["informed"],
        )

    def _task(self, site: str, arrays: Arrays, state: int, meta: dict[str, Any]) -> Message:
        """Return a message for a site that begins from what it kept after round ``state``."""
        arrays = dict(arrays)
        holds_amplitude = site in self.informed and self.informed[site] <= state
        if self.amplitude is not None and not holds_amplitude:
            arrays[AMPLITUDE] = self.amplitude
        return Message(arrays, {"run": self.run, **meta})

    def _expected_amplitude(self, site: str, answer: Message) -> NDArray:
        """Return an array of the shape that the first accepted amplitude has: the server sees no image."""
        amplitude = answer.arrays.get(AMPLITUDE)
        if amplitude is None or np.any(amplitude < 0):
            raise AggregationError(f"site {site!r} must send an amplitude of at least 0 everywhere in the first round")
        expected = amplitude if self.first_amplitude is None else self.first_amplitude
        if np.shape(amplitude) != np.shape(expected):
            raise AggregationError(
                f"site {site!r} must have images of the other sites' size, with an amplitude of shape "
                f"{np.shape(expected)}, not {np.shape(amplitude)}; name a Resize in data.transforms"
            )
        return expected

    def _weights(self, examples: list[int]) -> NDArray:
        if self.study.recipe.weights == "uniform":
            return uniform_weights(len(examples))
        return example_weights(examples)

    def _mix(self, trained: Models, weights: NDArray) -> None:
        """Make the next model, which all sites share: each name mixed over its senders, then the server's step."""
        mixed: Models = {site: {} for site in trained}
        for senders, names in _by_senders(trained, self.models).items():
            params = {s: {name: trained[s].get(name, self.models[s][name]) for name in names} for s in trained}
            for site, arrays in mix(params, _listening_to(weights, [s in senders for s in trained])).items():
                mixed[site].update(arrays)
        first = next(iter(trained))
        new = server_step(self.models[first], mixed[first], self.study.recipe.server_lr, self.buffers)
        self.models = dict.fromkeys(self.models, new)


def _by_senders(trained: Models, models: Models) -> dict[tuple[str, ...], list[str]]:
    """Group the model's names by the sites that sent them: one group unless a site withholds something."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in next(iter(models.values())):
        groups.setdefault(tuple(site for site in trained if name in trained[site]), []).append(name)
    return groups


def _listening_to(weights: NDArray, is_sender: list[bool]) -> NDArray:
    """Renormalise every row over the senders; a row without any listens to its own site's last model."""
    rows = weights * np.array(is_sender, dtype=np.float64)
    sums = rows.sum(axis=1, keepdims=True)
    return np.where(sums > 0, rows / np.where(sums > 0, sums, 1), np.eye(len(rows)))


def _trained(sent: Message, answer: Message) -> Arrays:
    """Return the model that a site trained: what it was sent plus the difference it answered."""
    return {name: sent.arrays[name] + diff for name, diff in answer.arrays.items() if name != AMPLITUDE}
