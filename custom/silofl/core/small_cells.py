"""Which counts of patients a site withholds because they are small, or because a small one would follow from them."""

from collections.abc import Mapping
from typing import TypeVar

Key = TypeVar("Key")


def find_small_cells(counts: Mapping[Key, int], least: int, is_partition: bool) -> set[Key]:
    """Return the groups that are withheld.

    Args:
        counts: Group -> its patients.
        least: Patients that a group must have to be told.
        is_partition: Whether the groups exclude one another. A single withheld one would follow from the others and the
            total: as many of the smallest are then withheld as have so many patients together.
    """
    few = {group for group, number in counts.items() if number < least}
    shown = sorted(counts.keys() - few, key=lambda group: (counts[group], str(group)))
    while is_partition and few and shown and (len(few) == 1 or sum(counts[group] for group in few) < least):
        few.add(shown.pop(0))
    return few
