"""FedDyn, as somebody adds it by docs/new-algorithm.md: an algorithm with a state of its own at each site.

Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, arXiv:2111.04263, Algorithm 1. Both halves
stand in one file, which `add_feddyn` puts where SiloFL looks for an algorithm and for its part.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import torch

from silofl.core import presets
from silofl.core.recipe import PRESET_NAMES, Answer, Recipe
from silofl.core.steps import with_change
from silofl.parts.part import Kept, Part
from silofl.parts.task import Message
from silofl.parts.work import SitePart
from silofl.settings import Positive


class Dynamic(Answer):
    """A regulariser that follows each site's own gradient, with the paper's alpha."""

    section: ClassVar[str] = "dynamic"
    halves: ClassVar[str] = "silofl.algorithms.feddyn"
    alpha: Positive = 0.1

    def sentence(self):
        """Return what a report says of it."""
        return f"Nothing (FedDyn, alpha = {self.alpha:g})."


PRESETS = dict.fromkeys(PRESET_NAMES, Recipe(parts=(Dynamic(),), weights="uniform"))


@dataclass(frozen=True)
class FedDynPart(Part):
    """The server's h, which is the mean of all sites' h_i as long as each has the one that the server counts on."""

    study: object
    sites: tuple
    h: dict = field(default_factory=dict)
    role: str = "feddyn"
    saved = ("h",)

    @classmethod
    def start(cls, study, sites, pretrained):
        """Return h = 0."""
        return [cls(study, tuple(sites))]

    def server_step(self, role, previous, mixed, replies):
        """Take ``h = h - alpha / m sum (theta_i - theta)``, then ``theta = mean of theta_i - h / alpha``."""
        alpha, share = self.study.recipe.answer("dynamic").alpha, len(replies.accepted) / len(self.sites)
        h = {n: self.h.get(n, 0) - alpha * share * (np.float64(mixed[n]) - before) for n, before in previous.items()}
        return {n: (mixed[n] - h[n] / alpha).astype(np.float32) for n in previous}, replace(self, h=h)


class SiteFedDyn(SitePart):
    """A site's h_i."""

    name = "feddyn"
    stays = (Kept("its h_i", is_for_training=True),)

    def step(self, role, step):
        """Add ``alpha (theta_i - theta) - h_i`` to each gradient."""
        kept, alpha = self.work.kept.get(self.name), self.work.study.recipe.answer("dynamic").alpha
        self._model = self.work.models[role]
        self._start = {name: p.detach().clone() for name, p in self._model.named_parameters()}
        self._h = kept["h"] if kept else {name: torch.zeros_like(p) for name, p in self._start.items()}

        def correct(model):
            for name, p in model.named_parameters():
                p.grad.add_(alpha * (p.detach() - self._start[name]) - self._h[name])

        return with_change(step, correct)

    def finish(self, results):
        """Take ``h_i = h_i - alpha (theta_i - theta)``, of which nothing leaves."""
        alpha, trained = self.work.study.recipe.answer("dynamic").alpha, dict(self._model.named_parameters())
        self._new = {n: h - alpha * (trained[n].detach() - self._start[n]) for n, h in self._h.items()}
        return Message()

    def kept(self):
        """Return h_i."""
        return {"h": self._new}


PART, SITE = FedDynPart, SiteFedDyn


def add_feddyn(monkeypatch):
    """Put FedDyn among the algorithms for one test."""
    monkeypatch.setitem(sys.modules, "silofl.algorithms.feddyn", sys.modules[__name__])
    names = presets.algorithm_names()
    monkeypatch.setattr(presets, "algorithm_names", lambda: sorted([*names, "feddyn"]))
