"""The conditions of runs, their settings and their data: as tables, and sentences on what differs between runs."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from silofl.data.manifest import PARTS
from silofl.federation.results import Results
from silofl.inference.directory import plain_study
from silofl.report.run_records import RunRecords, pretrained_digest, run_names
from silofl.report.tables import TextTable
from silofl.settings import setting_text

T = TypeVar("T")
# Name of a row -> its runs, one for each seed.
RowRuns = Mapping[str, Sequence[RunRecords]]
UNITS = {"cases": "cases", "patients": "patients", "examples": "images"}
UNKNOWN, NOT_SET = "unknown", "not set"
# Which run it is, and what a row of a comparison exists to show.
NOT_COMPARED = ("name", "continue_run", "seed", "algorithm")
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


def all_settings(run: RunRecords) -> dict[str, str]:
    """Return dotted key -> value of all that the run's study decides; of a run without its study what is known."""
    known = (flat_settings(plain_study(run.study)) if run.study else {}) | _known_settings(run.results)
    sections = list(dict.fromkeys(key.partition(".")[0] for key in known))
    return dict(sorted(known.items(), key=lambda item: sections.index(item[0].partition(".")[0])))


def settings_rows(runs: RowRuns) -> tuple[list[tuple[str, str]], TextTable | None, list[tuple[str, str]]]:
    """Return the settings that all runs share, a table of those in which they differ, and those of some rows alone.

    The table has one row per setting that all rows have, and one column per row of the runs; None without any. A
    setting of some rows alone, as another algorithm's, is its value with the rows that have it.
    """
    found = {name: [all_settings(run) for run in of_row] for name, of_row in runs.items()}
    keys = dict.fromkeys(key for settings in found.values() for one in settings for key in one)
    shared, others, partial = [], [], []
    for key in keys:
        groups = group_rows_by_value(found, lambda one, key=key: one.get(key))
        cells = [", ".join(dict.fromkeys(one[key] for one in settings if key in one)) for settings in found.values()]
        if not all(cells):
            partial.append((key, list_groups(groups)))
        elif len(groups) > 1:
            others.append((key, *cells))
        else:
            shared.append((key, cells[0]))
    table = TextTable(("setting", *runs), tuple(others), num_text=1 + len(runs)) if others else None
    return shared, table, partial


def data_table(run: RunRecords) -> TextTable | None:
    """Return one row a site: cases, patients and 2D images of each part; None of a run without any site."""
    head = (f"{part}: {name}" for part in PARTS for name in UNITS.values())
    rows = tuple((site, *map(_count_text, _count_data(run, site).values())) for site in run.sites)
    return TextTable(("site", *head), rows) if rows else None


def data_doubts(runs: Iterable[RunRecords]) -> list[str]:
    """Return what should be looked at of the sites' data, as ``site: sentence``; simulations alone know it."""
    return list(dict.fromkeys(f"{site}: {text}" for run in runs for site in run.data for text in run.data[site].doubts))


def data_tables(runs: RowRuns) -> dict[str, TextTable]:
    """Return the rows with the same data, as ``a, b`` -> the data table of one run; a run without any site has none."""
    tables: dict[tuple[tuple[str, ...], ...], tuple[list[str], TextTable]] = {}
    for name, of_row in runs.items():
        table = data_table(of_row[0])
        if table is not None:
            tables.setdefault(table.rows, ([], table))[0].append(name)
    return {", ".join(names): table for names, table in tables.values()}


def list_differences(runs: RowRuns, known: Collection[str] = ()) -> list[str]:
    """Return a sentence on each setting, on pretrained models and on the data, where rows differ besides the algorithm.

    Args:
        runs: Of each row.
        known: Dotted keys, or ``data``, in which the rows' names say that they differ.
    """
    data = [] if "data" in known else _data_differences(runs)
    return [*_setting_differences(runs, known), *_pretrained_differences(runs), *data, *_studies_missing(runs)]


def _setting_differences(runs: RowRuns, known: Collection[str]) -> Iterator[str]:
    settings = {id(run): _compared_settings(run) for of_row in runs.values() for run in of_row}
    for key in dict.fromkeys(key for values in settings.values() for key in values if key not in known):

        def value(run: RunRecords, key: str = key) -> str | None:
            return settings[id(run)].get(key, NOT_SET if run.study else None)

        groups = group_rows_by_value(runs, value)
        if len(groups) > 1:
            meaning = f"; {MEANINGS[key]}" if key in MEANINGS else ""
            yield f"The rows differ in {key}: {list_groups(groups)}{meaning}."


def _pretrained_differences(runs: RowRuns) -> Iterator[str]:
    groups = group_rows_by_value(runs, pretrained_digest)
    if len(groups) > 1:
        yield f"The rows differ in the pretrained model, by its SHA-256: {list_groups(groups)}."


def _data_differences(runs: RowRuns) -> Iterator[str]:
    sites = group_rows_by_value(runs, lambda run: ", ".join(run.sites) or None)
    if len(sites) > 1:
        yield f"The rows differ in sites: {list_groups(sites)}."
    records = [run for of_row in runs.values() for run in of_row]
    other = [site for site in sorted({s for run in records for s in run.sites}) if _has_other_data(records, site)]
    if other:
        groups = group_rows_by_value(runs, lambda run: ", ".join(f"{site} {_cases_text(run, site)}" for site in other))
        yield f"The rows differ in data (cases in training / validation / test): {list_groups(groups)}."


def _studies_missing(runs: RowRuns) -> Iterator[str]:
    names = [name for name, of_row in runs.items() if any(run.study is None for run in of_row)]
    if names and len(runs) > 1:
        yield f"What else differs is not known of {', '.join(names)}: the folder holds no study.yaml."


def group_rows_by_value(runs: Mapping[str, Sequence[T]], value: Callable[[T], str | None]) -> dict[str, list[str]]:
    """Return value -> the rows with a run of this value; None, a value that is not known, makes no group."""
    groups: dict[str, list[str]] = {}
    for name, of_row in runs.items():
        for text in dict.fromkeys(map(value, of_row)):
            if text is not None:
                groups.setdefault(text, []).append(name)
    return groups


def list_groups(groups: Mapping[str, Sequence[str]]) -> str:
    """List values, each with its rows."""
    return "; ".join(f"{text} ({', '.join(names)})" for text, names in groups.items())


def flat_settings(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return dotted key -> text of the values of a study; its labels, regions and transforms are one value each."""
    flat: dict[str, str] = {}
    for key, value in values.items():
        # Their keys are numbers and names of the study's own; one by one they would read as settings of SiloFL.
        if isinstance(value, Mapping) and key not in ("labels", "regions"):
            flat |= flat_settings(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = setting_text(value)
    return flat


def _compared_settings(run: RunRecords) -> dict[str, str]:
    settings = {key: text for key, text in all_settings(run).items() if key.partition(".")[0] not in NOT_COMPARED}
    # The extra ones are a key of the algorithm, and rounds of the run all the same.
    total = (run.results.rounds or 0) + (run.results.recipe_value("extra_rounds") or 0)
    return settings | ({"rounds": str(total)} if total else {})


def _known_settings(results: Results) -> dict[str, str]:
    """Return the settings that a result repeats, its algorithm's defaults among them."""
    answers = {key: value for key, value in results.recipe.items() if key not in ("questions", "cautions", "constants")}
    known = {
        "rounds": results.rounds,
        "seed": results.seed,
        "metric": results.metric,
        "data": {"split_unit": results.split_unit},
        "model": {"normalization": results.normalization},
        "algorithm": {"name": results.algorithm, "preset": results.preset, **answers},
    }
    known["algorithm"] |= results.recipe.get("constants", {})
    return {key: text for key, text in flat_settings(known).items() if text != "null"}


def _count_data(run: RunRecords, site: str) -> dict[tuple[str, str], int | None]:
    """Return (part, unit) -> count; where a run has no data.json, what sites told of themselves."""
    if site in run.data:
        parts = {part: getattr(run.data[site], part) for part in PARTS}
        return {(part, unit): getattr(counts, unit) for part, counts in parts.items() for unit in UNITS}
    counts = dict.fromkeys((part, unit) for part in PARTS for unit in UNITS)
    tested, validated = run.results.tested, run.results.tested.validation.get(site)
    if site in tested.cases:
        counts["test", "cases"] = tested.cases[site] + tested.excluded_cases.get(site, 0)
    if validated is not None:
        counts["validation", "cases"] = validated.num_cases + validated.num_excluded
    examples = [record.examples[site] for record in run.ledger if site in record.examples]
    return counts | {("training", "examples"): examples[-1] if examples else None}


def _has_other_data(runs: Sequence[RunRecords], site: str) -> bool:
    """Return whether the runs that know it have different data of a site."""
    known = [(_data_digest(run, site), *_count_data(run, site).values()) for run in runs if site in run.sites]
    # A record of an older version lacks some of them, which is no difference.
    return any(len({*values} - {None}) > 1 for values in zip(*known, strict=True))


def _data_digest(run: RunRecords, site: str) -> str | None:
    return run.data[site].digest if site in run.data else None


def _cases_text(run: RunRecords, site: str) -> str:
    if site not in run.sites:
        return "none"
    sizes, digest = _count_data(run, site), _data_digest(run, site)
    cases = " / ".join(_count_text(sizes[part, "cases"]) for part in PARTS)
    return f"{cases}, dataset.json {digest[:8]}" if digest else cases


def _count_text(count: int | None) -> str:
    return UNKNOWN if count is None else str(count)
