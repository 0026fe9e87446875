"""``silofl tune``: search learning rate and normalisation on validation data, and print the values to train with.

Every normalisation that suits network and algorithm is trained with the study's learning rate and the two next
to it, one seed each; the best rate at an edge gets one more beside it. Then the best values and the study's own are
trained with further seeds, whose spread says whether the lead is more than chance.
"""

import argparse
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console

from silofl.base.errors import ConfigError, ExitCode
from silofl.base.options import make_console
from silofl.federation.results import read_results
from silofl.models.networks import check_network
from silofl.study import Study
from silofl_desk.options import format_set_options, path_to_text, read_changes
from silofl_desk.report.result_tables import mean_and_deviation
from silofl_desk.studies.comparisons.compared_runs import ComparedRun, ComparisonPlan, make_seeded_runs
from silofl_desk.studies.comparisons.comparison import SeedValues, Value, is_clearly_above, make_values_table, pivot
from silofl_desk.studies.comparisons.conditions import NORMALIZATION
from silofl_desk.studies.comparisons.side_by_side import run_side_by_side
from silofl_desk.studies.runs.simulated_sites import read_data
from silofl_desk.studies.runs.simulation import (
    Simulation,
    changed_study,
    check_code,
    check_no_file,
    check_pretrained,
    settle_job,
)
from silofl_hospital.report.tables import print_lines, print_table

RATE = "training.learning_rate"
CANDIDATES = ("group", "instance", "batch")
# So many seeds train the best values and the study's own; all others train with the first one alone.
NUM_SEEDS = 3


class Trial(NamedTuple):
    """Values that are tried together."""

    normalization: str
    rate: float

    @property
    def changes(self) -> dict[str, object]:
        """Its changes to a study, by dotted key."""
        return {NORMALIZATION: self.normalization, RATE: self.rate}

    def __str__(self) -> str:
        return f"{self.normalization} {self.rate:g}"


# The validation of each seed that has one.
Scores = Mapping[Trial, SeedValues]
# Trains trials with so many seeds.
Measure = Callable[[Sequence[Trial], int], Scores]


def run(options: argparse.Namespace) -> int:
    """Search, and print the table and what follows from it."""
    changes = read_changes(options)
    console = make_console(options)
    check_no_file(options.out, "--out")
    wanted = Simulation(
        path_to_text(options.data),
        pretrained=path_to_text(options.pretrained),
        is_in_process=True,
        cache=path_to_text(options.cache),
        skip_unreadable=options.skip_unreadable,
    )
    study, simulation = settle_job(options.job, wanted, changes)
    check_code(options.job, simulation)
    check_pretrained(options.job, study, simulation)
    data = read_data(study, simulation, options.out)
    if not any(len(site.validation) for site in data.values()):
        raise ConfigError(
            f"No site in {simulation.data} has validation data to choose the values by. Import it with --validation "
            "0.2."
        )
    own = Trial(study.model.normalization, study.training.learning_rate)
    normalizations = list_normalizations(study, options.job, changes, next(iter(data.values())).image_shape)
    # What is searched is printed before the first run, which takes minutes.
    rates = ", ".join(f"{rate:g}" for rate in rates_around(own.rate))
    print_lines([f"{RATE} {rates}, with {NORMALIZATION} {', '.join(normalizations)}"], console)
    seeds = tuple((study.seed + number) % 2**32 for number in range(NUM_SEEDS))
    asked = ComparisonPlan((options.job,), seeds=seeds, pretrained=wanted.pretrained)
    # No site compares with a model of its own, which takes as long again.
    pattern = ComparedRun(str(own), 0, options.out, options.job, wanted, {**changes, "baseline_comparison": False})
    try:
        scores = search(own, normalizations, partial(_measure, asked, pattern, options.processes, console))
    except KeyboardInterrupt:
        console.print("to go on with the search, give the same command again")
        return ExitCode.INTERRUPTED
    if not any(scores.values()):
        console.print(f"no run has a validation score; {options.out / 'logs'} says why")
        return ExitCode.FAILED
    console.print(f"\nvalidation {study.metric}, mean over sites; ± over {NUM_SEEDS} seeds")
    _show_search(own, scores, console)
    return ExitCode.COMPLETE if all(scores.values()) else ExitCode.INCOMPLETE


def search(own: Trial, normalizations: Sequence[str], measure: Measure) -> Scores:
    """Try a grid around the study's values, one step beyond its edge, and further seeds where others lead."""
    scores = measure([Trial(name, rate) for name in normalizations for rate in rates_around(own.rate)], 1)
    best = find_best(own, scores)
    if further := _list_beyond(best, scores):
        scores = {**scores, **measure(further, 1)}
        best = find_best(own, scores)
    return scores if best == own else {**scores, **measure([own, best], NUM_SEEDS)}


def find_best(own: Trial, scores: Scores) -> Trial:
    """Return the trial that validates best, of those with the most seeds; the study's own of several that are level."""
    most = max(map(len, scores.values()))
    if most == 0:
        return own
    means = {trial: float(np.mean(values)) for trial, values in scores.items() if len(values) == most}
    # Of several that are level, True as the second number makes the study's own the largest.
    return max(means, key=lambda trial: (means[trial], trial == own))


def choose(own: Trial, scores: Scores) -> Trial:
    """Return the best trial; the study's own where that has a score and the lead is within the seeds' spread."""
    best = find_best(own, scores)
    if scores[own] and not is_clearly_above(scores[best], scores[own]):
        return own
    return best


def _list_beyond(trial: Trial, scores: Scores) -> list[Trial]:
    """Return the next trials where the rate is at an edge of those tried with its normalisation."""
    tried = [scored.rate for scored in scores if scored.normalization == trial.normalization]
    return [Trial(trial.normalization, rate) for rate in rates_beyond(trial.rate, tried)]


def rates_around(rate: float) -> list[float]:
    """Return a learning rate and the next ones below and above it, in ascending order."""
    return sorted([rate, *rates_beyond(rate, [rate])])


def rates_beyond(best: float, tried: Collection[float]) -> list[float]:
    """Return the next learning rates, about a third or three times the best one, where it is at an edge of those tried.

    Next to 1 or 3 times a power of ten are 3 and 1 times one; all have one digit.
    """
    rates = []
    if best == min(tried):
        rates.append(float(f"{best / 3:.1g}"))
    if best == max(tried):
        # Rounded to one digit, 3.2 times leads from 1 to 3 and from 3 to 10.
        rates.append(float(f"{best * 3.2:.1g}"))
    return rates


def list_normalizations(
    study: Study, job: Path, changes: Mapping[str, object], image_shape: Sequence[int]
) -> list[str]:
    """Return the normalisations to try, the study's own first, without those that the network cannot have.

    Args:
        study: The job's study with the changes.
        changes: Changes to its study, by dotted key.
        image_shape: (C, *spatial) of the sites' images.
    """
    names: list[str] = [study.model.normalization]
    # What everybody starts from has its normalisation, and BatchNorm that stays at home must be there.
    if not study.starts_from_file and study.recipe.stays != "batchnorm":
        for name in CANDIDATES:
            with suppress(ConfigError):
                check_network(changed_study(job, {**changes, NORMALIZATION: name}), image_shape)
                if name not in names:
                    names.append(name)
    return names


def _measure(
    asked: ComparisonPlan,
    pattern: ComparedRun,
    processes: int,
    console: Console,
    trials: Sequence[Trial],
    num_seeds: int,
) -> Scores:
    """Carry out the runs of trials that are not finished; returns the validation of each trial's seeds.

    Args:
        asked: Its seeds begin with the study's.
        pattern: A run of the study's own values, in the search's folder.
        processes: Runs at a time.
    """
    asked = replace(asked, seeds=asked.seeds[:num_seeds])
    planned: dict[Trial, list[ComparedRun]] = {}
    for trial in trials:
        run = replace(pattern, name=str(trial), changes={**pattern.changes, **trial.changes})
        planned[trial] = make_seeded_runs(asked, pattern.path, run)
    # All trials train side by side, therefore their scores are read in a second loop.
    failures = run_side_by_side(list(chain(*planned.values())), pattern.path, processes, console)
    print_lines([f"{path.name} has no score: {reason}" for path, reason in failures.items()], console)
    scores: dict[Trial, list[float]] = {}
    for trial, runs in planned.items():
        scores[trial] = []
        for run in runs:
            results = read_results(run.path)
            if results and results.validation_mean is not None:
                scores[trial].append(results.validation_mean)
    return scores


def _show_search(own: Trial, scores: Scores, console: Console) -> None:
    """Print the table, which values are chosen and why, and how to train with them."""
    best = find_best(own, scores)
    chosen = choose(own, scores)
    values = []
    for trial in sorted(scores, key=lambda trial: trial.rate):
        # A trial without a score has its empty cell.
        for score in scores[trial] or (None,):
            values.append(Value(trial.normalization, f"{trial.rate:g}", score))
    print_table(make_values_table(pivot(values), "", {f"{chosen.rate:g}": chosen.normalization}), console)
    if best == own:
        lines = [f"The study's own values validate best: {own}."]
    elif chosen == own:
        lines = [f"Level within the spread of the seeds: {best} and the study's own values, {own}, which stay."]
    else:
        lead = mean_and_deviation(scores[best])
        lines = [f"{best} validates best: {lead}; the study's own values, {own}: {mean_and_deviation(scores[own])}."]
    options = " ".join(format_set_options(chosen.changes))
    if _list_beyond(chosen, scores):
        lines.append(f"{chosen.rate:g} is at the edge of the rates tried: to go on from it, tune with {options}.")
    if chosen != own:
        lines.append(f"Write these values into study.yaml, or train with {options}")
    print_lines(lines, console)
