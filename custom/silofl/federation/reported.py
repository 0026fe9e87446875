"""What a run reports: its best round on validation, or what a part has that is better."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from silofl.federation.ledger import Round, absence_sentence, is_better, validators
from silofl.methods.part import Reported
from silofl.training.site_score import SiteScore

if TYPE_CHECKING:
    from silofl.federation.server import ServerRounds


def choose_reported(server: ServerRounds) -> Reported:
    """Return the best round's parts, or the last without validation, unless a part has something better."""
    number = server.best_round or server.finished_rounds
    validation = server.ledger[number - 1].validation if number else {}
    reported = Reported(number, server.parts | server.best_parts, validation, _explain_choice(server, number))
    for part in server.parts.values():
        reported = part.reported(reported, server)
    return reported


def is_better_than_best(server: ServerRounds, validation: Mapping[str, SiteScore]) -> bool:
    """Return whether other models' validation after the last round is better than the best round's."""
    best = server.ledger[server.best_round - 1] if server.best_round else None
    other = Round(server.finished_rounds, validation=validation)
    return bool(other.validated) and is_better(other, best, validators(server.ledger))


def _explain_choice(server: ServerRounds, number: int) -> str:
    if server.best_round is None:
        return f"last round, {number}: no validation data"
    absence = absence_sentence(server.ledger, server.ledger[number - 1])
    return f"best validation, round {number}" + (f"; {absence}" if absence else "")
