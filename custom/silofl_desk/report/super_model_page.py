"""The sections of a run's page on FedSM's models and selector."""

from collections import Counter
from collections.abc import Mapping, Sequence

from silofl.federation.results import Results
from silofl.training.site_score import Counts, Values
from silofl_desk.report.result_tables import name_tested, read_table, tested_sites
from silofl_desk.report.run_records import RunRecords
from silofl_hospital.report.page import (
    Heading,
    PageSection,
    Pairs,
    Table,
    Text,
    make_note,
    make_section,
)
from silofl_hospital.report.tables import TextTable, format_number

GLOBAL, PERSONAL, SUPER, ENSEMBLE = "global", "personal", "super", "ensemble"
MODELS = {
    GLOBAL: "One model that all sites trained together and share.",
    PERSONAL: "The site's own model, which listens to the others a little; to use it, one must know the site.",
    SUPER: "What the run tests: nobody says where a case comes from; the selector looks at its images, and one model "
    "answers for the whole case, or the ensemble, as the study says.",
    ENSEMBLE: "All models answer, and their probabilities are averaged by the selector's scores.",
}
MODELS_NOTE = (
    "Each site's test cases, mean {} over them; none is marked as the best, because one seed is not enough to know."
)
COUNTS_NOTE = (
    "Row: the site that the test cases come from. Column: the output that the selector chose by the mean of a case's "
    "slices; darker = a larger share of the row."
)
BEST_MODELS = (
    "The selector learned which model is the best for an image, not where it comes from: off the diagonal is no error."
)


def super_model_sections(run: RunRecords) -> list[PageSection]:
    """Return the sections on a run's models and on its selector; none where the run has no such models."""
    results = run.results
    if not (results.super_model and results.tests):
        return []
    outputs = results.super_model.outputs
    counts = {site: test.selector.cases for site, test in results.tests.items() if test.selector}
    table = selector_counts(outputs, counts)
    right = describe_right(outputs, counts)
    diagonal = f"Right answers are on the diagonal: {right}." if right else BEST_MODELS
    models = make_section(
        "models-of-sites",
        "Models of the sites",
        "Models of the sites",
        Table(model_table(results), ""),
        make_note(MODELS_NOTE.format(name_tested(results))),
        Pairs([*MODELS.items()]),
    )
    selector = make_section(
        "selector",
        "Selector",
        "Selector",
        [Heading("Which site it chose for the test cases"), table, make_note(f"{COUNTS_NOTE} {diagonal}")]
        if table
        else None,
        Text(threshold_sentence(results)),
    )
    return [models, selector]


def model_values(results: Results) -> Mapping[str, Values]:
    """Return global, personal, super, ensemble -> site -> mean test value at the site."""
    values: dict[str, dict[str, float | None]] = {name: {} for name in MODELS}
    for site, test in results.sites.items():
        tested = read_table(test, "models")
        for name, of_sites in values.items():
            # A test names the personalised model after its site.
            of_sites[site] = tested.get(site if name == PERSONAL else name)
    return values


def model_table(results: Results) -> TextTable:
    """Return one row a site with the test value of each model, and their means.

    Nothing is marked as the best: the models are of one run with one seed.
    """
    values = model_values(results)
    rows = []
    for site in results.sites:
        rows.append((site, *(format_number(of_sites[site]) for of_sites in values.values())))
    means = [format_number(results.mean_of_sites(of_sites.values())) for of_sites in values.values()]
    rows.append((f"mean over {tested_sites(results)}", *means))
    return TextTable(("site", *values), tuple(rows), num_summary=1)


def selector_counts(outputs: Sequence[str], counted: Mapping[str, Counts]) -> Table | None:
    """Return the counts of the selector's choices for each site's test cases; None where nothing was counted.

    Args:
        outputs: Names of the selector's outputs.
        counted: Site -> output -> number of its cases.
    """
    if not any(sum(counts.values()) for counts in counted.values()):
        return None
    # Sites come in the order of the outputs, so that right choices lie on the diagonal; who is no output comes last.
    sites = [*(site for site in outputs if site in counted), *sorted(counted.keys() - set(outputs))]
    rows = []
    shares = {}
    for row, site in enumerate(sites):
        counts = Counter(counted[site])
        rows.append((site, *(str(counts[output]) for output in outputs)))
        for column, output in enumerate(outputs, start=1):
            # A site without counted cases has shares of 0.
            shares[row, column] = counts[output] / max(1, counts.total())
    return Table(TextTable(("from", *outputs), tuple(rows)), "dense", shares)


def describe_right(outputs: Sequence[str], counted: Mapping[str, Counts]) -> str:
    """Return how many are right, as ``13 of 14``; nothing where the selector learns no sites.

    Arguments as `selector_counts`.
    """
    # Where the global model is an output, the best model of an image is what is right, and not its site's.
    if GLOBAL in outputs:
        return ""
    right = 0
    total = 0
    for site, counts in counted.items():
        right += counts.get(site, 0)
        total += sum(counts.values())
    return f"{right} of {total}"


def threshold_sentence(results: Results) -> str:
    """Name the threshold gamma of a run, its effect and its origin."""
    threshold = results.super_model and results.super_model.threshold
    if results.recipe.get("weighs_models"):
        return "No threshold is used: the ensemble answers."
    if threshold is None:
        return "No threshold is used: the selector knows the global model too, and the most probable model answers."
    chosen = Counter[str]()
    for test in results.tests.values():
        chosen.update(test.choices or {})
    origin = "tuned on the sites' validation cases" if results.recipe.get("threshold") == "tuned" else "fixed"
    return (
        f"The threshold gamma is {threshold:g} ({origin}): a site's model answers where the selector's score for it is "
        f"above gamma, otherwise the global model, here in {chosen[GLOBAL]} of {chosen.total()} test cases."
    )
