"""Metrics of packages in a site's test: reported beside the study's own, and nothing is chosen by them."""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import ConfigError, error_text, quote_value
from silofl.data.volumes import Array
from silofl.setup.extensions import METRICS, load_extension
from silofl.study import Study
from silofl.training.metrics import group_positions, mask_labels, mean_of_known

logger = logging.getLogger(__name__)


def check_extra_metrics(study: Study, image_shape: Sequence[int]) -> None:
    """Refuse a package's metric that gives no number for a perfect prediction, by trying each once.

    Args:
        image_shape: (C, *spatial) of the images, or patches.

    Raises:
        ExtensionError: The metric may not run here, or cannot be imported.
        ConfigError: It gives no number.
    """
    spatial = tuple(image_shape[1:])
    # A case of two slices, or a volume.
    mask = np.zeros(spatial if len(spatial) == 3 else (2, *spatial), bool)
    mask[0] = True
    for name in study.extra_metrics:
        metric = load_extension("extra_metrics", METRICS, name)
        try:
            _score_case(metric, [(mask, mask)])
        except Exception as error:  # whatever the package raises
            raise ConfigError(
                f"extra_metrics {name} gave no number in [0, 1], nor None, for masks {mask.shape}: "
                f"{error_text(error)}; repair its package, or leave it out"
            ) from None


def measure_extra_metric(
    name: str, predictions: Array, targets: Array, cases: Sequence[str], regions: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """Return the numbers of a package's metric that leave the site: its mean over cases, and how many count.

    A case's value is the mean over its regions in which the metric is defined; a case without any does not count. A
    package that fails costs its own metric alone. Its words may name a case, so that they go to the site's log only.

    Args:
        name: ``package==version/name``.
        predictions: Label maps, N slices (N, H, W) or whole volumes.
        targets: Label maps of the same shape.
        cases: The case of each slice, or volume.
        regions: The labels of each region that counts, without background.
    """
    values = []
    step = "its import"
    try:
        metric = load_extension("extra_metrics", METRICS, name)
        for case, rows in group_positions(cases).items():
            step = f"case {case!r}"
            prediction = np.asarray(predictions[rows])
            truth = np.asarray(targets[rows])
            # A whole volume is the only one of its case.
            if truth.ndim == 4:
                prediction = prediction[0]
                truth = truth[0]
            # One region at a time: the masks of a volume are as large as the volume.
            pairs = ((mask_labels(prediction, labels), mask_labels(truth, labels)) for labels in regions)
            values.append(_score_case(metric, pairs))
    except Exception as error:  # whatever the package raises
        logger.warning(
            "extra_metrics %s gave no number in [0, 1], nor None, at %s: %s; this test has no value of it: repair its "
            "package",
            *(name, step, error_text(error)),
        )
        return {"value": None, "num_cases": 0, "has_failed": True}
    return {"value": mean_of_known(values), "num_cases": sum(value is not None for value in values)}


def _score_case(metric: Callable[..., float | None], pairs: Iterable[Sequence[NDArray[Any]]]) -> float | None:
    values = []
    for prediction, truth in pairs:
        value = metric(prediction, truth)
        if value is None:
            continue
        # The test is not `value < 0 or value > 1`, which NaN would pass.
        if not 0 <= value <= 1:
            raise ValueError(f"{quote_value(value)} is out of range")
        values.append(float(value))
    return mean_of_known(values)
