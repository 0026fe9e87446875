"""AdaFed's exchange of statistics at the server: whom to ask, what comes of it, and who listens to whom after that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from silofl.algorithms.adafed import Statistics, distances, known_weights, statistics_sizes
from silofl.algorithms.mixing import Arrays, check_array
from silofl.errors import AggregationError
from silofl.federation.message import Message
from silofl.models import build_plain_model
from silofl.study import Study

KINDS = ("mean", "variance")


def statistics_arrays(statistics: Statistics) -> Arrays:
    """Return statistics under the names by which they travel: ``statistics/0/mean`` and so on, float64."""
    return {
        f"statistics/{layer}/{kind}": values
        for layer, pair in enumerate(statistics)
        for kind, values in zip(KINDS, pair, strict=True)
    }


@dataclass
class Similarity:
    """What the server knows of how similar the sites' data are.

    Attributes:
        study: The study.
        sizes: Channels of each layer that sites are compared by.
        statistics: Site -> its statistics; without a site that has not been asked, or shares none.
        without: Site -> why it shares none.
        history: One record for each time the weights were computed; the content of ``weights.json``.
    """

    study: Study
    sizes: list[int]
    statistics: dict[str, Statistics] = field(default_factory=dict)
    without: dict[str, str] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def start(cls, study: Study) -> Similarity:
        """Begin without statistics.

        Raises:
            ConfigError: The network has no layer to compare sites by.
        """
        layers = "all" if study.recipe.statistics == "running" else study.recipe.statistics_layers
        return cls(study, statistics_sizes(build_plain_model(study, study.seed), layers))

    def is_due(self, finished: int) -> bool:
        """Return whether all sites are to be asked before the next round: for the first time, or anew."""
        if finished < self.study.shared_rounds or not self.history:
            return finished >= self.study.shared_rounds
        refresh = self.study.recipe.refresh_every
        return refresh > 0 and finished >= self.history[-1]["round"] + refresh

    def sites_to_ask(self, sites: Sequence[str], finished: int) -> list[str]:
        """Return the sites whose statistics are wanted before the next round: all, or those that gave no answer yet."""
        if finished < self.study.shared_rounds:
            return []
        if self.is_due(finished):
            return list(sites)
        return [site for site in sites if site not in self.statistics and site not in self.without]

    def accept(self, site: str, answer: Message) -> None:
        """Take in a site's answer: its statistics, or why it shares none or what is wrong with them."""
        self.statistics.pop(site, None)
        self.without.pop(site, None)
        try:
            if answer.meta.get("withheld"):
                raise AggregationError(str(answer.meta["withheld"]))
            self.statistics[site] = self._checked(site, answer.arrays)
        except AggregationError as error:
            self.without[site] = str(error)

    def compute(self, sites: Sequence[str], finished: int, failed: Mapping[str, str]) -> list[str]:
        """Compute the weights from what is known, and keep them in the history.

        Args:
            sites: All sites of the run.
            finished: The number of the last finished round.
            failed: Site -> why it gave no answer this time; it will be asked again.

        Returns:
            One sentence for each site that shares nothing.
        """
        recipe, distance = self.study.recipe, self.distances(sites)
        reasons = dict.fromkeys(sites, "no answer yet") | dict(failed) | self.without
        without = {site: reasons[site] for site in sites if site not in self.statistics}
        self.history.append(
            {
                "round": finished,
                "source": recipe.statistics,
                "layers": "all" if recipe.statistics == "running" else recipe.statistics_layers,
                "self_weight": recipe.self_weight,
                "sites": list(sites),
                "distances": [[None if np.isnan(value) else value for value in row] for row in distance.tolist()],
                "weights": known_weights(distance, recipe.self_weight).tolist(),
                "without": without,
            }
        )
        return [
            f"site {site!r} shares no statistics ({reason}): it listens to all sites equally, and those that share "
            "theirs do not listen to it"
            for site, reason in without.items()
        ]

    def distances(self, sites: Sequence[str]) -> NDArray[np.float64]:
        """Return the distances between some sites, shape (K, K), NaN where a site shares nothing."""
        known = [i for i, site in enumerate(sites) if site in self.statistics]
        found = np.full((len(sites), len(sites)), np.nan)
        if known:
            found[np.ix_(known, known)] = distances([self.statistics[sites[i]] for i in known])
        return found

    def weights(self, sites: Sequence[str]) -> NDArray[np.float64]:
        """Return who listens to whom among the sites that are present, shape (K', K')."""
        return known_weights(self.distances(sites), self.study.recipe.self_weight)

    def state(self) -> dict[str, Any]:
        """Return a checkpoint: plain values, and tensors."""
        tensors = {
            site: [torch.from_numpy(np.stack(pair)) for pair in statistics]
            for site, statistics in self.statistics.items()
        }
        return {"statistics": tensors, "without": self.without, "history": self.history}

    @classmethod
    def restore(cls, study: Study, state: Mapping[str, Any]) -> Similarity:
        """Return what `state` described."""
        statistics = {site: [tuple(pair.numpy()) for pair in tensors] for site, tensors in state["statistics"].items()}
        known = cls.start(study)
        return cls(study, known.sizes, statistics, dict(state["without"]), list(state["history"]))

    def _checked(self, site: str, arrays: Arrays) -> Statistics:
        wanted = {f"statistics/{layer}/{kind}": (size,) for layer, size in enumerate(self.sizes) for kind in KINDS}
        if arrays.keys() != wanted.keys():
            names = sorted(arrays.keys() ^ wanted.keys())
            raise AggregationError(f"site {site!r} must send the statistics of every layer; they differ in {names}")
        for name, shape in wanted.items():
            check_array(site, name, arrays[name], shape)
            if name.endswith("variance") and np.any(np.asarray(arrays[name]) < 0):
                raise AggregationError(f"site {site!r} must send variances of at least 0; {name!r} holds less")
        return [
            tuple(np.asarray(arrays[f"statistics/{layer}/{kind}"], dtype=np.float64) for kind in KINDS)
            for layer in range(len(self.sizes))
        ]
