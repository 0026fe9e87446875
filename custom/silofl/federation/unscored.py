"""The result of a run without scores, and what every result says of its study."""

from collections.abc import Sequence
from typing import Any

from silofl import __version__
from silofl.base.errors import ConfigError
from silofl.core.recipe import Recipe
from silofl.federation.results import OF_THE_STUDY, UNFINISHED, Results, Status
from silofl.parts.load import describe_kept
from silofl.study import Study


def describe_study(study: Study, recipe: Recipe | None = None) -> dict[str, Any]:
    """Return what results say of a study, and of its recipe as the run carried it out."""
    try:
        kept = describe_kept(study)
    except ConfigError:
        # The file of a part is broken: that is why the run has failed, which must have a result all the same.
        kept = []
    recipe = recipe or study.recipe
    described = recipe.as_dict()
    described["questions"] = recipe.questions(kept, study.training.frozen)
    return study.description() | {"version": __version__, "recipe": described}


def unscored_results(
    study: Study | str, status: Status, reasons: Sequence[str] = (), run: str | None = None, was_stopped: bool = False
) -> Results:
    """Return the result of a run without scores.

    Args:
        study: The study, or its name where no more is known of it.
        was_stopped: Whether it was stopped from outside.
    """
    if isinstance(study, str):
        facts: dict[str, Any] = dict.fromkeys(OF_THE_STUDY) | {"study": study, "recipe": {}, "labels": {}}
    else:
        facts = describe_study(study)
        if status == UNFINISHED:
            # Which version an unfinished run was started with is not known.
            facts["version"] = None
    nothing: dict[str, Any] = dict.fromkeys(("best_round", "model", "mean", "pooled"))
    return Results(
        **facts,
        status=status,
        reasons=tuple(reasons),
        sites={},
        validation={},
        run=run,
        was_stopped=was_stopped,
        **nothing,
    )
