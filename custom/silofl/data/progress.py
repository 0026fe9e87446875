"""Show the progress of long work: a bar on a terminal, otherwise a line at the start and at the end."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from silofl.base.errors import make_printable

T = TypeVar("T")
# Work that is usually quick says nothing for so long.
QUIET_SECONDS = 5.0
# The time between two lines doubles up to this.
LONGEST_SECONDS = 25.0


def track_progress(
    items: Iterable[T], total: int, title: str, has_progress: bool = True, unit: str = "cases"
) -> Iterator[T]:
    """Yield the items and show on stderr how many have been taken, and how long it took.

    Args:
        items: The items to work on.
        title: Name of the work, as ``reading north``.
        has_progress: Whether a terminal shows a bar.
        unit: Name of the items, in the plural.
    """
    title = make_printable(title)
    if has_progress and sys.stderr.isatty():
        yield from _show_bar(items, total, title)
        return
    start = time.monotonic()
    print(f"{title}: {total} {unit.removesuffix('s') if total == 1 else unit}", file=sys.stderr, flush=True)
    yield from track_slow_progress(items, total, title, unit)
    print(f"{title}: done in {time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)


def track_slow_progress(items: Iterable[T], total: int, title: str, unit: str = "cases") -> Iterator[T]:
    """Yield the items, and show on stderr that work goes on where it takes longer than `QUIET_SECONDS`.

    Args:
        items: The items to work on.
        title: Name of the work, as ``checking north``.
        unit: Name of the items, in the plural.
    """
    start = time.monotonic()
    seconds = QUIET_SECONDS
    for number, item in enumerate(items):
        if time.monotonic() - start > seconds:
            print(f"{make_printable(title)}: {number} of {total} {unit}", file=sys.stderr, flush=True)
            seconds += min(seconds, LONGEST_SECONDS)
        yield item


def _show_bar(items: Iterable[T], total: int, title: str) -> Iterator[T]:
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import track

    yield from track(items, description=escape(title), total=total, console=Console(stderr=True))
