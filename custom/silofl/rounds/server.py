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
from silofl.algorithms.fedsm import softpull_weights
from silofl.algorithms.harmofl import mean_amplitude
from silofl.algorithms.mixing import Arrays, mix
from silofl.config import Study
from silofl.errors import AggregationError, ConfigError
from silofl.models.members import GLOBAL, PERSONAL, SELECTOR, Members, role_of
from silofl.models.parts import AMPLITUDE
from silofl.rounds.ledger import Round
from silofl.rounds.message import Message, check_fits, check_numbers
from silofl.rounds.selector import SelectorRounds, is_selectors

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
        selector: FedSM's selector; None where the study has none.
        best_selector: The selector of the best round.
        image_shape: (C, H, W) of the sites' images, as the first site said; the server sees none.
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
    selector: SelectorRounds | None = None
    best_selector: SelectorRounds | None = None
    image_shape: tuple[int, ...] | None = None

    @classmethod
    def start(cls, study: Study, run: str, sites: list[str]) -> ServerRounds:
        """Begin a run: the same models, drawn from the study's seed, for every site.

        Raises:
            ConfigError: lambda does not fit the number of sites, or a site has a name that the messages need.
        """
        sites = sorted(sites)
        _check_sites(study, sites)
        members = Members.build(study, None)
        arrays = members.read(members.traveling_names(study.recipe))
        selector = SelectorRounds.start(study, sites) if study.recipe.has_selector else None
        models = dict.fromkeys(sites, arrays)
        return cls(study, run, models, frozenset(members.buffer_names()), selector=selector)

    def join(self, site: str) -> None:
        """Take in a site that comes to a run which goes on: it begins with the mean of the others' models."""
        _check_sites(self.study, [*self.models, site])
        for models in (self.models, self.best_models):
            if models:
                mean = mix(models, uniform_weights(len(models)))
                models[site] = next(iter(mean.values()))
        self.models, self.best_models = dict(sorted(self.models.items())), dict(sorted(self.best_models.items()))
        self.selector = self.selector and self.selector.joined_by(site)
        self.best_selector = self.best_selector and self.best_selector.joined_by(site)

    @property
    def finished_rounds(self) -> int:
        """The number of the last finished round, 0 before the first."""
        return len(self.ledger)

    @property
    def selector_steps(self) -> int:
        """Steps that the selector takes in a training round."""
        recipe = self.study.recipe
        return 0 if not recipe.has_selector or recipe.learns_best_model else recipe.selector_steps

    @property
    def has_validated(self) -> bool:
        """Whether the last round that trained models has been validated, as far as that can be."""
        return self.finished_rounds > self.study.training_rounds or bool(self.ledger[-1].validation)

    @property
    def is_selector_alone(self) -> bool:
        """Whether the next round is an extra one of FedSM-extra, in which nothing but the selector learns."""
        return self.study.recipe.learns_best_model and self.finished_rounds >= self.study.rounds

    def train_task(self, site: str) -> Message:
        """Return the training task of the next round for a site."""
        recipe, state = self.study.recipe, self.finished_rounds
        wants = recipe.has_amplitude and recipe.stays_home != "everything" and self.amplitude is None
        meta = {"round": state + 1, "wants_amplitude": wants, "best_round": self.best_round}
        task = self._task(site, self.models[site], state, meta)
        return task if recipe.learns_best_model else self._with_selector(task, self.selector)

    def selector_task(self, site: str, step: int) -> Message:
        """Return the task of one more step of the selector, the ``step``-th of the current round."""
        number = self.finished_rounds + self.is_selector_alone
        return self._with_selector(Message(meta={"run": self.run, "round": number, "step": step}), self.selector)

    def evaluation_task(self, site: str, number: int) -> Message:
        """Return the task to validate or test the model of a finished round: the last or the best."""
        is_best = number == self.best_round
        models, selector = (self.best_models, self.best_selector) if is_best else (self.models, self.selector)
        task = self._task(site, models[site], number, {"round": number})
        return task if self.study.recipe.learns_best_model else self._with_selector(task, selector)

    def accept(self, site: str, sent: Message, answer: Message) -> None:
        """Check a site's answer to a training task against what it was sent.

        Raises:
            AggregationError: Names the site and what is wrong with its answer.
        """
        reference = self.models[site] | {name: a for name, a in sent.arrays.items() if is_selectors(name)}
        if sent.meta.get("wants_amplitude"):
            reference[AMPLITUDE] = self._expected_amplitude(site, answer)
        check_fits(site, answer.arrays, reference)
        check_numbers(site, answer.meta)
        self.first_amplitude = reference.get(AMPLITUDE, self.first_amplitude)
        self.image_shape = self.image_shape or tuple(answer.meta.get("image_shape") or ()) or None
        if AMPLITUDE in sent.arrays:
            self.informed[site] = sent.meta["round"]

    def accept_selector(self, site: str, sent: Message, answer: Message) -> None:
        """Check a site's answer to a selector task; the same errors as `accept`."""
        check_fits(site, answer.arrays, sent.arrays)
        check_numbers(site, answer.meta)

    def finish_round(self, record: Round, answers: Mapping[str, Message]) -> None:
        """Mix the accepted answers into the next models and close the round's record.

        Args:
            record: Who was asked, and who failed how.
            answers: The accepted answer of each site that answered; mixed in the order of site names.
        """
        answers = {site: answers[site] for site in sorted(answers)}
        self.note_validation({site: answer.meta["metrics"].get("validation") for site, answer in answers.items()})
        trained = {site: _trained(self.models[site], answer) for site, answer in answers.items()}
        withheld = {site: sorted(self.models[site].keys() - arrays.keys()) for site, arrays in trained.items()}
        record.withheld = {site: names for site, names in withheld.items() if names}
        self._mix(trained, answers)
        amplitudes = [answer.arrays[AMPLITUDE] for answer in answers.values() if AMPLITUDE in answer.arrays]
        if self.amplitude is None and amplitudes:
            self.amplitude = mean_amplitude(amplitudes)
        self.step_selector(answers)
        record.close(self._weights(PERSONAL if self.selector else "", answers), _examples(answers), _metrics(answers))
        self.ledger.append(record)

    def step_selector(self, answers: Mapping[str, Message]) -> None:
        """Take the selector's step from the sites' accepted answers, in the order of site names."""
        updates = {site: {n: a for n, a in answers[site].arrays.items() if is_selectors(n)} for site in sorted(answers)}
        if self.selector is not None and any(updates.values()):
            self.selector = self.selector.after(updates, self._shared_weights(list(_examples(answers).values())))

    def finish_selector_round(self, record: Round, answers: Mapping[str, Message]) -> None:
        """Close the record of an extra round, in which the selector alone has learnt."""
        answers = {site: answers[site] for site in sorted(answers)}
        record.close(self._weights(GLOBAL, answers), _examples(answers), _metrics(answers))
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
            self.best_selector = self.selector

    def reported_round(self) -> int:
        """Return the round whose model is reported: the best on validation, or the last without validation."""
        return self.best_round or self.finished_rounds

    def reported_models(self) -> Models:
        """Return the models of the reported round."""
        return self.best_models if self.best_round else self.models

    def reported_selector(self) -> SelectorRounds | None:
        """Return the selector that goes with those models: of the same round, or the last where it learns later."""
        is_best = self.best_round is not None and not self.study.recipe.learns_best_model
        return self.best_selector if is_best else self.selector

    def state(self) -> dict[str, Any]:
        """Return a checkpoint of plain values and tensors; arrays that sites share are stored once."""
        tensors: dict[int, torch.Tensor] = {}

        def tensor(array: NDArray) -> torch.Tensor:
            return tensors.setdefault(id(array), torch.from_numpy(np.ascontiguousarray(array)))

        def pack(models: Models) -> dict[str, dict[str, torch.Tensor]]:
            return {site: {name: tensor(a) for name, a in arrays.items()} for site, arrays in models.items()}

        plain = {"run": self.run, "best_round": self.best_round, "informed": self.informed, "shape": self.image_shape}
        return {
            "json": json.dumps(plain | {"ledger": [record.as_dict() for record in self.ledger]}),
            "models": pack(self.models),
            "best_models": pack(self.best_models),
            "amplitude": None if self.amplitude is None else torch.from_numpy(self.amplitude),
            "selector": self.selector and self.selector.state(),
            "best_selector": self.best_selector and self.best_selector.state(),
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
            frozenset(Members.build(study, None).buffer_names()),
            [Round.from_dict(record) for record in plain["ledger"]],
            plain["best_round"],
            unpack(state["best_models"]),
            None if state["amplitude"] is None else state["amplitude"].numpy(),
            plain["informed"],
            selector=state["selector"] and SelectorRounds.restore(study, state["selector"]),
            best_selector=state["best_selector"] and SelectorRounds.restore(study, state["best_selector"]),
            image_shape=plain["shape"] and tuple(plain["shape"]),
        )

    def _task(self, site: str, arrays: Arrays, state: int, meta: dict[str, Any]) -> Message:
        """Return a message for a site that begins from what it kept after round ``state``."""
        holds = [name for name in arrays if self._is_alone(site, role_of(name), state)]
        arrays = {name: array for name, array in arrays.items() if name not in holds}
        holds_amplitude = site in self.informed and self.informed[site] <= state
        if self.amplitude is not None and not holds_amplitude:
            arrays[AMPLITUDE] = self.amplitude
        return Message(arrays, {"run": self.run, "holds": state if holds else None, **meta})

    def _is_alone(self, site: str, role: str, number: int) -> bool:
        """Return whether a site's own model of a round is the very one that it trained, so that it need not travel."""
        if role == GLOBAL or not 1 <= number <= self.finished_rounds or self._mixing(number) == "shared":
            return False
        return self.ledger[number - 1].weights.get(site, {}).get(site) == 1

    def _with_selector(self, task: Message, selector: SelectorRounds | None) -> Message:
        """Return a task that also carries the selector, where there is one."""
        if selector is None:
            return task
        meta = {"outputs": list(selector.outputs), "selector_step": selector.adam.steps}
        return Message(task.arrays | selector.to_send(), task.meta | meta)

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

    def _mixing(self, number: int) -> str:
        """Return who listens to whom in a round: the recipe's answer, and nobody to anybody in extra rounds."""
        return "alone" if number > self.study.rounds else self.study.recipe.mixing

    def _weights(self, role: str, answers: Mapping[str, Message]) -> NDArray:
        """Return the matrix by which the models of a role are mixed in the round that is being finished."""
        mixing = "shared" if role == GLOBAL else self._mixing(self.finished_rounds + 1)
        if mixing == "alone":
            return np.eye(len(answers))
        if mixing == "softpull":
            return softpull_weights(len(answers), max(self.study.recipe.self_weight, 1 / len(answers)))
        return self._shared_weights(list(_examples(answers).values()))

    def _shared_weights(self, examples: list[int]) -> NDArray:
        if self.study.recipe.weights == "uniform":
            return uniform_weights(len(examples))
        return example_weights(examples)

    def _mix(self, trained: Models, answers: Mapping[str, Message]) -> None:
        """Make the next models: each name mixed over its senders by its role's weights, then the server's step.

        A site that did not answer keeps its own model, and gets the others as all do.
        """
        mixed: Models = {site: {} for site in trained}
        for (role, senders), names in _by_senders(trained, self.models).items():
            params = {s: {name: trained[s].get(name, self.models[s][name]) for name in names} for s in trained}
            weights = _listening_to(self._weights(role, answers), [s in senders for s in trained])
            for site, arrays in mix(params, weights).items():
                mixed[site].update(arrays)
        new = self._stepped(mixed)
        first = new[next(iter(trained))]
        if self._mixing(self.finished_rounds + 1) == "shared":
            self.models = dict.fromkeys(self.models, first)
        else:
            shared = {name: array for name, array in first.items() if role_of(name) == GLOBAL}
            self.models = {site: new.get(site, own | shared) for site, own in self.models.items()}

    def _stepped(self, mixed: Models) -> Models:
        """Take the server's step at every site; sites that share all their arrays go on sharing them."""
        done: dict[tuple[int, ...], Arrays] = {}
        for site, arrays in mixed.items():
            key = tuple(id(array) for array in arrays.values()) + tuple(id(a) for a in self.models[site].values())
            if key not in done:
                done[key] = server_step(self.models[site], arrays, self.study.recipe.server_lr, self.buffers)
            mixed[site] = done[key]
        return mixed


def _check_sites(study: Study, sites: list[str]) -> None:
    """Refuse a lambda that the number of sites does not allow, and names that mean something else in messages."""
    for site in sites:
        if site in (GLOBAL, PERSONAL, SELECTOR):
            raise ConfigError(f"a site must not be called {site!r}, as one of the models is; give it another name")
    weight = study.recipe.self_weight
    if study.recipe.mixing == "softpull" and len(sites) > 1 and weight < 1 / len(sites):
        raise ConfigError(
            f"algorithm.self_weight must be at least 1/{len(sites)} for {len(sites)} sites, not {weight}; "
            "with less a site would listen to the others more than to itself"
        )


def _examples(answers: Mapping[str, Message]) -> dict[str, int]:
    return {site: answer.meta["num_examples"] for site, answer in answers.items()}


def _metrics(answers: Mapping[str, Message]) -> dict[str, dict[str, float]]:
    """Return the numbers of each site's training, without the validation of the round before."""
    return {s: {k: v for k, v in a.meta["metrics"].items() if k != "validation"} for s, a in answers.items()}


def _by_senders(trained: Models, models: Models) -> dict[tuple[str, tuple[str, ...]], list[str]]:
    """Group the models' names by role and by the sites that sent them: one group a role unless a site withholds."""
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for name in next(iter(models.values())):
        senders = tuple(site for site in trained if name in trained[site])
        groups.setdefault((role_of(name), senders), []).append(name)
    return groups


def _listening_to(weights: NDArray, is_sender: list[bool]) -> NDArray:
    """Renormalise every row over the senders; a row without any listens to its own site's last model."""
    rows = weights * np.array(is_sender, dtype=np.float64)
    sums = rows.sum(axis=1, keepdims=True)
    return np.where(sums > 0, rows / np.where(sums > 0, sums, 1), np.eye(len(rows)))


def _trained(model: Arrays, answer: Message) -> Arrays:
    """Return the model that a site trained: what the server holds of it plus the difference it answered."""
    return {name: model[name] + diff for name, diff in answer.arrays.items() if name in model}
