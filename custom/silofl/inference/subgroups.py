"""A model's scores by sex, age, scanner and whatever else is known of the cases; those of few patients are withheld."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from silofl.core.few import find_few
from silofl.core.intervals import Estimate, Sample
from silofl.data.groups import Divided
from silofl.inference.answered import ALL, Answered, Members, hash_case
from silofl.inference.clinical import measure_also, measure_value, read_class_rows
from silofl.inference.evaluated_cases import EvaluatedCase
from silofl.inference.evaluation import Subgroup, name_labels
from silofl.study import Study
from silofl.study.sections import CLASS_MEANS
from silofl.training.metrics import Score, group_positions


@dataclass(frozen=True)
class People:
    """Who counts.

    Attributes:
        unit_of: Case -> what counts once in an interval.
        person_of: Case -> who counts once against `least`; None for nobody.
        least: How many a number must be of.
        answered: The sets of cases of which a score was told.
    """

    unit_of: Mapping[str, str]
    person_of: Mapping[str, str | None]
    least: int
    answered: Answered = field(default_factory=Answered)

    def count(self, cases: Iterable[str]) -> int:
        """Return how many some cases are of."""
        return len({*map(self.person_of.get, cases)} - {None})

    def hash(self, cases: Iterable[str]) -> Members:
        """Return the members that stand for some cases in a set."""
        return frozenset(hash_case(case, self.person_of.get(case)) for case in cases)

    def may_tell(self, *groups: Mapping[str, Iterable[str]]) -> bool:
        """Return whether scores may be told of some cases, beside all that was told; if so, remember them.

        Args:
            groups: Of each group of cases: name of a score -> the cases that it is of.
        """
        sets = [(name, self.hash(cases)) for group in groups for name, cases in group.items()]
        if not all(self.answered.takes(name, cases, self.least) for name, cases in sets):
            return False
        for name, cases in sets:
            self.answered.add(name, cases, self.least)
        return True


def measure_subgroups(
    cases: Sequence[EvaluatedCase], divided: Divided, people: People, study: Study
) -> dict[str, dict[str, Subgroup]]:
    """Return the scores of each group.

    Args:
        cases: Those that the model answered.
        divided: What to divide by -> case -> its group.
        people: Who counts; that the scores of all cases are told is known there.
    """
    return {by: _measure_division(cases, group_of, people, study) for by, group_of in divided.items()}


def _measure_division(
    cases: Sequence[EvaluatedCase], group_of: Mapping[str, str], people: People, study: Study
) -> dict[str, Subgroup]:
    rows = group_positions([group_of[one.case] for one in cases])
    members = {group: [cases[i] for i in rows[group]] for group in sorted(rows, key=_place)}
    values = {group: _list_case_values(some, study) for group, some in members.items()}
    few = {name: _find_few(values, name, people, study.metric) for name in (study.metric, *name_labels(study).values())}
    having = {group: list_having(some, study) for group, some in members.items()}
    for name, hidden in few.items():
        score = ALL if name == study.metric else name
        # The score of the withheld groups together follows from that of all cases.
        rest = {case for group in hidden for case in having[group][score]}
        told = [{score: having[group][score]} for group in members if group not in hidden]
        if not people.may_tell({score: rest}, *told):
            few[name] = {group for group, table in values.items() if table[name]}
    found = {}
    for group, some in members.items():
        withheld = [name for name in values[group] if group in few[name]]
        if study.metric in withheld:
            found[group] = Subgroup(None, None, {}, tuple(values[group]))
            continue
        scores = _measure_scores(some, values[group], people.unit_of, study)
        # Means over the classes have those of few in them.
        withheld += [name for name in scores if withheld and name in CLASS_MEANS]
        kept = {name: one for name, one in scores.items() if name not in withheld}
        units = {people.unit_of[one.case] for one in some}
        found[group] = Subgroup(len(some), len(units), kept, tuple(withheld))
    return found


def _place(group: str) -> tuple[bool, float, str]:
    """Return where a group stands: the lowest numbers first."""
    number = group.split()[0]
    return not group.startswith("under "), float(number) if number.isdecimal() else 0.0, group


def _list_case_values(cases: Sequence[EvaluatedCase], study: Study) -> dict[str, dict[str, float]]:
    """Return what each score is of: case -> its value, of each label, and of all cases by the study's metric."""
    score = Score.merged({one.case: one.score for one in cases})
    labels = {name: score.labels_by_case.get(key, {}) for key, name in name_labels(study).items()}
    return {study.metric: dict.fromkeys((one.case for one in cases), 0.0)} | labels


def _find_few(
    values: Mapping[str, Mapping[str, Mapping[str, float]]], name: str, people: People, metric: str
) -> set[str]:
    """Return the groups that a score is withheld of.

    Those of too few patients. All, where too few of a group, or of those withheld together, lack the score: their
    values would follow from the metric.
    """

    def find(score: str) -> set[str]:
        counts = {group: people.count(table[score]) for group, table in values.items() if table[score]}
        return find_few(counts, people.least, is_partition=True)

    hidden = find(metric)
    for groups in (*({group} for group in values.keys() - hidden), hidden):
        everyone, having = ({case for group in groups for case in values[group][score]} for score in (metric, name))
        if having and having < everyone and people.count(everyone - having) < people.least:
            return {group for group, table in values.items() if table[name]}
    return find(name)


def _measure_scores(
    cases: Sequence[EvaluatedCase], values: Mapping[str, Mapping[str, float]], unit_of: Mapping[str, str], study: Study
) -> dict[str, Estimate]:
    score = Score.merged({one.case: one.score for one in cases})
    if study.task != "segmentation":
        score = replace(score, probabilities_by_case=read_class_rows(cases, unit_of).group_shown())
    also = measure_also(score, unit_of)
    found = {study.metric: measure_value(score, unit_of, also)} | also
    labels = {name: table for name, table in values.items() if name != study.metric and table}
    return found | {
        name: Sample([unit_of[case] for case in table]).mean(np.array([*table.values()]))
        for name, table in labels.items()
    }


def list_having(cases: Sequence[EvaluatedCase], study: Study) -> dict[str, set[str]]:
    """Return a score's name -> the cases that it is of by their truth, whatever a model says; `ALL` -> all cases."""
    found = {ALL: {one.case for one in cases}}
    for key, name in name_labels(study).items():
        drawn = {one.case for one in cases if key in one.labels and one.labels[key].true}
        counted = {one.case for one in cases if key not in one.labels and one.score.labels_by_case.get(key)}
        found[name] = drawn | counted
    return found
