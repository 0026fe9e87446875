"""How the probabilities of a run's model are read: each site's choice on its validation cases, and their median."""

from collections.abc import Callable, Iterable, Mapping
from statistics import median
from typing import Any

from silofl.core.operating_point import MOST_PROBABLE, OperatingPoint, choose_operating_point, temper
from silofl.data.parts import Examples
from silofl.inference.clinical import ClassRows
from silofl.inference.contents import Contents
from silofl.parts.work import Work
from silofl.study import Study
from silofl.training.metrics import Score
from silofl.training.site_score import SiteScore
from silofl.training.small_cells import is_withheld


def choose_site_operating_point(
    work: Work, score: Callable[[Examples], Score], test: Score
) -> tuple[OperatingPoint, dict[str, Any]]:
    """Choose an operating point on the site's validation cases, and say what it comes to on its test cases.

    Args:
        score: Returns the model's score on some examples, with the probabilities of a classification.
        test: Its score on test data.

    Returns:
        The operating point, and `OperatingPointScore` as plain values under ``operating_point``; nothing of a
        segmentation, without cases, or where it would be of too few validation patients.
    """
    study = work.study
    part = work.data.validation
    if study.task == "segmentation" or not len(part) or not test.probabilities_by_case:
        return MOST_PROBABLE, {}
    validated = score(part)
    rows = ClassRows(validated, work.find_units("validation").unit_of)
    tested = ClassRows(test, work.find_units("test").unit_of)
    wanted = study.operating_point.model_dump() if study.operating_point else {}
    operating_point = choose_operating_point(
        rows.probabilities, rows.is_true, rows.units, study.called, study.is_multilabel, **wanted
    )
    # Each threshold lies between two validation cases, so that it tells about both.
    if is_withheld(validated, part.patient_of, work.min_patients, study):
        return operating_point, {}
    tempered = temper(tested.probabilities, operating_point.temperature, study.is_multilabel)
    return operating_point, {
        "operating_point": {
            "temperature": operating_point.temperature,
            "thresholds": {str(number): threshold for number, threshold in operating_point.thresholds.items()},
            "num_units": len({*rows.units}),
            "error": tested.measure_error(tested.probabilities),
            "error_after": tested.measure_error(tempered),
            "calibrated": tested.measure_calibrated(tested.probabilities).value,
            "calibrated_after": tested.measure_calibrated(tempered).value,
            **_score_thresholds(tested, operating_point),
        }
    }


def pool_operating_points(scores: Iterable[SiteScore], study: Study) -> OperatingPoint:
    """Return the median of the sites' operating points of one model, each chosen on the site's validation cases."""
    points = [score.operating_point for score in scores if score.operating_point is not None]
    # A segmentation has none, whatever a site sends.
    if not points or study.task == "segmentation":
        return MOST_PROBABLE
    thresholds = {}
    for number in study.called:
        # A site without cases of a class has no threshold for it.
        chosen = [point.thresholds[str(number)] for point in points if str(number) in point.thresholds]
        if chosen:
            thresholds[number] = median(chosen)
    return OperatingPoint(median(point.temperature for point in points), thresholds)


def find_own_operating_points(scores: Mapping[str, SiteScore], contents: Contents) -> dict[str, OperatingPoint]:
    """Return the operating point of each site whose own model may answer, where it has chosen each threshold."""
    found = {}
    for site, score in scores.items():
        chosen = score.operating_point
        if contents.rule != "selector" or site not in contents.models or chosen is None:
            continue
        thresholds = {int(number): threshold for number, threshold in chosen.thresholds.items()}
        if thresholds.keys() == contents.operating_point.thresholds.keys():
            found[site] = OperatingPoint(chosen.temperature, thresholds)
    return found


def _score_thresholds(rows: ClassRows, operating_point: OperatingPoint) -> dict[str, dict[str, float]]:
    """Return the sensitivity and the specificity at each threshold, where there are cases for them."""
    decided = rows.decide(operating_point)
    sensitivity = {}
    specificity = {}
    for number in operating_point.thresholds:
        is_true = rows.is_true[:, number]
        is_called = decided[:, number]
        if is_true.any():
            sensitivity[str(number)] = float((is_called[is_true] == 1).mean())
        if not is_true.all():
            specificity[str(number)] = float((is_called[~is_true] == 0).mean())
    return {"sensitivity": sensitivity, "specificity": specificity}
