"""``silofl monitor``: whether the answers of a month still look like those of the model's own test, and what changed.

The first months with a model at a clinic are the reference: they are held against the model's own test. Each later
month, and each three months together, are held against the reference: shares by Fisher's exact test (Journal of the
Royal Statistical Society 1922), numbers by Welch's t test (Biometrika 1947), with Holm's correction for all of a month.
Labels are not needed, so that it sees changes of images and answers, and no fall of the Dice that changes neither.
"""

import argparse
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from silofl.base.csv_text import encode_csv
from silofl.base.documents import read_json_document
from silofl.base.errors import ConfigError, ExitCode
from silofl.base.files import write_text
from silofl.base.options import make_console
from silofl.core.gain import holm
from silofl.inference import HEAD
from silofl_hospital.inference.answers import FALLBACK, REFUSED, WARNED, Answer, group_months, read_answers
from silofl_hospital.report.tables import TextTable, print_lines, print_table

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
TOO_EARLY = f"too early to say: {REFERENCE} months with {LEAST_ANSWERS} answers are needed, and one more to compare"
QUIET = "no change since {}; not seen is a fall of the Dice that changes neither images nor answers"
# Counted in each answer, unlike a single warning, which is absent where it is not.
SHARES = (REFUSED, FALLBACK, WARNED)
# Beginning of a measure's name -> what may have changed.
CAUSES = {
    FALLBACK: "images resemble no hospital's training images: scanner, protocol or patients",
    REFUSED: "see error in their records: another kind of image, broken files, or a withdrawn model",
    "the look of the image": "images look different to the network: scanner, protocol or reconstruction",
    "the size of": "patients differ, or the model draws differently: look at some answers",
    "the selector's score": "images resemble the own training images less: scanner, protocol or patients",
}
OTHER_CAUSE = "look at the images of some answers with this warning"


@dataclass(frozen=True)
class Alarm:
    """A measure that is no longer what it was.

    Attributes:
        month: The month, as 2026-11; the last one of several.
        months: How many are judged together.
        measure: The measure.
        is_share: Whether it is a share of the answers; else a mean of deviations.
        was: Its share or mean in the reference.
        now: The same in these months.
        p_value: Of so large a change by chance, after Holm's correction.
        cause: What may have changed.
    """

    month: str
    months: int
    measure: str
    is_share: bool
    was: float
    now: float
    p_value: float
    cause: str


def run(options: argparse.Namespace) -> int:
    """Print each month, and what changed; the exit code is that of alarms, 3, or 0."""
    facts = read_json_document(options.model / HEAD)
    if not isinstance(facts, dict) or "fingerprint" not in facts:
        raise ConfigError(f"--model must be a super model with a {HEAD}, not {options.model}; name its folder")
    everything = sorted(read_answers(options.records), key=lambda one: one.time)
    if options.answers:
        head = ("time", "input", "study", "patient", "super model", "answered by")
        rows = [(f"{a.time:%F %R}", a.name, a.study, a.patient, a.super_model, a.answered_by) for a in everything]
        write_text(options.answers, encode_csv([head, *rows]))
    answers = [one for one in everything if one.super_model == facts["fingerprint"]]
    if not answers:
        raise ConfigError(f"RECORDS must hold answers of {facts['fingerprint'][:16]}, not none; name its records")
    months = group_months(answers)
    expected, alarms = read_own_test(facts), find_alarms(months)
    unlike, console = compare_with_test(months, expected), make_console(options)
    print_table(make_month_table(months, expected), console)
    lines = [*unlike, *map(describe_alarm, alarms)]
    first = find_reference(months)
    quiet = TOO_EARLY if len(first) == len(months) else QUIET.format(first[-1])
    print_lines(lines or [quiet], console)
    if options.json:
        print(json.dumps({"months": [*months], "unlike": unlike, "alarms": [asdict(one) for one in alarms]}))
    return ExitCode.INCOMPLETE if lines else ExitCode.COMPLETE


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


def compare_with_test(months: Mapping[str, Sequence[Answer]], expected: Mapping[str, float]) -> list[str]:
    """Return in what the reference is unlike the model's own test, as sentences."""
    from scipy.stats import binomtest

    found, values = [], collect([one for name in find_reference(months) for one in months[name]])
    for name, some in values.items():
        now, share = float(np.mean(some)), expected.get(name)
        if not is_share(some) and abs(now) > UNLIKE:
            found.append((name, f"lies {now:+.1f} deviations from the model's own test"))
        elif share is not None and abs(now - share) > LEAST_SHARE:
            if binomtest(int(sum(some)), len(some), share).pvalue < LEVEL:
                found.append((name, f"are {now:.0%}, in the model's own test {share:.0%}"))
    return [f"from the beginning, {name} {what}: {find_cause(name)}" for name, what in found]


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
        for (name, count), (*what, _) in found.items():
            one = Alarm(month, count, name, *what, corrected[name, count], find_cause(name))
            if one.p_value < LEVEL and one.p_value < getattr(worst.get(name), "p_value", 1.0):
                worst[name] = one
        alarms += worst.values()
    return alarms


def _compare(reference: Sequence[Answer], answers: Sequence[Answer]) -> dict[str, tuple[bool, float, float, float]]:
    """Return measure -> whether it is a share, what it was, is, and the p-value of the change, 1 of a small one."""
    # Imported here: it takes long, and a help need not wait for it.
    from scipy.stats import fisher_exact, ttest_ind

    found: dict[str, tuple[bool, float, float, float]] = {}
    warnings = {name for name, some in collect([*reference, *answers]).items() if is_share(some)} - {*SHARES}
    before, after = collect(reference, warnings), collect(answers, warnings)
    for name in sorted(before.keys() & after.keys()):
        was, now = before[name], after[name]
        means, p_value = (float(np.mean(was)), float(np.mean(now))), 1.0
        change = abs(means[1] - means[0])
        if is_share(was) and change >= LEAST_SHARE:
            p_value = fisher_exact([[sum(some), len(some) - sum(some)] for some in (was, now)]).pvalue
        elif not is_share(was) and change >= LEAST_SHIFT and min(len(was), len(now)) > 1:
            p_value = np.nan_to_num(ttest_ind(was, now, equal_var=False).pvalue, nan=1)
        found[name] = (is_share(was), *means, float(p_value))
    return found


def collect(answers: Sequence[Answer], warnings: Collection[str] = ()) -> dict[str, list[bool | float]]:
    """Return measure -> its values in the answers of which it can be said; of warnings in all but refused inputs."""
    values: dict[str, list[bool | float]] = {}
    for one in answers:
        absent = dict.fromkeys(warnings if one.answered_by else (), False)
        for name, value in (absent | one.measures).items():
            values.setdefault(name, []).append(value)
    return values


def is_share(values: Sequence[bool | float]) -> bool:
    """Return whether values of a measure are counted, and no numbers."""
    return isinstance(values[0], bool)


def find_cause(measure: str) -> str:
    """Return what may have changed."""
    return next((cause for start, cause in CAUSES.items() if measure.startswith(start)), OTHER_CAUSE)


def describe_alarm(alarm: Alarm) -> str:
    """Return an alarm as a sentence."""
    form, unit = (".0%", "") if alarm.is_share else ("+.2f", " deviations")
    since = alarm.month if alarm.months == 1 else f"{alarm.months} months to {alarm.month}"
    change = f"{alarm.now:{form}}{unit}, at first {alarm.was:{form}} (p {alarm.p_value:.1g})"
    return f"{since}: {alarm.measure}: {change}: {alarm.cause}"


def make_month_table(months: Mapping[str, Sequence[Answer]], expected: Mapping[str, float]) -> TextTable:
    """Return a row for each month, and first the model's own test."""
    known = collect([one for answers in months.values() for one in answers])
    shares = [name for name in SHARES if name in known]
    numbers = sorted(name for name, values in known.items() if not is_share(values))
    own = [f"{expected[name]:.0%}" if name in expected else "-" for name in shares] + ["+0.00" for _ in numbers]
    rows = [("own test", "-", *own)]
    for month, answers in months.items():
        values, forms = collect(answers), [*((name, ".0%") for name in shares), *((name, "+.2f") for name in numbers)]
        cells = (format(np.mean(values[name]), form) if name in values else "-" for name, form in forms)
        rows.append((month, str(len(answers)), *cells))
    return TextTable(("month", "answers", *shares, *numbers), tuple(rows))
