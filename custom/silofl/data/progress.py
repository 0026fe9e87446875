"""Show the progress of long work: a bar on a terminal, otherwise a line at the start and at the end."""

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from silofl.errors import make_printable

T = TypeVar("T")


def track_progress(
    items: Iterable[T], total: int, title: str, has_progress: bool = True, unit: str = "cases"
) -> Iterator[T]:
    """Yield the items and show on stderr how many have been taken.

    Args:
        items: The items to work on.
        total: Their number.
        title: Name of the work, as ``reading north``.
        has_progress: Whether a terminal shows a bar.
        unit: Name of the items, in the plural.
    """
    title = make_printable(title)
    if has_progress and sys.stderr.isatty():
        yield from _show_bar(items, total, title)
        return
    print(f"{title}: {total} {unit.removesuffix('s') if total == 1 else unit}", file=sys.stderr, flush=True)
    yield from items
    print(f"{title}: done", file=sys.stderr, flush=True)


def _show_bar(items: Iterable[T], total: int, title: str) -> Iterator[T]:
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import track

    yield from track(items, description=escape(title), total=total, console=Console(stderr=True))
