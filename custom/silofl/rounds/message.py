"""What travels: one flat dictionary of named arrays, and numbers and names beside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silofl.errors import AggregationError


@dataclass(frozen=True)
class Message:
    """A message in either direction.

    Attributes:
        arrays: Name -> array; from a site, differences to what the server sent it.
        meta: Plain numbers, strings, lists and dictionaries.
    """

    arrays: dict[str, NDArray] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """Bytes of the arrays."""
        return sum(np.asarray(array).nbytes for array in self.arrays.values())


def check_fits(site: str, received: dict[str, NDArray], sent: dict[str, NDArray]) -> None:
    """Refuse an update that does not fit what the server sent this site; names may be missing, never added.

    Raises:
        AggregationError: Names the site and the key.
    """
    for name, array in received.items():
        if name not in sent:
            raise AggregationError(f"site {site!r} must send only arrays that it was sent; {name!r} is none of them")
        if np.shape(array) != np.shape(sent[name]):
            raise AggregationError(
                f"site {site!r} must send {name!r} with shape {np.shape(sent[name])}, not {np.shape(array)}"
            )
        if not np.all(np.isfinite(array)):
            raise AggregationError(f"site {site!r} must send finite numbers; {name!r} holds NaN or infinity")
