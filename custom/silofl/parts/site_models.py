"""A site's half of the models, which every algorithm sends: train, keep, validate and test them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from silofl.core.mixing import Arrays
from silofl.data.parts import Examples
from silofl.errors import TrainingError
from silofl.inference.contents import Contents
from silofl.inference.directory import FOLDER, write_model_folder
from silofl.models import HarmonizedModel
from silofl.models.names import alias_names, as_array, batchnorm_names, home_names, traveling_names, write_arrays
from silofl.models.roles import GLOBAL, read_role
from silofl.parts.calling import choose_site_calling
from silofl.parts.part import Kept
from silofl.parts.task import TEST, VALIDATE, Message
from silofl.parts.work import SitePart
from silofl.study import Study
from silofl.training.case_pictures import write_test_files
from silofl.training.evaluation import evaluate, summarise_test
from silofl.training.loop import Learner, TrainingResult, make_optimizer, set_learning_rate
from silofl.training.metrics import Score


class SiteModels(SitePart):
    """A site's models with their optimisers."""

    name = "models"
    tasks = (VALIDATE, TEST)

    @classmethod
    def list_kept(cls, study: Study, number: int) -> Sequence[Kept]:
        """Return the optimisers, where they keep anything, and what of the models stays at home."""
        optimizers = Kept("its optimisers", is_for_training=True, is_of_model=True)
        home = Kept(f"what stays at home ({study.recipe.stays_home})", is_of_model=True)
        is_kept = {optimizers: study.keeps_optimizers, home: study.recipe.stays_home != "nothing"}
        return [one for one, is_here in is_kept.items() if is_here]

    def prepare(self) -> None:
        """Load the arrays that the site kept at home, then the received ones over them."""
        work = self.work
        kept = work.kept.get(self.name) or {"home": {}}
        own = self.state()
        with torch.no_grad():
            for name, value in kept["home"].items():
                own[name].copy_(value)
        for role, model in work.models.items():
            write_arrays(model.state_dict(), work.message.of(role))

    def learners(self) -> Mapping[str, Learner]:
        """Return every model that learns, its optimiser fresh or as the last round left it, with the recipe's step."""
        study, kept = self.work.study, self.work.kept.get(self.name)
        models = {role: self.work.models[role] for role in study.learning_roles(self.work.number)}
        self._before = self._read_start()
        self._optimizers = {role: make_optimizer(study.training, model) for role, model in models.items()}
        loss, learners = self.work.loss, {}
        for role, model in models.items():
            if kept and not study.has_fresh_optimizer:
                # Momentum and Adam's moments go on from round to round; they never travel. A model that is fine-tuned
                # goes on with a copy of the shared one's; without it both would write into the same tensors.
                state = kept["optimizer"]
                known = state[role] if role in state else copy.deepcopy(state[GLOBAL])
                self._optimizers[role].load_state_dict(known)
            # After its state, which holds the rate of the round before.
            set_learning_rate(self._optimizers[role], self.work.learning_rate)
            step = study.recipe.make_step(role)
            for part in self.work.parts:
                step = part.step(role, step)
            learners[role] = Learner(model, self._optimizers[role], loss, step, study.training.measures_drift)
        return learners

    def finish(self, results: Mapping[str, TrainingResult]) -> Message:
        """Return the differences that training made, and let go of the last step's gradients."""
        for optimizer in self._optimizers.values():
            optimizer.zero_grad()
        state = self.state()
        return Message({name: as_array(state[name]) - before for name, before in self._before.items()})

    def kept(self) -> dict[str, Any]:
        """Return the arrays that the server will not send again, and the optimisers' states."""
        if self.work.study.has_fresh_optimizer:
            return {"home": self.home()}
        return {"home": self.home(), "optimizer": {role: one.state_dict() for role, one in self._optimizers.items()}}

    def home(self) -> dict[str, Tensor]:
        """Return the arrays that the server will not send again, as they are now."""
        recipe, received = self.work.study.recipe, self.work.message.arrays
        # Of its own model a site keeps every array: where it listens to nobody, `ModelPart.to_send` sends none.
        # In extra rounds each site goes on from its own last model: sent back to it, it would travel for nothing.
        has_own = recipe.mixing is not None or recipe.extra_rounds > 0
        sent = {n for n in self._list_traveling_names() if n in received and not (has_own and read_role(n) != GLOBAL)}
        models = self.work.models.items()
        # A filter of the site's own may keep BatchNorm back, of which nothing here says; so it is always at hand.
        sent -= {f"{role}/{name}" for role, model in models for name in batchnorm_names(model)}
        aliases = {f"{role}/{name}" for role, model in models for name in alias_names(model)}
        return {name: value.cpu() for name, value in self.state().items() if name not in sent | aliases}

    def state(self) -> dict[str, Tensor]:
        """Return the models' own tensors, ``role/name``."""
        models = self.work.models.items()
        return {f"{r}/{name}": value for r, model in models for name, value in model.state_dict().items()}

    @property
    def has_learnt(self) -> bool:
        """Whether all that learns of the models has learnt: at this site, or at others where none of it stays home."""
        recipe, models, message = self.work.study.recipe, self.work.models, self.work.message
        stays = (
            (home_names(models[role], recipe) | _read_home(message, role)) - models[role].frozen
            for role in recipe.traveling_roles
        )
        return self.work.held > 0 or not any(stays)

    def deploy(self) -> dict[str, HarmonizedModel]:
        """Return the models as the site validates, tests and keeps them.

        Raises:
            TrainingError: They have not learnt.
        """
        work = self.work
        if not self.has_learnt:
            raise TrainingError(
                f"site {work.site!r} must have trained in a round up to {work.number}, because a part of its model "
                "never leaves it, and it has kept none of such a round"
            )
        return work.deployed

    def answer(self, task: str) -> Message:
        """Validate or test the received models of a finished round."""
        if task == VALIDATE:
            return Message(meta={"metrics": self.work.scores()})
        return Message(meta={"metrics": {"test": self._test_and_write()}})

    def validation(self, examples: Examples) -> dict[str, Any]:
        """Return the score on validation data, of which every part takes note."""
        scores = self._evaluate_models(examples)
        numbers = self._summarise_scores(scores, examples)
        for part in self.work.parts:
            part.validated(scores[self.work.study.recipe.roles[-1]])
        return numbers

    def score(self, examples: Examples) -> dict[str, Any]:
        """Return the score of the same models on other data, of which no part takes note."""
        return self._summarise_scores(self._evaluate_models(examples), examples)

    def _evaluate_models(self, examples: Examples) -> dict[str, Score]:
        work = self.work
        return {role: evaluate(model, examples, work.study, work.device)[1] for role, model in self.deploy().items()}

    def _summarise_scores(self, scores: Mapping[str, Score], examples: Examples) -> dict[str, Any]:
        """Return the numbers of the site's own model, or of the models as a part combines them."""
        judged = next((score for part in self.work.parts if (score := part.combine_scores(scores, examples))), None)
        models = {role: score.numbers()["value"] for role, score in scores.items()}
        own = scores[self.work.study.recipe.roles[-1]].numbers()
        return (judged or own) | ({"models": models} if len(models) > 1 else {})

    def _test_and_write(self) -> dict[str, Any]:
        """Test the site's model, and write it as a super model that holds this one model."""
        work = self.work
        model, part = self.deploy()[work.study.recipe.roles[-1]], work.data.test
        predictions, result = evaluate(model, part, work.study, work.device)
        calling, read = choose_site_calling(
            work, lambda part: evaluate(model, part, work.study, work.device)[1], result
        )
        numbers = summarise_test(predictions, result, part, work.study) | read
        state = {name: value.cpu() for name, value in model.state_dict().items()}
        shape = part.image_shape
        is_told = any(_read_home(work.message, role) for role in work.models)
        numbers_and_home = numbers | ({"stays_home": "batchnorm"} if is_told else {})
        own = {work.site: state}
        contents = Contents(work.study, shape, own, "only", facts=numbers_and_home, domain=work.domain, calling=calling)
        write_model_folder(work.folder / FOLDER, contents)
        write_test_files(work.folder, result, predictions, model, part, work.study.data.shown)
        return numbers

    def _list_traveling_names(self) -> list[str]:
        recipe = self.work.study.recipe
        return [
            f"{role}/{name}"
            for role in recipe.traveling_roles
            for name in traveling_names(self.work.models[role], recipe)
            if name not in _read_home(self.work.message, role)
        ]

    def _read_start(self) -> Arrays:
        """Return what travels as it is before training: the received array itself where it is the same, else a copy."""
        state, found = self.state(), {}
        for name in self._list_traveling_names():
            value = as_array(state[name])
            known = self.work.message.arrays.get(name, value)
            is_same = known is not value and known.dtype == value.dtype and np.array_equal(known, value)
            found[name] = known if is_same else value.copy()
        return found


def _read_home(message: Message, role: str) -> set[str]:
    """Return the names of a model that no site sends any more, as the server says."""
    told = message.meta.get(role)
    names = told.get("home") if isinstance(told, dict) else None
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()
