"""How the probabilities of a run's model are read: each site's choice on its validation cases, and their median."""

from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

from silofl.core.reading import UNREAD, Reading, choose_reading
from silofl.data.parts import Examples
from silofl.inference.clinical import ClassRows
from silofl.parts.work import Work
from silofl.study import Study
from silofl.training.metrics import Score
from silofl.training.site_score import SiteScore


def choose_site_reading(work: Work, score: Callable[[Examples], Score], test: Score) -> tuple[Reading, dict[str, Any]]:
    """Choose a reading on the site's validation cases, and say what it comes to on its test cases.

    Args:
        work: The site's task.
        score: Returns the model's score on some examples, with the probabilities of a classification.
        test: Its score on test data.

    Returns:
        The reading, and `ReadingScore` as plain values under ``reading``; nothing of a segmentation, or without cases.
    """
    study, part = work.study, work.data.validation
    if study.task == "segmentation" or not len(part) or not test.probabilities_by_case:
        return UNREAD, {}
    rows = ClassRows(score(part), work.find_units("validation").unit_of)
    tested = ClassRows(test, work.find_units("test").unit_of)
    wish = study.operating_point
    wanted = wish.model_dump() if wish else {}
    reading = choose_reading(rows.probabilities, rows.is_true, rows.units, study.called, study.is_multilabel, **wanted)
    return reading, {
        "reading": {
            "temperature": reading.temperature,
            "thresholds": {str(number): one for number, one in reading.thresholds.items()},
            "num_units": len({*rows.units}),
            "error": tested.measure_error(1.0),
            "error_after": tested.measure_error(reading.temperature),
            **_score_thresholds(tested, reading),
        }
    }


def pool_readings(scores: Iterable[SiteScore], study: Study) -> Reading:
    """Return the median of the sites' readings of one model, each chosen on the site's own validation cases."""
    known = [score.reading for score in scores if score.reading is not None]
    # A segmentation has none, whatever a site sends.
    if not known or study.task == "segmentation":
        return UNREAD
    thresholds = {
        number: median(found)
        for number in study.called
        if (found := [one.thresholds[str(number)] for one in known if str(number) in one.thresholds])
    }
    return Reading(median(one.temperature for one in known), thresholds)


def _score_thresholds(rows: ClassRows, reading: Reading) -> dict[str, dict[str, float]]:
    """Return the sensitivity and the specificity at each threshold, where there are cases for them."""
    said, found = rows.decide(reading), {}
    for name, kind in (("sensitivity", rows.is_true), ("specificity", ~rows.is_true)):
        shares = {number: said[kind[:, number], number] == (name == "sensitivity") for number in reading.thresholds}
        found[name] = {str(number): float(one.mean()) for number, one in shares.items() if len(one)}
    return found
