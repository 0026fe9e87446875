"""Where ``--weights`` takes weights from: a file, a folder of a MONAI bundle, or one of a finished run."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from silofl.base.errors import ConfigError
from silofl.models.weights import SUFFIXES

# A bundle, and a run with one model for all, keep their weights there.
BUNDLE = Path("models", "model.pt")
RUN = Path("model", "best.pt")


def find_weights_file(source: Path) -> Path:
    """Return the file of weights that a file or folder stands for.

    Raises:
        ConfigError: It is not there, or holds none or several models.
    """
    if source.is_file():
        if source.suffix not in SUFFIXES:
            raise ConfigError(f"--weights must be a file in {', '.join(SUFFIXES)}, not {source.name}; convert it")
        return source
    for path in (source / BUNDLE, source / RUN):
        if path.is_file():
            return path
    raise ConfigError(
        f"--weights must be a file of weights, a bundle with {BUNDLE} or a finished run with {RUN}, not {source}; name "
        "another, or one of the files of a run with several models"
    )


def with_weights(changes: Mapping[str, object], file: str | None) -> dict[str, object]:
    """Return changes to a study by dotted key, with those by which it starts from a file, where there is one."""
    if file is None:
        return dict(changes)
    path = Path(file)
    # The study pins its file, so that every hospital starts from the same one.
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return {**changes, "model.weights": f"weights{path.suffix}", "model.weights_sha256": digest}
