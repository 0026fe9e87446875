"""Measure how far apart the sites of a round have trained, where the study asks."""

from collections.abc import Mapping
from typing import Any

from silofl.core.divergence import measure_dissimilarity, measure_distance
from silofl.federation.ledger import Round
from silofl.parts.part import WeightsOf
from silofl.parts.task import Replies
from silofl.study import Study


def record_apart(
    record: Round, study: Study, started: Mapping[str, Any], replies: Replies, weights_of: WeightsOf
) -> None:
    """Write into a round's record how unlike the updates of the shared model are, and how far the models lie apart.

    Args:
        study: Names the models that travel.
        started: Role -> the part as the round began with it.
        weights_of: Role -> who listened to whom.
    """
    roles = study.recipe.traveling_roles
    shared, own = started[roles[0]], started[roles[-1]]
    starts = {site: own.of(site) for site in replies.sites}
    record.distance = measure_distance(starts, replies.updates_of(own.role), own.buffers)
    weights = weights_of(shared.role)
    # Where sites listen otherwise than one another, they begin from different models.
    if (weights == weights[0]).all():
        record.dissimilarity = measure_dissimilarity(replies.updates_of(shared.role), weights[0], shared.buffers)
