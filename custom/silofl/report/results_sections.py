"""The sections of a run's page on its results: what joining gave, and the values by site and by label."""

from markupsafe import Markup

from silofl.federation.results import UNFINISHED
from silofl.report.hospital_dots import hospitals_image
from silofl.report.joining import joining_note, joining_sentence, joining_table
from silofl.report.page import Blocks, Heading, PageSection, Table, Text, Tiles, make_note, make_picture, make_section
from silofl.report.result_tables import (
    calling_sentence,
    calling_table,
    empty_cases_sentence,
    everyone_sentence,
    extra_metrics_sentence,
    label_sentence,
    label_table,
    missing_labels_sentence,
    name_models,
    site_table,
    surface_sentence,
    tested_sites,
)
from silofl.report.rounds import is_validated_with_selector
from silofl.report.run_records import RunRecords
from silofl.report.sentences import metric_sentence, privacy_sentence, regions_text
from silofl.report.tables import MISSING, format_count, format_duration, format_number
from silofl.training.joined import FEDERATED

MEANS_NOTE = (
    "The mean gives each site the same weight, the pooled value each test case; the spread is the standard deviation "
    "over sites. Each column's mean is over the sites that have a value in it."
)
SUPER_NOTE = Markup(
    "The values are those of the super model; the models it is made of stand under "
    '<a href="#models-of-sites">Models of the sites</a>.'
)
SELECTOR_NOTE = (
    " Validation, by which the round is chosen, is of what a site has in that round, without the threshold gamma: a "
    "case that the selector gives to the site itself counts with its personalised model, any other with the global one."
)


def joining_section(run: RunRecords) -> PageSection | None:
    """Say what joining gave each site; None without a choice, and without a reason why there is none."""
    sentence, table = joining_sentence(run.results), joining_table(run.results)
    if not sentence:
        return None
    explained = [Table(table), make_note(joining_note(run.results))] if table else [Text(sentence)]
    image = make_picture(hospitals_image({run.method: [run]}))
    return make_section("joining", "Does joining pay?", "Does joining pay?", image, explained)


def results_section(run: RunRecords) -> PageSection:
    """Return the section of the main numbers, and of the values by site and by label."""
    results = run.results
    regions = f" The labels that count are regions: {regions_text(results)}." if results.regions else ""
    by_label, calling = label_table(results), calling_table(results)
    return make_section(
        "results",
        "Results",
        "Results by site",
        Tiles(_headline(run)),
        _site_blocks(run) if results.sites else Text("No site has tested a model."),
        make_note(f"{metric_sentence(results.metric, results.has_findings)}{regions}", results.metric or MISSING),
        [Heading("By label"), Table(by_label), make_note(label_sentence(results))] if by_label else None,
        [Heading("Calibration"), Table(calling), make_note(calling_sentence(results))] if calling else None,
    )


def _site_blocks(run: RunRecords) -> Blocks:
    """Return the values by site, with the notes on them that the run needs."""
    results, found = run.results, run.results.super_model
    notes = {
        "Labels": missing_labels_sentence(results),
        "Empty cases": empty_cases_sentence(results),
        "Surfaces": surface_sentence(results),
        "Metrics of packages": extra_metrics_sentence(results),
        "Privacy": privacy_sentence(results),
        "Beyond the own site": everyone_sentence(results),
    }
    super_note = SUPER_NOTE + (SELECTOR_NOTE if is_validated_with_selector(run) else "")
    return [
        Table(site_table(results)),
        make_note(f"{results.model or MISSING}. {MEANS_NOTE}", "Model"),
        *(make_note(_end_sentence(text), name) for name, text in notes.items()),
        make_note(super_note if found and found.models else ""),
    ]


def _end_sentence(text: str) -> str:
    """Return sentences with a full stop at their end; nothing of none."""
    return text if not text or text.endswith(".") else f"{text}."


def _headline(run: RunRecords) -> list[tuple[str, str]]:
    """Return the numbers at the top of the report, without those that are missing."""
    results = run.results
    planned = f" of {results.rounds}" if results.rounds else ""
    num_sites = len(results.joining or ())
    of_sites = f"mean over {num_sites} site{'s' * (num_sites != 1)}"
    models = name_models((results.joining or {}).values())
    # Beside no column "federated".
    models |= {FEDERATED: f"federated {models[FEDERATED]}"} if FEDERATED in models else {}
    means = results.joining_means
    joined = [(f"{name}, {of_sites}", format_number(means[one])) for one, name in models.items() if one in means]
    facts = [
        *(joined or [(f"{results.metric or 'value'}, mean over {tested_sites(results)}", format_number(results.mean))]),
        ("reported round" if results.status != UNFINISHED else "best round so far", format_count(run.best_round)),
        ("rounds finished", f"{len(run.ledger)}{planned}"),
        ("sites", format_count(len(run.sites) or None)),
        ("test cases", format_count(sum(results.tested.cases.values()) or None)),
        (
            "time of all rounds",
            format_duration(sum(record.seconds for record in run.ledger)) if run.ledger else MISSING,
        ),
    ]
    return [(name, value) for name, value in facts if value != MISSING]
