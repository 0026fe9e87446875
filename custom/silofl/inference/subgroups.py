"""A model's scores by sex, age, scanner and whatever else is known of the cases, and whether one group differs.

A group is compared with the other groups by the permutation test of the mean over patients (Fisher, The Design of
Experiments, 1935), with Holm's correction for all comparisons of an evaluation.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from silofl.core.few import find_few
from silofl.core.gain import holm
from silofl.core.intervals import DIFFERENCE, Estimate, Rows, Sample
from silofl.data.groups import UNKNOWN, Divided
from silofl.inference.answered import ALL, Answered, Members, hash_case
from silofl.inference.clinical import measure_also, measure_value, read_class_rows
from silofl.inference.evaluated_cases import EvaluatedCase
from silofl.inference.evaluation import Subgroup, name_labels
from silofl.study import Study
from silofl.study.sections import CLASS_MEANS
from silofl.training.metrics import Score, average_by_unit, group_positions

RESAMPLES, BATCH, SEED = 9999, 500, 0


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
    """Return the scores of each group, and where it differs from the others.

    Args:
        cases: Those that the model answered.
        divided: What to divide by -> case -> its group.
        people: Who counts; that the scores of all cases are told is known there.
    """
    found = {by: _measure_division(cases, group_of, people, study) for by, group_of in divided.items()}
    tested = [
        (by, group, name) for by, groups in found.items() for group, one in groups.items() for name in one.p_values
    ]
    corrected = holm({(by, group, name): found[by][group].p_values[name] for by, group, name in tested})
    for by, groups in found.items():
        for group, one in groups.items():
            groups[group] = replace(one, p_values={name: corrected[by, group, name] for name in one.p_values})
    return found


def _measure_division(
    cases: Sequence[EvaluatedCase], group_of: Mapping[str, str], people: People, study: Study
) -> dict[str, Subgroup]:
    rows = group_positions([group_of[one.case] for one in cases])
    members = {group: [cases[i] for i in rows[group]] for group in sorted(rows, key=_place)}
    values = {group: _list_case_values(some, study) for group, some in members.items()}
    stated = [group for group in members if group != UNKNOWN]
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
            found[group] = Subgroup(None, None, {}, tuple(values[group]), {})
            continue
        scores = _measure_scores(some, values[group], people.unit_of, study)
        # Means over the classes have those of few in them.
        withheld += [name for name in scores if withheld and name in CLASS_MEANS]
        others = [values[other] for other in stated if other != group] if group in stated else []
        differences, p_values = {}, {}
        for name in values[group].keys() - {study.metric, *withheld}:
            rest = {case: value for other in others for case, value in other[name].items()}
            if people.count(rest) >= max(people.least, 1) and values[group][name]:
                # Of two groups each is the other's others: one comparison.
                is_tested = len(stated) > 2 or group == stated[0]
                differences[name], p_value = _compare_with_others(values[group][name], rest, people.unit_of, is_tested)
                p_values |= {} if p_value is None else {name: p_value}
        kept = {name: one for name, one in scores.items() if name not in withheld}
        units = {people.unit_of[one.case] for one in some}
        found[group] = Subgroup(
            len(some), len(units), kept, tuple(withheld), dict(sorted(differences.items())), p_values
        )
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
        score = replace(score, probabilities_by_case=read_class_rows(cases, unit_of).shown_by_case)
    also = measure_also(score, unit_of)
    found = {study.metric: measure_value(score, unit_of, also)} | also
    labels = {name: table for name, table in values.items() if name != study.metric and table}
    return found | {
        name: Sample([unit_of[case] for case in table]).mean(np.array([*table.values()]))
        for name, table in labels.items()
    }


def _compare_with_others(
    group: Mapping[str, float], rest: Mapping[str, float], unit_of: Mapping[str, str], is_tested: bool
) -> tuple[Estimate, float | None]:
    """Return a score of a group minus that of the other groups, and the p-value of no difference where it is tested."""
    # Imported here: it takes long, and only a comparison of groups needs it.
    from scipy.stats import permutation_test

    values, is_in = np.array([*group.values(), *rest.values()]), np.arange(len(group) + len(rest)) < len(group)

    def differ(rows: Rows) -> float:
        inside, outside = values[rows[is_in[rows]]], values[rows[~is_in[rows]]]
        return float(inside.mean() - outside.mean()) if len(inside) and len(outside) else np.nan

    sample = Sample([unit_of[case] for case in (*group, *rest)])
    difference = sample.estimate(differ, is_in, ~is_in, bounds=DIFFERENCE)
    means = [average_by_unit(side, {case: unit_of[case] for case in side}) for side in (group, rest)]
    if not is_tested or min(map(len, means)) < 2:
        return difference, None
    test = permutation_test(
        means,
        lambda one, other, axis: one.mean(axis) - other.mean(axis),
        vectorized=True,
        n_resamples=RESAMPLES,
        batch=BATCH,
        rng=SEED,
    )
    return difference, float(test.pvalue)


def list_having(cases: Sequence[EvaluatedCase], study: Study) -> dict[str, set[str]]:
    """Return a score's name -> the cases that it is of by their truth, whatever a model says; `ALL` -> all cases."""
    found = {ALL: {one.case for one in cases}}
    for key, name in name_labels(study).items():
        drawn = {one.case for one in cases if key in one.labels and one.labels[key].true}
        counted = {one.case for one in cases if key not in one.labels and one.score.labels_by_case.get(key)}
        found[name] = drawn | counted
    return found
