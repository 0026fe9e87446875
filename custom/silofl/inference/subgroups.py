"""A model's scores by sex, age, scanner and whatever else is known of the cases; those of few patients are withheld."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from silofl.core.intervals import Estimate
from silofl.core.small_cells import find_small_cells
from silofl.data.groups import Divided
from silofl.inference.answered import ALL, Answered, Members, hash_case
from silofl.inference.clinical import measure_also, measure_mean, measure_value, read_class_rows
from silofl.inference.evaluated_cases import EvaluatedCase, merge_scores
from silofl.inference.evaluation import Subgroup, name_labels
from silofl.study import Study
from silofl.study.sections import CLASS_MEANS
from silofl.training.metrics import group_positions


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
        """Return how many people some cases are of."""
        return len({*map(self.person_of.get, cases)} - {None})

    def hash(self, cases: Iterable[str]) -> Members:
        """Return the members that stand for some cases in a set."""
        return frozenset(hash_case(case, self.person_of.get(case)) for case in cases)

    def may_tell(self, *groups: Mapping[str, Iterable[str]]) -> bool:
        """Return whether scores may be told of some cases, beside all that was told; if so, remember them.

        Args:
            groups: Of each group of cases: name of a score -> the cases that it is of.
        """
        sets = []
        for group in groups:
            sets += [(name, self.hash(cases)) for name, cases in group.items()]
        # Asked of all before any is remembered: a refused score must leave no trace.
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
    rows_by_group = group_positions([group_of[case.case] for case in cases])
    members, values, having = {}, {}, {}
    for group in sorted(rows_by_group, key=_sort_key):
        members[group] = [cases[row] for row in rows_by_group[group]]
        values[group] = _list_case_values(members[group], study)
        having[group] = list_having(members[group], study)
    hidden_by_score = {}
    for name in (study.metric, *name_labels(study).values()):
        hidden_by_score[name] = _find_hidden(name, values, having, people, study.metric)
    subgroups = {}
    for group, group_cases in members.items():
        withheld = [name for name in values[group] if group in hidden_by_score[name]]
        # A group without the metric is too small: not even its number of cases is told.
        if study.metric in withheld:
            subgroups[group] = Subgroup(None, None, {}, tuple(values[group]))
            continue
        scores = _measure_scores(group_cases, values[group], people.unit_of, study)
        if withheld:
            # Means over the classes have those of few in them.
            withheld += [name for name in scores if name in CLASS_MEANS]
        for name in withheld:
            scores.pop(name, None)
        units = {people.unit_of[case.case] for case in group_cases}
        subgroups[group] = Subgroup(len(group_cases), len(units), scores, tuple(withheld))
    return subgroups


def _find_hidden(
    name: str,
    values: Mapping[str, Mapping[str, Mapping[str, float]]],
    having: Mapping[str, Mapping[str, set[str]]],
    people: People,
    metric: str,
) -> set[str]:
    """Return the groups that a score is withheld of, and remember the cases of the others, whose score is told."""
    hidden = _find_small_cells(values, name, people, metric)
    score = ALL if name == metric else name
    # The score of the withheld groups together follows from that of all cases: it is as good as told.
    rest: set[str] = set()
    told = []
    for group in values:
        if group in hidden:
            rest |= having[group][score]
        else:
            told.append({score: having[group][score]})
    if people.may_tell({score: rest}, *told):
        return hidden
    # With what an earlier answer told, one of these sets would give few patients' score: all groups are withheld.
    return {group for group, table in values.items() if table[name]}


def _sort_key(group: str) -> tuple[bool, float, str]:
    # The lowest numbers come first, and before them what is under all of them.
    number = group.split()[0]
    return not group.startswith("under "), float(number) if number.isdecimal() else 0.0, group


def _list_case_values(cases: Sequence[EvaluatedCase], study: Study) -> dict[str, dict[str, float]]:
    """Return what each score is of: case -> its value, of each label, and of all cases by the study's metric."""
    score = merge_scores(cases)
    # Of the metric only the cases count here, not their values.
    values: dict[str, dict[str, float]] = {study.metric: dict.fromkeys((case.case for case in cases), 0.0)}
    for key, name in name_labels(study).items():
        values[name] = score.labels_by_case.get(key, {})
    return values


def _find_small_cells(
    values: Mapping[str, Mapping[str, Mapping[str, float]]], name: str, people: People, metric: str
) -> set[str]:
    """Return the groups that a score is withheld of.

    Those of too few patients. All, where too few of a group, or of those withheld together, lack the score: their
    values would follow from the metric.
    """

    def find(score: str) -> set[str]:
        counts = {group: people.count(table[score]) for group, table in values.items() if table[score]}
        return find_small_cells(counts, people.least, is_partition=True)

    # A group that is too small for the metric is withheld whole: no label's score of it is looked at.
    hidden = find(metric)
    for groups in (*({group} for group in values.keys() - hidden), hidden):
        # Those who lack the score: the metric is of everyone, and so tells theirs.
        everyone: set[str] = set()
        having: set[str] = set()
        for group in groups:
            everyone |= values[group][metric].keys()
            having |= values[group][name].keys()
        if having and having < everyone and people.count(everyone - having) < people.least:
            return {group for group, table in values.items() if table[name]}
    return find(name)


def _measure_scores(
    cases: Sequence[EvaluatedCase], values: Mapping[str, Mapping[str, float]], unit_of: Mapping[str, str], study: Study
) -> dict[str, Estimate]:
    score = merge_scores(cases)
    if study.task != "segmentation":
        score = replace(score, probabilities_by_case=read_class_rows(cases, unit_of).group_shown())
    also = measure_also(score, unit_of)
    scores = {study.metric: measure_value(score, unit_of, also)} | also
    for name, table in values.items():
        if name != study.metric and table:
            scores[name] = measure_mean(table, unit_of)
    return scores


def list_having(cases: Sequence[EvaluatedCase], study: Study) -> dict[str, set[str]]:
    """Return a score's name -> the cases that it is of by their truth, whatever a model says; `ALL` -> all cases."""
    having = {ALL: {case.case for case in cases}}
    for key, name in name_labels(study).items():
        having[name] = set()
        for case in cases:
            # A class is no label of a map: it has the cases in which its recall counts.
            is_of_score = case.labels[key].true if key in case.labels else case.score.labels_by_case.get(key)
            if is_of_score:
                having[name].add(case.case)
    return having
