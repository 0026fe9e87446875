"""Compare runs: the rows of their tables, what joining gave in each, and what limits the comparison."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from silofl.core.gain import FAMILY_LEVEL, WORSE, holm
from silofl.federation.results import Results
from silofl.training.joined import AT_ZERO, FEDERATED, LOCAL
from silofl.training.metrics import mean_of_known
from silofl_desk.report.result_tables import (
    describe_round,
    has_moved_thresholds,
    mean_and_deviation,
    name_models,
)
from silofl_desk.report.run_records import RowRuns, RunRecords
from silofl_desk.report.sentences import (
    SHARED_BATCHNORM,
    UNLIKE_CLASSES,
    describe_problems,
    is_guessing,
    normalization_label,
    regions_text,
    shares_batchnorm,
    split_sentence,
)
from silofl_desk.report.verdict_words import count_verdicts
from silofl_desk.studies.conditions import describe_groups, has_other_data
from silofl_hospital.report.tables import MISSING, TextTable, format_number

ONE_SEED = (
    "Each row is one run with one random seed. Differences can be chance, so no best value is marked: use silofl "
    "compare with several seeds."
)
JOINING_NOTE = (
    "Verdicts: of all hospitals that made a choice, over all seeds. Mean test values over these hospitals: alone, of "
    "the hospital's own model; federated, of the federated model; kept, of the one of the two that the hospital chose "
    "on its validation data{thresholds}. Below alone: how many of the hospitals that keep the federated model became "
    "worse; by chance 1 in 40 would. After Holm: how many remain after correction for testing many times (Holm's, 5 % "
    "over all rows)."
)
JOINING_THRESHOLDS = (
    ", each with the decision threshold that the hospital's validation data favour. At 0.5: with the usual one, as in "
    "the table of methods, where local has the numbers of alone at 0.5"
)
GUESSING = "no model is shown to be better than guessing"
AT_HALF = (
    "Values of methods are at the usual decision threshold of 0.5; alone, federated and kept are at the hospitals' own."
)
UNLIKE_SITES = "Do not compare the means of rows with different sites or seeds."
# Columns, by their names in a round's record.
DRIFT_COLUMNS = ("drift", "dissimilarity")
DRIFT_NOTE = (
    "Means over the rounds, ± their standard deviation over the seeds. Drift: mean over sites and steps of the "
    "squared distance to the received model (HarmoFL, Eq. 9). Dissimilarity: mean squared length of the sites' "
    "updates, divided by the squared length of their weighted mean, in rounds that all begin from one model; 1 = all "
    "agree, above 2 = strong. Both grow with the learning rate, the steps and the network: compare rows that share "
    "these; no accuracy follows from them. A row without numbers has them with --set training.measures_drift=true."
)


@dataclass(frozen=True)
class JoiningComparison:
    """What joining gave in each row of a comparison.

    Attributes:
        table: One line a row.
        losses: A sentence for each site that loses by joining or keeps a model near 0, with its run.
        note: What the columns are.
    """

    table: TextTable
    losses: Sequence[str]
    note: str


def compared_sites(results: Sequence[Results]) -> list[str]:
    """Return all sites of the runs."""
    return sorted({site for run in results for site in run.sites})


def are_comparable(runs: Sequence[RunRecords]) -> bool:
    """Return whether the runs measure the same on the same data: metric, regions, split and what each site has."""
    measured = {(run.results.metric, regions_text(run.results), run.results.split_unit) for run in runs}
    sites = compared_sites([run.results for run in runs])
    return len(measured) < 2 and not any(has_other_data(runs, site) for site in sites)


def comparison_notes(results: Sequence[Results]) -> list[str]:
    """Return sentences on runs without a value at a site."""
    sites = compared_sites(results)
    notes = []
    for number, run in enumerate(results, start=1):
        without = [site for site in sites if run.values.get(site) is None]
        where = ", ".join(without) or "any site" if len(without) <= 4 else f"{len(without)} of {len(sites)} sites"
        if without or not sites:
            notes.append(f"Run {number} has no value at {where}: do not compare its mean with the others'.")
    return notes


def list_guessing(rows: Mapping[str, Sequence[Results]]) -> list[str]:
    """Return the rows of whose runs none has a model that is shown to be better than guessing."""
    return [name for name, found in rows.items() if found and all(map(is_guessing, found))]


def list_limits(rows: Mapping[str, Sequence[Results]], pooled: Collection[str] = ()) -> list[str]:
    """Return what limits a comparison of rows: split, normalisation, regions, classes and BatchNorm, a sentence each.

    Args:
        rows: Name -> the results of its runs.
        pooled: Names of those on data pooled in one place, which have no BatchNorm to share.
    """
    runs = [run for of_row in rows.values() for run in of_row]
    scored = [f"Regions: {describe_groups(rows, lambda run: regions_text(run) or 'each label')}."]
    lacks_mean = {
        name: any(one.mean is None and one.pooled is not None for one in found) for name, found in rows.items()
    }
    unlike = [name for name, is_so in lacks_mean.items() if is_so]
    with_batchnorm = {
        name: any(map(shares_batchnorm, of_row))
        for name, of_row in rows.items()
        if name not in pooled and any(run.normalization == "batch" for run in of_row)
    }
    shared = [name for name, is_so in with_batchnorm.items() if is_so]
    guessing = list_guessing(rows)
    return [
        *([f"{', '.join(guessing)}: {GUESSING}."] if guessing else []),
        f"Split: {describe_groups(rows, lambda run: split_sentence(run.split_unit))}.",
        f"Normalization: {describe_groups(rows, lambda run: normalization_label(run.normalization))}.",
        *(scored if any(run.regions for run in runs) else []),
        *([f"{', '.join(unlike)}: {UNLIKE_CLASSES}."] if unlike else []),
        *([f"{', '.join(shared)}: {SHARED_BATCHNORM}."] if 0 < len(shared) < len(with_batchnorm) else []),
        *([AT_HALF] if any(map(has_moved_thresholds, runs)) else []),
    ]


def comparison_table(results: Sequence[Results], names: Sequence[str] = ()) -> tuple[TextTable, str]:
    """Return one row a run, in the given order, with its means, and the facts that all runs share, as words.

    Nothing is marked as the best: each row is one run with one seed.

    Args:
        names: The row of the table of methods that each run is of; empty where there is no such table.
    """
    facts = {"row": [*names]} if names else {}
    for key in ("study", "algorithm", "preset", "normalization", "seed", "status"):
        facts[key] = [MISSING if (value := getattr(run, key)) is None else str(value) for run in results]
    shared = {key: cells[0] for key, cells in facts.items() if len(results) > 1 and len({*cells}) == 1}
    columns = [("run", [str(number) for number, _ in enumerate(results, start=1)])]
    columns += [(key, cells) for key, cells in facts.items() if key not in shared]
    num_text = len(columns)
    columns.append(("reported round", list(map(describe_round, results))))
    columns += [(key, [format_number(getattr(run, key)) for run in results]) for key in ("mean", "spread", "pooled")]
    heads, cells = zip(*columns, strict=True)
    described = ", ".join(f"{key} {value}" for key, value in shared.items())
    return TextTable(heads, tuple(zip(*cells, strict=True)), num_text=num_text), described


def compare_joining(rows: Mapping[str, Sequence[Results]]) -> JoiningComparison | None:
    """Return what joining gave in each row over its seeds; None where no site of any run has made a choice.

    Args:
        rows: Name -> the results of its runs, all together the family of Holm's correction; local training and training
            on pooled data have no row.
    """
    # At which sites the kept model is another than the own one, and may be below it.
    tested = {
        (name, seed, site): one
        for name, runs in rows.items()
        for seed, run in enumerate(runs)
        for site, one in (run.joining or {}).items()
        if one.p_below is not None and one.chosen != LOCAL
    }
    corrected = holm({test: one.p_below for test, one in tested.items()})
    found = []
    everyone = [one for runs in rows.values() for run in runs for one in (run.joining or {}).values()]
    models = name_models(everyone)
    if any(one.tested(AT_ZERO) not in (None, one.tested(LOCAL)) for one in everyone):
        models = {LOCAL: models[LOCAL], AT_ZERO: "alone at 0.5"} | models
    for name, runs in rows.items():
        joined = [run for run in runs if run.joining]
        if not joined:
            continue
        found_means = [[run.joining_means[model] for run in joined] for model in models]
        means = [mean_and_deviation([mean for mean in of_model if mean is not None]) for of_model in found_means]
        verdicts = ", ".join(count_verdicts(one.verdict for run in joined for one in (run.joining or {}).values()))
        of_row = [test for test in tested if test[0] == name]
        worse = [test for test in of_row if tested[test].verdict == WORSE]
        after = sum(corrected[test] < FAMILY_LEVEL for test in worse)
        found.append((name, verdicts, *means, f"{len(worse)} of {len(of_row)}", str(after)))
    columns = ("run", "verdicts", *models.values(), "below alone", "after Holm")
    note = JOINING_NOTE.format(thresholds=JOINING_THRESHOLDS if {FEDERATED, AT_ZERO} & {*models} else "")
    sites = {frozenset((run.seed, site) for run in runs for site in run.joining or ()) for runs in rows.values()}
    if len(sites - {frozenset()}) > 1:
        note += f" {UNLIKE_SITES}"
    return JoiningComparison(TextTable(columns, tuple(found), num_text=2), _list_losses(rows), note) if found else None


def _list_losses(rows: Mapping[str, Sequence[Results]]) -> list[str]:
    return [
        f"{name}{f', seed {run.seed}' * (len(runs) > 1)}: {sentence}"
        for name, runs in rows.items()
        for run in runs
        if run.is_finished and run.joining
        for tone, sentence in describe_problems(run)
        if tone == "bad"
    ]


def compare_drift(rows: RowRuns) -> TextTable | None:
    """Return one line a row; None where no run has measured any drift."""
    table = []
    for name, runs in rows.items():
        means = [
            [mean_of_known(getattr(record, key) for record in run.ledger) for run in runs] for key in DRIFT_COLUMNS
        ]
        known = [[mean for mean in of_column if mean is not None] for of_column in means]
        # By digits and not by decimals: drifts are as small as their rates.
        table.append((name, *(mean_and_deviation(of_column, (".3g", ".2g")) for of_column in known)))
    is_measured = any(cell != MISSING for _, *cells in table for cell in cells)
    return TextTable(("row", *DRIFT_COLUMNS), tuple(table)) if is_measured else None
