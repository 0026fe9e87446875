"""A super model at a site that took no part in the training: its table and sentences."""

from collections.abc import Iterable, Iterator

import numpy as np

from silofl.inference.choice import ENSEMBLE
from silofl.models.roles import GLOBAL
from silofl_desk.report.run_records import RowRuns
from silofl_desk.report.unseen import UnseenTest
from silofl_hospital.report.evaluation_page import evaluation_blocks
from silofl_hospital.report.page import Heading, PageSection, Table, Text, make_note, make_section
from silofl_hospital.report.tables import MISSING, TextTable, format_number

# Hospital that took no part and metric -> name of the method -> its tests there.
UnseenTests = dict[tuple[str, str], dict[str, list[UnseenTest]]]
CLINIC = "what a clinic would get"
ANSWERS = {
    "only": "global model",
    "mean": "mean of all sites",
    "ensemble": "super model, ensemble",
    "choice": "super model, most probable model",
}
ALONE = {GLOBAL: "global model alone", ENSEMBLE: "ensemble of all models"}
OWN_ANSWERS = {ENSEMBLE: "mean of the own models, were they handed out"}
ALONE_NOTE = (
    "Score over all its cases: of the super model as silofl evaluate has it, at the size of the files; of each of its "
    "models alone on the prepared images, at the usual threshold. Nobody at the new site could have known beforehand "
    "which is the highest."
)


def unseen_section(unseen: UnseenTest | None, method: str) -> PageSection | None:
    """Return the section on a site that was left out of the training; None where none was."""
    if unseen is None:
        return None
    is_compared = unseen.own and unseen.value is not None
    lead = conclude_unseen({(unseen.site, unseen.metric): {method: [unseen]}}) if is_compared else ()
    return make_section(
        "unseen",
        "Left-out site",
        "A site that was left out",
        [Text(sentence, "lead") for sentence in lead],
        Text(unseen_sentence(unseen)),
        Table(unseen_table(unseen)),
        make_note(ALONE_NOTE),
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
    said = f"Site {unseen.site} took no part in the training. There the super model reaches {value}{without}{by}."
    if unseen.choices:
        listed = ", ".join(f"{name} {count}" for name, count in unseen.choices.items())
        said += f" Cases by the model that was chosen for them: {listed}."
    if unseen.assembled_from:
        said += f" It was put together from {unseen.assembled_from}: only a simulation can do this."
    return said


def unseen_table(unseen: UnseenTest) -> TextTable:
    """Return one row for each way to answer: what a clinic would get, and each model alone."""
    answer = ANSWERS[unseen.rule]
    if unseen.rule == "choice" and unseen.threshold is not None:
        answer = f"super model, gamma {unseen.threshold:g}"
    rows = [(f"{answer}: {CLINIC}", format_number(unseen.value))]
    for name, value in unseen.models.items():
        rows.append((ALONE.get(name, f"model of {name} alone"), format_number(value)))
    for name, value in (unseen.own or {}).items():
        rows.append((OWN_ANSWERS.get(name, f"own model of {name}"), format_number(value)))
    return TextTable(("answer", unseen.metric), tuple(rows))


def conclude_unseen(found: UnseenTests) -> Iterator[str]:
    """Say of each hospital that took no part what the own models of the others score there, and the federated ones."""
    for (site, _), tests in found.items():
        means = {name: float(np.mean([one.value for one in several])) for name, several in tests.items()}
        best, worst = max(means, key=means.__getitem__), min(means, key=means.__getitem__)
        low = "" if worst == best else f"{means[worst]:.3f} ({worst}) to "
        scores = [f"federated {'models' if low else 'model'} {low}{means[best]:.3f} ({best})"]
        if own := [one.own for several in tests.values() for one in several if one.own]:
            alone = _format_range(value for one in own for name, value in one.items() if name != ENSEMBLE)
            together = _format_range(one.get(ENSEMBLE) for one in own)
            scores = [f"the others' own models {alone}", f"the mean of their answers {together}", *scores]
        yield f"At {site}, which took no part in the training: {', '.join(scores)}."


def _format_range(values: Iterable[float | None]) -> str:
    """Return the least and the largest of the values that are known."""
    known = sorted({format_number(value) for value in values if value is not None}, key=float)
    return " to ".join(dict.fromkeys((known[0], known[-1]))) if known else MISSING


def group_unseen(rows: RowRuns) -> UnseenTests:
    """Return hospital that took no part and metric -> name of the row -> its tests there that have a value."""
    found: UnseenTests = {}
    for name, runs in rows.items():
        for test in (run.unseen for run in runs if run.unseen and run.unseen.value is not None):
            found.setdefault((test.site, test.metric), {}).setdefault(name, []).append(test)
    return found
