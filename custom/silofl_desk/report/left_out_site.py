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
OWN_ANSWERS = {ENSEMBLE: "mean of the local models, were they handed out"}
ALONE_NOTE = (
    "Score over all its cases: of the super model as silofl evaluate has it, at the size of the files; of each of its "
    "models alone on the prepared images, at the usual threshold. Nobody at the new site could have known beforehand "
    "which is the highest."
)


def unseen_section(unseen: UnseenTest | None, method: str) -> PageSection | None:
    """Return the section on a site that was left out of the training; None where none was."""
    if unseen is None:
        return None
    # Without the local models there is nothing to compare with.
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
    cases = unseen.evaluation.num_cases
    excluded = unseen.evaluation.num_excluded
    value = f"{unseen.metric} {format_number(unseen.value)} over {cases} {'case' if cases == 1 else 'cases'}"
    if excluded:
        value += f" ({excluded} with empty truth and prediction excluded)"
    if unseen.rule == "choice" and unseen.threshold is not None:
        value += f", with the threshold gamma = {unseen.threshold:g} that the training sites found"
    text = f"Site {unseen.site} took no part in the training. There the super model reaches {value}."
    if unseen.choices:
        listed = ", ".join(f"{name} {count}" for name, count in unseen.choices.items())
        text += f" Cases by the model that was chosen for them: {listed}."
    if unseen.assembled_from:
        text += f" It was put together from {unseen.assembled_from}: only a simulation can do this."
    return text


def unseen_table(unseen: UnseenTest) -> TextTable:
    """Return one row for each way to answer: what a clinic would get, and each model alone."""
    # A super model that chooses is named by its threshold, on which its answers depend.
    answer = ANSWERS[unseen.rule]
    if unseen.rule == "choice" and unseen.threshold is not None:
        answer = f"super model, gamma {unseen.threshold:g}"
    rows = [(f"{answer}: {CLINIC}", format_number(unseen.value))]
    for name, value in unseen.models.items():
        rows.append((ALONE.get(name, f"model of {name} alone"), format_number(value)))
    for name, value in (unseen.own or {}).items():
        rows.append((OWN_ANSWERS.get(name, f"local model of {name}"), format_number(value)))
    return TextTable(("answer", unseen.metric), tuple(rows))


def conclude_unseen(found: UnseenTests) -> Iterator[str]:
    """Say of each hospital that took no part what the local and the federated models of the others score there."""
    for (site, _), methods in found.items():
        means = {}
        alone: list[float | None] = []
        together: list[float | None] = []
        for method, tests in methods.items():
            means[method] = float(np.mean([test.value for test in tests]))
            for test in tests:
                scores = dict(test.own or {})
                # Averaging the local models' answers is no model that a hospital has.
                together.append(scores.pop(ENSEMBLE, None))
                alone += scores.values()
        best = max(means, key=means.__getitem__)
        worst = min(means, key=means.__getitem__)
        federated = f"federated model {means[best]:.3f} ({best})"
        if worst != best:
            federated = f"federated models {means[worst]:.3f} ({worst}) to {means[best]:.3f} ({best})"
        parts = [federated]
        if alone or any(value is not None for value in together):
            means_of_answers = f"the mean of their answers {_format_range(together)}"
            parts = [f"the others' local models {_format_range(alone)}", means_of_answers, federated]
        yield f"At {site}, which took no part in the training: {', '.join(parts)}."


def _format_range(values: Iterable[float | None]) -> str:
    """Return the least and the largest of the values that are known."""
    # Numbers that look the same are one: "0.700 to 0.700" would be no range.
    numbers = sorted({format_number(value) for value in values if value is not None}, key=float)
    return " to ".join(dict.fromkeys((numbers[0], numbers[-1]))) if numbers else MISSING


def group_unseen(rows: RowRuns) -> UnseenTests:
    """Return hospital that took no part and metric -> name of the row -> its tests there that have a value."""
    grouped: UnseenTests = {}
    for name, runs in rows.items():
        for run in runs:
            test = run.unseen
            if test and test.value is not None:
                grouped.setdefault((test.site, test.metric), {}).setdefault(name, []).append(test)
    return grouped
