"""One answer of a recipe, with its constants: what it may be asked, and what it says where an algorithm does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import ConfigDict

from silofl.base.errors import ConfigError
from silofl.base.settings import Section

if TYPE_CHECKING:
    from silofl.core.steps import Step


class SecondModel(StrEnum):
    """How a site comes to a model of its own beside the shared one. With `Recipe.stays` it decides what travels.

    ========== ====================================== ================ ============================================
    member     how it learns                          travels          in a super model
    ========== ====================================== ================ ============================================
    NONE       there is none                          -                -
    PAIRED     beside the global one, mixed (FedSM)   every round      as the server mixed it
    STAYS      beside the shared one (Ditto, APFL)    never            sent once, after the last round
    ADAPTED    from the received one, by steps of     never            sent once, after the last round
               the site's own before each use
    FINE_TUNED from the global one, in extra rounds   never            sent once, after the last round
    ========== ====================================== ================ ============================================
    """

    NONE = "none"
    PAIRED = "paired"
    STAYS = "stays"
    ADAPTED = "adapted"
    FINE_TUNED = "fine-tuned"


@dataclass(frozen=True)
class Traits:
    """What the rest of the program must know of an answer; by default nothing.

    Attributes:
        beside: What an input or a mixing sends besides the model, as a report says it; a part's `sentence` does.
        weighed_by: A site's weight in the one mean of all, in words, where its part in ``parts`` has ``weights``.
        caution: What a reader of its results must know.
        deciding: Constants that act on a prediction; the others only say how weights are learned.
        second_model: How a site comes to a model of its own by this answer. One that stays learns as the answer's
            ``begin`` says.
        counts_steps: Whether it divides what a round changed by the number of its steps, each of which must have moved
            all of the model.
        is_of_steps: Whether all that leaves a site for it follows from plain steps of its model, so that noise in each
            step covers it.
        asks_alone: Whether a study without a round asks every site once, and trains and tests nothing.
        needs: What it counts on: a ``pretrained`` model; a ``fresh_optimizer``, empty when a round begins.
        shared_rounds: How many of a study's rounds, or ``half`` of them, come before its mixing begins.
        takes_extra_rounds: Whether the extra rounds are its own, so that models no longer learn in them.
        projection_head: Width of a projection head that the network gets before its last layer; 0 for none.
        looks_inside: Whether its steps look at what the network's layers see, and so not at its answers alone.
        selector: The network of a selector that learns; empty without one.
        threshold: Where the common model answers as no score is above it: ``tuned`` or ``fixed``; empty for nowhere.
        weighs_models: Whether a super model answers with the mean of its models, weighted by its selector's scores.
    """

    beside: str = ""
    weighed_by: str = ""
    caution: str = ""
    deciding: tuple[str, ...] = ()
    second_model: SecondModel = SecondModel.NONE
    counts_steps: bool = False
    is_of_steps: bool = False
    asks_alone: bool = False
    needs: tuple[Literal["pretrained", "fresh_optimizer"], ...] = ()
    shared_rounds: int | Literal["half"] = 0
    takes_extra_rounds: bool = False
    projection_head: int = 0
    looks_inside: bool = False
    selector: Literal["", "light", "vgg11"] = ""
    threshold: Literal["", "tuned", "fixed"] = ""
    weighs_models: bool = False


class AlgorithmOption(Section):
    """One answer of a recipe; a study sets its constants under ``algorithm.<section>``.

    Attributes:
        section: The key of its constants in study.yaml.
        implementation: The module of its part at the server and at a site, ``PART`` and ``SITE``; empty where it has
            none.
        only_with: Constant -> the constant that decides on it, and the values with which it does something.
    """

    # Strict: YAML's `true` is not 1 here, and `"0.5"` is no number.
    model_config = ConfigDict(strict=True)
    section: ClassVar[str] = ""
    implementation: ClassVar[str] = ""
    only_with: ClassVar[Mapping[str, tuple[str, tuple[str, ...]]]] = {}

    # A property, so that its constants may decide them; a plain value takes its place as well.
    @property
    def traits(self) -> Traits:
        """What the rest of the program must know of it."""
        return Traits()

    def check(self, study: Any, shape: Sequence[int] = (), missing: Sequence[str] = ()) -> None:  # noqa: ANN401
        """Refuse a study, such as its rounds, training or network, or images that it is not made for.

        It is asked as a study is read, when nothing is known of images, and again with each site's.

        Args:
            study: The `silofl.study.Study`.
            shape: Of training images, (C, *spatial); empty where it is not known.
            missing: The contrasts that some images lack, by the study's channel names.

        Raises:
            ConfigError: Names the key.
            DataError: Names the size, or the contrasts.
        """

    def make_step(self) -> Step:
        """Return how a site steps on one batch."""
        # Imported here because a study is also read where nothing is trained, and torch takes seconds.
        from silofl.core.steps import plain_step

        return plain_step

    def conflict(self, recipe: Any) -> str | None:  # noqa: ANN401
        """Return why it does not go together with the rest of a `silofl.core.recipe.Recipe`; None where it does."""
        return None

    def sentence(self) -> str:
        """Describe the answer for the report, in one sentence."""
        return f"{self.section}: " + ", ".join(f"{name} {value}" for name, value in self.model_dump().items()) + "."


def require_sgd(option: AlgorithmOption, training: Any, has_momentum: bool = False) -> None:  # noqa: ANN401
    """Refuse an optimiser whose steps are no sum of gradients, as the paper's are.

    Args:
        option: The answer whose paper it is.
        training: The study's training settings.
        has_momentum: Whether a momentum may be above 0.

    Raises:
        ConfigError: Names the key.
    """
    if training.optimizer != "sgd":
        raise ConfigError(f"training.optimizer must be sgd with {option.section}, not {training.optimizer!r}")
    if training.momentum and not has_momentum:
        raise ConfigError(f"training.momentum must be 0 with {option.section}, not {training.momentum:g}")
