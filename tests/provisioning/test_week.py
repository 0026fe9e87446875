"""The scripted week: how it ends, what it checks, and, as a whole, that every event goes as it must."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from tests.provisioning.week import carry_out_events, main
from tests.provisioning.week_events import (
    EVENTS,
    Event,
)


def carried_out(tmp_path, *events):
    """Carry out events without a network; returns the exit code, what was shown, and the page."""
    shown = io.StringIO()
    code = carry_out_events(SimpleNamespace(out=tmp_path), events, Console(file=shown, width=200, markup=False))
    return code, shown.getvalue(), (tmp_path / "week.md").read_text()


def test_a_week_that_holds_ends_with_a_page(tmp_path):
    code, shown, page = carried_out(
        tmp_path, Event("It rains", lambda _: "wet; cold"), Event("It is dry", lambda _: "dry")
    )
    assert code == 0 and "2 of 2 events" in shown
    assert page.splitlines()[2::2] == ["1. **It rains** (0 s): wet; cold", "2. **It is dry** (0 s): dry"]


def test_each_event_says_what_happens_and_has_a_day():
    days = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
    order = [days.index(event.what.split(":")[0]) for event in EVENTS]
    assert order == sorted(order) and {*order} == {*range(7)}
    assert len({event.carry_out for event in EVENTS}) == len(EVENTS) >= 11


@pytest.mark.faults
@pytest.mark.timeout(2700)
def test_the_week_goes_as_it_must(tmp_path, free_port, capsys):
    code = main(["--out", str(tmp_path / "week"), "--port", str(free_port())])
    assert code == 0, capsys.readouterr().out
    assert "FAILED" not in (tmp_path / "week" / "week.md").read_text()
