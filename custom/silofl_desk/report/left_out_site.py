"""A super model at a site that took no part in the training: its table and sentences, printed and on a run's page."""

from collections.abc import Iterator

from silofl.inference.choice import ENSEMBLE
from silofl.inference.unseen import UnseenTest
from silofl.models.roles import GLOBAL
from silofl.report.evaluation_page import evaluation_blocks
from silofl.report.page import Heading, PageSection, Table, Text, make_note, make_section
from silofl.report.tables import TextTable, format_number
from silofl.training.site_score import Counts

CLINIC = "what a clinic would get"
HINDSIGHT = " (best in hindsight: chosen on the test data, shown and never used)"
ANSWERS = {
    "only": "global model",
    "mean": "mean of all sites",
    "ensemble": "super model, ensemble",
    "choice": "super model, most probable model",
}
ALONE = {GLOBAL: "global model alone", ENSEMBLE: "ensemble of all models"}
OWN = {ENSEMBLE: "mean of the own models, were they handed out"}
ALONE_NOTE = (
    "Score over all its cases, with the super model and with each of its models alone. Nobody at the new site could "
    "have known beforehand which is the highest."
)
GAMMA_NOTE = "By threshold (gamma): a site's model answers where its score is above it."


def unseen_section(unseen: UnseenTest | None) -> PageSection | None:
    """Return the section on a site that was left out of the training; None where none was."""
    if unseen is None:
        return None
    has_gamma = unseen.rule == "choice" and unseen.by_threshold
    return make_section(
        "unseen",
        "Left-out site",
        "A site that was left out",
        Text(unseen_sentence(unseen)),
        Table(unseen_table(unseen)),
        make_note(f"{ALONE_NOTE} {GAMMA_NOTE}" if has_gamma else ALONE_NOTE),
        Heading("As silofl evaluate has it"),
        evaluation_blocks(unseen.evaluation),
    )


def unseen_sentence(unseen: UnseenTest) -> str:
    """State the super model's result at a site that took no part in the training."""
    cases, excluded = unseen.evaluation.num_cases, unseen.evaluation.num_excluded
    gamma = unseen.threshold if unseen.rule == "choice" else None
    by = f", with the threshold gamma = {gamma:g} that the training sites found" if gamma is not None else ""
    value = f"{unseen.metric} {format_number(unseen.value)} over {cases} case{'s' * (cases != 1)}"
    without = f" ({excluded} with empty truth and prediction excluded)" if excluded else ""
    place = f"Site {unseen.site} took no part in the training"
    if unseen.num_seen:
        place = (
            f"The sites learnt from {unseen.num_seen} of the {cases} cases of {unseen.site}, which is no unseen site"
        )
    said = f"{place}. There the super model reaches {value}{without}{by}."
    if unseen.num_seen == 0:
        said += " No case was seen in training."
    if unseen.assembled_from:
        said += f" It was put together from {unseen.assembled_from}: only a simulation can do this."
    return said


def unseen_table(unseen: UnseenTest) -> TextTable:
    """Return one row for each way to answer: what a clinic would get, each model alone, and each candidate of gamma."""
    names = [*(unseen.choices or ())]
    columns = ("answer", unseen.metric, *(f"chosen: {name}" for name in names))
    rows = (
        (label, format_number(value), *(_format_share(choices[name], choices) if choices else "" for name in names))
        for label, value, choices in _list_answers(unseen)
    )
    return TextTable(columns, tuple(rows))


def _list_answers(unseen: UnseenTest) -> Iterator[tuple[str, float | None, Counts | None]]:
    """Yield the name of each way to answer, its value, and model -> cases that it is chosen for."""
    is_choice, gamma = unseen.rule == "choice", unseen.threshold
    has_gamma = is_choice and gamma is not None
    answer = f"super model, gamma {gamma:g} ({unseen.threshold_from})" if has_gamma else ANSWERS[unseen.rule]
    yield f"{answer}: {CLINIC}", unseen.value, unseen.choices
    for name, value in unseen.models.items():
        yield ALONE.get(name, f"model of {name} alone"), value, None
    for name, value in (unseen.own or {}).items():
        yield OWN.get(name, f"own model of {name}"), value, None
    for test in unseen.by_threshold if is_choice else ():
        label = f"super model, gamma {test.threshold:g}" + HINDSIGHT * (test == unseen.best_in_hindsight)
        yield label, test.value, test.choices


def _format_share(part: int, choices: Counts) -> str:
    total = sum(choices.values())
    return f"{part} ({part / total:.0%})" if total else str(part)
