"""What a site holds of its own state, as the server knows it, and what is said where some of it is lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from silofl.federation.ledger import Round
from silofl.methods.part import TRAIN, Exchange
from silofl.study import Study

if TYPE_CHECKING:
    from silofl.federation.server import ServerRounds


def last_answered(ledger: Sequence[Round], site: str, number: int) -> int:
    """Return the last round, up to one, whose model a site's update went into; 0 for none."""
    return max((record.round for record in ledger[:number] if site in record.answered), default=0)


def take_lost(server: ServerRounds, exchange: Exchange, held: Mapping[str, int]) -> dict[str, str | None]:
    """Let the server know which sites have lost their state, and return what of it nobody can send them again.

    Args:
        server: The run.
        exchange: What they were asked to do.
        held: Site -> the round of the state that it says it has.
    """
    wanted = {site: server.held(site, exchange.models_round) for site in held}
    older = {site: number for site, number in held.items() if number < wanted[site]}
    server.lost |= older
    return {s: _lost_sentence(server.study, s, exchange, number, wanted[s]) for s, number in older.items()}


def _lost_sentence(study: Study, site: str, exchange: Exchange, held: int, wanted: int) -> str | None:
    lost = ["its optimisers"] if exchange.task == TRAIN else []
    if study.recipe.stays_home != "nothing":
        lost.append(f"what stays at home ({study.recipe.stays_home})")
    if not lost:
        return None
    older = f"from that of round {held}" if held else "from none"
    return (
        f"site {site!r} began the {exchange.task} of round {exchange.round} without its state of round {wanted}, "
        f"{older}: {' and '.join(lost)} could not be restored"
    )
