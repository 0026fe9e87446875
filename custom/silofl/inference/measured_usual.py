"""Measure what is usual of a super model's answers to a hospital's own cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silofl.core.spread import Spread
from silofl.data.parts import Examples
from silofl.data.site_data import SiteData, sample_evenly
from silofl.inference.geometry import decide_labels
from silofl.inference.prediction import measure_case_ml
from silofl.inference.super_model import SuperModel
from silofl.inference.usual import FeatureSpread, Usual, log_odds, root_sizes
from silofl.models.roles import GLOBAL
from silofl.reading.dicom_codes import group_codes, read_codes
from silofl.training.joined import LOCAL
from silofl.training.metrics import group_positions

# Of fewer patients, means and deviations would tell single ones' numbers.
LEAST_PATIENTS = 3
# Cases of a part that are answered, evenly spread, and files whose codes are read.
MOST_CASES, MOST_FILES = 64, 1024


@dataclass(frozen=True)
class _Case:
    """A case's numbers: of labels' sizes the cube roots, of the selector's score the log-odds."""

    roots_ml: Mapping[str, float] | None
    odds: float | None
    features: Mapping[str, NDArray[np.float64]]


def measure_usual(model: SuperModel, data: SiteData, site: str, min_patients: int) -> Usual | None:
    """Return what is usual over a site's validation cases; None of too few patients.

    Features, and DICOM's codes, are those of its training cases too.

    Args:
        site: Its name, as the selector knows it.
        min_patients: Validation patients that the numbers must come from, which are at least `LEAST_PATIENTS`.
    """
    least = max(min_patients, LEAST_PATIENTS)
    if len({*data.validation.patients} - {None}) < least:
        return None
    unseen = [_measure_case(model, case, site) for case in _sample_cases(data.validation)]
    learnt = [_measure_features(model, np.asarray(case.images), site) for case in _sample_cases(data.training)]
    # A case without a size in millilitres has none in any.
    sizes = _join([case.roots_ml or {} for case in unseen])
    odds = [case.odds for case in unseen if case.odds is not None]
    features = _join([*learnt, *(case.features for case in unseen)])
    return Usual(
        roots_ml={label: Spread.of(values) for label, values in sizes.items()} or None,
        score=Spread.of(odds) if odds else None,
        features={name: FeatureSpread.of(np.stack(rows)) for name, rows in features.items()} or None,
        codes=_read_codes(data, least) or None,
    )


def _sample_cases(part: Examples) -> list[Examples]:
    rows = [*group_positions(part.cases).values()]
    return [part.select_rows(rows[number]) for number in sample_evenly(len(rows), MOST_CASES)]


def _measure_case(model: SuperModel, case: Examples, site: str) -> _Case:
    study, images = model.contents.study, np.asarray(case.images)
    answer = model.answer(images, study.training.batch_size)
    features = _measure_features(model, images, site, answer.features)
    is_map = study.task == "segmentation"
    label_map = decide_labels(answer.probabilities) if is_map else np.empty(0)
    sizes = measure_case_ml(label_map, case, study)
    odds = log_odds(answer.scores[site]) if site in answer.scores else None
    return _Case(sizes and root_sizes(sizes), odds, features)


def _measure_features(
    model: SuperModel, images: NDArray, site: str, known: Mapping[str, NDArray[np.float64]] = MappingProxyType({})
) -> dict[str, NDArray[np.float64]]:
    """Return a case's features of the site's own and the common models; those that are known are not measured."""
    own = {GLOBAL, LOCAL, site} & model.contents.models.keys()
    features = {name: one for name, one in known.items() if name in own}
    for name in sorted(own - features.keys()):
        features |= model.measure_features(name, images, model.contents.study.training.batch_size)[1]
    return features


def _join(tables: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the values of each name that all tables have."""
    return {name: [table[name] for table in tables] for name in tables[0] if all(name in table for table in tables)}


def _read_codes(data: SiteData, least: int) -> dict[str, tuple[str, ...]]:
    records = [] if data.manifest is None else [*data.manifest.training, *data.manifest.validation]
    chosen = [records[number] for number in sample_evenly(len(records), MOST_FILES)]
    stated = ((one.patient, read_codes(data.manifest.source(one).first[0])) for one in chosen)
    return group_codes(stated, least)
