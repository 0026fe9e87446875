import numpy as np
import pytest

from silofl.parts.answer import SiteAnswer
from silofl.parts.part import OutboundPayload, Part
from silofl.parts.task import Exchange, Message, PayloadSpec, SiteResults
from silofl.parts.work import SitePart


def test_a_kind_holds_some_names_of_its_role():
    whole, some = (
        OutboundPayload("selector", "", "", "selector"),
        OutboundPayload("weights", "", "", "model", names=frozenset({"a"})),
    )
    assert whole.holds("selector", "anything") and not whole.holds("model", "anything")
    assert some.holds("model", "a") and not some.holds("model", "b") and not some.holds("global", "a")


def test_a_part_that_needs_nothing_changes_no_step():
    part, exchange, mixed = Part(), Exchange("train", 1), {"a": np.ones(1)}
    assert part.asks("before", 1, None) == () and part.to_send("north", exchange, None) == Message()
    assert (
        part.payload_spec("north", exchange, None) == PayloadSpec()
        and part.weights("model", 1, ["north"], None) is None
    )
    assert part.checked("north", exchange, SiteAnswer(), None) is part
    assert part.merged(exchange, SiteResults({}), None, None) is part and part.joined("south") is part
    assert part.server_step("model", {}, mixed, SiteResults({}), 1, 0.1) == (mixed, part)
    outcome = part.outcome(None, {})
    assert part.restored(part.state()) is part and outcome.make_contents() is None and outcome.complete(part) is part


def test_a_site_half_that_needs_nothing_sends_and_keeps_nothing():
    half = SitePart(work=None)
    assert half.step("model", len) is len and half.learners() == {} and half.kept() == {}
    assert half.finish({}) == Message() and half.judged({}, None, True) is None
    with pytest.raises(NotImplementedError, match="dance"):
        half.answer("dance")
