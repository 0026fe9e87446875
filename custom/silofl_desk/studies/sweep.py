"""Sweeps: the rows of a comparison with every combination of some settings' values."""

import argparse
import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from silofl.base.errors import ConfigError, quote_value
from silofl.base.settings import read_value, setting_text
from silofl_desk.options import replaces

# In place of a study's key: the folders of the sites' data, as with --data.
DATA = "data"
EPOCHS, ROUNDS = "training.local_epochs", "rounds"


@dataclass(frozen=True)
class Point:
    """One combination of values.

    Attributes:
        name: Of the rows at this point, as ``alpha=0.05``.
        values: Dotted key of the study, or ``data`` -> its value.
        rounds: Of the studies; their own where None.
    """

    name: str
    values: Mapping[str, object]
    rounds: int | None = None

    @property
    def changes(self) -> dict[str, object]:
        """Its changes to a study, by dotted key."""
        changes = {key: value for key, value in self.values.items() if key != DATA}
        return changes if self.rounds is None else changes | {ROUNDS: self.rounds}

    @property
    def data(self) -> str | None:
        """The folder of the sites' data, where it is swept."""
        return str(self.values[DATA]) if DATA in self.values else None


@dataclass(frozen=True)
class Sweep:
    """A grid of values.

    Attributes:
        values: Dotted key of the study, or ``data`` -> its values, in the order of the table.
        total_epochs: What rounds times local epochs come to at every point; rounds stay the study's where None.
    """

    values: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    total_epochs: int | None = None

    def points(self) -> list[Point]:
        """Return all combinations, the last key's values one after another.

        Raises:
            ConfigError: The local epochs do not divide their total.
        """
        names = short_names(self.values)
        found = []
        for combination in itertools.product(*self.values.values()):
            values = dict(zip(self.values, combination, strict=True))
            name = " ".join(f"{names[key]}={value_text(key, value)}" for key, value in values.items())
            found.append(Point(name, values, self._divide_epochs(values)))
        return found

    def _divide_epochs(self, values: Mapping[str, object]) -> int | None:
        if self.total_epochs is None:
            return None
        epochs = values[EPOCHS]
        if type(epochs) is not int or epochs < 1 or self.total_epochs % epochs:
            raise ConfigError(
                f"--total-epochs must be a multiple of every {EPOCHS}, not {self.total_epochs} with "
                f"{quote_value(epochs)}; change one of them"
            )
        return self.total_epochs // epochs


def short_names(keys: Mapping[str, object]) -> dict[str, str]:
    """Return key -> its last part, or the whole key where two keys end alike."""
    lasts = {key: key.rpartition(".")[2] for key in keys}
    numbers = Counter(lasts.values())
    return {key: last if numbers[last] == 1 else key for key, last in lasts.items()}


def value_text(key: str, value: object) -> str:
    """Return a swept value as a table shows it; of a folder its name."""
    if key == DATA:
        return Path(str(value)).name
    return setting_text(value)


def parse_swept_key(text: str) -> tuple[str, tuple[object, ...]]:
    """Read ``KEY=V1,V2,...``: a dotted key of study.yaml, or ``data``, and at least two values, as in that file."""
    key, _, values = text.partition("=")
    sentence = f"must be KEY=V1,V2,..., as training.learning_rate=0.01,0.1, not {quote_value(text)}"
    try:
        # A list in YAML: a comma within brackets belongs to its value.
        found = read_value(f"[{values}]")
    except ConfigError as error:
        raise argparse.ArgumentTypeError(f"{sentence}: {error}") from None
    if not key or not isinstance(found, list) or len(found) < 2 or None in found:
        raise argparse.ArgumentTypeError(f"{sentence}; give at least two values")
    texts = [value_text(key, value) for value in found]
    if len(set(texts)) != len(texts):
        raise argparse.ArgumentTypeError(f"must have values that differ, not {quote_value(text)}")
    return key, tuple(found)


def read_sweep(options: argparse.Namespace) -> Sweep:
    """Return the sweep of a command line.

    Raises:
        ConfigError: A key was given twice, or cannot be swept with what else was given.
    """
    values: dict[str, tuple[object, ...]] = {}
    for key, found in options.sweep:
        if key in values:
            raise ConfigError(f"--sweep must name {key} once; put all its values behind one another")
        values[key] = found
    return Sweep(values, options.total_epochs)


def check_sweep(sweep: Sweep, changes: Mapping[str, str], data: str | None) -> None:
    """Refuse a sweep of what another option settles.

    Args:
        changes: Dotted key that is set for every row, or for one -> the option that sets it.
        data: Folder that was given.

    Raises:
        ConfigError: Which option, and what to leave out.
    """
    settled = {"seed": "--seeds", **changes}
    if sweep.total_epochs is not None:
        if EPOCHS not in sweep.values:
            raise ConfigError(
                f"--total-epochs must go with --sweep {EPOCHS}=..., which it makes rounds for; leave it out, or add it"
            )
        if ROUNDS in settled:
            raise ConfigError("--total-epochs must be given without --rounds, which it settles; leave one out")
        settled[ROUNDS] = "--total-epochs"
    if DATA in sweep.values and data is not None:
        raise ConfigError(f"--sweep must not name {DATA} together with --data; leave one out")
    keys = [key for key in sweep.values if key != DATA]
    for i, key in enumerate(keys):
        for other, option in (settled | dict.fromkeys(keys[:i], "--sweep")).items():
            if replaces(key, other) or replaces(other, key):
                raise ConfigError(f"--sweep must not name {key} with {option}, which sets {other}; leave one out")
