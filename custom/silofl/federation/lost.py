"""What a site holds of its own state, as the server knows it, and what is said where some of it is lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from silofl.methods.part import TRAIN, Exchange

if TYPE_CHECKING:
    from silofl.federation.server import ServerRounds


def take_lost(server: ServerRounds, exchange: Exchange, held: Mapping[str, int]) -> list[str]:
    """Let the server know which sites have lost their state, and return those that may be asked again.

    Args:
        server: The run.
        exchange: What they were asked to do.
        held: Site -> the round of the state that it says it has.
    """
    older = {site: number for site, number in held.items() if number < server.held(site, exchange.models_round)}
    server.lost |= older
    return list(older)


def lost_sentence(server: ServerRounds, site: str, exchange: Exchange) -> str | None:
    """Return what a site lacked in an exchange because nobody could send it again; None where that is nothing."""
    recipe, number = server.study.recipe, exchange.models_round
    held, wanted = server.held(site, number), server.should_hold(site, number)
    lost = ["its optimisers"] if exchange.task == TRAIN and not server.study.has_fresh_optimizer else []
    if recipe.at_home:
        lost.append(f"what stays at home ({', '.join(recipe.at_home)})")
    if held == wanted or not lost:
        return None
    older = f"from that of round {held}" if held else "from none"
    return (
        f"site {site!r} began the {exchange.task} of round {exchange.round} without its state of round {wanted}, "
        f"{older}: {' and '.join(lost)} could not be restored"
    )
