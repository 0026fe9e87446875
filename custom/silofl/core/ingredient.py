"""One answer of a recipe, with its constants: what it may be asked, and what it says where an algorithm does not."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import ConfigDict

from silofl.settings import Section

if TYPE_CHECKING:
    from torch import nn

    from silofl.core.recipe import Recipe
    from silofl.core.steps import Step


class Ingredient(Section):
    """One answer of a recipe; a study sets its constants under ``algorithm.<section>``.

    Attributes:
        section: The key of its constants in study.yaml.
        halves: The module of its part's halves at the server and at a site, ``PART`` and ``SITE``; empty where it has
            none.
        beside: What an input or a mixing sends besides the model, as a report says it; a part's `sentence` does.
        weighed_by: A site's weight in the one mean of all, in words, where its part in ``parts`` has ``weights``.
        deciding: Constants that act on a prediction; the others only say how weights are learned.
        own_model: How a site comes to a model of its own by this answer: it is ``paired`` with the global one, trained
            side by side and sent; it ``stays`` at home, learning beside the shared one as the answer's ``begin`` says;
            it is ``adapted`` from the received one by the site's own steps before each use; or it is ``handed_over``
            once, after a training alone, into the super model. Empty where it comes to none.
        counts_steps: Whether it divides what a round changed by the number of its steps, each of which must have moved
            all of the model.
        is_of_steps: Whether all that leaves a site for it follows from plain steps of its model, so that noise in each
            step covers it.
        asks_alone: Whether a study may have no round, in which it asks every site once.
    """

    # Strict: YAML's `true` is not 1 here, and `"0.5"` is no number.
    model_config = ConfigDict(strict=True)
    section: ClassVar[str] = ""
    halves: ClassVar[str] = ""
    beside: ClassVar[str] = ""
    weighed_by: ClassVar[str] = ""
    deciding: ClassVar[tuple[str, ...]] = ()
    own_model: ClassVar[Literal["", "paired", "stays", "adapted", "handed_over"]] = ""
    counts_steps: ClassVar[bool] = False
    is_of_steps: ClassVar[bool] = False
    asks_alone: ClassVar[bool] = False

    @property
    def needs(self) -> frozenset[str]:
        """What it counts on: a ``pretrained`` model; a ``fresh_optimizer``, empty when a round begins."""
        return frozenset()

    @property
    def weighs_models(self) -> bool:
        """Whether a super model answers with the mean of its models, weighted by its selector's scores."""
        return False

    @property
    def counts_examples(self) -> bool:
        """Whether with it a site may count in the mean by its number of examples."""
        return True

    @property
    def takes_extra_rounds(self) -> bool:
        """Whether the extra rounds are its own, so that models no longer learn in them."""
        return False

    def shared_rounds(self, rounds: int) -> int:
        """Return how many of a study's rounds come before it decides who listens to whom."""
        return 0

    def check_study(self, study: Any) -> None:  # noqa: ANN401 - `silofl.study.Study`
        """Refuse a study, such as its rounds, training or network, that it is not made for.

        Raises:
            ConfigError: Names the key.
        """

    def check_data(self, shape: Sequence[int], missing: Sequence[str]) -> None:
        """Refuse images that it cannot work with.

        Args:
            shape: Of training images, (C, *spatial); empty where only contrasts are known.
            missing: The contrasts that some images lack, by the study's channel names.

        Raises:
            DataError: Names the size, or the contrasts.
        """

    def extend(self, network: nn.Module) -> nn.Module:
        """Return the study's network with what this answer adds to it."""
        return network

    def make_step(self) -> Step:
        """Return how a site steps on one batch."""
        # Imported here because a study is also read where nothing is trained, and torch takes seconds.
        from silofl.core.steps import plain_step

        return plain_step

    def count(self, examples: Mapping[str, int], min_sites: int) -> Mapping[str, float]:
        """Return how much each site counts in the mean, given the numbers of examples that the sites say.

        Args:
            examples: Site -> its training examples.
            min_sites: With fewer sites nobody's number is unlikely.
        """
        return examples

    def idle(self, changed: Collection[str], recipe: Recipe) -> Mapping[str, str]:
        """Return which changed constants would do nothing in a recipe, and what they must go with."""
        return {}

    def conflict(self, recipe: Recipe) -> str | None:
        """Return why it does not go together with the rest of a recipe; None where it does."""
        return None

    def describe_caution(self) -> str | None:
        """Return what a reader of its results must know; None where that is nothing."""
        return None

    def sentence(self) -> str:
        """Describe the answer for the report, in one sentence."""
        return f"{self.section}: " + ", ".join(f"{name} {value}" for name, value in self.model_dump().items()) + "."
