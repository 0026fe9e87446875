"""The answer to one check: ok, a warning, or a failure that keeps the site from joining."""

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Finding:
    """The answer to one check.

    Attributes:
        sentence: The finding, and the remedy where something is wrong; names no case, patient or file of the data.
        facts: The numbers behind the sentence, as plain values.
    """

    status: Literal["ok", "warning", "failed"]
    sentence: str
    facts: dict[str, Any] = field(default_factory=dict)


def ok(sentence: str, **facts: object) -> Finding:
    """Return an answer that all is well."""
    return Finding("ok", sentence, facts)


def warning(sentence: str, **facts: object) -> Finding:
    """Return an answer that the site may join, but should look at something."""
    return Finding("warning", sentence, facts)


def failed(sentence: str, **facts: object) -> Finding:
    """Return an answer that the site must not join yet."""
    return Finding("failed", sentence, facts)


def expect(is_met: bool, fine: str, fault: str, is_serious: bool = True, **facts: object) -> Finding:
    """Return the answer to a check with one condition.

    Args:
        is_met: The condition.
        fine: The sentence where it is met.
        fault: The sentence where it is not, with the remedy.
        is_serious: Whether the fault keeps the site from joining, and is no warning alone.
    """
    if is_met:
        return ok(fine, **facts)
    return failed(fault, **facts) if is_serious else warning(fault, **facts)
