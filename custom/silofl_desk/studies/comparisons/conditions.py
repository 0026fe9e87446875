"""What differs between compared runs besides their algorithms: settings and data."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TypeVar

from silofl.data.manifest import PARTS
from silofl_desk.report.run_records import RowRuns, RunRecords, all_settings, count_data, describe_count

T = TypeVar("T")
NOT_SET = "not set"
# These keys say which run it is, or are what a row of a comparison exists to show.
NOT_COMPARED = ("name", "continue_run", "seed", "algorithm")
NORMALIZATION = "model.normalization"


def rows_by_name(runs: Sequence[RunRecords]) -> dict[str, list[RunRecords]]:
    """Return each run as a row of its own, named as in `run_names`."""
    return {name: [run] for name, run in run_names(runs).items()}


def list_differences(rows: RowRuns) -> list[str]:
    """Return a sentence on each setting and on the data in which rows differ besides the algorithm."""
    runs = list(chain(*rows.values()))
    settings = {id(run): _compared_settings(run) for run in runs}
    values: dict[str, Callable[[RunRecords], str | None]] = {}
    for key in chain(*settings.values()):
        values[key] = partial(_find_setting, settings, key)
    values["sites"] = lambda run: ", ".join(run.sites) or None
    for site in sorted(set(chain.from_iterable(run.sites for run in runs))):
        if has_other_data(runs, site):
            values[f"the data of {site}"] = partial(_describe_data, site)
    sentences = []
    for condition, value in values.items():
        groups = group_rows_by_value(rows, value)
        if len(groups) > 1:
            sentences.append(f"The rows differ in {condition}: {format_groups(groups)}.")
    return sentences


def _find_setting(settings: Mapping[int, Mapping[str, str]], key: str, run: RunRecords) -> str | None:
    # BatchNorm that a method keeps at home is part of the method.
    keeps_batchnorm = run.results.normalization == "batch" and run.results.recipe.get("stays") == "batchnorm"
    if key == NORMALIZATION and keeps_batchnorm:
        return None
    return settings[id(run)].get(key, NOT_SET if run.study else None)


def _describe_data(site: str, run: RunRecords) -> str | None:
    """Return the cases in training, validation and test, and the digests of dataset.json and of all files."""
    if site not in run.sites:
        return None
    counts = count_data(run, site)
    texts = [" / ".join(describe_count(counts[part, "cases"]) for part in PARTS) + " cases"]
    # The beginning of a digest is enough to tell two from each other.
    texts += [digest[:8] for digest in _data_digests(run, site) if digest]
    return ", ".join(texts)


def group_rows_by_value(rows: Mapping[str, Sequence[T]], value: Callable[[T], str | None]) -> dict[str, list[str]]:
    """Return value -> the rows with a run of this value; None, a value that is not known, makes no group."""
    groups: dict[str, list[str]] = {}
    for name, runs in rows.items():
        for text in dict.fromkeys(map(value, runs)):
            if text is not None:
                groups.setdefault(text, []).append(name)
    return groups


def describe_groups(rows: Mapping[str, Sequence[T]], say: Callable[[T], str]) -> str:
    """Return the text that all runs share, or each text with its rows."""
    groups = group_rows_by_value(rows, say)
    return format_groups(groups) if len(groups) > 1 else next(iter(groups), "-")


def format_groups(groups: Mapping[str, Sequence[str]]) -> str:
    """List values, each with its rows."""
    return "; ".join(f"{text} ({', '.join(names)})" for text, names in groups.items())


def _compared_settings(run: RunRecords) -> dict[str, str]:
    settings = {key: text for key, text in all_settings(run).items() if key.partition(".")[0] not in NOT_COMPARED}
    # The extra ones are a key of the algorithm, and rounds of the run all the same.
    total = (run.results.rounds or 0) + (run.results.recipe.get("extra_rounds") or 0)
    if total:
        settings["rounds"] = str(total)
    return settings


def has_other_data(runs: Sequence[RunRecords], site: str) -> bool:
    """Return whether the runs that know it have different data of a site."""
    data = [(*_data_digests(run, site), *count_data(run, site).values()) for run in runs if site in run.sites]
    # A record of an older version lacks some of them, which is no difference.
    return any(len({*values} - {None}) > 1 for values in zip(*data, strict=True))


def _data_digests(run: RunRecords, site: str) -> tuple[str | None, str | None]:
    return (run.data[site].digest, run.data[site].content) if site in run.data else (None, None)


def run_names(runs: Sequence[RunRecords]) -> dict[str, RunRecords]:
    """Return name -> run: its number and algorithm, with preset and seed where algorithms are alike."""
    algorithms = [run.results.algorithm or run.path.name for run in runs]
    are_unique = len({*algorithms}) == len(runs)
    shows_preset = not are_unique and len({run.results.preset for run in runs}) > 1
    shows_seed = not are_unique and len({run.results.seed for run in runs}) > 1
    names = {}
    for number, (algorithm, run) in enumerate(zip(algorithms, runs, strict=True), start=1):
        name = f"{number}: {algorithm}"
        if shows_preset:
            name += f" {run.results.preset}"
        if shows_seed:
            name += f" seed {run.results.seed}"
        names[name] = run
    return names
