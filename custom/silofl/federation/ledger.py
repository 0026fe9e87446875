"""The ledger of rounds: who was asked, who answered, who failed and why, with weights, scores, bytes and seconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from silofl.base.csv_text import encode_csv
from silofl.base.errors import AggregationError
from silofl.base.schema import declare_optional, read_list
from silofl.core.intervals import ROUNDING
from silofl.core.training_end import is_finished
from silofl.parts.task import Message
from silofl.training.metrics import mean_of_known
from silofl.training.site_score import SiteScore, mean_of_scores, measure_rise

FILE = "ledger.json"


@dataclass
class Round:
    """The record of one round.

    Attributes:
        round: Number of the round, from 1.
        started_at: UTC time in ISO form.
        asked: Sites that were sent the task.
        answered: Sites whose update was mixed.
        failed: Site -> why its update was not mixed: it could not do the task, was late, or its answer was refused.
        outliers: Site -> what of its answer was unlike the others', though it was mixed -> by how much: ``cosine`` of
            its update to the mean of the others', where that is negative; or, times the others' median, from 3 on, the
            ``length`` by step of its update or of its BatchNorm ``buffers``, its number of ``examples``, or what a part
            compares under its own name, which is named below a third too. Null where nothing was.
        weights: Site -> the weights it listens with, by site.
        examples: Site -> training examples.
        metrics: Site -> losses of its training in this round, and what else was measured in it.
        validation: Site -> its score of the model that this round made.
        test: Site -> its score of this model on test data, where the study evaluates every round; it chose nothing.
        is_best: True where these models replaced the best ones before them on validation.
        dissimilarity: `measure_dissimilarity` of the sites' updates, where the study measures drift and all sites
            listen alike.
        bytes_to: Site -> bytes of the arrays sent to it.
        bytes_from: Site -> bytes of the arrays received from it.
        seconds: Wall time of the round at the server.
        notes: Sentences on what else a reader must know of the round.
    """

    # Release 0.4 wrote the key on the left.
    RENAMED_KEYS: ClassVar = {"unlike": "outliers"}
    # Keys of its ledgers that are not read any more.
    FORMER_KEYS: ClassVar = (
        "distance",
        "late",
        "refused",
        "withheld",
        "unreadable",
        "is_level",
        "drift",
        "recorded",
        "software",
    )
    round: int
    started_at: str = ""
    asked: list[str] = field(default_factory=list)
    answered: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    outliers: dict[str, dict[str, float]] | None = declare_optional()
    weights: dict[str, dict[str, float]] = field(default_factory=dict)
    examples: dict[str, int] = field(default_factory=dict)
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    validation: Mapping[str, SiteScore] = field(default_factory=dict)
    test: Mapping[str, SiteScore] | None = declare_optional()
    is_best: bool | None = declare_optional()
    dissimilarity: float | None = declare_optional()
    bytes_to: dict[str, int] = field(default_factory=dict)
    bytes_from: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def missed(self) -> list[str]:
        """Sites that were asked and whose update is not in the round's model."""
        return [site for site in self.asked if site not in self.answered]

    @property
    def validated(self) -> dict[str, float]:
        """Site -> the value of its validation, of the sites that have one."""
        return {site: score.value for site, score in self.validation.items() if score.value is not None}

    @property
    def validation_mean(self) -> float | None:
        """The mean over the sites that validated the round's model, by `mean_of_scores`; None without any."""
        return mean_of_scores(self.validation.values())

    @property
    def drift(self) -> float | None:
        """Mean over sites of the mean squared distance to the round's start; None where it is not measured."""
        return mean_of_known(values.get("drift") for values in self.metrics.values())

    def add_traffic(self, sent: Mapping[str, Message], received: Mapping[str, Message]) -> None:
        """Count the bytes of one exchange with every site."""
        for total, messages in ((self.bytes_to, sent), (self.bytes_from, received)):
            for site, message in messages.items():
                total[site] = total.get(site, 0) + message.num_bytes

    def require(self, num_answers: int, wanted: int) -> None:
        """Refuse a round with fewer answers than the study asks for.

        Raises:
            AggregationError: Names the round and the reasons, each once with all its sites.
        """
        if num_answers >= wanted:
            return
        sites: dict[str, list[str]] = {}
        for site, reason in self.failed.items():
            sites.setdefault(reason, []).append(site)
        listed = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in sites.items())
        raise AggregationError(
            f"round {self.round} must have answers of at least {wanted} sites, not {num_answers}: {listed}"
        )

    def close(self, weights: np.ndarray, examples: dict[str, int], metrics: dict[str, dict[str, float]]) -> None:
        """Complete the record after the round; sites in the order of the weights' rows."""
        self.answered = list(examples)
        self.examples = examples
        self.metrics = metrics
        for site, row in zip(self.answered, weights.tolist(), strict=True):
            self.weights[site] = dict(zip(self.answered, row, strict=True))


def compare_with_best(record: Round, before: Sequence[Round]) -> int:
    """Return 1 where a round is better than the best one so far, 0 where it is level with it, and -1 otherwise.

    It is better where the median of the changes of the sites that validated both is above 0. From three sites on one
    site's invented scores thus choose no round; of two the median is the mean. Where it is 0 that round is better in
    which more sites have risen than fallen; where as many have, and no site is missing, the two are level. Means over
    different classes are compared class by class (`measure_rise`), where a class that less than three sites have is in
    their hands.

    A site that is absent in one of the two has no say, or a round would win or lose by an easy or difficult site's
    absence, and a site that leaves for good would make the last round before it the best for ever. A site that comes
    back counts again as soon as a round that it validated is the best. The choice begins anew where a site validates
    for the first time that has trained in no round up to the best one, or where half of the sites do: no earlier round
    is known to suit them.

    Args:
        before: The rounds before it.
    """
    if begins_anew(record, before):
        return 1
    best = find_best_round(before)
    previous = before[best - 1] if best else Round(0)
    new = record.validated
    old = previous.validated
    rise = measure_change(record, previous)
    # Nothing to compare by: the round that more sites have validated is known better.
    if rise is None:
        return 1 if len(new) > len(old) else -1
    if abs(rise) <= ROUNDING:
        # Of sites that rise and sites that fall the larger number decides.
        rise = sum(np.sign(new[site] - old[site]) for site in new.keys() & old.keys())
    order = int(np.sign(rise))
    return order if order or new.keys() >= old.keys() else -1


def begins_anew(record: Round, before: Sequence[Round]) -> bool:
    """Return whether no round before this one is known to suit its sites, as `compare_with_best` says."""
    newcomers = record.validated.keys() - set().union(*(earlier.validated for earlier in before))
    best = find_best_round(before) or 0
    if newcomers.difference(*(earlier.answered for earlier in before[:best])):
        return True
    return bool(newcomers) and 2 * len(newcomers) >= len(record.validated)


def measure_change(record: Round, previous: Round) -> float | None:
    """Return the median of the changes of the sites that validated both rounds; None where no site did."""
    shared = sorted(record.validated.keys() & previous.validated.keys())
    if not shared:
        return None
    return measure_rise(
        [record.validation[site] for site in shared],
        [previous.validation[site] for site in shared],
    )


def mark_round(record: Round, before: Sequence[Round]) -> None:
    """Mark a round that is the best so far; of level rounds it is the last, as of a site's own model."""
    # None and not False, so that the key is absent from all other records.
    record.is_best = compare_with_best(record, before) >= 0 or None


def find_best_round(ledger: Sequence[Round]) -> int | None:
    """Return the number of the best round so far; None where no round was validated."""
    return next((record.round for record in reversed(ledger) if record.is_best), None)


def measure_rise_after(ledger: Sequence[Round], number: int) -> float | None:
    """Return by how much the rounds after one raised the sites' validation over the best round up to it.

    A round without validation raises nothing. None where no round up to it was validated, or where the choice began
    anew in a later one.
    """
    start = max(0, number)
    if find_best_round(ledger[:start]) is None:
        return None
    if any(begins_anew(ledger[index], ledger[:index]) for index in range(start, len(ledger))):
        return None
    return max([0.0, *_list_rises(ledger, start)])


def measure_last_rise(ledger: Sequence[Round], patience: int) -> float | None:
    """Return `measure_rise_after` of the last rounds; 0 once the sites' median is 1, which no round can raise."""
    if any(record.validated and np.median([*record.validated.values()]) == 1 for record in ledger):
        return 0.0
    return measure_rise_after(ledger, len(ledger) - patience)


def find_last_rise(ledger: Sequence[Round]) -> int | None:
    """Return the last round that raised the sites' validation; None before any validation.

    With patience the training ends as many rounds after it, if no later round raises the validation.
    """
    number = None
    for index, record in enumerate(ledger):
        if begins_anew(record, ledger[:index]):
            number = record.round
    while number is not None and not all(is_finished(rise) for rise in _list_rises(ledger, number)):
        number += 1
    return number


def explain_choice(ledger: Sequence[Round]) -> str:
    """Return in words which round is reported, and why."""
    best = find_best_round(ledger)
    if best is not None:
        # Of two sites it is the mean, as a reader expects.
        how = ", by the sites' median change" if len(ledger[best - 1].validated) > 2 else ""
        return f"best validation, round {best}{how}"
    reason = "no validation data"
    for record in ledger:
        if any(score.withheld for score in record.validation.values()):
            reason = "all validation is withheld"
    return f"last round, {len(ledger)}: {reason}"


def read_ledger(folder: Path, known: Sequence[Round] = ()) -> list[Round] | None:
    """Return the finished rounds in a run's folder; None where there is no ledger yet.

    Args:
        known: What it returned before, of the same run; of these only the last is read again, which has its scores a
            round later.

    Raises:
        ConfigError: The file cannot be read, or is not what this version of silofl writes.
    """
    return read_list(Round, folder / FILE, known[:-1])


def metrics_csv(
    ledger: Sequence[Round], metric: str, tested_rounds: Mapping[str, int], tests: Mapping[str, float | None]
) -> str:
    """Return the table of all scores: round, site, part, metric, value.

    Args:
        tested_rounds: Site -> the round whose models it tested.
        tests: Site -> value on its test data.
    """
    rows: list[tuple[object, ...]] = [("round", "site", "part", "metric", "value")]
    for record in ledger:
        rows += _score_rows(record, metric)
    for site, value in sorted(tests.items()):
        rows.append((tested_rounds[site], site, "test", metric, value))
    return encode_csv(rows)


def format_spans(rounds: Iterable[int]) -> str:
    """Return numbers of rounds as ``1-2, 6-7, 11``."""
    spans: list[list[int]] = []
    for number in sorted(rounds):
        if spans and spans[-1][-1] == number - 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    return ", ".join("-".join(map(str, span)) for span in spans)


def _list_rises(ledger: Sequence[Round], number: int) -> Iterator[float]:
    """Yield the rise of each later round over the best one up to a round; nothing where there is none."""
    best = find_best_round(ledger[:number])
    if best is None:
        return
    for record in ledger[number:]:
        rise = measure_change(record, ledger[best - 1])
        if rise is not None:
            yield rise


def _score_rows(record: Round, metric: str) -> Iterator[tuple[int, str, str, str, float | None]]:
    for site, values in record.metrics.items():
        for name, value in values.items():
            yield record.round, site, "training", name, value
    for site, score in record.validation.items():
        yield record.round, site, "validation", metric, score.value
    for site, score in (record.test or {}).items():
        yield record.round, site, "round_test", metric, score.value
