"""A federated algorithm as five independent answers, of which a preset is a named choice.

The answers: how the input is normalised, how a site steps on one batch, what stays at home, who listens to whom, and
which parts travel besides the model. An answer with constants is an `AlgorithmOption`, in the file of the algorithm
that gives it; a study borrows it by that algorithm's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from pydantic.dataclasses import dataclass

from silofl.base.errors import ConfigError
from silofl.base.settings import Natural, Positive
from silofl.core.algorithm_option import AlgorithmOption, SecondModel, Traits
from silofl.core.robust import Robust

if TYPE_CHECKING:
    from silofl.core.steps import Step

PRESET_NAMES = ("paper", "reference", "recommended")
# The words for an answer without constants; any other word names the algorithm whose answer is borrowed.
WITHOUT: dict[str, object] = {"input": "none", "step": "plain", "mixing": "shared", "robust": "none", "parts": []}

PLAIN_INPUT = "Not: images enter the network as the study prepared them."
PLAIN_STEP = "Plain: the optimiser follows the gradient of the loss."
HOMES = {
    "nothing": "Nothing: the whole model travels, the data never do.",
    "batchnorm": "BatchNorm parameters and statistics; all other weights travel, the data never do.",
    "head": "The head, the last layer, which decides (FedPer); all other weights travel, the data never do.",
    "everything": "Everything: each site trains alone and sends only its scores.",
}
PERSONAL_HOME = "A personal model; the shared one travels whole, the data never do."
PERSONAL_TUNED = (
    "Each site's own model is the received one until the extra rounds; then the site fine-tunes it, and the shared one "
    "goes on."
)
PERSONAL_COLLECTED = " It leaves once, after the last round, into the super model."
OWN_STEPS_COLLECTED = (
    " A site's model after its own steps leaves once, after the last round, into the super model; the global one takes "
    "plain steps."
)


@dataclass(frozen=True)
class Recipe:
    """An algorithm: its five answers, and the few constants that every algorithm has.

    Attributes:
        input: How the input is normalised.
        step: How a site steps on one batch.
        stays: What never leaves the site; the ``head`` is the last layer.
        mixing: Who listens to whom; ``shared`` gives all sites the same weighted mean.
        robust: The rule that limits how far a few sites can move the shared model, by its name or with its constants.
        parts: What travels besides the model, or learns at home.
        weights: Aggregation weights: by number of training examples, or uniform.
        server_lr: The server's learning rate eta_g.
        start_from_pretrained: Whether training begins with the pretrained model.
        extra_rounds: Rounds after the study's own, in which a part (such as a selector) learns, or else every site
            alone.
    """

    input: AlgorithmOption | None = None
    step: AlgorithmOption | None = None
    stays: Literal["nothing", "batchnorm", "head", "everything"] = "nothing"
    mixing: AlgorithmOption | None = None
    robust: Robust | None = None
    parts: tuple[AlgorithmOption, ...] = ()
    weights: Literal["examples", "uniform"] = "examples"
    server_lr: Positive = 1.0
    start_from_pretrained: bool = False
    extra_rounds: Natural = 0

    @property
    def options(self) -> tuple[AlgorithmOption, ...]:
        """All answers that have constants."""
        answers = (self.input, self.step, self.mixing, *self.parts, self.robust)
        return tuple(answer for answer in answers if answer is not None)

    @property
    def traits(self) -> list[Traits]:
        """What the rest of the program must know of them."""
        return [option.traits for option in self.options]

    def option(self, section: str) -> Any:  # noqa: ANN401 - the answer's own class, which only its algorithm knows
        """Return the answer with a section's constants, or None where the recipe gives no such answer."""
        return next((option for option in self.options if option.section == section), None)

    @property
    def roles(self) -> tuple[str, ...]:
        """The models that a site trains, by role; the last one is its own."""
        return ("global", "personal") if self.keeps_personal else self.traveling_roles

    @property
    def traveling_roles(self) -> tuple[str, ...]:
        """Roles of the models that a site may send."""
        if self.keeps_personal:
            return ("global",)
        return ("global", "personal") if self.has_paired_models else ("model",)

    @property
    def counts_examples(self) -> bool:
        """Whether a site counts in a mean by its number of training examples."""
        is_chosen = self.weights == "examples" and self.stays != "everything"
        return is_chosen and (self.robust is None or self.robust.counts_examples)

    @property
    def second_model(self) -> SecondModel:
        """How a site comes to a model of its own beside the shared one."""
        declared = {traits.second_model for traits in self.traits}
        for member in (SecondModel.STAYS, SecondModel.ADAPTED):
            if member in declared:
                return member
        if SecondModel.PAIRED not in declared:
            return SecondModel.NONE
        # Where a part learns in the extra rounds, no model does.
        is_tuned = self.mixing is None and self.extra_rounds > 0 and not self.extra_tasks
        return SecondModel.FINE_TUNED if is_tuned else SecondModel.PAIRED

    @property
    def has_paired_models(self) -> bool:
        """Whether a global and a personalised model of each site are trained, of which a selector chooses."""
        return any(traits.second_model == SecondModel.PAIRED for traits in self.traits)

    @property
    def personal(self) -> Any:  # noqa: ANN401 - the answer's own class, which only its algorithm knows
        """The answer that keeps a personal model at home; None where none does."""
        return next((option for option in self.options if option.traits.second_model == SecondModel.STAYS), None)

    @property
    def trains_one_model(self) -> bool:
        """Whether the sites train one model together, and none of their own beside it."""
        return self.mixing is None and len(self.roles) == 1 and self.stays != "everything"

    @property
    def makes_personalised(self) -> bool:
        """Whether the server makes a model of its own for each site."""
        is_tuned_there = self.second_model == SecondModel.FINE_TUNED
        tunes_alone = self.extra_rounds > 0 and not (self.extra_tasks or is_tuned_there)
        return self.mixing is not None or (tunes_alone and self.stays != "everything")

    @property
    def delivered(self) -> str:
        """Which models a network's server delivers, as a sentence for hospitals and leads before a run."""
        if self.trains_alone:
            return "no model leaves a hospital"
        if not self.makes_personalised:
            return "the server delivers the shared model"
        delivered = "the global model" if self.has_paired_models else "no model"
        return (
            f"the server delivers {delivered}; each hospital's personalised model stays there, unless all hospitals "
            "name personal_model in may_leave of site.yaml"
        )

    @property
    def keeps_personal(self) -> bool:
        """Whether a personal model beside the shared one stays at home in training."""
        return self.second_model in (SecondModel.STAYS, SecondModel.FINE_TUNED)

    @property
    def collects_personal(self) -> bool:
        """Whether what a site alone has of its personal model travels once in the end, into the super model."""
        return self.has_paired_models and self.second_model != SecondModel.PAIRED

    @property
    def needs_pretrained(self) -> bool:
        """Whether a pretrained model must be given."""
        return self.start_from_pretrained or any("pretrained" in traits.needs for traits in self.traits)

    @property
    def extra_tasks(self) -> tuple[str, ...]:
        """The tasks in which a part learns alone, named as the part's section is; none where no part does."""
        return tuple(option.section for option in self.options if option.traits.takes_extra_rounds)

    @property
    def counting_steps(self) -> str | None:
        """The section of an answer that counts steps; None where no answer does."""
        return next((option.section for option in self.options if option.traits.counts_steps), None)

    @property
    def weighs_models(self) -> bool:
        """Whether a super model answers with the mean of its models, weighted by its selector's scores."""
        return any(traits.weighs_models for traits in self.traits)

    @property
    def selector(self) -> str:
        """The network of a selector that learns; empty without one."""
        return next((traits.selector for traits in self.traits if traits.selector), "")

    @property
    def threshold(self) -> str:
        """Whether the threshold below which the common model answers is ``tuned`` or ``fixed``; empty without one."""
        return next((traits.threshold for traits in self.traits if traits.threshold), "")

    @property
    def trains_alone(self) -> bool:
        """Whether each site trains alone, and reports its own best round."""
        return self.stays == "everything"

    def count(self, examples: Mapping[str, int], min_sites: int) -> Mapping[str, float]:
        """Return how much each site counts in the one mean of all; the arguments of `Robust.count`."""
        if self.weights == "uniform":
            return dict.fromkeys(examples, 1)
        if self.robust:
            return self.robust.count(examples, min_sites)
        return examples

    def check_images(self, study: Any, shape: Sequence[int], missing: Sequence[str]) -> None:  # noqa: ANN401
        """Refuse images; of the study alone all was said as it began. The arguments of `AlgorithmOption.check`."""
        for option in self.options:
            with suppress(ConfigError):
                option.check(study, shape, missing)

    def make_step(self, role: str) -> Step:
        """Return how a site steps on one batch of a model; a step may remember, so each model takes one of its own."""
        # A model that is good only after a site's own steps is no model for all: the global one beside it is FedAvg's.
        is_plain = self.second_model == SecondModel.ADAPTED and role != self.roles[-1]
        if self.step is None or is_plain:
            return AlgorithmOption().make_step()
        return self.step.make_step()

    def shared_rounds(self, rounds: int) -> int:
        """Return how many of a study's rounds every site gets the same mean in."""
        if self.mixing is None:
            return rounds
        shared = self.mixing.traits.shared_rounds
        return max(1, rounds // 2) if shared == "half" else shared

    def choices(self) -> dict[str, Any]:
        """Return the five answers and all constants, by the keys under which a study chooses them."""
        return {
            "input": self.input.section if self.input else WITHOUT["input"],
            "step": self.step.section if self.step else WITHOUT["step"],
            "stays": self.stays,
            "mixing": self.mixing.section if self.mixing else WITHOUT["mixing"],
            "parts": [part.section for part in self.parts],
            "weights": self.weights,
            "server_lr": self.server_lr,
            "start_from_pretrained": self.start_from_pretrained,
            "extra_rounds": self.extra_rounds,
            "constants": {option.section: option.model_dump() for option in self.options},
        }

    def as_dict(self) -> dict[str, Any]:
        """Return `choices` with what follows from them, and a sentence for each answer, for records and pages."""
        facts = {
            "keeps_personal": self.keeps_personal,
            "takes_own_steps": self.second_model == SecondModel.ADAPTED,
            "weighs_models": self.weighs_models,
            "threshold": self.threshold,
            "cautions": self.cautions,
        }
        return {
            **self.choices(),
            "needs_pretrained": self.needs_pretrained,
            "questions": self.questions(),
            **{name: fact for name, fact in facts.items() if fact},
        }

    @property
    def cautions(self) -> list[str]:
        """What a reader of its results must know."""
        return [traits.caution for traits in self.traits if traits.caution]

    def questions(self, kept: Sequence[str] = (), frozen: Sequence[str] = ()) -> dict[str, str]:
        """Return the five questions with this recipe's answers as sentences.

        Args:
            kept: What a site keeps of the parts beside its models, in words.
            frozen: The study's patterns of parameters that neither learn nor travel.
        """
        home = self._home_sentence()
        if kept:
            home += f" Each site also keeps {', '.join(kept)}."
        if frozen:
            home += f" Frozen parameters neither learn nor travel: {', '.join(frozen)}."
        sent = [traits.beside for traits in self.traits if traits.beside]
        # A personal model does not travel; its sentence says what stays at home.
        sent += [part.sentence() for part in self.parts if part.traits.second_model != SecondModel.STAYS]
        return {
            "How is the input normalised?": self.input.sentence() if self.input else PLAIN_INPUT,
            "How does a site step?": self.step.sentence() if self.step else PLAIN_STEP,
            "What stays at home?": home,
            "Who listens to whom?": self._mixing_sentence(),
            "What else travels?": " ".join(sent) or "Nothing.",
        }

    def _home_sentence(self) -> str:
        if not self.keeps_personal:
            return HOMES[self.stays] + (OWN_STEPS_COLLECTED if self.collects_personal else "")
        how = self.personal.sentence() if self.personal else PERSONAL_TUNED
        return f"{PERSONAL_HOME} {how}{PERSONAL_COLLECTED if self.collects_personal else ''}"

    def _mixing_sentence(self) -> str:
        if self.stays == "everything":
            return "Nobody: no weights leave a site."
        weight = next((part.traits.weighed_by for part in self.parts if part.traits.weighed_by), "")
        if not weight:
            weight = "its number of training examples" if self.counts_examples else "1"
        sentences = []
        if self.mixing is not None:
            sentences.append(self.mixing.sentence())
            if len(self.roles) > 1:
                sentences.append(f"The global model is the weighted mean of all; a site's weight is {weight}.")
        else:
            # A part with a half at the server may make more of the mean, or take another one.
            is_plain = not (self.robust or any(part.implementation for part in self.parts))
            model = "weighted mean" if is_plain else "model"
            sentences.append(f"Every site gets the same {model}; a site's weight is {weight}.")
        if self.robust:
            sentences.append(self.robust.sentence())
        if self.mixing is None and self.server_lr != 1:
            sentences.append(f"The server moves towards it with learning rate {self.server_lr}.")
        return " ".join(sentences)


def find_other_models(option: AlgorithmOption, recipe: Recipe) -> str | None:
    """Return why an answer does not go with a recipe in which sites have models of their own; None in any other."""
    if not recipe.trains_one_model:
        return f"{option.section} needs one model of all sites; choose mixing: shared and no personal model"
    if recipe.extra_rounds:
        return f"extra_rounds must be 0 with {option.section}, not {recipe.extra_rounds}; leave it out"
    return None


def find_bounding_rule(recipe: Recipe, answers: int, min_sites: int) -> Robust | None:
    """Return a recipe's robust rule where it bounds so many answers; None without one, or with fewer.

    Args:
        answers: How many there are.
        min_sites: From how many on sites are compared.
    """
    rule = recipe.robust
    return rule if rule and answers >= rule.fewest_answers(min_sites) else None
