"""How a set describes itself: its dataset.json, the files that it names, and the names of its labels."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from silofl.base.documents import build_table
from silofl.base.errors import ConfigError, DataError
from silofl.importing.site_files import number_labels
from silofl.reading.access import read_bytes


def choose_labels(given: Sequence[str] | None, own: Iterable[str], first: int) -> dict[int, str]:
    """Number a set's labels from `first`, by the names that are given or by its own.

    Raises:
        ConfigError: There are more or fewer names than labels.
    """
    own = tuple(own)
    if given is not None and len(given) != len(own):
        raise ConfigError(f"labels must name {len(own)} labels, instead of {', '.join(own)}, not {len(given)}")
    return number_labels(given or own, first)


def read_description(source: Path, wanted: Iterable[str]) -> dict:
    """Read the dataset.json that describes a public set.

    Args:
        wanted: Keys it must have.

    Raises:
        DataError: It is missing, unreadable, not JSON, or lacks a key.
    """
    name = f"dataset.json in {source.name}"
    try:
        content = json.loads(read_bytes(source / "dataset.json", name), object_pairs_hook=build_table)
    except DataError:
        raise
    except ValueError as error:
        raise DataError(f"{name} must be JSON, not broken ({error}); download the set again") from None
    missing = [key for key in wanted if not isinstance(content, dict) or key not in content]
    if missing:
        raise DataError(f"{name} must have the keys {', '.join(wanted)}; {', '.join(missing)} missing: is it this set?")
    return content


def sample_file(source: Path, sample: Mapping[str, object], key: str) -> Path:
    """Return a file that a sample of a public set names.

    Raises:
        DataError: The sample does not name it, or it is not there or not inside the set.
    """
    name = sample.get(key)
    if not isinstance(name, str):
        raise DataError(f"sample {sample.get('id')!r} of {source.name} must name its {key!r}; it is missing")
    if not (source / name).is_file() or source.resolve() not in (source / name).resolve().parents:
        raise DataError(f"{source.name} must hold {name}, which its dataset.json names; download the set again")
    return source / name
