"""Experiment tracking: the ledger's numbers as the events that NVFlare's receivers (TensorBoard, MLflow) listen to.

The server fires them itself. As events of the sites they would leave a hospital past its filters.
"""

from collections.abc import Iterator, Sequence

from nvflare.apis.analytix import AnalyticsDataType, LogWriterName
from nvflare.apis.engine_spec import EngineSpec
from nvflare.apis.fl_constant import EventScope, FLContextKey, ReservedKey
from nvflare.apis.shareable import Shareable
from nvflare.apis.utils.analytix_utils import create_analytic_dxo
from nvflare.widgets.fed_event import FedEventHeader

from silofl.federation.ledger import Round

EVENT = "fed.analytix_log_stats"


class Tracking:
    """What of a ledger has been sent to the receivers that a job names."""

    def __init__(self) -> None:
        self._sent: set[tuple[int, str, str]] = set()

    def send(self, ledger: Sequence[Round], engine: EngineSpec) -> None:
        """Send the numbers of the last two rounds that are new; a round's validation comes with the next one."""
        for record in ledger[-2:]:
            for site, name, value in _round_numbers(record):
                if (record.round, site, name) not in self._sent:
                    self._sent.add((record.round, site, name))
                    _fire(_event(site, name, value, record.round), engine)


def _fire(event: Shareable, engine: EngineSpec) -> None:
    with engine.new_context() as fl_ctx:
        fl_ctx.set_prop(FLContextKey.EVENT_DATA, event, private=True, sticky=False)
        fl_ctx.set_prop(FLContextKey.EVENT_SCOPE, EventScope.FEDERATION, private=True, sticky=False)
        # The engine's own, since that of a component makes every event a local one.
        engine.fire_event(EVENT, fl_ctx)


def _round_numbers(record: Round) -> Iterator[tuple[str, str, float]]:
    for site, metrics in record.metrics.items():
        yield from ((site, name, value) for name, value in metrics.items())
    for name, scores in (("validation", record.validation), ("test", record.test or {})):
        yield from ((site, name, score.value) for site, score in scores.items() if score.value is not None)


def _event(site: str, name: str, value: float, number: int) -> Shareable:
    scalar = create_analytic_dxo(
        name, value, AnalyticsDataType.SCALAR, LogWriterName.TORCH_TB, global_step=number
    ).to_shareable()
    # As if it had come in from the site: receivers file it under its name, and nothing sends it on to the sites.
    scalar.set_peer_props({ReservedKey.IDENTITY_NAME: site})
    scalar.set_header(FedEventHeader.DIRECTION, "in")
    return scalar
