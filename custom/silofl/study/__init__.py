"""What a study lead decides: the settings in study.yaml, read once and checked as one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationInfo, model_validator

from silofl.base.errors import ConfigError
from silofl.base.settings import load_settings
from silofl.study.checks import check_course, check_names, check_settings
from silofl.study.settings import StudySettings

# This is the context of a study whose run has begun: it is read even where a newer version would refuse to begin it.
STORED = "stored"


class Study(StudySettings):
    """One study: the same file for the server and every site."""

    @model_validator(mode="after")
    def _check_settings(self, info: ValidationInfo) -> Study:
        check_settings(self)
        # What has begun keeps its names; export refuses those that a bundle cannot have.
        if info.context != STORED:
            check_names(self)
            if self.rounds:
                check_course(self)
        return self


def load_study(path: Path, context: object = None) -> Study:
    """Read and check a study.yaml; the errors of `silofl.base.settings.load_settings`, and of a folder in its place.

    Args:
        context: `STORED`, or None of a study that is to begin.
    """
    # People name the folder that they submit.
    inside = path / "app" / "config" / "study.yaml"
    if inside.is_file():
        raise ConfigError(f"{path} must be a study.yaml, not a job folder; name {inside}")
    return load_settings(Study, path, context)


def plain_study(study: Study) -> dict[str, Any]:
    """Return a study as plain values that `parse` reads back."""
    plain = study.model_dump(mode="json", exclude_none=True)
    for key in ("volume_transforms", "transforms", "augment"):
        # In a study.yaml a transform is its name with its options.
        plain["data"][key] = [{transform["name"]: transform["options"]} for transform in plain["data"][key]]
    return plain
