"""What the server knows of the software that sites run: each says it with its first answer, and once is enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

from silofl.errors import AggregationError, ConfigError
from silofl.software import Software, here

if TYPE_CHECKING:
    from silofl.federation.server import ServerRounds


def take_software(server: ServerRounds, site: str, said: Software | None) -> None:
    """Let the server know what a site runs.

    Raises:
        AggregationError: The site's first answer does not say it, or names a release that does not work together with
            the server's.
    """
    if site in server.software:
        return
    if said is None:
        raise AggregationError(f"site {site!r} must say which software it runs; install the study's wheel there")
    try:
        here().check_together(said, f"site {site!r}")
    except ConfigError as error:
        raise AggregationError(str(error)) from None
    server.software[site] = said
