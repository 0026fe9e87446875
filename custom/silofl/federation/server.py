"""The server's half of a run: tasks for the sites, checks of their answers, and the choice of the best round.

The parts decide what travels; the server asks each of them in turn and knows none by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import AggregationError
from silofl.core.array_file import store
from silofl.core.mixing import Arrays, check_weights, example_weights
from silofl.core.training_end import LEAST_RISE, is_finished
from silofl.data.data_profile import DataProfile
from silofl.federation.ledger import (
    Round,
    explain_choice,
    find_best_round,
    mark_round,
    measure_last_rise,
    measure_rise_after,
)
from silofl.federation.numbers import check_numbers
from silofl.federation.roster import Roster, last_with_state
from silofl.models.precision import widen_arrays
from silofl.models.roles import split_role
from silofl.parts.answer import Metrics, SiteAnswer, read_answer
from silofl.parts.load import find_outbound_payload, list_outbound_payloads, start_parts
from silofl.parts.part import OutboundPayload, OwnTest, Part, Reported, WeightsOf
from silofl.parts.task import TRAIN, ArraySpec, Exchange, Message, SiteResults, check_arrays
from silofl.setup.software import read_software
from silofl.study import Study
from silofl.training.schedule import learning_rate


@dataclass(kw_only=True)
class ServerRounds(Roster):
    """The server's state of a run after its last finished round, which `checkpoint` saves.

    Attributes:
        id: The run's id, under which the sites keep their state.
        best_parts: Those parts of which the best round's version is reported, as that round left them.
        image_shape: (C, *spatial) of most sites' images, from their first answers; the server sees no image.
        data_profile: The training images of all sites that answered, by what they sent of them and `Course` let pass.
        losses: Sentences on what sites went on without, which no complete run has.
    """

    id: str
    best_parts: dict[str, Part] = field(default_factory=dict)
    image_shape: tuple[int, ...] | None = None
    data_profile: DataProfile = DataProfile()
    losses: list[str] = field(default_factory=list)

    @classmethod
    def start(cls, study: Study, run: str, sites: Iterable[str], pretrained: Arrays | None = None) -> ServerRounds:
        """Begin a run.

        Raises:
            ConfigError: A site has a name that the messages need.
        """
        sites = sorted(sites)
        server = cls(study=study, id=run, sites=sites, parts=start_parts(study, sites, pretrained))
        server.check_sites()
        return server

    @property
    def best_round(self) -> int | None:
        """The finished round with the best validation so far; None before any validation."""
        return find_best_round(self.ledger)

    @property
    def reported(self) -> Reported:
        """The best round on validation, or the last without validation, unless a part has something better."""
        number = self.best_round or self.finished_rounds
        validation = self.ledger[number - 1].validation if number else {}
        reported = Reported(number, self.parts | self.best_parts, validation, explain_choice(self.ledger))
        reported = replace(reported, run=self.id, finished=self.finished_rounds)
        for part in self.parts.values():
            reported = part.reported(reported, self)
        return reported

    def measure_last_rise(self) -> float | None:
        """Return by how much the last rounds that trained models raised the sites' validation."""
        return measure_last_rise(self.ledger[: self.study.last_training], self.study.patience)

    def is_over(self) -> bool:
        """Return whether all rounds are finished, or as many as the study has patience for."""
        if self.finished_rounds >= self.study.total_rounds:
            return True
        return self.ends_early() and not self.study.recipe.extra_rounds

    def has_validated(self) -> bool:
        """Return whether the last round that trained models has been validated, or there was none."""
        if not self.ledger or self.finished_rounds > self.study.last_training:
            return True
        return bool(self.ledger[-1].validation)

    def ends_early(self) -> bool:
        """Return whether training ends early with the last finished round, which may lack its validation yet."""
        study = self.study
        patience = study.federation.patience
        if patience is None or self.finished_rounds >= study.joint_rounds:
            return False
        start = self.finished_rounds - patience
        # Until sites listen to each other in their own way, all have the same model, which a later one need not beat.
        if study.recipe.mixing and start < study.recipe.shared_rounds(study.rounds):
            return False
        return start >= 0 and is_finished(measure_rise_after(self.ledger, start))

    def early_end(self) -> str | None:
        """Return why training ended although the study had more rounds; None where it did not."""
        study = self.study
        if study.joint_rounds == study.rounds:
            return None
        return (
            f"training ended after round {study.joint_rounds} of {study.rounds} by federation.patience: none of its "
            f"last {study.patience} rounds raised the sites' validation by more than {LEAST_RISE}, the median of their "
            "changes"
        )

    @property
    def test(self) -> OwnTest:
        """How sites test the run's model."""
        for part in self.parts.values():
            if part.test:
                return part.test
        return OwnTest()

    def averages_only_itself(self, site: str, number: int) -> bool:
        """Return whether the site's own mixing weight was exactly 1 in that round."""
        return self.ledger[number - 1].weights.get(site, {}).get(site) == 1

    def join(self, site: str) -> None:
        """Add a site that joins a resumed run."""
        # The order of the sites is that of all rows and sums.
        self.sites = sorted([*self.sites, site])
        self.check_sites()
        self.parts = {role: part.joined(site) for role, part in self.parts.items()}
        self.best_parts = {role: part.joined(site) for role, part in self.best_parts.items()}

    def asks(self, moment: str, number: int) -> list[Exchange]:
        """Return the parts' own exchanges at a moment of a round."""
        exchanges: list[Exchange] = []
        for part in self.parts.values():
            exchanges += part.asks(moment, number, self)
        return exchanges

    def task(self, site: str, exchange: Exchange) -> Message:
        """Return a task for a site, with every part's share of it."""
        meta = {"run": self.id, "digest": self.study.digest, "round": exchange.round, "step": exchange.step}
        meta |= {"best_round": self.best_round, "held": self.held(site, exchange.models_round)}
        meta |= self.describe_partners(site, exchange.models_round)
        if self.study.joint_rounds < self.study.rounds:
            meta["joint_rounds"] = self.study.joint_rounds
        if site not in self.software:
            meta["software"] = read_software().model_dump()
        message = Message(meta=meta)
        for part in self._parts_for(exchange).values():
            message |= part.to_send(site, exchange, self)
        return message

    def is_mixed(self, name: str) -> bool:
        """Return whether an array of an answer is mixed with other sites'."""
        of_a_part = find_outbound_payload(self._kinds, *split_role(name))
        return of_a_part is None or of_a_part.is_mixed

    def payload_spec(self, site: str, exchange: Exchange) -> dict[str, ArraySpec]:
        """Return the arrays of a correct answer, with their conditions."""
        arrays: dict[str, ArraySpec] = {}
        for part in self.parts.values():
            arrays |= part.payload_spec(site, exchange, self).arrays
        return arrays

    def read(self, site: str, exchange: Exchange, message: Message) -> SiteAnswer:
        """Read a site's answer; the errors of `read_answer`."""
        entries = {}
        for role, part in self.parts.items():
            if entry := part.payload_spec(site, exchange, self).metadata:
                entries[role] = entry
        arrays = store(widen_arrays(message.arrays, self.study))
        return read_answer(site, arrays, message.meta, entries, self.test.score)

    def learn_image_shape(self, answers: Sequence[SiteAnswer]) -> None:
        """Take the shape that most answers give, or the first of as many, where none is known yet."""
        shapes = Counter(answer.numbers.image_shape for answer in answers if answer.numbers.image_shape)
        if shapes and self.image_shape is None:
            [(self.image_shape, _)] = shapes.most_common(1)

    def check(self, site: str, exchange: Exchange, answer: SiteAnswer) -> SiteAnswer:
        """Check a site's answer against what it was asked for, and return it in the expected types.

        Raises:
            AggregationError: Names the site and what is wrong with its answer.
        """
        expected = self.payload_spec(site, exchange)
        examples = next((record.examples[site] for record in self.ledger if site in record.examples), None)
        check_numbers(site, exchange, answer.numbers, self.study, examples)
        arrays = store(check_arrays(site, answer.arrays, expected))
        if exchange.is_needed and expected and not arrays:
            raise AggregationError(f"the answer of site {site!r} has no array that was asked for")
        answer = replace(answer, arrays=arrays, withheld=tuple(sorted(expected.keys() - arrays.keys())))
        # After each answer: the first accepted one may decide a shape for the others.
        self.parts = {role: part.checked(site, exchange, answer, self) for role, part in self.parts.items()}
        return answer

    def merge(self, exchange: Exchange, site_results: SiteResults) -> WeightsOf:
        """Let every part merge the accepted answers, and return who listened to whom by role."""
        if exchange.task == TRAIN:
            self.trained = frozenset(site_results.accepted)
            # A training task validates the models of the round before, so this comes before the parts replace them.
            self.take_scores({site: answer.numbers.metrics for site, answer in site_results.accepted.items()})
            for answer in site_results.accepted.values():
                self.data_profile = self.data_profile | answer.data_profile
        # Cached, because every part must see the same weights, also after others have been merged.
        weights_of = cache(lambda role: self._weights(role, exchange.round, site_results))
        for role in list(self.parts):
            self.parts[role] = self.parts[role].merged(exchange, site_results, weights_of, self)
        return weights_of

    def close(self, record: Round, site_results: SiteResults, weights_of: WeightsOf) -> None:
        """Complete a round's record, with who listened to whom in the sites' own models, if there are any; add it."""
        metrics = {site: answer.numbers.metrics.training for site, answer in site_results.accepted.items()}
        record.close(weights_of(self.study.recipe.roles[-1]), site_results.examples, metrics)
        self.ledger.append(record)
        self.trained = frozenset()
        if record.round <= last_with_state(self.study):
            self.lost = {site: number for site, number in self.lost.items() if site not in record.answered}

    def server_step(self, role: str, number: int, previous: Arrays, mixed: Arrays, site_results: SiteResults) -> Arrays:
        """Return a model's next parameters of a round after every part's step at the server."""
        training = self.study.training
        rate = learning_rate(training.schedule, training.learning_rate, number, self.study.training_rounds)
        for name, part in self.parts.items():
            mixed, self.parts[name] = part.server_step(role, previous, mixed, site_results, number, rate)
        return mixed

    def take_scores(self, metrics: Mapping[str, Metrics[Any]]) -> None:
        """Record the scores of the last finished round's models, and keep the parts if it is the best on validation."""
        if not self.ledger:
            return
        record = self.ledger[-1]
        record.validation = {site: of_site.validation for site, of_site in metrics.items() if of_site.validation}
        record.test = {site: of_site.round_test for site, of_site in metrics.items() if of_site.round_test} or None
        mark_round(record, self.ledger[:-1])
        if record.is_best:
            self.best_parts = {role: part for role, part in self.parts.items() if part.follows_best}

    @cached_property
    def _kinds(self) -> list[OutboundPayload]:
        return list_outbound_payloads(self.study)

    def _parts_for(self, exchange: Exchange) -> dict[str, Part]:
        """Return the parts of a task: the best round's where its models are evaluated, else the current ones."""
        is_of_best = exchange.is_of_models and exchange.task != TRAIN and exchange.round == self.best_round
        return self.parts | self.best_parts if is_of_best else self.parts

    def _weights(self, role: str, number: int, site_results: SiteResults) -> NDArray[np.float64]:
        """Return who listens to whom in a role: as a part decides, else the same weighted mean for all."""
        for name, part in self.parts.items():
            if (weights := part.weights(role, number, site_results.sites, self)) is not None:
                check_weights(weights, site_results.sites, f"part {name!r}")
                return weights
        counts = self.study.recipe.count(site_results.examples, self.study.federation.min_sites_for_ratio)
        return example_weights(list(counts.values()))
