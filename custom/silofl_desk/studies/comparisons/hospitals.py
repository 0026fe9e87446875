"""What joining gives each hospital in each method of a comparison: the verdicts, and what follows from them."""

from collections.abc import Mapping, Sequence
from itertools import chain

from silofl.core.gain import BETTER, UNFINISHED, WORSE, Effect, MeanEffect
from silofl.inference.choice import ENSEMBLE
from silofl.training.joined import CHOSEN, LOCAL, SHIFTED, Joined
from silofl_desk.report.left_out_site import conclude_unseen, group_unseen
from silofl_desk.report.result_pictures import average_models, list_verdicts, rows_with_choices
from silofl_desk.report.result_tables import case_metric, mean_and_deviation
from silofl_desk.report.run_records import RowRuns, RunRecords
from silofl_desk.report.sentences import describe_problems
from silofl_desk.report.verdict_words import ONE_START, count_verdicts, shorten_verdict
from silofl_desk.studies.comparisons.comparison import (
    GUESSING,
    SMALLEST,
    Value,
    list_guessing,
    make_values_table,
    pivot,
)
from silofl_desk.studies.comparisons.conditions import has_other_data
from silofl_desk.studies.runs.starts import find_gains, measure_mean_of_starts, measure_starts
from silofl_hospital.report.tables import TextTable, format_number

NOTE = (
    "Local: the model that the hospital trained alone. Federated: the model that the method trained. Kept: the one of "
    "the two that the hospital chose on its validation data. Values are means over its test patients, if they are "
    "known and each has the metric; else over cases. In a segmentation each model has a decision threshold chosen on "
    "the validation data too. Verdict: is the kept model better for the hospital's test patients than its own? By "
    "chance 1 in 40 would be called worse. Better also requires that it is better than the local model with the usual "
    "threshold of 0.5. Then the mean difference, federated minus local, and its 95 % interval. Over several starts: "
    "does the hospital gain by joining, at 5 % after Holm's correction over all hospitals and methods?"
)
# Row and hospital -> what joining gives it over several starts.
Effects = Mapping[tuple[str, str], MeanEffect]


def hospital_table(rows: RowRuns) -> TextTable | None:
    """Return one line per method and hospital; None where no hospital made a choice."""
    chosen = rows_with_choices(rows)
    effects = _measure_effects(chosen)
    gaining = find_gains(effects)
    lines = []
    for name, runs in chosen.items():
        for site, joined in _group_choices(runs).items():
            verdict = _describe_verdicts(joined)
            if effect := effects.get((name, site)):
                word = "gains" if (name, site) in gaining else "no gain shown"
                verdict = f"{word}{_format_difference(effect.difference, effect.low, effect.high)}"
            kept = _average_over_runs(joined, CHOSEN)
            # A phone shows the first columns only: what matters most stands there.
            models = (_average_over_runs(joined, LOCAL), _average_over_runs(joined, SHIFTED))
            lines.append((name, site, kept, verdict, *models))
    compared = next((_name_compared(run) for run in chain(*chosen.values())), "")
    columns = ("method", "hospital", "kept", f"verdict{compared}", "local", "federated")
    return TextTable(columns, tuple(lines), num_text=4) if lines else None


def _group_choices(runs: Sequence[RunRecords]) -> dict[str, list[Joined]]:
    """Return site -> its choice in each run in which it made one."""
    choices: dict[str, list[Joined]] = {}
    for run in runs:
        for site, joined in (run.results.joining or {}).items():
            choices.setdefault(site, []).append(joined)
    return choices


def _average_over_runs(joined: Sequence[Joined], model: str) -> str:
    values = [choice.shown(model) for choice in joined]
    return mean_and_deviation([value for value in values if value is not None])


def _describe_verdicts(joined: Sequence[Joined]) -> str:
    # A difference has its interval in a single run only; several runs have several.
    if len(joined) > 1:
        return ", ".join(count_verdicts(choice.verdict for choice in joined))
    (choice,) = joined
    return f"{shorten_verdict(choice.verdict)}{_format_difference(choice.difference, choice.low, choice.high)}"


def _format_difference(difference: float | None, low: float | None, high: float | None) -> str:
    if difference is None:
        return ""
    if low is None or high is None:
        return f" {difference:+z.3f}"
    return f" {difference:+z.3f} [{low:z.3f}, {high:z.3f}]"


def _name_compared(run: RunRecords) -> str:
    """Say in what units are compared, where a single one does not have the run's metric."""
    compared = case_metric(run.results.metric)
    return "" if compared == run.results.metric else f" by {compared}"


def list_losses(rows: RowRuns) -> list[str]:
    """Return a sentence for each hospital that loses by joining or keeps a model near 0, with its run."""
    losses = []
    for name, runs in rows_with_choices(rows).items():
        for run in runs:
            # A run that goes on may still make up for it.
            if not run.results.is_finished:
                continue
            row = f"{name}, seed {run.results.seed}" if len(runs) > 1 else name
            losses += [f"{row}: {sentence}" for tone, sentence in describe_problems(run.results) if tone == "bad"]
    return losses


def unseen_tables(rows: RowRuns) -> list[TextTable]:
    """Return one table a hospital that took no part: the others' local models there, their mean, and each method's."""
    tables = []
    for (site, metric), tests in group_unseen(rows).items():
        values = []
        for name, of_row in tests.items():
            for test in of_row:
                local = test.own or {}
                values += [Value(name, f"local: {owner}", value) for owner, value in local.items() if owner != ENSEMBLE]
                values += [Value(name, "local: mean", local.get(ENSEMBLE)), Value(name, "federated", test.value)]
        # Without any local model there is nothing to compare with.
        if any(test.own for test in chain(*tests.values())):
            tables.append(make_values_table(pivot(values), f"{metric} at {site}"))
    return tables


def conclude(rows: RowRuns) -> list[str]:
    """Say which model is best where none trained, what each hospital gains, and what the federated models are worth.

    Args:
        rows: Name of the method -> its runs, one for each seed. Those without a choice do not count; of rows that guess
            only that is said.
    """
    chosen = rows_with_choices(rows)
    guessing = list_guessing(chosen)
    # What a row that guesses gives a hospital is chance.
    warnings = [f"{', '.join(guessing)}: {GUESSING}."] if guessing else []
    chosen = {name: runs for name, runs in chosen.items() if name not in guessing}
    if not chosen:
        return warnings
    # With several starts the verdicts of single ones mislead.
    joining = _describe_starts(chosen) or [_conclude_kept(chosen)]
    return [*conclude_unseen(group_unseen(chosen)), *joining, _conclude_federated(chosen), *warnings]


def _describe_starts(rows: RowRuns) -> list[str]:
    """Say of each row with several starts how many hospitals gain by joining, and what the mean hospital does."""
    effects = _measure_effects(rows)
    # Holm's correction is over all hospitals of all rows, so that it comes before the loop.
    gaining = find_gains(effects)
    sentences = []
    for name, runs in rows.items():
        mean = measure_mean_of_starts(_list_starts(runs))
        if mean is not None:
            num_hospitals = sum(row == name for row, _ in effects)
            num_gaining = sum(row == name for row, _ in gaining)
            sentences.append(
                f"{name}, {len(runs)} starts: {num_gaining} of {num_hospitals} hospitals gain by joining after Holm; "
                f"the mean difference is {mean.difference:+z.3f} ({mean.low:z.3f} to {mean.high:z.3f})."
            )
    return sentences


def _measure_effects(rows: RowRuns) -> Effects:
    """Return what joining gives each hospital of each row that does not guess."""
    # What a row that guesses gives a hospital is chance, and would count in Holm's correction.
    guessing = list_guessing(rows)
    effects = {}
    for name, runs in rows.items():
        if name not in guessing:
            for site, effect in measure_starts(_list_starts(runs)).items():
                effects[name, site] = effect
    return effects


def _list_starts(runs: Sequence[RunRecords]) -> dict[str, list[Effect]]:
    """Return site -> what each run gives it, of sites that tested the same data and models trained to their end."""
    starts: dict[str, list[Effect]] = {}
    for site, joined in _group_choices(runs).items():
        is_whole = len(joined) == len(runs) and not any(choice.unfinished for choice in joined)
        # Starts are compared with each other, which holds of the same test cases only.
        if not is_whole or has_other_data(runs, site):
            continue
        starts[site] = []
        for choice in joined:
            if choice.difference is not None and choice.standard_error is not None:
                starts[site].append(Effect(choice.difference, choice.standard_error, choice.num_test_units))
    return starts


def _conclude_kept(rows: RowRuns) -> str:
    counted: list[str] = []
    listed = []
    for name, runs in rows.items():
        verdicts = list_verdicts(runs)
        counted += verdicts
        listed.append(f"{name} {verdicts.count(BETTER)} of {len(verdicts)}")
    if {*counted} == {UNFINISHED}:
        return "What joining gives is not known, as not all models were trained to their end."
    losses = count_verdicts(verdict for verdict in counted if verdict == WORSE)
    losing = f", and {losses[0]}" if losses else ""
    compared = _name_compared(next(iter(rows.values()))[0])
    return (
        f"In {counted.count(BETTER)} of {len(counted)} pairs of hospital and run, the model that the hospital "
        f"keeps is better for its test patients than its local model{compared} (2.5 % level; {', '.join(listed)})"
        f"{losing}. {ONE_START[0].upper()}{ONE_START[1:]}."
    )


def _conclude_federated(rows: RowRuns) -> str:
    below = []
    for name, runs in rows.items():
        means = average_models(runs)
        # A row without tested models of both kinds says nothing.
        federated, local = means[SHIFTED], means[LOCAL]
        if federated is not None and local is not None and federated < local - SMALLEST:
            below.append(f"{name} {format_number(federated)} (local {format_number(local)})")
    if not below:
        return (
            "If every hospital had to use the federated model, no method would be worse on average than training alone."
        )
    return (
        f"If every hospital had to use the federated model, {len(below)} of {len(rows)} methods would be worse on "
        f"average than training alone: {', '.join(below)}."
    )
