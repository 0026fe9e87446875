"""One line on a finished round, and its new cautions, for the server's log and for terminals that follow a run."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from silofl.base.errors import make_printable
from silofl.federation.cautions import list_new_cautions
from silofl.federation.ledger import Round, find_last_rise

# Rounds from whose time the rest is estimated.
RECENT = 5


class Whole(Protocol):
    """What a line says of the run as a whole."""

    @property
    def total_rounds(self) -> int:
        """All rounds of the study."""

    @property
    def metric(self) -> str:
        """The name of the sites' scores."""

    @property
    def ends_early(self) -> bool:
        """Whether these rounds are only the most."""

    @property
    def quiet_rounds(self) -> int | None:
        """Rounds that raise nothing and so end the run; None where that is not known."""


def round_line(whole: Whole, ledger: Sequence[Round]) -> str:
    """Return the line on the last round: its losses and time, the time that is left, and who is missing and why.

    Below it stands what the validation shows for the first time.

    Args:
        ledger: The finished rounds up to the one that the line is about.
    """
    record = ledger[-1]
    before = ledger[-2] if len(ledger) > 1 else None
    losses = [values["loss"] for values in record.metrics.values() if "loss" in values]
    # Sites validate a round's model in the next round, so this is the round before.
    validation = ""
    if before and before.validated and whole.ends_early:
        median = np.median([*before.validated.values()])
        validation = f"validation {whole.metric}, median {median:.4f} (round {before.round})"
    elif before and before.validation_mean is not None:
        validation = f"validation {whole.metric} {before.validation_mean:.4f} (round {before.round})"
    parts = [
        f"round {record.round:>3}/{whole.total_rounds}",
        f"loss {np.mean(losses):.4f}" if losses else "",
        validation,
        describe_rise(whole, ledger),
        f"{len(record.answered)} of {len(record.asked)} sites",
        f"{record.seconds:.1f} s",
    ]
    left = seconds_left(whole, ledger)
    # After the last round comes the test, whose time nobody knows.
    if left >= 1:
        duration = f"{left:.0f} s" if left < 90 else f"{left / 60:.0f} min"
        parts.append(f"{'at most' if whole.ends_early else 'about'} {duration} left")
    if record.failed:
        failed = ", ".join(f"{site} ({reason})" for site, reason in sorted(record.failed.items()))
        parts.append(f"failed: {failed}")
    lines = ["  ".join(filter(None, parts)), *(f"CAUTION  {caution}" for caution in list_new_cautions(ledger))]
    # A lead's ledger comes from the server, with whatever names and reasons.
    return "\n".join(map(make_printable, lines))


def describe_rise(whole: Whole, ledger: Sequence[Round]) -> str:
    """Return which round raised the validation last, and with which the run then ends; empty where nothing ends it."""
    rise = None if whole.quiet_rounds is None else find_last_rise(ledger)
    if rise is None:
        return ""
    return f"last rise in round {rise}, ends in round {last_round(whole, ledger)} if nothing rises"


def last_round(whole: Whole, ledger: Sequence[Round]) -> int:
    """Return the round with which the run ends if no later one raises the validation."""
    rise = None if whole.quiet_rounds is None else find_last_rise(ledger)
    return whole.total_rounds if rise is None else min(whole.total_rounds, rise + (whole.quiet_rounds or 0))


def seconds_left(whole: Whole, ledger: Sequence[Round]) -> float:
    """Return how long the rounds after the last one may take at most, by the newest of those that there were."""
    return typical_seconds(ledger) * (whole.total_rounds - ledger[-1].round)


def typical_seconds(ledger: Sequence[Round]) -> float:
    """Return the median time of the newest finished rounds, of which there must be one; of two the shorter."""
    # The first round's time holds the start of all processes.
    recent = [record.seconds for record in ledger[1:][-RECENT:]] or [ledger[0].seconds]
    # A mean would count a round that waited for a dead site, after which nobody waits for it.
    return float(np.quantile(recent, 0.5, method="lower"))
