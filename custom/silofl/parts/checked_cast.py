"""The class of a value that a protocol leaves open: parts, entries and settings are looked up by their roles."""

from typing import TypeVar

T = TypeVar("T")


def checked_cast(value: object, kind: type[T]) -> T:
    """Return a value as one of the class that its owner gave it.

    Raises:
        TypeError: It is of another class, which is an error of the program.
    """
    if not isinstance(value, kind):
        raise TypeError(f"a {kind.__name__} must be here, not a {type(value).__name__}")
    return value
