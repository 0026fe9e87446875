"""Measure what is usual of a super model's answers to a hospital's own cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silofl.core.spread import Spread
from silofl.data.parts import Examples
from silofl.data.site_data import SiteData, sample_evenly
from silofl.inference.geometry import decide_labels
from silofl.inference.prediction import CaseAnswer, measure_case_ml
from silofl.inference.reference_statistics import FeatureSpread, ReferenceStatistics, log_odds, root_sizes
from silofl.inference.super_model import SuperModel
from silofl.models.roles import GLOBAL
from silofl.reading.dicom_codes import group_codes, read_codes
from silofl.training.joined import LOCAL
from silofl.training.metrics import group_positions

# Means and deviations of fewer patients would tell single ones' numbers.
LEAST_PATIENTS = 3
# Answering takes time: so many cases of a part are answered, evenly spread, and so many files' codes are read.
MOST_CASES, MOST_FILES = 64, 1024


def measure_reference_statistics(
    model: SuperModel, data: SiteData, site: str, min_patients: int
) -> ReferenceStatistics | None:
    """Return what is usual over a site's validation cases; None of too few patients.

    Features, and DICOM's codes, are those of its training cases too.

    Args:
        site: Its name, as the selector knows it.
        min_patients: Validation patients that the numbers must come from, which are at least `LEAST_PATIENTS`.
    """
    least = max(min_patients, LEAST_PATIENTS)
    if len({*data.validation.patients} - {None}) < least:
        return None
    roots_ml, odds, features = [], [], []
    for case in _sample_cases(data.training):
        features.append(_measure_features(model, np.asarray(case.images), site))
    # Sizes and scores are those of unseen cases: models are surer of cases that they learnt.
    for case in _sample_cases(data.validation):
        images = np.asarray(case.images)
        answer = model.answer(images, model.contents.study.training.batch_size)
        features.append(_measure_features(model, images, site, answer.features))
        roots_ml.append(_measure_roots(model, case, answer))
        if site in answer.scores:
            odds.append(log_odds(answer.scores[site]))
    return ReferenceStatistics(
        roots_ml={label: Spread.of(values) for label, values in _join(roots_ml).items()} or None,
        score=Spread.of(odds) if odds else None,
        features={name: FeatureSpread.of(np.stack(rows)) for name, rows in _join(features).items()} or None,
        codes=_read_codes(data, least) or None,
    )


def _sample_cases(part: Examples) -> list[Examples]:
    rows = [*group_positions(part.cases).values()]
    return [part.select_rows(rows[number]) for number in sample_evenly(len(rows), MOST_CASES)]


def _measure_roots(model: SuperModel, case: Examples, answer: CaseAnswer) -> dict[str, float]:
    """Return the cube root of each label's millilitres; empty where the voxels' size is not known, and of a class."""
    study = model.contents.study
    if study.task != "segmentation":
        return {}
    return root_sizes(measure_case_ml(decide_labels(answer.probabilities), case, study) or {})


def _measure_features(
    model: SuperModel, images: NDArray[Any], site: str, known: Mapping[str, NDArray[np.float64]] = MappingProxyType({})
) -> dict[str, NDArray[np.float64]]:
    """Return a case's features of the site's own and the common models; those that are known are not measured."""
    # Another hospital's model is measured there: what is usual of it here says nothing.
    own = {GLOBAL, LOCAL, site} & model.contents.models.keys()
    features = {name: known[name] for name in known if name in own}
    for name in sorted(own - features.keys()):
        features |= model.measure_features(name, images, model.contents.study.training.batch_size)[1]
    return features


def _join(tables: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the values of each name that all tables have."""
    # A name that some case lacks, as a label whose size is not known, is left out for all.
    values = {}
    for name in tables[0]:
        if all(name in table for table in tables):
            values[name] = [table[name] for table in tables]
    return values


def _read_codes(data: SiteData, least: int) -> dict[str, tuple[str, ...]]:
    if data.manifest is None:
        return {}
    records = [*data.manifest.training, *data.manifest.validation]
    stated = []
    for number in sample_evenly(len(records), MOST_FILES):
        file = data.manifest.source(records[number]).first[0]
        stated.append((records[number].patient, read_codes(file)))
    return group_codes(stated, least)
