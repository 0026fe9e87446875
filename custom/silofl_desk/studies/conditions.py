"""What differs between compared runs besides their algorithms: settings and data."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from silofl.data.manifest import PARTS
from silofl.federation.results import Results
from silofl_desk.report.run_records import (
    RowRuns,
    RunRecords,
    all_settings,
    count_data,
    data_table,
    describe_count,
)
from silofl_hospital.report.tables import MISSING, TextTable

T = TypeVar("T")
NOT_SET = "not set"
# Which run it is, and what a row of a comparison exists to show.
NOT_COMPARED = ("name", "continue_run", "seed", "algorithm")
NORMALIZATION = "model.normalization"
# A choice of the study's that goes with any algorithm.
RULE = "algorithm.robust.rule"
MEANINGS = {
    "rounds": "more of them are more training",
    "metric": "their values measure different things",
    "data.split_unit": "values are higher where a patient is in training and test",
    "labels": "their values measure different things",
    "regions": "their values measure different things",
}


def rows_by_name(runs: Sequence[RunRecords]) -> dict[str, list[RunRecords]]:
    """Return each run as a row of its own, named as in `run_names`."""
    return {name: [run] for name, run in run_names(runs).items()}


def results_by_row(rows: RowRuns) -> dict[str, list[Results]]:
    """Return the results of each row's runs."""
    return {name: [run.results for run in of_row] for name, of_row in rows.items()}


def settings_rows(runs: RowRuns) -> tuple[list[tuple[str, str]], TextTable | None]:
    """Return the settings that all runs share, and a table of the others with one column per row of the runs.

    A row that lacks a setting, as another algorithm's, has a dash there; None without any that differs.
    """
    found = {name: [all_settings(run) for run in of_row] for name, of_row in runs.items()}
    keys = dict.fromkeys(key for settings in found.values() for one in settings for key in one)
    shared, others = [], []
    for key in keys:
        values = {name: dict.fromkeys(one.get(key, MISSING) for one in of_row) for name, of_row in found.items()}
        cells = [", ".join(of_row) for of_row in values.values()]
        if len({*cells}) > 1:
            others.append((key, *cells))
        else:
            shared.append((key, cells[0]))
    table = TextTable(("setting", *runs), tuple(others), num_text=1 + len(runs)) if others else None
    return shared, table


def data_tables(runs: RowRuns) -> dict[str, TextTable]:
    """Return the rows with the same data, as ``a, b`` -> the data table of one run; a run without any site has none."""
    tables: dict[tuple[tuple[str, ...], ...], tuple[list[str], TextTable]] = {}
    for name, of_row in runs.items():
        table = data_table(of_row[0])
        if table is not None:
            tables.setdefault(table.rows, ([], table))[0].append(name)
    return {", ".join(names): table for names, table in tables.values()}


def list_differences(runs: RowRuns) -> list[str]:
    """Return a sentence on each setting and on the data in which rows differ besides the algorithm."""
    return [*_setting_differences(runs), *_data_differences(runs)]


def _setting_differences(runs: RowRuns) -> Iterator[str]:
    settings = {id(run): _compared_settings(run) for of_row in runs.values() for run in of_row}
    for key in dict.fromkeys(key for values in settings.values() for key in values):

        def value(run: RunRecords, key: str = key) -> str | None:
            return settings[id(run)].get(key, NOT_SET if run.study else None)

        rows = runs
        if key == NORMALIZATION:
            rows = {name: of_row for name, of_row in runs.items() if not all(map(_keeps_batchnorm, of_row))}
        groups = group_rows_by_value(rows, value)
        if len(groups) > 1:
            meaning = f"; {MEANINGS[key]}" if key in MEANINGS else ""
            yield f"The rows differ in {key}: {format_groups(groups)}{meaning}."


def _keeps_batchnorm(run: RunRecords) -> bool:
    """Return whether a run has BatchNorm because its method keeps this at home."""
    return run.results.normalization == "batch" and run.results.recipe.get("stays_home") == "batchnorm"


def _data_differences(runs: RowRuns) -> Iterator[str]:
    sites = group_rows_by_value(runs, lambda run: ", ".join(run.sites) or None)
    if len(sites) > 1:
        yield f"The rows differ in sites: {format_groups(sites)}."
    records = [run for of_row in runs.values() for run in of_row]
    other = [site for site in sorted({s for run in records for s in run.sites}) if has_other_data(records, site)]
    if other:
        groups = group_rows_by_value(runs, lambda run: ", ".join(f"{site} {_cases_text(run, site)}" for site in other))
        yield f"The rows differ in data (cases in training / validation / test): {format_groups(groups)}."


def group_rows_by_value(runs: Mapping[str, Sequence[T]], value: Callable[[T], str | None]) -> dict[str, list[str]]:
    """Return value -> the rows with a run of this value; None, a value that is not known, makes no group."""
    groups: dict[str, list[str]] = {}
    for name, of_row in runs.items():
        for text in dict.fromkeys(map(value, of_row)):
            if text is not None:
                groups.setdefault(text, []).append(name)
    return groups


def describe_groups(runs: Mapping[str, Sequence[T]], say: Callable[[T], str]) -> str:
    """Return the text that all runs share, or each text with its rows."""
    groups = group_rows_by_value(runs, say)
    return format_groups(groups) if len(groups) > 1 else next(iter(groups), "-")


def format_groups(groups: Mapping[str, Sequence[str]]) -> str:
    """List values, each with its rows."""
    return "; ".join(f"{text} ({', '.join(names)})" for text, names in groups.items())


def _compared_settings(run: RunRecords) -> dict[str, str]:
    settings = {
        key: text for key, text in all_settings(run).items() if key == RULE or key.partition(".")[0] not in NOT_COMPARED
    }
    # The extra ones are a key of the algorithm, and rounds of the run all the same.
    total = (run.results.rounds or 0) + (run.results.recipe.get("extra_rounds") or 0)
    return settings | ({"rounds": str(total)} if total else {})


def has_other_data(runs: Sequence[RunRecords], site: str) -> bool:
    """Return whether the runs that know it have different data of a site."""
    known = [(*_data_digests(run, site), *count_data(run, site).values()) for run in runs if site in run.sites]
    # A record of an older version lacks some of them, which is no difference.
    return any(len({*values} - {None}) > 1 for values in zip(*known, strict=True))


def _data_digests(run: RunRecords, site: str) -> tuple[str | None, str | None]:
    return (run.data[site].digest, run.data[site].content) if site in run.data else (None, None)


def _cases_text(run: RunRecords, site: str) -> str:
    if site not in run.sites:
        return "none"
    sizes, (digest, content) = count_data(run, site), _data_digests(run, site)
    cases = " / ".join(describe_count(sizes[part, "cases"]) for part in PARTS)
    files = f", with its files {content[:8]}" if content else ""
    return f"{cases}, dataset.json {digest[:8]}{files}" if digest else cases


def run_names(runs: Sequence[RunRecords]) -> dict[str, RunRecords]:
    """Return name -> run: its row in the table, its algorithm, and preset and seed where algorithms are alike."""
    algorithms = [run.results.algorithm or run.path.name for run in runs]
    if len({*algorithms}) == len(runs):
        return {f"{i}: {name}": run for i, (name, run) in enumerate(zip(algorithms, runs, strict=True), start=1)}
    differs = {key: len({getattr(run.results, key) for run in runs}) > 1 for key in ("preset", "seed")}
    names = {}
    for i, (name, run) in enumerate(zip(algorithms, runs, strict=True), start=1):
        words = [f"{i}: {name}"]
        words += [str(run.results.preset)] * differs["preset"] + [f"seed {run.results.seed}"] * differs["seed"]
        names[" ".join(words)] = run
    return names
