"""The answers of models at a hospital, as `predict` and `serve` recorded them, month by month."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from silofl.base.documents import read_json_document
from silofl.base.errors import ConfigError
from silofl.inference.names import RECORD

FALLBACK = "answers of the global model, as a fallback"
REFUSED = "refused inputs"
WARNED = "answers with a warning"


@dataclass(frozen=True)
class Answer:
    """An entry of prediction.json.

    Attributes:
        time: When it was answered.
        super_model: Fingerprint of the super model.
        name: The input's name.
        study: UID of the DICOM study; empty where there is none.
        patient: The PatientID of a DICOM input; empty where there is none.
        answered_by: Which of its models; empty of a refused input.
        measures: Name -> whether it is so, counted as a share; or a number, by how many deviations it lies above the
            mean of the hospitals' own cases.
    """

    time: datetime
    super_model: str
    name: str
    study: str
    patient: str
    answered_by: str
    measures: Mapping[str, bool | float]


def read_answers(folder: Path) -> Iterator[Answer]:
    """Yield the answers of all prediction.json in a folder, in no order; hidden ones are still in the making.

    Raises:
        ConfigError: A file is none that predict wrote, or of a version that wrote no time.
    """
    for path in sorted(folder.rglob(RECORD)):
        name = path.relative_to(folder)
        if any(part.startswith(".") for part in name.parts):
            continue
        content = read_json_document(path)
        # What is no list is refused below, as a record without its time.
        for record in content if isinstance(content, list) else [{}]:
            try:
                yield _read_answer(record)
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
                raise ConfigError(
                    f"{name} has no answers with their time, as predict of 0.4 and later writes them; move it away"
                ) from None


def _read_answer(record: Mapping[str, Any]) -> Answer:
    heads = {str(text).partition(":")[0] for text in record.get("warnings", ())}
    answered = "error" not in record
    dicom = record.get("dicom") or {}
    measures: dict[str, bool | float] = dict.fromkeys(heads, True)
    measures[REFUSED] = not answered
    if answered:
        measures[WARNED] = bool(heads)
        # Without scores nothing was chosen, and nothing can fall back.
        if record["scores"]:
            measures[FALLBACK] = bool(record["is_fallback"])
    for name, value in record.get("deviations", {}).items():
        measures[name] = float(value)
    return Answer(
        time=datetime.fromisoformat(record["time"]).astimezone(UTC),
        super_model=str(record["super_model"]),
        name=str(record["input"]),
        study=str(dicom.get("study", "")),
        patient=str(dicom.get("patient", "")),
        answered_by=str(record["model"]) if answered else "",
        measures=measures,
    )


def group_months(answers: Iterable[Answer]) -> dict[str, list[Answer]]:
    """Return month, as 2026-11 -> its answers, in order of time."""
    months: dict[str, list[Answer]] = {}
    for answer in sorted(answers, key=lambda answer: answer.time):
        months.setdefault(f"{answer.time:%Y-%m}", []).append(answer)
    return months
