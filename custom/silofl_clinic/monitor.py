"""``silofl monitor``: whether the answers of a month still look like those of the model's own test, and what changed.

The first months with a model at a clinic are the reference: they are held against the model's own test. Each later
month, and each three months together, are held against the reference: shares by Fisher's exact test (Journal of the
Royal Statistical Society 1922), numbers by Welch's t test (Biometrika 1947), with Holm's correction for all of a month.
Labels are not needed, so that it sees changes of images and answers, and no fall of the Dice that changes neither.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from silofl.base.csv_text import encode_csv
from silofl.base.documents import read_json_document
from silofl.base.errors import ConfigError, ExitCode
from silofl.base.files import write_text
from silofl.base.options import make_console
from silofl.core.gain import holm
from silofl.report.tables import TextTable, print_lines, print_table

RECORD, MODEL = "prediction.json", "model.json"
# Months of the reference, and how many answers they must hold.
REFERENCE, LEAST_ANSWERS = 3, 30
# Months that are also judged together, so that a slow change is seen.
TOGETHER = 3
# Of false alarms in a month of all comparisons; bench/monitor.py measures what it gives in a year.
LEVEL = 0.01
# Smaller changes of a share, or of a mean in deviations, are none that anybody would act on.
LEAST_SHARE, LEAST_SHIFT = 0.05, 0.25
# Deviations from the model's own test, beyond which a hospital is unlike those that trained it.
UNLIKE = 2.0
GLOBAL = "global"
FALLBACK, REFUSED, WARNED = "answers of the global model, as a fallback", "refused inputs", "answers with a warning"
# Beginning of a measure's name -> what may have changed.
CAUSES = {
    FALLBACK: "images resemble no hospital's training images: scanner, protocol or patients",
    REFUSED: "see error in their records: another kind of image, broken files, or a withdrawn model",
    "the look of the image": "images look different to the network: scanner, protocol or reconstruction",
    "the size of": "patients differ, or the model draws differently: look at some answers",
    "the selector's score": "images resemble the own training images less: scanner, protocol or patients",
}
OTHER_CAUSE = "see what this warning says in docs/clinic.md"


@dataclass(frozen=True)
class Answer:
    """An entry of prediction.json.

    Attributes:
        time: When it was answered.
        super_model: Fingerprint of the super model.
        name: Of the input.
        study: UID of the DICOM study; empty where there is none.
        answered_by: Which of its models; empty of a refused input.
        shares: What it counts for: name -> whether it is so.
        numbers: Name -> how many deviations it lies above the mean of the hospitals' own cases.
    """

    time: datetime
    super_model: str
    name: str
    study: str
    answered_by: str
    shares: Mapping[str, bool]
    numbers: Mapping[str, float]

    @property
    def month(self) -> str:
        """The month, as 2026-11."""
        return f"{self.time:%Y-%m}"


@dataclass(frozen=True)
class Alarm:
    """A measure that is no longer what it was.

    Attributes:
        month: The month, as 2026-11; the last one of several.
        months: How many are judged together.
        measure: The measure.
        was: Its share or mean in the reference.
        now: The same in these months.
        p_value: Of so large a change by chance, after Holm's correction.
        cause: What may have changed.
    """

    month: str
    months: int
    measure: str
    was: float
    now: float
    p_value: float
    cause: str


def run(options: argparse.Namespace) -> int:
    """Print each month, and what changed; the exit code is that of alarms, 3, or 0."""
    facts = read_json_document(options.model / MODEL)
    if not isinstance(facts, dict) or "fingerprint" not in facts:
        raise ConfigError(f"--model must be a super model with a {MODEL}, not {options.model}; name its folder")
    everything = sorted(read_answers(options.records), key=lambda one: one.time)
    if options.answers:
        write_text(options.answers, encode_csv(list_answers(everything)))
    answers = [one for one in everything if one.super_model == facts["fingerprint"]]
    if not answers:
        raise ConfigError(f"RECORDS must hold answers of {facts['fingerprint'][:16]}, not none; name its records")
    months = group_months(answers)
    expected, alarms = read_own_test(facts), find_alarms(months)
    unlike, console = find_unlike(months, expected), make_console(options)
    print_table(make_table(months, expected), console)
    lines = [*unlike, *map(describe_alarm, alarms)]
    print_lines(lines or [describe_quiet(months)], console)
    if options.json:
        print(json.dumps({"months": [*months], "unlike": unlike, "alarms": [asdict(one) for one in alarms]}))
    return ExitCode.INCOMPLETE if lines else ExitCode.COMPLETE


def read_answers(folder: Path) -> Iterator[Answer]:
    """Yield the answers of all prediction.json in a folder, in no order.

    Raises:
        ConfigError: A file is none that predict wrote, or of a version that wrote no time.
    """
    for path in sorted(folder.rglob(RECORD)):
        found = read_json_document(path)
        for record in found if isinstance(found, list) else [{}]:
            try:
                yield _read_answer(record)
            except (KeyError, TypeError, ValueError, AttributeError):
                raise ConfigError(
                    f"{path.relative_to(folder)} must hold answers with their time, as predict of 0.4 and later writes "
                    "them; it does not: move it away"
                ) from None


def _read_answer(record: Mapping[str, Any]) -> Answer:
    heads = {str(text).partition(":")[0] for text in record.get("warnings", ())}
    answered = "error" not in record
    shares = {REFUSED: not answered} | (
        {FALLBACK: bool(record["is_fallback"])} if answered and record["scores"] else {}
    )
    shares |= {WARNED: bool(heads)} if answered else {}
    return Answer(
        datetime.fromisoformat(record["time"]),
        str(record["super_model"]),
        str(record["input"]),
        str((record.get("dicom") or {}).get("study", "")),
        str(record["model"]) if answered else "",
        shares | dict.fromkeys(heads, True),
        {name: float(value) for name, value in record.get("deviations", {}).items()},
    )


def list_answers(answers: Sequence[Answer]) -> list[tuple[str, ...]]:
    """Return a table of who had an answer of which model; it names patients' files, and stays at the clinic."""
    rows = [(f"{one.time:%Y-%m-%d %H:%M}", one.name, one.study, one.super_model, one.answered_by) for one in answers]
    return [("time", "input", "study", "super model", "answered by"), *rows]


def group_months(answers: Sequence[Answer]) -> dict[str, list[Answer]]:
    """Return month -> its answers, in order of time."""
    months: dict[str, list[Answer]] = {}
    for one in answers:
        months.setdefault(one.month, []).append(one)
    return months


def read_own_test(facts: Mapping[str, Any]) -> dict[str, float]:
    """Return what the model's own test says: the share of the global model's answers, where a selector chooses."""
    choices: Counter[str] = Counter()
    for score in ((facts.get("facts") or {}).get("test") or {}).values():
        choices.update(score.get("choices") or {})
    return {FALLBACK: choices[GLOBAL] / choices.total()} if choices else {}


def find_reference(months: Mapping[str, Sequence[Answer]]) -> list[str]:
    """Return the first months, as many as hold enough answers; all where even these do not."""
    names = [*months]
    for count in range(REFERENCE, len(names)):
        if sum(len(months[name]) for name in names[:count]) >= LEAST_ANSWERS:
            return names[:count]
    return names


def find_unlike(months: Mapping[str, Sequence[Answer]], expected: Mapping[str, float]) -> list[str]:
    """Return in what the reference is unlike the model's own test, as sentences."""
    from scipy.stats import binomtest

    answers = [one for name in find_reference(months) for one in months[name]]
    numbers = {name: np.mean(values) for name, values in _collect_numbers(answers).items()}
    found = [
        f"from the beginning, {name} lies {mean:+.1f} deviations from the model's own test: {find_cause(name)}"
        for name, mean in numbers.items()
        if abs(mean) > UNLIKE
    ]
    for name, share in expected.items():
        values = _collect_shares(answers, name)
        now = float(np.mean(values)) if values else share
        if values and abs(now - share) > LEAST_SHARE and binomtest(sum(values), len(values), share).pvalue < LEVEL:
            found.append(
                f"from the beginning, {name} are {now:.0%}, in the model's own test {share:.0%}: {find_cause(name)}"
            )
    return found


def find_alarms(months: Mapping[str, Sequence[Answer]]) -> list[Alarm]:
    """Return what changed in each month after the reference, or in that and the months before together."""
    first = find_reference(months)
    reference, later = [one for name in first for one in months[name]], [name for name in months if name not in first]
    alarms = []
    for place, month in enumerate(later):
        found = {}
        for count in {1, min(TOGETHER, place + 1)}:
            answers = [one for name in later[place + 1 - count : place + 1] for one in months[name]]
            found |= {(name, count): test for name, test in _compare(reference, answers).items()}
        corrected = holm({key: p_value for key, (*_, p_value) in found.items()})
        worst: dict[str, Alarm] = {}
        for (name, count), (was, now, _) in found.items():
            one = Alarm(month, count, name, was, now, corrected[name, count], find_cause(name))
            if one.p_value < LEVEL and one.p_value < getattr(worst.get(name), "p_value", 1.0):
                worst[name] = one
        alarms += worst.values()
    return alarms


def _compare(reference: Sequence[Answer], answers: Sequence[Answer]) -> dict[str, tuple[float, float, float]]:
    """Return measure -> what it was, what it is, and the p-value of the change; a small change has a p-value of 1."""
    # Imported here: it takes long, and a help need not wait for it.
    from scipy.stats import fisher_exact, ttest_ind

    found: dict[str, tuple[float, float, float]] = {}
    for name in sorted({name for one in (*reference, *answers) for name in one.shares}):
        was, now = (_collect_shares(some, name) for some in (reference, answers))
        if was and now:
            table = [[sum(some), len(some) - sum(some)] for some in (was, now)]
            means = float(np.mean(was)), float(np.mean(now))
            is_small = abs(means[1] - means[0]) < LEAST_SHARE
            found[name] = (*means, 1.0 if is_small else float(fisher_exact(table).pvalue))
    before, after = _collect_numbers(reference), _collect_numbers(answers)
    for name in before.keys() & after.keys():
        was, now = before[name], after[name]
        means = float(np.mean(was)), float(np.mean(now))
        is_small = abs(means[1] - means[0]) < LEAST_SHIFT or min(len(was), len(now)) < 2
        found[name] = (
            *means,
            1.0 if is_small else float(np.nan_to_num(ttest_ind(was, now, equal_var=False).pvalue, nan=1)),
        )
    return found


def _collect_shares(answers: Sequence[Answer], name: str) -> list[bool]:
    """Return whether something is so in each answer of which it can be said; a warning is absent where it is not."""
    is_warning = name not in (FALLBACK, REFUSED, WARNED)
    return [one.shares.get(name, False) for one in answers if name in one.shares or (is_warning and one.answered_by)]


def _collect_numbers(answers: Sequence[Answer]) -> dict[str, list[float]]:
    numbers: dict[str, list[float]] = {}
    for one in answers:
        for name, value in one.numbers.items():
            numbers.setdefault(name, []).append(value)
    return numbers


def find_cause(measure: str) -> str:
    """Return what may have changed."""
    return next((cause for start, cause in CAUSES.items() if measure.startswith(start)), OTHER_CAUSE)


def describe_alarm(alarm: Alarm) -> str:
    """Return an alarm as a sentence."""
    form = "+.2f" if alarm.measure.startswith(("the look", "the size", "the selector")) else ".0%"
    since = alarm.month if alarm.months == 1 else f"{alarm.months} months to {alarm.month}"
    was, now = format(alarm.was, form), format(alarm.now, form)
    unit = " deviations" if form == "+.2f" else ""
    return f"{since}: {alarm.measure}: {now}{unit}, at first {was} (p {alarm.p_value:.1g}): {alarm.cause}"


def describe_quiet(months: Mapping[str, Sequence[Answer]]) -> str:
    """Return what can be said without an alarm."""
    first = find_reference(months)
    if len(first) == len(months):
        return f"too early to say: {REFERENCE} months with {LEAST_ANSWERS} answers are needed, and one more to compare"
    return f"no change since {first[-1]}; not seen is a fall of the Dice that changes neither images nor answers"


def make_table(months: Mapping[str, Sequence[Answer]], expected: Mapping[str, float]) -> TextTable:
    """Return a row for each month, and first the model's own test."""
    everything = [one for answers in months.values() for one in answers]
    shares = [name for name in (REFUSED, FALLBACK, WARNED) if _collect_shares(everything, name)]
    numbers = sorted(_collect_numbers(everything))
    own = [f"{expected[name]:.0%}" if name in expected else "-" for name in shares] + ["+0.00" for _ in numbers]
    rows = [("own test", "-", *own)]
    for month, answers in months.items():
        measured, values = _collect_numbers(answers), [_collect_shares(answers, name) for name in shares]
        cells = [f"{np.mean(one):.0%}" if one else "-" for one in values]
        cells += [f"{np.mean(measured[name]):+.2f}" if name in measured else "-" for name in numbers]
        rows.append((month, str(len(answers)), *cells))
    return TextTable(("month", "answers", *shares, *numbers), tuple(rows))
