"""``silofl tune``: search learning rate and normalisation on validation data, and print the values to train with.

Every normalisation that suits network, algorithm and data is trained with the study's learning rate and the two next
to it, one seed each; the best rate at an edge gets one more beside it. Then the best values and the study's own are
trained with further seeds, whose spread says whether the lead is more than chance.
"""

import argparse
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console

from silofl.base.errors import ConfigError, ExitCode
from silofl.base.options import make_console
from silofl.core.guess import Measures, describe_guess
from silofl.data.site_data import SiteData
from silofl.federation.results import read_results
from silofl.models.networks import check_network
from silofl.study import Study
from silofl_desk.options import format_set_options, path_to_text, read_changes
from silofl_desk.report.result_tables import mean_and_deviation
from silofl_desk.report.sentences import measure_score
from silofl_desk.studies.compared_runs import ComparedRun, ComparisonPlan, make_seeded_runs, run_folder
from silofl_desk.studies.conditions import NORMALIZATION
from silofl_desk.studies.method_rows import SeedValues, is_clearly_above
from silofl_desk.studies.shared_batchnorm import list_batchnorm_cautions, sample_images
from silofl_desk.studies.side_by_side import run_side_by_side
from silofl_desk.studies.simulated_sites import read_data
from silofl_desk.studies.simulation import Simulation, changed_study, check_code, settle_job
from silofl_hospital.report.tables import TextTable, print_lines, print_table

RATE = "training.learning_rate"
CANDIDATES = ("group", "instance", "batch")
# Of the best values and the study's own; all others have the first one alone.
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


# Trains trials with so many seeds; returns the validation of each seed that has one.
Measure = Callable[[Sequence[Trial], int], dict[Trial, SeedValues]]


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        own: The study's values.
        scores: Trial -> the validation of each of its seeds; empty where none has any.
        guess: What no model is shown to be, as `describe_guess` says it; empty where one is better than guessing.
    """

    own: Trial
    scores: Mapping[Trial, SeedValues]
    guess: str = ""

    @property
    def best(self) -> Trial:
        """The values that validate best, of those with the most seeds; the study's own of several that are level."""
        most = max(map(len, self.scores.values()))
        known = {trial: float(np.mean(values)) for trial, values in self.scores.items() if len(values) == most > 0}
        return max(known, key=lambda trial: (known[trial], trial == self.own), default=self.own)

    @property
    def is_tie(self) -> bool:
        """Whether the best values lead the study's own by no more than the seeds' spread."""
        best, own = (self.scores[trial] for trial in (self.best, self.own))
        return self.best != self.own and bool(own) and not is_clearly_above(best, own)

    @property
    def chosen(self) -> Trial:
        """The best values; the study's own where there is no clear lead, or all may only guess."""
        return self.own if self.is_tie or self.guess else self.best

    def rates_beyond(self, trial: Trial) -> list[float]:
        """Return the next rates where that of a trial is at an edge of those tried with its normalisation."""
        return rates_beyond(trial.rate, [one.rate for one in self.scores if one.normalization == trial.normalization])


def run(options: argparse.Namespace) -> int:
    """Search, and print the table and what follows from it."""
    changes, console = read_changes(options), make_console(options)
    if options.out.exists() and not options.out.is_dir():
        raise ConfigError(f"--out must be a folder, not {options.out}, which is a file; name a folder")
    wanted = Simulation(
        path_to_text(options.data),
        pretrained=path_to_text(options.pretrained),
        is_alone=True,
        cache=path_to_text(options.cache),
        skip_unreadable=options.skip_unreadable,
    )
    study, simulation = settle_job(options.job, wanted, changes)
    check_code(options.job, simulation)
    trials = _Trials(options.job, options.out, wanted, changes, study, options.processes, console)
    own = Trial(study.model.normalization, study.training.learning_rate)
    # A fault of what was given, or an earlier search of other studies, shows before anything is read.
    trials.plan([own], 1)
    data = read_data(study, simulation, options.out)
    if not any(len(one.validation) for one in data.values()):
        raise ConfigError(
            f"{simulation.data} must have validation data, by which the values are chosen; no site has any: import it "
            "with --validation 0.2"
        )
    normalizations, left_out = list_normalizations(study, options.job, changes, data)
    print_lines([*left_out, trials.describe(own, normalizations)], console)
    try:
        found = search(own, normalizations, trials.measure)
    except KeyboardInterrupt:
        console.print("to go on with the search, give the same command again")
        return ExitCode.INTERRUPTED
    return _show_search(found, trials)


def search(own: Trial, normalizations: Sequence[str], measure: Measure) -> Found:
    """Try a grid around the study's values, one step beyond its edge, and further seeds where others lead."""
    grid = [Trial(name, rate) for name in normalizations for rate in rates_around(own.rate)]
    found = Found(own, measure(grid, 1))
    best = found.best
    if further := [Trial(best.normalization, rate) for rate in found.rates_beyond(best)]:
        found = Found(own, {**found.scores, **measure(further, 1)})
    if found.best == own:
        return found
    return Found(own, {**found.scores, **measure([own, found.best], NUM_SEEDS)})


def rates_around(rate: float) -> list[float]:
    """Return a learning rate and the next ones below and above it, in ascending order."""
    return sorted([rate, *rates_beyond(rate, [rate])])


def rates_beyond(best: float, tried: Collection[float]) -> list[float]:
    """Return the next learning rates, about a third or three times the best one, where it is at an edge of those tried.

    Next to 1 or 3 times a power of ten are 3 and 1 times one; all have one digit.
    """
    lower, higher = (float(f"{rate:.1g}") for rate in (best / 3, best * 3.2))
    return [lower] * (best == min(tried)) + [higher] * (best == max(tried))


def list_normalizations(
    study: Study, job: Path, changes: Mapping[str, object], data: Mapping[str, SiteData]
) -> tuple[list[str], list[str]]:
    """Return the normalisations to try, the study's own first, and why others are left out.

    Args:
        study: The job's study with the changes.
        changes: Changes to its study, by dotted key.
        data: Site -> its data, by whose looks shared BatchNorm is tried or not.
    """
    own, reasons = study.model.normalization, []
    if study.starts_from_file or study.recipe.stays_home == "batchnorm":
        why = "what everybody starts from has it" if study.starts_from_file else "BatchNorm stays at each hospital"
        return [own], [f"{NORMALIZATION} stays {own}: {why}"]
    names = [own]
    for name in (name for name in CANDIDATES if name != own):
        try:
            other = changed_study(job, {**changes, NORMALIZATION: name})
            check_network(other, next(iter(data.values())).image_shape)
        except ConfigError as error:
            reasons.append(f"{name} is left out: {error}")
            continue
        if list_batchnorm_cautions(
            other, lambda: {site: sample_images(one.training, study) for site, one in data.items()}
        ):
            reasons.append(f"{name} is left out: the hospitals' images look different")
        else:
            names.append(name)
    return names, reasons


@dataclass(frozen=True)
class _Trials:
    """The runs of a search.

    Attributes:
        job: The job's folder.
        out: Folder of all runs, of which finished ones are used again.
        wanted: Data, and how they are read.
        changes: Changes to the job's study, by dotted key.
        study: The job's study with them.
        processes: Runs at a time.
        console: Shows a line where a run ends.
    """

    job: Path
    out: Path
    wanted: Simulation
    changes: Mapping[str, object]
    study: Study
    processes: int
    console: Console

    def plan(self, trials: Sequence[Trial], num_seeds: int) -> dict[Trial, list[ComparedRun]]:
        """Return the checked runs of each trial; the errors of `make_seeded_runs`."""
        seeds = tuple((self.study.seed + number) % 2**32 for number in range(num_seeds))
        asked = ComparisonPlan((self.job,), seeds=seeds, pretrained=self.wanted.pretrained)
        found = {}
        for trial in trials:
            # No site compares with a model of its own, which takes as long again.
            changes = {**self.changes, **trial.changes, "guard": False}
            pattern = ComparedRun(str(trial), 0, self.out, self.job, self.wanted, changes)
            found[trial] = make_seeded_runs(asked, self.out, pattern)
        return found

    def describe(self, own: Trial, normalizations: Sequence[str]) -> str:
        """Say what will be trained."""
        rates = rates_around(own.rate)
        least = len(rates) * len(normalizations)
        # One beyond the edge; further seeds of the study's own values and the best ones.
        most = least + 1 + 2 * (NUM_SEEDS - 1)
        return (
            f"{RATE} {', '.join(f'{rate:g}' for rate in rates)}, with {NORMALIZATION} {', '.join(normalizations)}: "
            f"{least} runs of {self.study.length}, then at most {most - least} more to confirm"
        )

    def measure(self, trials: Sequence[Trial], num_seeds: int) -> dict[Trial, SeedValues]:
        """Carry out the runs that are not finished; returns the validation of each trial's seeds."""
        planned = self.plan(trials, num_seeds)
        failures = run_side_by_side(
            [run for several in planned.values() for run in several], self.out, self.processes, self.console
        )
        print_lines([f"{path.name} has no score: {reason}" for path, reason in failures.items()], self.console)
        found = {trial: [read_results(run.path) for run in several] for trial, several in planned.items()}
        return {
            trial: tuple(one.validation_mean for one in several if one and one.validation_mean is not None)
            for trial, several in found.items()
        }

    def describe_guess(self, trials: Collection[Trial]) -> str:
        """Say what none of the trials is, with the study's seed, by `describe_guess`; empty where one is."""
        measured: list[Measures] = []
        for trial in trials:
            results = read_results(run_folder(self.out, str(trial), self.study.seed))
            for one in results.validation.values() if results and results.has_classes else ():
                measured.append(measure_score(results, str(trial), one.also or {}, one))
        return describe_guess(measured, self.study.metric, "validation", len(trials))


def _show_search(found: Found, trials: _Trials) -> int:
    """Print the table, what follows from it, and the values to train with; returns the exit code."""
    console = trials.console
    if not any(found.scores.values()):
        console.print(f"no run has a validation score; {trials.out / 'logs'} says why")
        return ExitCode.FAILED
    found = Found(found.own, found.scores, trials.describe_guess(found.scores))
    console.print(f"\nvalidation {trials.study.metric}, mean over sites; ± over {NUM_SEEDS} seeds")
    print_table(_tabulate(found), console)
    print_lines([*_conclude(found)], console)
    return ExitCode.COMPLETE if all(found.scores.values()) else ExitCode.INCOMPLETE


def _tabulate(found: Found) -> TextTable:
    """Return a row a normalisation and a column a rate, the chosen values marked."""
    names, rates = (list(dict.fromkeys(values)) for values in zip(*found.scores, strict=True))
    rates.sort()
    rows = tuple(
        (name, *(mean_and_deviation(found.scores.get(Trial(name, rate), ())) for rate in rates)) for name in names
    )
    chosen = (names.index(found.chosen.normalization), 1 + rates.index(found.chosen.rate))
    best = frozenset() if found.guess else frozenset({chosen})
    return TextTable(("", *(f"{rate:g}" for rate in rates)), rows, best_cells=best)


def _conclude(found: Found) -> list[str]:
    """Say which values are chosen and why, what was not tried, and how to train with them."""
    best, own, chosen = found.best, found.own, found.chosen
    if found.guess:
        lines = [f"CAUTION  no model is {found.guess}; the study's own values, {own}, stay"]
    elif best == own:
        lines = [f"The study's own values validate best: {own}."]
    elif found.is_tie:
        lines = [f"Level within the spread of the seeds: {best} and the study's own values, {own}, which stay."]
    else:
        lead, known = (mean_and_deviation(found.scores[trial]) for trial in (best, own))
        lines = [f"{best} validates best: {lead}; the study's own values, {own}: {known}."]
    options = " ".join(format_set_options(chosen.changes))
    if found.rates_beyond(chosen) and not found.guess:
        lines.append(f"{chosen.rate:g} is at the edge of the rates tried: to go on from it, tune with {options}.")
    if chosen != own:
        lines.append(f"Write these values into study.yaml, or train with {options}")
    return lines
