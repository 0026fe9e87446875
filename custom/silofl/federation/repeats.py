"""Rounds that are carried out once more, because a site has lost the state that it left them with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from silofl.federation.ledger import Round
from silofl.federation.server import ServerRounds
from silofl.parts.task import Exchange


@dataclass
class Repeats:
    """The rounds that this process repeats.

    Attributes:
        first: Round -> its record as it was carried out first.
        reasons: Round -> why it is repeated.
    """

    first: dict[int, Round] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)

    def take(self, server: ServerRounds, earlier: ServerRounds, exchange: Exchange, lost: Mapping[str, int]) -> bool:
        """Return whether the run is to go back, so that its weights are those of one in which nothing was lost.

        Args:
            earlier: The same run some rounds before.
            exchange: What the sites were asked to do.
            lost: Site -> the last round whose state it has.
        """
        again = server.ledger[earlier.finished_rounds :]
        answered: set[str] = set().union(*(record.answered for record in again))
        if (
            # A repeated round would spend the patients' privacy once more, and its noise would be another.
            server.study.is_private
            or not again
            or any(record.round in self.first for record in again)
            # A site that has joined or left since would make it another round.
            or earlier.sites != server.sites
            or not answered.issubset(server.list_present_sites())
            or not any(server.list_state_for(site, exchange) for site in lost)
            or not all(_makes_again(server, earlier, exchange, site, held) for site, held in lost.items())
        ):
            return False
        sites = " and ".join(f"site {site!r}" for site in sorted(lost))
        for record in again:
            self.first[record.round] = record
            self.reasons[record.round] = (
                f"round {record.round} was carried out once more, because the state that it left at {sites} was "
                "missing or damaged"
            )
        return True


def return_to(server: ServerRounds, earlier: ServerRounds) -> None:
    """Make a run what it was earlier; what is known of the sites' software stays known."""
    # The sites' processes have not gone back with the run.
    software = server.software
    vars(server).update(vars(earlier))
    server.software = software


def _makes_again(server: ServerRounds, earlier: ServerRounds, exchange: Exchange, site: str, held: int) -> bool:
    """Return whether the rounds after an earlier one make a site's lost state, from one that it has."""
    last_kept = earlier.finished_rounds
    is_later = server.should_hold(site, exchange.models_round) > last_kept
    return is_later and held >= earlier.should_hold(site, last_kept)
