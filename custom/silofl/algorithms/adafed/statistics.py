"""AdaFed's statistics: when which sites are asked for them, and who listens to whom by their distances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from silofl.algorithms.adafed.paper import (
    Similarity,
    Statistics,
    collect_statistics,
    distances,
    running_statistics,
    statistics_sizes,
    weigh_known_sites,
)
from silofl.base.errors import ConfigError, TrainingError
from silofl.core.mixing import Arrays
from silofl.core.recipe import find_bounding_rule
from silofl.data.batches import evaluation_batches
from silofl.models import build_plain_model
from silofl.models.names import batchnorm_names, write_arrays
from silofl.models.roles import add_role
from silofl.parts.answer import SiteAnswer
from silofl.parts.asked_once import Withheld, check_all_sent, expect_float64, suppress_few_patients
from silofl.parts.part import BEFORE, OutboundPayload, Outcome, Part, Run, WeightsOf
from silofl.parts.task import Exchange, Message, PayloadSpec, SiteResults
from silofl.parts.work import SitePart
from silofl.study import Study
from silofl.training.site_score import SiteScore

ROLE, PRETRAINED = "statistics", "pretrained"
PURPOSE = "means and variances of the model's features over the training images, by which the server compares the sites"
RISK = (
    "the server sees which sites have similar images. With few patients it sees what their images show; min_patients, "
    "or may_leave without statistics: the site then gives all sites the same weight"
)


@dataclass(frozen=True)
class StatisticsPart(Part):
    """The sites' statistics at the server.

    Attributes:
        study: The study.
        sizes: Channels of each layer that sites are compared by.
        pretrained: The pretrained model's arrays, where sites are compared by it; not part of the checkpoint.
        statistics: Site -> its statistics; without a site that has not been asked, or shares none.
        without: Site -> why it shares none.
        history: One record for each time the weights were computed; the content of ``weights.json``.
    """

    study: Study
    sizes: tuple[int, ...]
    pretrained: Arrays = field(default_factory=dict)
    statistics: dict[str, Statistics] = field(default_factory=dict)
    without: dict[str, str] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    role: str = ROLE
    outbound = (OutboundPayload("statistics", PURPOSE, RISK, ROLE, is_of_images=True, is_mixed=False, is_bounded=True),)

    @classmethod
    def start(cls, study: Study, sites: Sequence[str], pretrained: Arrays | None) -> Sequence[Part]:
        """Return the server half before any statistics.

        Raises:
            ConfigError: The network has no layer to compare sites by, or none that keeps running statistics, or all
                of them are frozen.
        """
        settings = study.recipe.option(ROLE)
        model = build_plain_model(study, study.seed)
        # A pretrained model's layers are compared by their inputs, running statistics by BatchNorm's own.
        if settings.source == "pretrained":
            return [cls(study, tuple(statistics_sizes(model, settings.layers)), pretrained or {})]
        sizes = tuple(len(mean) for mean, _ in running_statistics(model))
        if batchnorm_names(model) <= model.frozen:
            raise ConfigError(
                "training.frozen leaves no BatchNorm layer that learns, by whose statistics sites are compared; remove "
                "a pattern, or choose statistics.source: pretrained"
            )
        return [cls(study, sizes)]

    @classmethod
    def outbound_payloads(cls, study: Study) -> Sequence[OutboundPayload]:
        """Return the kind of the statistics, which may be BatchNorm's own."""
        is_batchnorm = study.recipe.option(ROLE).source == "running"
        return [replace(kind, is_batchnorm=is_batchnorm) for kind in cls.outbound]

    @property
    def settings(self) -> Similarity:
        """The recipe's answer."""
        option: Similarity = self.study.recipe.option(ROLE)
        return option

    def is_due(self, finished: int) -> bool:
        """Return whether all sites are to be asked before the next round, for the first time or again."""
        shared = self.study.recipe.shared_rounds(self.study.rounds)
        if finished < shared or not self.history:
            return finished >= shared
        refresh = self.settings.refresh_every
        # From the first time on, as later ones may be of single sites that answered late.
        return refresh > 0 and (finished - self.history[0]["round"]) % refresh == 0

    def asks(self, moment: str, number: int, run: Run) -> Sequence[Exchange]:
        """Ask all sites when it is due, and in every round those that gave no answer yet."""
        # Asked before round `number`, about the models of the round that has ended. In extra rounds nobody listens.
        finished = number - 1
        shared = self.study.recipe.shared_rounds(self.study.rounds)
        if moment != BEFORE or not shared <= finished < run.study.joint_rounds:
            return ()
        sites = run.sites
        if not self.is_due(finished):
            answered = self.statistics.keys() | self.without.keys()
            sites = [site for site in run.sites if site not in answered]
        if not sites:
            return ()
        # A site that fails here listens to all alike; it keeps no round from running.
        return (Exchange(ROLE, finished, sites=tuple(sites), is_needed=False, models_round=finished),)

    def to_send(self, site: str, exchange: Exchange, run: Run) -> Message:
        """Return the pretrained model, where sites are compared by its layers' inputs."""
        return Message(add_role(PRETRAINED, self.pretrained)) if exchange.task == ROLE else Message()

    def payload_spec(self, site: str, exchange: Exchange, run: Run) -> PayloadSpec:
        """Return a mean and a variance for each layer."""
        if exchange.task != ROLE:
            return PayloadSpec(metadata=Withheld)
        arrays = {}
        for layer, size in enumerate(self.sizes):
            arrays[f"{ROLE}/{layer}/mean"] = expect_float64((size,), minimum=None)
            arrays[f"{ROLE}/{layer}/variance"] = expect_float64((size,))
        return PayloadSpec(arrays, Withheld)

    def checked(self, site: str, exchange: Exchange, answer: SiteAnswer, run: Run) -> StatisticsPart:
        """Refuse statistics of some layers only; a site may keep back all or nothing."""
        check_all_sent(site, answer, self.payload_spec(site, exchange, run).arrays, ROLE, "its layers' statistics")
        return self

    def merged(self, exchange: Exchange, site_results: SiteResults, weights_of: WeightsOf, run: Run) -> StatisticsPart:
        """Store the statistics, and compute the weights among the sites that share theirs."""
        # Where a single site was asked once more and did not answer, nothing is known that a record would have to say.
        if exchange.task != ROLE or not (self.is_due(exchange.round) or site_results.accepted or site_results.refused):
            return self
        statistics = dict(self.statistics)
        without = dict(self.without)
        # A site that does not answer keeps its older statistics; one that does replaces them, whatever it says.
        for site in [*site_results.accepted, *site_results.refused]:
            statistics.pop(site, None)
            without.pop(site, None)
        without |= site_results.refused
        for site, answer in site_results.accepted.items():
            if withheld := answer.metadata(ROLE, Withheld).withheld:
                without[site] = withheld
            else:
                arrays = {name: np.asarray(array, np.float64) for name, array in answer.of(ROLE).items()}
                statistics[site] = [(arrays[f"{i}/mean"], arrays[f"{i}/variance"]) for i in range(len(self.sizes))]
        new = replace(self, statistics=statistics, without=without)
        record = new._build_record(run.sites, exchange.round, site_results.missing)
        return replace(new, history=[*self.history, record])

    def weights(self, role: str, number: int, sites: Sequence[str], run: Run) -> NDArray[np.float64] | None:
        """Return who listens to whom, once sites have been compared."""
        if role != self.study.recipe.roles[-1] or number <= self.study.recipe.shared_rounds(self.study.rounds):
            return None
        return self._weigh(self.distances(sites))

    def distances(self, sites: Sequence[str]) -> NDArray[np.float64]:
        """Return the distances between sites, shape (K, K), NaN where a site shares nothing."""
        sharing = [index for index, site in enumerate(sites) if site in self.statistics]
        distance = np.full((len(sites), len(sites)), np.nan)
        if sharing:
            distance[np.ix_(sharing, sharing)] = distances([self.statistics[sites[index]] for index in sharing])
        return distance

    def notes(self, exchange: Exchange, run: Run) -> Sequence[str]:
        """Return one sentence for each site that shares nothing."""
        if exchange.task != ROLE or not self.history or self.history[-1]["round"] != exchange.round:
            return []
        return [
            f"site {site!r} shares no statistics ({reason}): it listens to all sites equally, and those that share "
            "theirs do not listen to it"
            for site, reason in self.history[-1]["without"].items()
        ]

    def outcome(self, run: Run, tests: Mapping[str, SiteScore]) -> Outcome:
        """Return the history of the weights."""
        return Outcome(make_files=lambda: {"weights.json": self.history})

    def state(self) -> dict[str, Any]:
        """Return a checkpoint."""
        tensors = {}
        for site, statistics in self.statistics.items():
            tensors[site] = [torch.from_numpy(np.stack(pair)) for pair in statistics]
        return {"statistics": tensors, "without": self.without, "history": self.history}

    def restored(self, state: Mapping[str, Any]) -> StatisticsPart:
        """Return what `state` described."""
        statistics = {}
        for site, tensors in state["statistics"].items():
            statistics[site] = [tuple(pair.numpy()) for pair in tensors]
        return replace(self, statistics=statistics, without=dict(state["without"]), history=list(state["history"]))

    def _weigh(self, distance: NDArray[np.float64]) -> NDArray[np.float64]:
        num_sharing = int(np.isfinite(np.diag(distance)).sum())
        # A robust rule bounds how near a site may count.
        rule = find_bounding_rule(self.study.recipe, num_sharing, self.study.federation.min_sites_for_ratio)
        return weigh_known_sites(distance, self.settings.self_weight, rule is not None)

    def _build_record(self, sites: Sequence[str], finished: int, missing: Mapping[str, str]) -> dict[str, Any]:
        distance = self.distances(sites)
        # JSON has no NaN.
        rows = distance.astype(object)
        rows[np.isnan(distance)] = None
        # Later reasons replace earlier ones: what a site said itself is the best known.
        reasons = dict.fromkeys(sites, "no answer yet") | dict(missing) | self.without
        return {
            "round": finished,
            "source": self.settings.source,
            "layers": "all" if self.settings.source == "running" else self.settings.layers,
            "self_weight": self.settings.self_weight,
            "sites": list(sites),
            "distances": rows.tolist(),
            "weights": self._weigh(distance).tolist(),
            "without": {site: reasons[site] for site in sites if site not in self.statistics},
        }


class SiteStatistics(SitePart):
    """A site's statistics: of a pretrained model's layers, or of its own BatchNorm layers after its last round."""

    name = ROLE
    tasks = (ROLE,)

    def answer(self, task: str) -> Message:
        """Collect the statistics, unless there are too few patients for it."""
        work = self.work
        meta = {"num_patients": work.data.training.num_patients}
        return suppress_few_patients(work, ROLE, meta) or Message(pack_statistics(self._measure_statistics()), meta)

    def _measure_statistics(self) -> Statistics:
        work = self.work
        settings = work.study.recipe.option(ROLE)
        if settings.source == "running":
            if not work.held:
                raise TrainingError(f"site {work.site!r} has trained no round and so has no statistics to share")
            return running_statistics(work.own)
        model = build_plain_model(work.study, work.study.seed).to(work.device)
        # All sites measure with the same model, or their statistics could not be compared.
        write_arrays(model.state_dict(), work.message.of(PRETRAINED))
        batches = evaluation_batches(work.data.training, work.study.training.batch_size, work.device)
        return collect_statistics(model, (images for images, _ in batches), settings.layers)


def pack_statistics(statistics: Statistics) -> Arrays:
    """Return statistics under the names by which they travel: ``statistics/0/mean`` and so on, float64."""
    arrays = {}
    for layer, (mean, variance) in enumerate(statistics):
        arrays[f"{ROLE}/{layer}/mean"] = mean
        arrays[f"{ROLE}/{layer}/variance"] = variance
    return arrays


PART, SITE = StatisticsPart, SiteStatistics
