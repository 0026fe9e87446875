"""Measure how far apart the sites of a round have trained, where the study asks."""

from silofl.core.divergence import measure_dissimilarity
from silofl.parts.model import ModelPart
from silofl.parts.part import WeightsOf
from silofl.parts.task import Replies


def measure_apart(shared: ModelPart, replies: Replies, weights_of: WeightsOf) -> float | None:
    """Return how unlike the updates of the shared model are; None where sites begin from different models.

    Args:
        shared: The part of the shared model, as the round began with it.
        weights_of: Role -> who listened to whom.
    """
    weights = weights_of(shared.role)
    # Where sites listen otherwise than one another, they begin from different models.
    if not (weights == weights[0]).all():
        return None
    return measure_dissimilarity(replies.updates_of(shared.role), weights[0], shared.buffers)
