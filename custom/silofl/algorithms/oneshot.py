"""One exchange: every site trains alone and sends its model once, and in the end all models answer together.

Guha, Talwalkar, Smith, One-Shot Federated Learning, 2019, arXiv:1902.11175: the ensemble of all sites' models, without
its selection among them and without its distillation.
"""

from __future__ import annotations

from typing import ClassVar

from silofl.algorithms.recipe import PRESET_NAMES, Answer, Recipe


class HandOver(Answer):
    """Each site's model, which leaves once, after its training, for the super model of all: the mean of their answers.

    A site sends its model of the epoch that was best on its own validation data, of its last epoch without such data.
    """

    section: ClassVar[str] = "hand_over"
    method: ClassVar[str] = "hand_over"
    sends_model_once: ClassVar[bool] = True

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
            "Nothing beside it: each site's model of its best epoch on its own validation data leaves once, after the "
            "training, and the mean of all models' probabilities answers."
        )


PRESETS = dict.fromkeys(PRESET_NAMES, Recipe(stays_home="everything", parts=(HandOver(),)))
