"""Tables and sentences for a run with FedSM's selector, and for a super model's test at a site that never trained."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from silofl.federation.results import Results, SuperResults
from silofl.inference.unseen import UnseenTest
from silofl.report.comparison import compared_sites
from silofl.report.maps import feature_image
from silofl.report.run_records import RunRecords
from silofl.report.tables import (
    TextTable,
    case_metric,
    format_count,
    format_number,
    tested_sites,
)
from silofl.training.metrics import mean_of_known
from silofl.training.site_score import Counts, Values

GLOBAL, PERSONAL, SUPER, ENSEMBLE = "global", "personal", "super", "ensemble"
MODELS = (GLOBAL, PERSONAL, SUPER, ENSEMBLE)
_RIVALS = {PERSONAL: "the site's own personalised model", GLOBAL: "the global model"}
_SINGLE = {
    "everything": "local: each site alone",
    "batchnorm": "global but for BatchNorm",
    "head": "global but for the head",
    "nothing": GLOBAL,
}


@dataclass(frozen=True)
class CountTable:
    """How often the selector chose each output for a site's images or cases.

    Attributes:
        columns: Names of the selector's outputs.
        rows: True site -> {output: count}.
        right: True site, and ``all sites`` -> ``3 of 4`` that are right; empty where the selector learns no sites.
    """

    columns: list[str]
    rows: dict[str, dict[str, int]]
    right: dict[str, str]

    def share(self, site: str, output: str) -> float:
        """Return a cell's share of its site's row."""
        return self.rows[site][output] / max(1, sum(self.rows[site].values()))


def super_values(run: RunRecords) -> dict[str, Any] | None:
    """Return the report's values for a run's models and selector; None where the run has none."""
    results, found = run.results, run.results.super_model
    if found is None or not found.models:
        return None
    thresholds = {row.threshold: row.value for row in found.by_threshold}
    counted = {"slices": found.selector.slices, "cases": found.selector.cases}
    tables = {unit: selector_counts(found.selector.outputs, counts) for unit, counts in counted.items()}
    return {
        "model_table": model_table(results),
        "meanings": model_meanings(results),
        "shortfalls": shortfalls(model_values(results)),
        "counts": {unit: table for unit, table in tables.items() if table},
        "map": feature_image(run),
        "choices": choice_table(found.choices),
        "choices_sentence": choices_sentence(results, found),
        "threshold": threshold_sentence(results, found),
        "by_threshold": threshold_table(thresholds, found.threshold, case_metric(results.metric)),
    }


def unseen_values(unseen: UnseenTest | None) -> dict[str, Any] | None:
    """Return the report's values for a site that was left out of the training; None where none was."""
    if unseen is None:
        return None
    selector, rows = unseen.selector, unseen.selector.by_threshold if unseen.selector else ()
    thresholds = {row.threshold: row.value for row in rows}
    return {
        "models": alone_table(unseen),
        "sentence": unseen_sentence(unseen),
        "choices": describe_choices(selector.choices) if selector else "",
        "by_threshold": threshold_table(thresholds, selector.threshold, unseen.metric) if selector else None,
    }


def model_values(results: Results) -> dict[str, Values]:
    """Return global, where there is one, personal, super, ensemble -> site -> mean test value at the site."""
    return {
        name: {site: own.models.get(site if name == PERSONAL else name) for site, own in results.by_site.items()}
        for name in MODELS
        if name != GLOBAL or results.has_global_model
    }


def model_table(results: Results) -> TextTable:
    """Return one row a site with the test value of each model, and their means.

    Nothing is marked as the best: the models are of one run with one seed.
    """
    values = model_values(results)
    table = [[of_sites[site] for of_sites in values.values()] for site in results.sites]
    table.append([mean_of_known(of_sites.values()) for of_sites in values.values()])
    names = (*results.sites, f"mean over {tested_sites(results)}")
    rows = tuple((name, *map(format_number, row)) for name, row in zip(names, table, strict=True))
    return TextTable(("site", *values), rows, num_summary=1)


def run_models_table(results: Sequence[Results], names: Sequence[str]) -> TextTable | None:
    """Return one row for each model of each run, one column a site; None where no run has more than one model.

    Args:
        results: The runs' results.
        names: The runs' names.
    """
    if not any(run.super_model for run in results):
        return None
    sites = compared_sites(results)
    found = [
        (name, model, v) for name, run in zip(names, results, strict=True) for model, v in _values_by_model(run).items()
    ]
    table = [list(map(values.get, sites)) for *_, values in found]
    table = [[*row, None if None in row else mean_of_known(row)] for row in table]
    rows = tuple((name, model, *map(format_number, row)) for (name, model, _), row in zip(found, table, strict=True))
    return TextTable(("run", "model", *sites, "mean"), rows, num_text=2)


def selector_counts(outputs: Sequence[str], counted: Mapping[str, Counts]) -> CountTable | None:
    """Return the counts of the selector's choices for each site's test images; None where nothing was counted.

    Args:
        outputs: Names of the selector's outputs.
        counted: Site -> output -> number of its slices, each on its own, or of its cases, whose slices speak together.
    """
    if not any(sum(counts.values()) for counts in counted.values()):
        return None
    # In the order of the outputs, so that right choices lie on the diagonal; who is no output comes last.
    sites = sorted(counted, key=lambda site: (outputs.index(site) if site in outputs else len(outputs), site))
    rows = {site: {output: counted[site].get(output, 0) for output in outputs} for site in sites}
    # Where the global model is an output, the best model of an image is what is right, and not its site's.
    return CountTable(list(outputs), rows, {} if GLOBAL in outputs else _count_right(rows))


def choice_table(choices: Mapping[str, Counts]) -> TextTable | None:
    """Return the number of each site's test cases for which each model was chosen; None where no site tested."""
    if not choices:
        return None
    names = {name for counts in choices.values() for name in counts}
    models = sorted({*names, *choices}, key=lambda name: (name != GLOBAL, name))
    rows = [(site, [counts.get(name, 0) for name in models]) for site, counts in sorted(choices.items())]
    rows.append(("all sites", [sum(row[i] for _, row in rows) for i in range(len(models))]))
    cells = tuple((name, *map(str, row), str(sum(row))) for name, row in rows)
    return TextTable(("test cases of", *models, "cases"), cells, num_summary=1)


def threshold_table(values: Mapping[float, float | None], gamma: float | None, metric: str) -> TextTable | None:
    """Return the value of the super model by threshold, with the used one named; None without any.

    No value is marked as the best: these are test cases, on which no threshold may be chosen.

    Args:
        values: Candidate of the threshold -> value.
        gamma: The threshold that was used.
        metric: The value's name.
    """
    if not values:
        return None
    names = tuple(f"{threshold:g}{' (used)' if threshold == gamma else ''}" for threshold in values)
    cells = (f"{metric} of the test cases", *map(format_number, values.values()))
    return TextTable(("threshold gamma", *names), (cells,))


def alone_table(unseen: UnseenTest) -> TextTable | None:
    """Return the value of the super model and of each of its models at a left-out site; None without any model."""
    if not unseen.models:
        return None
    values = [unseen.value, *unseen.models.values()]
    return TextTable(("model", SUPER, *unseen.models), ((unseen.metric, *map(format_number, values)),))


def model_meanings(results: Results) -> list[tuple[str, str]]:
    """Return each model's name with a description."""
    is_alone = results.recipe_value("sends_model_once")
    own = "as it trained alone" if is_alone else "which listens to the others a little"
    meanings = {
        GLOBAL: "One model that all sites trained together and share.",
        PERSONAL: f"The site's own model, {own}; to use it, one must know the site.",
        SUPER: "All models with the selector: nobody says where a case comes from, the selector looks at its images "
        f"and one model answers for the whole case, a site's{'' if is_alone else ' or the global one'}.",
        ENSEMBLE: "Nobody is chosen: all models answer, and their probabilities are averaged by the selector's scores.",
    }
    if is_ensemble(results):
        meanings[SUPER] = "All models with the selector. This study answers with the ensemble: both columns are equal."
    return [(name, meanings[name]) for name in model_values(results)]


def is_ensemble(results: Results) -> bool:
    """Return whether the super model of a run answers with the ensemble instead of one chosen model."""
    return "ensemble" in (results.constant("super_model", "answer"), results.constant("hand_over", "answer"))


def choices_sentence(results: Results, found: SuperResults) -> str:
    """Explain the counts of the chosen models."""
    if is_ensemble(results):
        return "A column counts the test cases that the selector would give its model; here the ensemble answers."
    if found.threshold is None:
        return "A column counts the test cases that its model answered."
    return "A column counts the test cases that its model answered: the global one where the selector was not sure."


def shortfalls(values: Mapping[str, Values]) -> list[str]:
    """Name the sites at which the super model is below the site's personalised model, and below the global one.

    Args:
        values: Model -> site -> value.
    """
    rivals = [rival for rival in _RIVALS if rival in values]
    return [
        sentence for rival in rivals if (sentence := _compare_with_rival(values[SUPER], values[rival], _RIVALS[rival]))
    ]


def threshold_sentence(results: Results, found: SuperResults) -> str:
    """Name the threshold gamma of a run, its effect and its origin."""
    if found.threshold is None:
        is_known = GLOBAL in found.selector.outputs
        why = "the selector knows the global model too" if is_known else "there is no global model to fall back to"
        return f"No threshold is used: {why}, and the most probable model answers."
    rule = "a site's model answers where the selector's score for it is above gamma, otherwise the global model."
    if found.threshold >= 1:
        rule = "no score is above it, so that the global model is chosen for every case, as if there were no selector."
    return f"The threshold gamma is {found.threshold:g}: {rule} {_threshold_origin(results)}".rstrip()


def unseen_sentence(unseen: UnseenTest) -> str:
    """State the super model's result at a site that took no part in the training."""
    cases, gamma = unseen.num_cases, unseen.selector.threshold if unseen.selector else None
    by = f", with the threshold gamma = {gamma:g} that the training sites found" if gamma is not None else ""
    value = f"{unseen.metric} {format_number(unseen.value)} over {cases} case{'s' * (cases != 1)}"
    return f"Site {unseen.site} took no part in the training. There the super model reaches {value}{by}."


def describe_choices(choices: Counts) -> str:
    """List the number of cases that each model answered."""
    ranked = sorted(((name, cases) for name, cases in choices.items() if cases), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {format_count(cases)}" for name, cases in ranked)


def _values_by_model(results: Results) -> dict[str, Values]:
    """Return name -> site -> value of the models of one run; nothing for a run without any value."""
    if results.super_model:
        return model_values(results)
    if not any(value is not None for value in results.sites.values()):
        return {}
    if results.recipe_value("sends_model_once"):
        return {ENSEMBLE: results.sites}
    home = str(results.recipe_value("stays_home"))
    # Rows of the mixing matrix differ, and each site's model with them.
    is_mixed = home != "everything" and results.recipe_value("mixing") not in (None, "shared")
    is_personal = is_mixed or results.recipe_value("keeps_personal") or results.recipe_value("takes_own_steps")
    return {PERSONAL if is_personal else _SINGLE.get(home, "the run's model"): results.sites}


def _count_right(rows: Mapping[str, Counts]) -> dict[str, str]:
    totals = {site: (counts[site] if site in counts else 0, sum(counts.values())) for site, counts in rows.items()}
    right, of = (sum(total[i] for total in totals.values()) for i in (0, 1))
    return {site: f"{r} of {n}" for site, (r, n) in totals.items()} | {"all sites": f"{right} of {of}"}


def _compare_with_rival(values: Values, others: Values, rival: str) -> str:
    """Name the sites where values, in the three decimals shown, are below a rival's; nothing where no site has both."""
    pairs = {s: (v, others[s]) for s, v in values.items() if v is not None and others[s] is not None}
    below = {site: (own, other) for site, (own, other) in pairs.items() if round(own, 3) < round(other, 3)}
    if not pairs:
        return ""
    if not below:
        return f"The super model is nowhere below {rival}."
    where = ", ".join(
        f"{site} ({format_number(own)} against {format_number(other)})" for site, (own, other) in below.items()
    )
    return f"The super model is below {rival} at {len(below)} of {len(pairs)} sites: {where}."


def _threshold_origin(results: Results) -> str:
    wanted = results.constant("super_model", "threshold")
    if wanted != "tuned":
        return "The study fixed it." if wanted is not None else ""
    if not any(score.value is not None for score in results.tested.validation.values()):
        return "No site had validation cases to tune it on, so that the global model always answers."
    return (
        "It was tuned on the sites' validation cases: each site sent only its sums by threshold. It is above 0 only "
        "where that answers these cases better than the selector alone, even with one more case per site that falls "
        "back to the global model."
    )
