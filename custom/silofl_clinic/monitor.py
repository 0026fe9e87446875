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
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from silofl.base.csv_text import encode_csv
from silofl.base.documents import read_json_document
from silofl.base.errors import ConfigError, ExitCode
from silofl.base.files import write_text
from silofl.base.options import make_console
from silofl.core.gain import holm
from silofl.inference.names import HEAD
from silofl_hospital.inference.answers import FALLBACK, REFUSED, WARNED, Answer, group_months, read_answers
from silofl_hospital.report.tables import TextTable, print_lines, print_table

# The reference is so many months or more, until they hold so many answers.
REFERENCE, LEAST_ANSWERS = 3, 30
# So many months are also judged together, so that a slow change is seen.
TOGETHER = 3
# All comparisons of a month together raise so few false alarms; bench/monitor.py measures what it gives in a year.
LEVEL = 0.01
# Smaller changes of a share, or of a mean in deviations, are none that anybody would act on.
LEAST_SHARE, LEAST_SHIFT = 0.05, 0.25
# So many deviations from the model's own test a hospital is unlike those that trained the model.
UNLIKE = 2.0
GLOBAL = "global"
TOO_EARLY = f"too early to say: {REFERENCE} months with {LEAST_ANSWERS} answers are needed, and one more to compare"
QUIET = "no change since {}; not seen is a fall of the Dice that changes neither images nor answers"
# These are counted in each answer, unlike a single warning, which no answer states that lacks it.
SHARES = (REFUSED, FALLBACK, WARNED)
# A measure whose name begins so has this cause: the names of labels and warnings follow.
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
    everything = sorted(read_answers(options.records), key=lambda answer: answer.time)
    if options.answers:
        rows = [("time", "input", "study", "patient", "super model", "answered by")]
        for a in everything:
            rows.append((f"{a.time:%F %R}", a.name, a.study, a.patient, a.super_model, a.answered_by))
        write_text(options.answers, encode_csv(rows))
    answers = [answer for answer in everything if answer.super_model == facts["fingerprint"]]
    if not answers:
        raise ConfigError(f"RECORDS hold no answer of super model {facts['fingerprint'][:16]}; name its records")
    months = group_months(answers)
    expected = read_own_test(facts)
    alarms = find_alarms(months)
    unlike = compare_with_test(months, expected)
    console = make_console(options)
    print_table(make_month_table(months, expected), console)
    lines = [*unlike, *map(describe_alarm, alarms)]
    first = find_reference(months)
    quiet = TOO_EARLY if len(first) == len(months) else QUIET.format(first[-1])
    print_lines(lines or [quiet], console)
    if options.json:
        print(json.dumps({"months": [*months], "unlike": unlike, "alarms": [asdict(alarm) for alarm in alarms]}))
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
        if len(_join_months(months, names[:count])) >= LEAST_ANSWERS:
            return names[:count]
    return names


def _join_months(months: Mapping[str, Sequence[Answer]], names: Sequence[str]) -> list[Answer]:
    answers: list[Answer] = []
    for name in names:
        answers += months[name]
    return answers


def compare_with_test(months: Mapping[str, Sequence[Answer]], expected: Mapping[str, float]) -> list[str]:
    """Return in what the reference is unlike the model's own test, as sentences."""
    # Imported here: it takes long, and a help need not wait for it.
    from scipy.stats import binomtest

    sentences = []
    for name, values in collect(_join_months(months, find_reference(months))).items():
        now = float(np.mean(values))
        share = expected.get(name)
        unlike = ""
        if not is_share(values) and abs(now) > UNLIKE:
            unlike = f"lies {now:+.1f} deviations from the model's own test"
        elif share is not None and abs(now - share) > LEAST_SHARE:
            if binomtest(int(sum(values)), len(values), share).pvalue < LEVEL:
                unlike = f"are {now:.0%}, in the model's own test {share:.0%}"
        if unlike:
            sentences.append(f"from the beginning, {name} {unlike}: {find_cause(name)}")
    return sentences


def find_alarms(months: Mapping[str, Sequence[Answer]]) -> list[Alarm]:
    """Return what changed in each month after the reference, or in that and the months before together."""
    first = find_reference(months)
    reference = _join_months(months, first)
    later = [name for name in months if name not in first]
    alarms: list[Alarm] = []
    for number, month in enumerate(later, start=1):
        changes = {}
        for count in sorted({1, min(TOGETHER, number)}):
            answers = _join_months(months, later[number - count : number])
            for change in _compare(reference, answers, month, count):
                changes[change.measure, count] = change
        corrected = holm({key: change.p_value for key, change in changes.items()})
        # A measure that changed in the month and in all of them together is one alarm, the surer one.
        worst: dict[str, Alarm] = {}
        for key, change in changes.items():
            limit = worst[change.measure].p_value if change.measure in worst else LEVEL
            if corrected[key] < limit:
                worst[change.measure] = replace(change, p_value=corrected[key])
        alarms += worst.values()
    return alarms


def _compare(reference: Sequence[Answer], answers: Sequence[Answer], month: str, count: int) -> list[Alarm]:
    """Return each measure's change with its p-value before any correction, 1 of a small one."""
    # Imported here: it takes long, and a help need not wait for it.
    from scipy.stats import fisher_exact, ttest_ind

    named = collect([*reference, *answers])
    warnings = {name for name, values in named.items() if is_share(values)} - {*SHARES}
    before = collect(reference, warnings)
    after = collect(answers, warnings)
    changes = []
    for name in sorted(before.keys() & after.keys()):
        was, now = before[name], after[name]
        mean_before = float(np.mean(was))
        mean_after = float(np.mean(now))
        change = abs(mean_after - mean_before)
        p_value = 1.0
        if is_share(was) and change >= LEAST_SHARE:
            p_value = fisher_exact([[sum(values), len(values) - sum(values)] for values in (was, now)]).pvalue
        elif not is_share(was) and change >= LEAST_SHIFT and min(len(was), len(now)) > 1:
            # Equal numbers have no variance, and no test: NaN.
            p_value = np.nan_to_num(ttest_ind(was, now, equal_var=False).pvalue, nan=1)
        changes.append(
            Alarm(
                month=month,
                months=count,
                measure=name,
                is_share=is_share(was),
                was=mean_before,
                now=mean_after,
                p_value=float(p_value),
                cause=find_cause(name),
            )
        )
    return changes


def collect(answers: Sequence[Answer], warnings: Collection[str] = ()) -> dict[str, list[bool | float]]:
    """Return measure -> its values in the answers of which it can be said; of warnings in all but refused inputs."""
    values: dict[str, list[bool | float]] = {}
    for answer in answers:
        absent = dict.fromkeys(warnings, False) if answer.answered_by else {}
        for name, value in {**absent, **answer.measures}.items():
            values.setdefault(name, []).append(value)
    return values


def is_share(values: Sequence[bool | float]) -> bool:
    """Return whether values of a measure are counted, and no numbers."""
    return isinstance(values[0], bool)


def find_cause(measure: str) -> str:
    """Return what may have changed."""
    for start, cause in CAUSES.items():
        if measure.startswith(start):
            return cause
    return OTHER_CAUSE


def describe_alarm(alarm: Alarm) -> str:
    """Return an alarm as a sentence."""
    since = alarm.month if alarm.months == 1 else f"{alarm.months} months to {alarm.month}"
    change = f"{alarm.now:+.2f} deviations, at first {alarm.was:+.2f}"
    if alarm.is_share:
        change = f"{alarm.now:.0%}, at first {alarm.was:.0%}"
    return f"{since}: {alarm.measure}: {change} (p {alarm.p_value:.1g}): {alarm.cause}"


def make_month_table(months: Mapping[str, Sequence[Answer]], expected: Mapping[str, float]) -> TextTable:
    """Return a row for each month, and first the model's own test."""
    measured = collect(_join_months(months, [*months]))
    forms = {name: ".0%" for name in SHARES if name in measured}
    for name in sorted(measured):
        if not is_share(measured[name]):
            forms[name] = "+.2f"
    # Numbers are deviations from the mean of the model's own test: that one is 0.
    of_test = {**{name: 0.0 for name in forms if name not in SHARES}, **expected}
    rows = [("own test", "-", *_format_row(of_test, forms))]
    for month, answers in months.items():
        means = {name: float(np.mean(values)) for name, values in collect(answers).items()}
        rows.append((month, str(len(answers)), *_format_row(means, forms)))
    return TextTable(("month", "answers", *forms), tuple(rows))


def _format_row(means: Mapping[str, float], forms: Mapping[str, str]) -> list[str]:
    return [format(means[name], form) if name in means else "-" for name, form in forms.items()]
