"""Who takes part in a run, and until when: sites that have left it, and rounds that bring nothing more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from silofl.federation.ledger import rounds_since_best

if TYPE_CHECKING:
    from silofl.federation.server import ServerRounds


def present(server: ServerRounds) -> list[str]:
    """Return the sites that have not left the study."""
    return [site for site in server.sites if site not in server.study.federation.sites_left]


def left(server: ServerRounds) -> dict[str, int]:
    """Return site -> the last round that its update went into, 0 for none, of the sites that have left the study."""
    gone = [site for site in server.sites if site in server.study.federation.sites_left]
    return {site: server.should_hold(site, server.finished_rounds) for site in gone}


def is_over(server: ServerRounds) -> bool:
    """Return whether all rounds are finished, or as many as the study has patience for."""
    return server.finished_rounds >= server.study.total_rounds or early_end(server) is not None


def early_end(server: ServerRounds) -> str | None:
    """Return why no round comes after the last finished one although the study has more; None where one does."""
    patience, mixing, total = server.study.federation.patience, server.study.recipe.mixing, server.study.total_rounds
    if patience is None or server.finished_rounds >= total:
        return None
    # Until sites listen to each other in their own way, all have the same model, which a later one need not beat.
    first = mixing.shared_rounds(server.study.rounds) if mixing else 0
    if rounds_since_best(server.ledger, first) < patience:
        return None
    return (
        f"the run ended after round {server.finished_rounds} of {total} by federation.patience: in the {patience} "
        "rounds before it the mean validation was not better than in an earlier one"
    )
