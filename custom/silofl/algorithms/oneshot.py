"""One exchange: every site trains alone and sends its model once, and in the end all models answer together.

Guha, Talwalkar, Smith, One-Shot Federated Learning, 2019, arXiv:1902.11175: the ensemble of all sites' models, without
its selection among them and without its distillation. Beside the paper, a selector (`silofl.models.nearest`) may choose
or weigh the models for each case.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

from silofl.algorithms.recipe import PRESET_NAMES, Answer, Recipe
from silofl.errors import DataError

# Of an image's side; with fewer pixels its lowest frequencies cannot be told apart.
SMALLEST_SIDE = 16
BESIDE = "Mean and covariance of nine numbers a channel of the site's images travel beside it"
HOW = {
    "mean": "the mean of all models' probabilities answers",
    "choice": "a case is answered by the model of the site whose images it is most like",
    "ensemble": "all models answer, weighted by how like each site's images the case is",
}


class HandOver(Answer):
    """Each site's model, which leaves once, after its training, for the super model of all.

    A site sends its model of the epoch that was best on its own validation data, of its last epoch without such data.

    Attributes:
        answer: The super model answers with the ``mean`` of all models, the model of its selector's ``choice``, or an
            ``ensemble`` weighted by the selector. For a selector each site also sends mean and covariance of nine
            numbers per channel: brightness, contrast, and the amplitude in seven rings of frequencies.
    """

    section: ClassVar[str] = "hand_over"
    method: ClassVar[str] = "hand_over"
    sends_model_once: ClassVar[bool] = True
    answer: Literal["mean", "choice", "ensemble"] = "mean"

    @property
    def has_selector(self) -> bool:
        """Whether a selector tells whose images a case is like."""
        return self.answer != "mean"

    @property
    def deciding(self) -> tuple[str, ...]:  # type: ignore[override]
        """Its constant, which acts on a prediction; not where all models have equal shares, as older ones all have."""
        return ("answer",) if self.has_selector else ()

    @property
    def weighs_models(self) -> bool:
        """Whether the selector's scores weigh the models."""
        return self.answer == "ensemble"

    def check_images(self, shape: Sequence[int]) -> None:
        """Refuse images of which the selector could tell too little."""
        if self.has_selector and len(shape) == 3 and min(shape[1:]) < SMALLEST_SIDE:
            size = " x ".join(map(str, shape[1:]))
            raise DataError(
                f"images must have at least {SMALLEST_SIDE} pixels along each axis for hand_over.answer "
                f"{self.answer!r}, not {size}; add a Resize to the study's data.transforms, or let the mean answer"
            )

    def conflict(self, recipe: Recipe) -> str | None:
        """Return why it does not go with a recipe in which models travel, or are combined, in training."""
        if recipe.stays_home != "everything":
            return (
                f"stays_home must be everything where each model leaves once, after its training, not "
                f"{recipe.stays_home!r}; leave it out"
            )
        if recipe.input is not None:
            return (
                "input must be none where each site trains alone and sends its model once, as it would know no "
                "amplitude but its own; leave it out"
            )
        if recipe.mixing is not None or len(recipe.roles) > 1:
            return "mixing must be shared, and a site have one model, where nothing is mixed; leave both out"
        for key in ("extra_rounds", "average_last"):
            if value := getattr(recipe, key):
                return f"{key} must be 0 where a site sends its model of its best epoch, not {value}; leave it out"
        return None

    def sentence(self) -> str:
        """Describe the answer for the report."""
        return (
            f"{BESIDE if self.has_selector else 'Nothing beside it'}: each site's model of its best epoch on its own "
            f"validation data leaves once, after the training, and {HOW[self.answer]}."
        )


PRESETS = dict.fromkeys(PRESET_NAMES, Recipe(stays_home="everything", parts=(HandOver(),))) | {
    "recommended": Recipe(stays_home="everything", parts=(HandOver(answer="ensemble"),))
}
