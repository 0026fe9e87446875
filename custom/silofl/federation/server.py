"""The server's part of a run: what each site gets, what its answers become, and which round is the best."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from silofl.algorithms.fedavg import example_weights, uniform_weights
from silofl.algorithms.fedsm import softpull_weights
from silofl.algorithms.harmofl import mean_amplitude
from silofl.algorithms.mixing import Arrays, mix
from silofl.errors import AggregationError, ConfigError
from silofl.federation.aggregation import Models, mixed_models, stepped_models, trained_models
from silofl.federation.ledger import Round
from silofl.federation.message import Message, check_fits, check_numbers
from silofl.federation.selector import SelectorRounds, is_selectors
from silofl.federation.similarity import Similarity
from silofl.models.members import GLOBAL, PERSONAL, SELECTOR, Members, role_of
from silofl.models.parts import AMPLITUDE
from silofl.study import Study


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
        similarity: AdaFed's statistics and weights; None where sites are not compared.
        pretrained: All arrays of the pretrained model, where the study needs one; not part of the checkpoint.
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
    similarity: Similarity | None = None
    pretrained: Arrays | None = None

    @classmethod
    def start(cls, study: Study, run: str, sites: list[str], pretrained: Arrays | None = None) -> ServerRounds:
        """Begin a run: the same models for every site, drawn from the study's seed or pretrained.

        Raises:
            ConfigError: lambda does not fit the number of sites, a site has a name that the messages need, or the
                network has no layer to compare sites by.
        """
        sites, recipe = sorted(sites), study.recipe
        _check_sites(study, sites)
        members = Members.build(study, None)
        if recipe.start_from_pretrained:
            members.write(pretrained or {})
        return cls(
            study,
            run,
            dict.fromkeys(sites, members.read(members.traveling_names(recipe))),
            frozenset(members.buffer_names()),
            selector=SelectorRounds.start(study, sites) if recipe.has_selector else None,
            similarity=Similarity.start(study) if recipe.is_adafed else None,
            pretrained=pretrained,
        )

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
        return self.study.recipe.selector_steps if self.study.recipe.learns_site else 0

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
        if recipe.start_from_pretrained and not any(site in record.answered for record in self.ledger):
            task = Message(self.pretrained | task.arrays, task.meta)
        return self._with_selector(task, self.selector) if recipe.learns_site else task

    def statistics_tasks(self) -> dict[str, Message]:
        """Return the tasks, by site, to share the statistics that are wanted before the next round."""
        number = self.finished_rounds
        asked = self.similarity.sites_to_ask(list(self.models), number) if self.similarity else []
        arrays = self.pretrained if self.study.recipe.statistics == "pretrained" else {}
        return {site: Message(arrays, {"run": self.run, "round": number}) for site in asked}

    def note_statistics(self, record: Round, answers: Mapping[str, Message], failed: Mapping[str, str]) -> None:
        """Take in the sites' statistics, and say in the record who shares none and why."""
        is_due = self.similarity.is_due(self.finished_rounds)
        for site in sorted(answers):
            self.similarity.accept(site, answers[site])
        if is_due or answers:
            record.notes += self.similarity.compute(list(self.models), self.finished_rounds, failed)

    def selector_task(self, site: str, step: int) -> Message:
        """Return the task of one more step of the selector, the ``step``-th of the current round."""
        number = self.finished_rounds + self.is_selector_alone
        return self._with_selector(Message(meta={"run": self.run, "round": number, "step": step}), self.selector)

    def evaluation_task(self, site: str, number: int) -> Message:
        """Return the task to validate or test the model of a finished round: the last or the best."""
        is_best = number == self.best_round
        models, selector = (self.best_models, self.best_selector) if is_best else (self.models, self.selector)
        task = self._task(site, models[site], number, {"round": number})
        return self._with_selector(task, selector) if self.study.recipe.learns_site else task

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
        trained = trained_models(self.models, answers)
        withheld = {site: sorted(self.models[site].keys() - arrays.keys()) for site, arrays in trained.items()}
        record.withheld = {site: names for site, names in withheld.items() if names}
        weights_of = cache(partial(self._weights, answers=answers))
        self._mix(trained, weights_of)
        amplitudes = [answer.arrays[AMPLITUDE] for answer in answers.values() if AMPLITUDE in answer.arrays]
        if self.amplitude is None and amplitudes:
            self.amplitude = mean_amplitude(amplitudes)
        self.step_selector(answers)
        record.close(weights_of(PERSONAL if self.selector else ""), _examples(answers), _metrics(answers))
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
        record.note_validation(scores)
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
        is_best = self.best_round is not None and self.study.recipe.learns_site
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
            "similarity": self.similarity and self.similarity.state(),
        }

    @classmethod
    def restore(cls, study: Study, state: Mapping[str, Any], pretrained: Arrays | None = None) -> ServerRounds:
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
            similarity=state["similarity"] and Similarity.restore(study, state["similarity"]),
            pretrained=pretrained,
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
        """Return who listens to whom in a round: the recipe's answer, nobody to anybody in extra rounds.

        AdaFed's first rounds, before sites are compared, are shared.
        """
        if number > self.study.rounds:
            return "alone"
        return "shared" if number <= self.study.shared_rounds else self.study.recipe.mixing

    def _weights(self, role: str, answers: Mapping[str, Message]) -> NDArray:
        """Return the matrix by which the models of a role are mixed in the round that is being finished."""
        mixing = "shared" if role == GLOBAL else self._mixing(self.finished_rounds + 1)
        if mixing == "alone":
            return np.eye(len(answers))
        if mixing == "softpull":
            return softpull_weights(len(answers), max(self.study.recipe.self_weight, 1 / len(answers)))
        if mixing == "adafed":
            return self.similarity.weights(list(answers))
        return self._shared_weights(list(_examples(answers).values()))

    def _shared_weights(self, examples: list[int]) -> NDArray:
        if self.study.recipe.weights == "uniform":
            return uniform_weights(len(examples))
        return example_weights(examples)

    def _mix(self, trained: Models, weights_of: Callable[[str], NDArray]) -> None:
        """Make the next models; a site that did not answer keeps its own, and gets what all sites share."""
        mixed = mixed_models(self.models, trained, weights_of)
        new = stepped_models(self.models, mixed, self.study.recipe.server_lr, self.buffers)
        first = next(iter(new.values()))
        if self._mixing(self.finished_rounds + 1) == "shared":
            self.models = dict.fromkeys(self.models, first)
        else:
            shared = {name: array for name, array in first.items() if role_of(name) == GLOBAL}
            self.models = {site: new.get(site, own | shared) for site, own in self.models.items()}


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
