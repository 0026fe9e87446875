"""A run's numbers as NVFlare's events: what TensorBoard, MLflow and Weights & Biases are given of them."""

import pytest
from nvflare.apis.analytix import AnalyticsData
from nvflare.apis.dxo import from_shareable
from nvflare.apis.fl_constant import EventScope, FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext

from silofl.federation.ledger import Round
from silofl.flare.tracking import EVENT, Tracking
from tests.conftest import score


class Engine:
    """An engine that keeps the events which it is told to fire."""

    def __init__(self):
        self.events = []

    def new_context(self):
        return FLContext()

    def fire_event(self, name, context):
        assert name == EVENT and context.get_prop(FLContextKey.EVENT_SCOPE) == EventScope.FEDERATION
        self.events.append(context.get_prop(FLContextKey.EVENT_DATA))


@pytest.fixture
def events():
    """The events of two rounds, sent after each of them and once more at the end."""
    engine, tracking = Engine(), Tracking()
    first, second = (Round(number, metrics={"east": {"loss": 0.5 / number}}) for number in (1, 2))
    tracking.send([first], engine)
    first.validation = {"east": score(0.25)}
    tracking.send([first, second], engine)
    second.validation = {"east": score(0.75)}
    tracking.send([first, second], engine)
    return engine.events


def test_each_number_is_sent_once_with_site_and_round(events):
    data = [AnalyticsData.from_dxo(from_shareable(event)) for event in events]
    assert [(one.tag, one.value, one.step) for one in data] == [
        ("loss", 0.5, 1),
        ("validation", 0.25, 1),
        ("loss", 0.25, 2),
        ("validation", 0.75, 2),
    ]
    assert {event.get_peer_prop(ReservedKey.IDENTITY_NAME, None) for event in events} == {"east"}
