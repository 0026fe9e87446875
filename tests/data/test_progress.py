import re

import pytest

from silofl.data import progress
from silofl.data.progress import track_progress, track_slow_progress


@pytest.mark.parametrize("has_progress", [True, False])
def test_without_a_terminal_start_and_end_have_a_line(capsys, has_progress):
    assert list(track_progress("abc", 3, "reading north", has_progress)) == ["a", "b", "c"]
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(r"reading north: 3 cases\nreading north: done in \d+\.\d s\n", captured.err)


def test_quick_work_is_silent_and_slow_work_is_not(capsys, monkeypatch):
    # After 0, 4, 6, 9, 11, 19 and 21 seconds; lines come after 5, 10 and 20.
    seconds = iter([0, 0, 4, 6, 9, 11, 19, 21])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(seconds))
    assert list(track_slow_progress("abcdefg", 7, "checking north", unit="masks")) == list("abcdefg")
    lines = [f"checking north: {number} of 7 masks\n" for number in (2, 4, 6)]
    assert capsys.readouterr() == ("", "".join(lines))
