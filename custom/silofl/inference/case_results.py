"""The answers of all models of a super model to each case, and the score of any choice among them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silofl.data.parts import Examples
from silofl.inference.choice import ENSEMBLE, choose_answer
from silofl.inference.geometry import decide_answers
from silofl.inference.probabilities import add_share, case_scores
from silofl.inference.super_model import SuperModel
from silofl.study import Study
from silofl.training.evaluation import score_predictions
from silofl.training.metrics import Score, group_positions, value_or_none


@dataclass(frozen=True)
class CaseResult:
    """The answers of all models of a super model to one case, with their scores.

    Attributes:
        scores: The selector's probability of each output, shape (outputs,); (0,) without a selector.
        measured: Model, or ``ensemble`` (all that answer together, by their shares) -> its score on this case.
        predictions: Model, or ``ensemble`` -> label maps (n, H, W) or classes (n,).
    """

    scores: NDArray[np.float64]
    measured: dict[str, Score]
    predictions: dict[str, NDArray[Any]]


def predict_cases(model: SuperModel, part: Examples, study: Study) -> dict[str, CaseResult]:
    """Predict each case of a part with every model and with the ensemble, and score the answers."""
    results = {}
    for case, rows in group_positions(part.cases).items():
        results[case] = _predict_case(model, part.select_rows(rows), study)
    return results


def choose_models(model: SuperModel, results: Mapping[str, CaseResult], threshold: float | None) -> dict[str, str]:
    """Return the model that answers each case under a threshold, or under the super model's own where None."""
    return {case: choose_answer(model.contents, result.scores, threshold) for case, result in results.items()}


def score_choice(results: Mapping[str, CaseResult], answers: Mapping[str, str]) -> Score:
    """Score a choice: case -> the model, or ``ensemble``, that answers it."""
    return Score.merged({case: results[case].measured[name] for case, name in answers.items()})


def values_by_model(results: Mapping[str, CaseResult]) -> dict[str, float | None]:
    """Return the value of each model alone, and of ``ensemble``, over all cases; nothing without a case."""
    names = next(iter(results.values())).measured if results else ()
    return {name: value_or_none(score_choice(results, dict.fromkeys(results, name))) for name in names}


def _predict_case(model: SuperModel, part: Examples, study: Study) -> CaseResult:
    images = np.asarray(part.images)
    contents = model.contents
    size = study.training.batch_size
    scores = case_scores(model.slice_scores(images, size))
    predictions: dict[str, NDArray[Any]] = {}
    measured: dict[str, Score] = {}
    for name, values in _yield_probabilities(model, images, size, contents.shares(scores)):
        predictions[name] = decide_answers(values, study)
        measured[name] = score_predictions(predictions[name], part, study, values)
        # Else it would be held while the next ones are computed.
        del values
    # Models keep their order whichever answers first.
    names = (*contents.models, ENSEMBLE)
    return CaseResult(scores, {name: measured[name] for name in names}, {name: predictions[name] for name in names})


def _yield_probabilities(
    model: SuperModel, images: NDArray[Any], size: int, shares: Mapping[str, float]
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield each model's probabilities, one after the other since a volume's are large, and the ensemble's at last."""
    ensemble = None
    # Those with a share come first, in the order in which their sum is rounded.
    for name in dict.fromkeys((*shares, *model.contents.models)):
        values = model.probabilities(name, images, size)
        yield name, values
        if name in shares:
            # It multiplies the values in their place: the caller has used them by now.
            ensemble = add_share(ensemble, values, shares[name])
        del values
    if ensemble is not None:
        yield ENSEMBLE, ensemble
