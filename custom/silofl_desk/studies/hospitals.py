"""Each hospital in each method of a comparison: a table, and sentences that follow from the numbers."""

from collections.abc import Mapping, Sequence
from itertools import chain
from types import MappingProxyType

from silofl.core.gain import BETTER, UNFINISHED, WORSE, Effect
from silofl.federation.results import Results
from silofl.inference.choice import ENSEMBLE
from silofl.training.joined import CHOSEN, LOCAL, SHIFTED, Joined
from silofl_desk.report.left_out_site import conclude_unseen, group_unseen
from silofl_desk.report.result_pictures import average_models, list_verdicts, rows_with_choices
from silofl_desk.report.result_tables import case_metric, name_models
from silofl_desk.report.run_records import RowRuns, RunRecords
from silofl_desk.report.sentences import is_guessing
from silofl_desk.report.verdict_words import ONE_START, count_verdicts, shorten_verdict
from silofl_desk.studies.comparison import GUESSING, list_guessing
from silofl_desk.studies.conditions import has_other_data, results_by_row
from silofl_desk.studies.method_rows import SMALLEST
from silofl_desk.studies.starts import find_gains, measure_mean_of_starts, measure_starts
from silofl_hospital.report.tables import TextTable, format_number

NOTE = (
    "Alone: the hospital's own model. Federated: the model that the method trained. Kept: the one of the two that the "
    "hospital chose on its validation data. Values are means over its test patients, if they are known and each has "
    "the metric; else over cases. In a segmentation each model has a decision threshold chosen on the validation data "
    "too; at 0.5: the federated model with the usual one. Unseen: the method at a hospital that took no part. Verdict: "
    "is the kept model better for the hospital's test patients than its own? Then the mean difference, federated minus "
    "alone, and its 95 % interval. Better also requires that it is better than the own model with the usual threshold "
    "of 0.5."
)
Runs = Mapping[str, RunRecords]


def hospital_table(runs: Runs, *, shows_half: bool = True) -> TextTable | None:
    """Return one row per method and hospital; None where no hospital made a choice.

    Args:
        runs: Name of the method -> its run.
        shows_half: Whether the federated model at the usual threshold has a column, where the sites' own move it.
    """
    rows = []
    chosen = [one for run in _with_choice(runs).values() for one in run.results.joining.values()]
    models = {model: name for model, name in name_models(chosen if shows_half else ()).items() if model != CHOSEN}
    for name, run in _with_choice(runs).items():
        for number, (site, one) in enumerate(run.results.joining.items()):
            values = (format_number(one.shown(model)) for model in models)
            unseen = format_number(run.unseen and run.unseen.value)
            first, last = ("", "") if number else (name, unseen)
            # What a phone shows first comes first.
            rows.append((first, site, format_number(one.shown(CHOSEN)), _describe_verdict(one), *values, last))
    verdict = f"verdict{next(map(_name_compared, _with_choice(runs).values()), '')}"
    columns = ("method", "hospital", "kept", verdict, *models.values(), "unseen")
    return TextTable(columns, tuple(rows), num_text=4) if rows else None


def unseen_tables(rows: RowRuns) -> list[TextTable]:
    """Return one table a hospital that took no part: the others' own models there, their mean, and each method's."""
    tables = []
    for (site, metric), tests in group_unseen(rows).items():
        sites = sorted({name for several in tests.values() for one in several for name in one.own or ()} - {ENSEMBLE})
        columns = (f"{metric} at {site}", *(f"own: {name}" for name in sites), "own: mean", "federated")
        lines = [
            (name, *(format_number((one.own or {}).get(own)) for own in (*sites, ENSEMBLE)), format_number(one.value))
            for name, several in tests.items()
            for one in several
        ]
        if sites:
            tables.append(TextTable(columns, tuple(lines)))
    return tables


def cost_table(rows: RowRuns) -> TextTable:
    """Return one row a run: its minutes of training, and what travelled to and from a hospital on average."""
    lines = []
    for name, run in ((name, run) for name, runs in rows.items() for run in runs):
        minutes = sum(record.seconds or 0.0 for record in run.ledger) / 60
        bytes_to, bytes_from = (
            sum(sum(getattr(record, way).values()) for record in run.ledger) / max(1, len(run.results.sites)) / 2**20
            for way in ("bytes_to", "bytes_from")
        )
        lines.append((name, str(len(run.ledger)), f"{minutes:.1f}", f"{bytes_to:.1f}", f"{bytes_from:.1f}"))
    columns = ("method", "rounds", "minutes in rounds", "MiB to a hospital", "MiB from it")
    return TextTable(columns, tuple(lines))


def conclude(rows: RowRuns) -> list[str]:
    """Say which model is best where none trained, what each hospital gains, and what the federated models are worth.

    Args:
        rows: Name of the method -> its runs, one for each seed. Those without a choice do not count; of rows that guess
            only that is said.
    """
    chosen = rows_with_choices(rows)
    guessing = list_guessing(results_by_row(chosen))
    said = [f"{', '.join(guessing)}: {GUESSING}."] if guessing else []
    chosen = {name: runs for name, runs in chosen.items() if name not in guessing}
    if not chosen:
        return said
    starts = describe_starts(chosen)
    kept = _conclude_kept(chosen) + ("" if starts else f" {ONE_START[0].upper()}{ONE_START[1:]}.")
    return [*conclude_unseen(group_unseen(chosen)), *starts, kept, _conclude_federated(chosen), *said]


def explain_losses(runs: Runs, known: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """Say of each method that loses where it does most.

    Args:
        runs: Name of the method -> its run.
        known: Hospital -> why one model cannot serve it, in a sentence, where that is known beforehand.
    """
    found = []
    for name, run in _with_choice(runs).items():
        sentence = "" if is_guessing(run.results) else _explain_federated(run.results, known)
        if sentence:
            found.append(f"{name}: {sentence}")
    return found


def _with_choice(runs: Runs) -> Runs:
    return {name: run for name, run in runs.items() if run.results.joining}


def _name_compared(run: RunRecords) -> str:
    """Say in what units are compared, where a single one does not have the run's metric."""
    compared = case_metric(run.results.metric)
    return "" if compared == run.results.metric else f" by {compared}"


def _describe_verdict(one: Joined) -> str:
    difference = "" if one.difference is None else f" {one.difference:+z.3f}"
    interval = "" if one.low is None or one.high is None else f" [{one.low:z.3f}, {one.high:z.3f}]"
    return f"{shorten_verdict(one.verdict)}{difference}{interval}"


def describe_starts(rows: RowRuns) -> list[str]:
    """Say of each row with several starts at which hospitals the federated model is better over patients and starts."""
    chosen = rows_with_choices(rows)
    guessing = list_guessing(results_by_row(chosen))
    starts = {name: _list_starts(runs) for name, runs in chosen.items() if name not in guessing}
    effects = {}
    for name, of_row in starts.items():
        for site, effect in measure_starts(of_row).items():
            effects[name, site] = effect
    gaining, sentences = find_gains(effects), []
    for name, of_row in starts.items():
        mean = measure_mean_of_starts(of_row)
        if mean is None:
            continue
        gains = []
        for row, site in gaining:
            if row == name:
                gain = effects[row, site]
                gains.append(f"{site} {gain.difference:+z.3f} ({gain.low:.3f} to {gain.high:.3f})")
        listed = f": {', '.join(gains)}" if gains else ""
        number = sum(row == name for row, _ in effects)
        sentences.append(
            f"{name}, {len(chosen[name])} starts: {len(gains)} of {number} hospitals gain by joining after "
            f"Holm{listed}; the mean difference is {mean.difference:+z.3f} ({mean.low:z.3f} to {mean.high:z.3f})."
        )
    return sentences


def _list_starts(runs: Sequence[RunRecords]) -> dict[str, list[Effect]]:
    """Return site -> what each run gives it, of sites that tested the same data and models trained to their end."""
    sites = dict.fromkeys(site for run in runs for site in run.results.joining)
    starts = {}
    for site in sites:
        joined = [run.results.joining[site] for run in runs if site in run.results.joining]
        is_whole = len(joined) == len(runs) and not any(one.unfinished for one in joined)
        if is_whole and not has_other_data(runs, site):
            starts[site] = [
                Effect(one.difference, one.standard_error, one.num_test_units)
                for one in joined
                if one.difference is not None and one.standard_error is not None
            ]
    return starts


def _conclude_kept(rows: RowRuns) -> str:
    verdicts = {name: list_verdicts(runs) for name, runs in rows.items()}
    if all(one == UNFINISHED for found in verdicts.values() for one in found):
        return f"What joining gives is not known, as not all models were trained to their end; {_name_highest(rows)}."
    counts = {name: (found.count(BETTER), len(found)) for name, found in verdicts.items()}
    ordered = sorted(counts, key=lambda name: -counts[name][0])
    listed = ", ".join(f"{name} {counts[name][0]} of {counts[name][1]}" for name in ordered)
    losing = count_verdicts(verdict for found in verdicts.values() for verdict in found if verdict == WORSE)
    total = f"{sum(gained for gained, _ in counts.values())} of {sum(number for _, number in counts.values())}"
    compared = _name_compared(next(iter(rows.values()))[0])
    several = "run" if any(len(runs) > 1 for runs in rows.values()) else "method"
    return (
        f"In {total} pairs of hospital and {several}, the model that the hospital keeps is better for its test "
        f"patients than its own model{compared} (2.5 % level; {listed}){', and ' * bool(losing)}{''.join(losing)}; "
        f"{_name_highest(rows)}."
    )


def _name_highest(rows: RowRuns) -> str:
    """Say which row has the highest mean, where all have tested the same."""
    if not _have_tested_alike(rows):
        return "the methods' means are of unlike hospitals, seeds, data or metrics, so none is the highest"
    means = {name: average_models(runs) for name, runs in rows.items()}
    if any(found[CHOSEN] is None for found in means.values()):
        return "the hospitals' test cases are of different classes, so that the methods have no mean"
    best = max(means, key=lambda name: means[name][CHOSEN] or 0.0)
    kept, own = format_number(means[best][CHOSEN]), format_number(means[best][LOCAL])
    if kept == own:
        return f"with no method is the mean of what hospitals keep above that alone, {own}"
    return f"{best} has the highest mean of what hospitals keep: {kept}, against {own} alone"


def _have_tested_alike(rows: RowRuns) -> bool:
    """Return whether all rows have tested by one metric, with the same seeds, hospitals and data."""
    tested, runs = {_list_tested(one) for one in rows.values()}, list(chain.from_iterable(rows.values()))
    return len(tested) == 1 and not any(
        has_other_data([run for run in runs if run.results.seed == seed], site) for _, seed, site in tested.pop()
    )


def _list_tested(runs: Sequence[RunRecords]) -> frozenset[tuple[str | None, int | None, str]]:
    """Return the metric, seed and hospital of each test of a kept model."""
    return frozenset(
        (run.results.metric, run.results.seed, site)
        for run in runs
        for site, one in run.results.joining.items()
        if one.tested(CHOSEN) is not None
    )


def _conclude_federated(rows: RowRuns) -> str:
    means = {name: average_models(runs) for name, runs in rows.items()}
    below = [
        f"{name} {format_number(found[SHIFTED])} (alone {format_number(found[LOCAL])})"
        for name, found in means.items()
        if _falls_below(found)
    ]
    if not below:
        return (
            "If every hospital had to use the federated model, no method would be worse on average than training alone."
        )
    return (
        f"If every hospital had to use the federated model, {len(below)} of {len(rows)} methods would be worse on "
        f"average than training alone: {', '.join(below)}."
    )


def _falls_below(means: Mapping[str, float | None]) -> bool:
    known = means[SHIFTED] is not None and means[LOCAL] is not None
    return known and means[SHIFTED] < means[LOCAL] - SMALLEST


def _explain_federated(results: Results, known: Mapping[str, str]) -> str:
    """Say where the federated model is furthest below training alone; nothing where it is not below it on average."""
    if not _falls_below(results.joining_means):
        return ""
    gaps = {
        site: one.test[LOCAL] - one.test[SHIFTED]
        for site, one in results.joining.items()
        if one.tested(LOCAL) is not None and one.tested(SHIFTED) is not None
    }
    site = max(gaps, key=gaps.__getitem__)
    test = results.joining[site].test
    worst = f"worst at {site} (federated {format_number(test[SHIFTED])}, alone {format_number(test[LOCAL])})."
    return f"{worst} {known[site]}" if site in known else worst
