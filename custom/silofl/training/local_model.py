"""A model that a site trains alone beside other learners: that of the algorithm ``local``, bit for bit.

After the federation's rounds it goes on by itself until more rounds do not raise it. It depends on the study's data,
network and training and on no algorithm, but for the projection head that one may put into the network, so that runs
that differ in nothing else share it: the first one leaves it in the cache of the site's data, the others take it from
there. It lies within the entry of the images that it has learnt from, and goes with it. Two that differ in their
normalisation are two models, each with a file of its own.
"""

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from silofl.base.errors import DamagedError
from silofl.base.files import load_state, save_state
from silofl.core.mixing import Arrays
from silofl.core.steps import Loss, OwnDraws, plain_step
from silofl.core.training_end import is_finished, measure_own_rise
from silofl.data.cache import describe_source, fingerprint_preparation
from silofl.data.site_data import SiteData
from silofl.models import HarmonizedModel, build_plain_model
from silofl.models.names import write_arrays
from silofl.study import Study
from silofl.training.evaluation import evaluate
from silofl.training.home_statistics import fix_home_statistics
from silofl.training.loop import Learner, make_optimizer, set_learning_rate
from silofl.training.metrics import Score
from silofl.training.schedule import learning_rate
from silofl.training.small_cells import DECIMALS

State = dict[str, Tensor]
# 5: a file for each model, with the one that is trained anew beside it.
FORMAT = 5
# The most rounds that a model learns in, unless the study has more.
MOST_ROUNDS = 200
# Of the study's rounds: those of a model that is trained anew because its rate falls.
ANEW = 2
# What says nothing of how a site trains alone.
NOT_DECIDING = {"name", "continue_run", "baseline_comparison", "evaluate_every_round", "algorithm", "federation"}


class LocalModel:
    """The model in one task.

    Args:
        study: The study; of its algorithm nothing is used.
        kept: What the task before left of it; empty at first.
        start: The arrays that it begins from over those that the study's seed gives.
        rounds: Those that its learning rate falls in, where it falls.

    Attributes:
        kept: What the next task begins from.
        draws: The random numbers of its steps.
    """

    def __init__(
        self, study: Study, device: torch.device, kept: dict[str, Any], start: Arrays, rounds: int | None = None
    ) -> None:
        self.study = study
        self.device = device
        self._planned = rounds or study.training_rounds
        self.kept = dict(kept)
        self.draws = OwnDraws(device)
        self._start = start

    @cached_property
    def model(self) -> HarmonizedModel:
        """The model as the task finds it."""
        model: HarmonizedModel = build_plain_model(self.study, self.study.seed).to(self.device)
        write_arrays(model.state_dict(), self._start)
        if "state" in self.kept:
            model.load_state_dict(self.kept["state"])
        return model

    def has_learnt(self, number: int) -> bool:
        """Return whether it has learnt in a round already, in another run."""
        return number <= self.last

    @property
    def best(self) -> State:
        """Its state after its best round by validation; after the last one where no round was validated."""
        state: State = self.kept.get("best", self.kept)["state"]
        return state

    @property
    def best_round(self) -> int:
        """The round of that state."""
        return self.kept["best"]["round"] if "best" in self.kept else self.last

    @property
    def best_value(self) -> float:
        """Its validation after that round; 0 where none was validated."""
        return self.kept["best"]["value"] if "best" in self.kept else 0.0

    @property
    def last(self) -> int:
        """The last round that it has learnt in; 0 before the first."""
        last: int = self.kept.get("last", 0)
        return last

    @property
    def values(self) -> list[float]:
        """Its validation after each round that has one."""
        return [value for _, value in sorted(self.kept.get("values", {}).items())]

    @property
    def is_whole(self) -> bool:
        """Whether it has learnt in every round up to its last."""
        return self.kept.get("rounds") == self.last

    @property
    def has_ended(self) -> bool:
        """Whether it learns no more: trained to its end, or in as many rounds as are allowed."""
        if self.study.training.has_falling_rate:
            return self.last >= self._planned
        return is_finished(self.rise) or self.last >= max(MOST_ROUNDS, self.study.training_rounds)

    @property
    def rise(self) -> float | None:
        """By how much its last rounds raised it; None where they are all that there are."""
        return measure_own_rise(self.values, self.study.patience)

    def prepare_learner(self, loss: Loss, number: int) -> Learner:
        """Return it as a learner of a round with a loss."""
        settings = self.study.training
        self.draws.begin()
        self._optimizer = make_optimizer(settings, self.model)
        # By the study's choice alone: what its algorithm needs is not this model's affair.
        if "optimizer" in self.kept and settings.optimizer_state == "kept":
            self._optimizer.load_state_dict(self.kept["optimizer"])
        # A constant rate knows no planned end.
        planned = self._planned if settings.has_falling_rate else max(self._planned, number)
        set_learning_rate(self._optimizer, learning_rate(settings.schedule, settings.learning_rate, number, planned))
        step = self.draws.step(plain_step)
        return Learner(self.model, self._optimizer, loss, step, stays=True)

    def epoch(self) -> None:
        """Begin an epoch with the random numbers that every other learner begins it with."""
        self.draws.begin()

    def validate(self, number: int, data: SiteData, score: Score | None = None) -> None:
        """Keep its state after a round where it is the best so far on validation data, of two that are level the later.

        Args:
            score: Its score on them, where it is known.
        """
        if number != self.last or number in self.kept.get("values", {}):
            return
        if score is None:
            # The statistics are of the weights that are evaluated, so they are taken just before.
            fix_home_statistics(self.model, data.training.images, self.study, self.device)
            _, score = evaluate(self.model, data.validation, self.study, self.device)
        self.take_value(number, score.value if score.num_cases else 0.0)

    def take_value(self, number: int, value: float) -> None:
        """Take a validation of the last round, rounded as scores leave, and the state where it is the best so far."""
        value = round(value, DECIMALS)
        self.kept["values"] = self.kept.get("values", {}) | {number: value}
        if value >= self.best_value:
            self.kept["best"] = {"round": number, "value": value, "state": self.kept["state"]}

    def record_round(self, number: int) -> None:
        """Take note that a round has trained it."""
        if not self.has_learnt(number):
            self.adopt(number, self.model, self._optimizer.state_dict())

    def adopt(self, number: int, model: nn.Module, optimizer: dict[str, Any]) -> None:
        """Take what a round has made of a model that learns as this one does, unless it has learnt in it already."""
        # A round that a resumed run repeats must not count twice.
        if not self.has_learnt(number):
            rounds = self.kept.get("rounds", 0) + 1
            self.kept |= {"rounds": rounds, "last": number, "state": copy_state(model), "optimizer": optimizer}


def local_rounds(study: Study, last: int) -> int:
    """Return the most rounds that a site's own model learns in after the federation's last one."""
    if study.training.has_falling_rate:
        return ANEW * study.training_rounds
    return max(MOST_ROUNDS, study.training_rounds) - last


def lend(memo: Path | None, kept: dict[str, Any]) -> None:
    """Leave what a run's sites keep of their local models to other runs."""
    if memo is not None:
        save_state(memo, FORMAT, {"memo": memo.stem}, kept)


def load_borrowed(memo: Path | None) -> dict[str, Any]:
    """Return what another run has left; nothing where there is none."""
    if memo is None:
        return {}
    try:
        return load_state(memo, FORMAT, {"memo": memo.stem})
    except DamagedError:
        return {}


def locate_memo(study: Study, site: str, data: SiteData, cache: Path | None, device: torch.device) -> Path | None:
    """Return the file in which runs leave a site's local model, by all that decides it; None without a manifest."""
    if data.manifest is None or cache is None:
        return None
    deciding = study.model_dump(mode="json", exclude=NOT_DECIDING) | {"training_rounds": study.training_rounds}
    deciding |= {"patience": study.patience}
    for option in study.recipe.options:
        # Nothing else of the algorithm decides on the local model, which has the algorithm's network.
        if option.traits.projection_head:
            deciding[option.section] = option.model_dump(exclude_defaults=True)
    entry = fingerprint_preparation(describe_source(data.manifest), study)
    # Another version of torch, or another device, adds up to other bits.
    text = json.dumps([FORMAT, deciding, site, entry, torch.__version__, device.type], sort_keys=True)
    return cache / entry / f"local-{hashlib.sha256(text.encode()).hexdigest()[:32]}.pt"


def copy_state(model: nn.Module) -> State:
    """Return a copy of a model's state on the CPU."""
    return {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
