"""The answers of models at a hospital, as `predict` and `serve` recorded them, and what they say month by month.

What leaves of a month is of as many patients as the hospital asks for: those whom DICOM names, and nobody else counts.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, Strict

from silofl.base.documents import read_json_document
from silofl.base.errors import ConfigError, DataError, quote_value
from silofl.base.settings import Section
from silofl.core.few import Key, find_few
from silofl.data.inventory import Named, round_number
from silofl.inference import RECORD
from silofl.reading.patient_names import key_patient
from silofl.study import Study

FILE = "monthly_answers.json"
FALLBACK, REFUSED, WARNED = "answers of the global model, as a fallback", "refused inputs", "answers with a warning"

Number = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


@dataclass(frozen=True)
class Answer:
    """An entry of prediction.json.

    Attributes:
        time: When it was answered.
        super_model: Fingerprint of the super model.
        name: Of the input.
        study: UID of the DICOM study; empty where there is none.
        patient: The PatientID of a DICOM input; empty where there is none.
        answered_by: Which of its models; empty of a refused input.
        task: Of the model.
        measures: Name -> whether it is so, counted as a share; or a number, by how many deviations it lies above the
            mean of the hospitals' own cases.
        labels: Each label's millilitres, where they are known; or the class, or each finding, with 1.
    """

    time: datetime
    super_model: str
    name: str
    study: str
    patient: str
    answered_by: str
    task: str
    measures: Mapping[str, bool | float]
    labels: Mapping[str, float] = field(default_factory=dict)


class Month(Section):
    """What leaves of a month; None is withheld.

    Attributes:
        answers: How many there were.
        warned: Share of them with a warning.
        labels: Class or finding -> how many answers had it; label -> its millilitres, mean over the answers.
    """

    answers: Annotated[int, Strict(), Field(ge=0, le=10**7)] | None = None
    warned: Annotated[float, Field(ge=0, le=1)] | None = None
    labels: Annotated[dict[Named, Number | None], Field(max_length=200)] = {}


class SiteMonths(Section):
    """What leaves of a hospital.

    Attributes:
        months: Month, as 2026-11 -> its numbers.
        unit: Of the labels' numbers.
        least: Patients that each number is of.
    """

    months: Annotated[dict[Annotated[str, Field(pattern=r"^\d{4}-\d\d$")], Month], Field(max_length=600)]
    unit: Literal["ml", "answers"]
    least: Annotated[int, Field(ge=0)]


def read_answers(folder: Path) -> Iterator[Answer]:
    """Yield the answers of all prediction.json in a folder, in no order; hidden ones are still in the making.

    Raises:
        ConfigError: A file is none that predict wrote, or of a version that wrote no time.
    """
    for path in sorted(folder.rglob(RECORD)):
        name = path.relative_to(folder)
        found = [] if any(part.startswith(".") for part in name.parts) else read_json_document(path)
        for record in found if isinstance(found, list) else [{}]:
            try:
                yield _read_answer(record)
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
                raise ConfigError(
                    f"{name} must hold answers with their time, as predict of 0.4 and later writes them; it does not: "
                    "move it away"
                ) from None


def _read_answer(record: Mapping[str, Any]) -> Answer:
    heads = {str(text).partition(":")[0] for text in record.get("warnings", ())}
    answered, dicom = "error" not in record, record.get("dicom") or {}
    measures: dict[str, bool | float] = dict.fromkeys(heads, True) | {REFUSED: not answered}
    if answered:
        measures |= {WARNED: bool(heads)} | ({FALLBACK: bool(record["is_fallback"])} if record["scores"] else {})
    said = {"classification": [record.get("label_name")], "multilabel": record.get("findings")}
    task = "classification" if "label_name" in record else "multilabel" if "findings" in record else "segmentation"
    labels = dict.fromkeys(said[task], 1) if task in said else record.get("volumes_ml") or {}
    if not all(0 <= value <= 1e9 for value in labels.values()):
        raise ValueError
    return Answer(
        datetime.fromisoformat(record["time"]).astimezone(UTC),
        str(record["super_model"]),
        str(record["input"]),
        *(str(dicom.get(key, "")) for key in ("study", "patient")),
        str(record["model"]) if answered else "",
        task,
        measures | {name: float(value) for name, value in record.get("deviations", {}).items()},
        {str(name): float(value) for name, value in labels.items()},
    )


def group_months(answers: Iterable[Answer]) -> dict[str, list[Answer]]:
    """Return month, as 2026-11 -> its answers, in order of time."""
    months: dict[str, list[Answer]] = {}
    for one in sorted(answers, key=lambda one: one.time):
        months.setdefault(f"{one.time:%Y-%m}", []).append(one)
    return months


def select_finished(folder: Path, model: str) -> list[Answer]:
    """Return a model's answers in a folder, without refused inputs, of the months that have ended.

    What is asked for again in the middle of a month would show the patients who came in between.

    Raises:
        DataError: The folder is missing.
    """
    if not folder.is_dir():
        raise DataError(f"data of site.yaml must name a folder with answers of predict or serve, not {folder}; mend it")
    began = datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return [one for one in read_answers(folder) if one.super_model == model and one.answered_by and one.time < began]


def count_patients(answers: Iterable[Answer]) -> int:
    """Return how many patients answers are of, as far as they are known."""
    return len({key_patient(one.patient) for one in answers} - {""})


def sum_up_months(answers: Iterable[Answer], study: Study, least: int) -> SiteMonths:
    """Return what leaves of each month.

    Args:
        study: Names the labels.
        least: Patients that each number must be of, and those that would follow from it.

    Raises:
        DataError: An answer is for another task, or has a label that the study has not.
    """
    months = {month: _sum_up(some, study, least) for month, some in group_months(answers).items()}
    return SiteMonths(months=months, unit="ml" if study.task == "segmentation" else "answers", least=least)


def _sum_up(answers: Sequence[Answer], study: Study, least: int) -> Month:
    names = [name for _, name in sorted(study.labels.items())]
    # Of another task what is withheld might follow from the rest.
    odd = {one.task for one in answers} - {study.task} or {name for one in answers for name in one.labels} - {*names}
    if odd:
        raise DataError(f"answers must have the study's task and labels, not {quote_value(min(odd))}; move them away")
    if count_patients(answers) < least:
        return Month()
    having = {name: [one for one in answers if name in one.labels] for name in names}
    labels: dict[str, float | None]
    if study.task == "segmentation":
        # Pictures have no millilitres.
        labels = {name: _average_size(some, name, least) for name, some in having.items() if some}
    elif study.is_multilabel:
        lacking = {name: [one for one in answers if name not in one.labels] for name in names}
        labels = {name: _count({True: having[name], False: lacking[name]}, least)[True] for name in names}
    else:
        labels = dict(_count(having, least))
    sides = {is_so: [one for one in answers if one.measures[WARNED] == is_so] for is_so in (True, False)}
    warned = _count(sides, least)[True]
    share = None if warned is None else round_number(warned / len(answers))
    return Month(answers=len(answers), warned=share, labels=labels)


def _average_size(answers: Sequence[Answer], name: str, least: int) -> float | None:
    """Return a label's mean millilitres; None where too few patients have it."""
    if count_patients(one for one in answers if one.labels[name] > 0) < least:
        return None
    return round_number(sum(one.labels[name] for one in answers) / len(answers))


def _count(groups: Mapping[Key, Sequence[Answer]], least: int) -> dict[Key, int | None]:
    """Return how many answers each group has, which exclude one another; None is withheld."""
    few = find_few({key: count_patients(some) for key, some in groups.items()}, least, is_partition=True)
    # One patient may be in several groups, so that those withheld are of fewer than they seem to be.
    if few and count_patients(one for key in few for one in groups[key]) < least:
        few = {*groups}
    return {key: None if key in few else len(some) for key, some in groups.items()}
