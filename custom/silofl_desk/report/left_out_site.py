"""A super model at a site that took no part in the training: its table and sentences, printed and on a run's page."""

from collections.abc import Iterator, Sequence

from rich.console import Console

from silofl.inference.choice import ENSEMBLE
from silofl.inference.unseen import SelectorTest, UnseenTest
from silofl.models.roles import GLOBAL
from silofl.report.evaluation_page import evaluation_blocks, evaluation_tables, summary_lines
from silofl.report.page import Items, PageSection, Table, Text, make_note, make_section
from silofl.report.tables import TextTable, format_number, print_lines, print_table
from silofl.training.site_score import Counts

CLINIC = "what a clinic would get"
HINDSIGHT = "best in hindsight: chosen on the test data, shown and never used"
_ALONE = {GLOBAL: "global model alone", ENSEMBLE: "ensemble of all models"}
ALONE_NOTE = (
    "Score over all its cases, with the super model and with each of its models alone. Nobody at the new site could "
    "have known beforehand which is the highest."
)
GAMMA_NOTE = "by threshold (gamma): a site's model answers where its score is above it"


def unseen_section(unseen: UnseenTest | None) -> PageSection | None:
    """Return the section on a site that was left out of the training; None where none was."""
    if unseen is None:
        return None
    by_threshold, found = gamma_table(unseen), unseen.evaluation
    return make_section(
        "unseen",
        "Left-out site",
        "A site that was left out",
        Text(unseen_sentence(unseen)),
        Table(unseen_table(unseen)),
        make_note(ALONE_NOTE),
        [Table(by_threshold), make_note(GAMMA_NOTE)] if by_threshold else None,
        [Items(summary_lines(found)), *evaluation_blocks(found)] if found else None,
    )


def unseen_sentence(unseen: UnseenTest) -> str:
    """State the super model's result at a site that took no part in the training."""
    cases, gamma = unseen.num_cases, unseen.choosing.threshold if unseen.choosing else None
    by = f", with the threshold gamma = {gamma:g} that the training sites found" if gamma is not None else ""
    value = f"{unseen.metric} {format_number(unseen.value)} over {cases} case{'s' * (cases != 1)}"
    place = f"Site {unseen.site} took no part in the training"
    if unseen.num_seen:
        place = (
            f"The sites learnt from {unseen.num_seen} of the {cases} cases of {unseen.site}, which is no unseen site"
        )
    return f"{place}. There the super model reaches {value}{by}."


def unseen_table(unseen: UnseenTest) -> TextTable:
    """Return one row for each way to answer, first the one that a clinic would get, then each model alone."""
    if unseen.selector is None:
        return TextTable(("answer", unseen.metric), tuple(_plain_rows(unseen)))
    sites = [name for name in unseen.models if name not in (GLOBAL, ENSEMBLE)]
    models = [*([GLOBAL] if GLOBAL in unseen.models else []), *sites]
    columns = ("answer", unseen.metric, *(f"chosen: {name}" for name in models))
    alone = [(_single_model_label(name), format_number(unseen.models[name])) for name in (*models, ENSEMBLE)]
    empty = [""] * len(models)
    others = tuple((*row, *empty) for row in (*alone, *_own_rows(unseen)))
    return TextTable(columns, (*_super_rows(unseen, unseen.selector, models), *others))


def gamma_table(unseen: UnseenTest) -> TextTable | None:
    """Return one row for each candidate of gamma: the value, and how many cases the global model answers.

    No value is marked as the best: no threshold may be chosen on these cases. None where no candidate was tried.
    """
    tests = unseen.choosing.by_threshold if unseen.choosing else ()
    rows = tuple(
        (f"{test.threshold:g}", format_number(test.value), _percent(test.choices[GLOBAL], unseen.num_cases))
        for test in tests
    )
    return TextTable(("gamma", unseen.metric, "chosen: global"), rows, num_text=0) if rows else None


def print_unseen(unseen: UnseenTest, console: Console) -> None:
    """Print the super model's result at a site that was left out, with each way to answer."""
    excluded = unseen.num_cases - unseen.num_counted
    without = f" ({excluded} with empty truth and prediction excluded)" if excluded else ""
    seen = "" if unseen.num_seen is None else f", {unseen.num_seen or 'none'} of them seen in training"
    lines = ["", f"unseen site {unseen.site}: {unseen.num_cases} cases{without}{seen}"]
    if unseen.assembled_from:
        lines.append(f"the super model was put together from {unseen.assembled_from}: only a simulation can do this")
    print_lines([*lines, f"metric: {unseen.metric}"], console)
    print_table(unseen_table(unseen), console)
    if unseen.evaluation:
        print_lines(["", "as silofl evaluate has it", *summary_lines(unseen.evaluation)], console)
        for name, table in evaluation_tables(unseen.evaluation).items():
            print_lines(["", name], console)
            print_table(table, console)
    if by_threshold := gamma_table(unseen):
        print_lines(["", GAMMA_NOTE], console)
        print_table(by_threshold, console)


def _super_rows(unseen: UnseenTest, selector: SelectorTest, models: Sequence[str]) -> list[tuple[str, ...]]:
    def row(label: str, value: float | None, choices: Counts) -> tuple[str, ...]:
        chosen = (_percent(choices[name] if name in choices else 0, unseen.num_cases) for name in models)
        return label, format_number(value), *chosen

    if selector.answer == "ensemble":
        return [row(f"super model, ensemble: {CLINIC}", unseen.value, selector.choices)]
    if selector.threshold is None:
        return [row(f"super model, most probable model: {CLINIC}", unseen.value, selector.choices)]
    # The candidates of the threshold are sorted and begin with 0.
    used, lowest = f"gamma {selector.threshold:g} ({selector.threshold_from})", selector.by_threshold[0]
    rows = [row(f"super model, {used}: {CLINIC}", unseen.value, selector.choices)]
    rows.append(row("super model, gamma 0 (always a site's model)", lowest.value, lowest.choices))
    best = selector.best_in_hindsight
    if best:
        rows.append(row(f"super model, gamma {best.threshold:g} ({HINDSIGHT})", best.value, best.choices))
    return rows


def _plain_rows(unseen: UnseenTest) -> list[tuple[str, str]]:
    name = "global model" if unseen.rule == "only" else "mean of all sites"
    rows = [(f"{name}: {CLINIC}", format_number(unseen.value))]
    rows += ((_single_model_label(name), format_number(value)) for name, value in unseen.models.items())
    return [*rows, *_own_rows(unseen)]


def _own_rows(unseen: UnseenTest) -> Iterator[tuple[str, str]]:
    """Yield the hospitals' own models there, and the mean of their answers."""
    if unseen.own:
        yield "mean of the own models, were they handed out", format_number(unseen.own.value)
        yield from ((f"own model of {site}", format_number(value)) for site, value in unseen.own.models.items())


def _single_model_label(name: str) -> str:
    return _ALONE[name] if name in _ALONE else f"model of {name} alone"


def _percent(part: int, total: int) -> str:
    return f"{part} ({part / total:.0%})" if total else str(part)
