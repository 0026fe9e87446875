"""The page of one run, ``report.html``: what its records say, section by section."""

from collections.abc import Mapping, Sequence
from os.path import relpath
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup

from silofl.federation.cautions import list_cautions
from silofl.federation.ledger import Round
from silofl.federation.missing_parts import describe_complete_model, describe_missing_part
from silofl.federation.results import UNFINISHED
from silofl_desk.report import sentences
from silofl_desk.report.evaluations_page import evaluations_section, list_chance
from silofl_desk.report.left_out_site import unseen_section
from silofl_desk.report.result_pictures import case_images, hospitals_image, normalization_image
from silofl_desk.report.result_tables import (
    label_table,
    name_models,
    operating_point_table,
    site_table,
    tested_sites,
)
from silofl_desk.report.round_tables import participation_table
from silofl_desk.report.rounds import curve_images
from silofl_desk.report.run_records import (
    RunRecords,
    all_settings,
    data_table,
    list_data_warnings,
    list_result_rows,
    read_run,
)
from silofl_desk.report.super_model_page import super_model_sections
from silofl_hospital.report.metrics import metric_sentence
from silofl_hospital.report.page import (
    REPORT,
    Banner,
    Block,
    Blocks,
    Fold,
    Group,
    Heading,
    Items,
    Page,
    PageSection,
    Pairs,
    Picture,
    Table,
    Text,
    Tiles,
    make_items,
    make_note,
    make_picture,
    make_section,
    write_with_files,
)
from silofl_hospital.report.tables import MISSING, TextTable, format_number

TONES = {"COMPLETE": "good", "INCOMPLETE": "warning", UNFINISHED: "warning", "FAILED": "bad"}
SEVERITY = ("good", "warning", "bad")
MEANS_NOTE = (
    "The mean gives each site the same weight, the pooled value each test case; the spread is the standard deviation "
    "over sites. Each column's mean is over the sites that have a value in it."
)
PICTURES_NOTE = (
    "Each site's worst, median and best test case. The slice with the largest truth is shown, in the site's own grey "
    "scale; the value is of the whole case. Prediction, or federated: the model that the run tests. Local: the "
    "model that the site trained alone, at its decision threshold."
)
PARTICIPATION_NOTE = (
    "Rounds in which the server asked the site, in which its update was mixed, and in which it was not."
)
DATA_NOTE = (
    "Images are pictures, slices of volumes or windows of recordings, or whole volumes if the network sees these. In "
    "a real federation only the sites know all of these numbers. Patients are unknown if a site's dataset.json names "
    "none."
)
NO_ROUND = Text("No round has finished.")
NO_DATA = Text("No site has reported on its data.")
NO_MODEL = Text("The run's folder holds no model.")
MODEL = Markup("<code>model/</code> holds {}; its <code>README.md</code> says how to load it. {}")
SUPER_MODEL = Text(
    Markup("<code>supermodel/</code> holds all models and the rule that chooses between them, for silofl predict.")
)


def write_report(run: Path) -> Path:
    """Write ``report.html`` and the files beside it into a run's folder; an unfinished run gets them too.

    Returns:
        The page's path.

    Raises:
        ConfigError: The folder is no run, one of its files is broken, or it cannot be written to.
    """
    records = read_run(run)
    # A single run is a comparison of one method.
    numbers = list_result_rows({_name_row(records): [records]})
    return write_with_files(run / REPORT, make_run_page(records), numbers)


def make_run_page(run: RunRecords) -> Page:
    """Prepare the page of a run."""
    is_evaluation = run.results.is_evaluation
    sections: list[PageSection | None] = [unseen_section(run.unseen, _name_row(run)), _joining_section(run)]
    sections.append(evaluations_section(run.evaluations))
    if run.results.tests or not is_evaluation:
        sections.append(_results_section(run))
    if not is_evaluation:
        sections += [_training_section(run), _pictures_section(run), *super_model_sections(run)]
        sections += [_sites_section(run), _weights_section(run), _loading_section(run)]
    # Of a network's evaluation no more is known than the hospitals' table has.
    if run.data or not is_evaluation:
        sections.append(_data_section(run))
    sections.append(_recipe_section(run))
    # What limits all numbers stands above them.
    caveats = [Banner("warning", "CAUTION", caveat) for caveat in sentences.caveats(run.results)]
    return Page(
        title=run.results.study,
        kicker=f"Report of a federated {'evaluation' if is_evaluation else 'training'}",
        subtitle=_subtitle(run),
        opening=[_status_banner(run), *caveats],
        sections=[section for section in sections if section],
        footer=f"Made from the run's folder {run.path}. The page holds all it shows and loads nothing.",
    )


def _training_section(run: RunRecords) -> PageSection:
    curves: list[Block] = [Picture(image) for image in curve_images(run)] or [NO_ROUND]
    cautions = [Banner("warning", "CAUTION", caution) for caution in list_cautions(run.ledger)]
    return make_section("training", "Training", "Training", curves, cautions)


def page_address(page: Path, folder: Path) -> str | None:
    """Return the address of a page from a folder; None where it is not there."""
    return quote(relpath(page, folder)) if page.is_file() else None


def data_blocks(tables: Mapping[str, TextTable], warnings: Sequence[str]) -> list[Block]:
    """Return tables of the sites' data, what should be looked at, and how to read them.

    Args:
        tables: Heading of a table -> the table; a single one has no heading.
        warnings: What should be looked at.
    """
    shown: list[Block] = []
    for name, table in tables.items():
        shown += [Heading(name)] if len(tables) > 1 else []
        shown.append(Table(table))
    shown = shown or [NO_DATA]
    if warnings:
        shown += [Text("Look at this before you believe a result:"), Items(warnings)]
    return [*shown, Text(DATA_NOTE, "note")]


def _name_row(run: RunRecords) -> str:
    return run.results.algorithm or run.path.name


def _subtitle(run: RunRecords) -> list[str]:
    results = run.results
    parts = [f"{results.algorithm}, preset {results.preset}"] if results.algorithm else []
    parts.append(results.run or run.path.name)
    if run.ledger and run.ledger[0].started_at:
        parts.append(f"started {run.ledger[0].started_at[:16].replace('T', ' ')} UTC")
    return parts


def _status_banner(run: RunRecords) -> Banner:
    results = run.results
    problems = sentences.describe_problems(results) if results.is_finished else []
    if run.evaluations:
        problems += [("warning", sentence) for sentence in list_chance(run.evaluations)]
    # The worst of all gives the colour: a run that is complete may have no good model.
    tones = [TONES[results.status], *(tone for tone, _ in problems)]
    # That no model is better than guessing is in the lead, and no problem of a site.
    if sentences.is_guessing(results):
        tones.append("warning")
    tone = max(tones, key=SEVERITY.index)
    reasons = [*results.reasons, *(sentence for _, sentence in problems)]
    lead = sentences.lead_sentence(results)
    if results.status == UNFINISHED:
        sentence = sentences.unfinished_sentence(run.path, run.is_simulation, len(run.ledger), results.rounds)
        return Banner(tone, "RUNNING OR INTERRUPTED", sentence, reasons, lead=lead)
    # A run that failed is mended before more rounds are thought of.
    remedy = sentences.remedy_sentence(run.path, results.status, run.is_simulation)
    remedy = remedy or sentences.more_rounds_sentence(run.path, results, run.ledger)
    sentence = " ".join(filter(None, (sentences.status_sentence(results), sentences.early_sentence(results))))
    return Banner(tone, results.status, sentence, reasons, remedy, lead)


def _joining_section(run: RunRecords) -> PageSection | None:
    """Say what joining gave each site; None without a choice."""
    table = sentences.joining_table(run.results)
    if table is None:
        return None
    image = make_picture(hospitals_image({_name_row(run): [run]}))
    note = make_note(sentences.joining_note(run.results))
    return make_section("joining", "Does joining pay?", "Does joining pay?", image, Table(table), note)


def _results_section(run: RunRecords) -> PageSection:
    results = run.results
    regions = f" The labels that count are regions: {sentences.regions_text(results)}." if results.regions else ""
    by_label = label_table(results)
    operating_point = operating_point_table(results)
    return make_section(
        "results",
        "Results",
        "Results by site",
        Tiles(_headline(run)),
        Table(site_table(results)) if results.sites else Text("No site has tested a model."),
        make_note(f"{results.model or MISSING}. {MEANS_NOTE}", "Model"),
        make_note(f"{metric_sentence(results.metric, results.has_findings)}{regions}", results.metric or MISSING),
        [make_note(text, name) for name, text in sentences.list_result_notes(results).items()],
        [Heading("By label"), Table(by_label), make_note(sentences.label_sentence(results))] if by_label else None,
        [Heading("Calibration"), Table(operating_point), make_note(sentences.OPERATING_POINTS)]
        if operating_point
        else None,
    )


def _headline(run: RunRecords) -> list[tuple[str, str]]:
    """Return the numbers at the top of the report."""
    results = run.results
    numbers = {f"{results.metric or 'value'}, mean over {tested_sites(results)}": results.mean}
    if results.joining:
        sites = "1 site" if len(results.joining) == 1 else f"{len(results.joining)} sites"
        models = name_models(results.joining.values())
        numbers = {f"{name}, mean over {sites}": results.joining_means[model] for model, name in models.items()}
    return [(name, format_number(value)) for name, value in numbers.items() if value is not None]


def _pictures_section(run: RunRecords) -> PageSection | None:
    """Show the sites' cases; None of a network, whose sites keep their pictures."""
    if not run.pictures:
        return None
    cases = [Picture(image, "titled shrink") for image in case_images(run)]
    normalized = make_picture(normalization_image(run), "shrink")
    folded = Fold("What the network sees", [normalized]) if normalized else None
    return make_section("pictures", "Pictures", "Pictures", make_note(PICTURES_NOTE), Group(cases, "grid"), folded)


def _sites_section(run: RunRecords) -> PageSection:
    incidents = sentences.list_incidents(run.ledger)
    took_part = [Table(participation_table(run.ledger, run.sites), ""), make_note(PARTICIPATION_NOTE)]
    return make_section(
        "sites",
        "Who took part",
        "Who took part",
        took_part if run.ledger else NO_ROUND,
        [Heading("What else happened, and why"), make_items(incidents)] if incidents else None,
    )


def _weights_section(run: RunRecords) -> PageSection:
    """Show the weights of the last round."""
    table = weights_table(run.ledger)
    if run.results.recipe.get("stays") == "everything":
        blocks: Blocks = [Text("No model is mixed: each site trains alone.")]
    elif table is None:
        blocks = [NO_ROUND]
    else:
        note = f"How much each site's update counts in round {run.ledger[-1].round}, the last: a row sums to 1."
        blocks = [table, make_note(note)]
    return make_section("weights", "Weights", "Who listens to whom", blocks)


def weights_table(ledger: Sequence[Round]) -> Table | None:
    """Return the last round's weights, the larger the darker; equal rows are one; None before the first round."""
    if not ledger or not ledger[-1].weights:
        return None
    weights = ledger[-1].weights
    sites = next(iter(weights.values()))
    if all(row == sites for row in weights.values()):
        # One row says it where everybody gets the same model.
        weights = {"every site": sites}
    cells = []
    shares = {}
    for number, (listener, row) in enumerate(weights.items()):
        cells.append((listener, *(format_number(row.get(site)) for site in sites)))
        for column, site in enumerate(sites, start=1):
            if site in row:
                shares[number, column] = row[site]
    return Table(TextTable(("listener", *sites), tuple(cells)), "", shares)


def _data_section(run: RunRecords) -> PageSection:
    table = data_table(run)
    return make_section(
        "data", "Data", "Data", data_blocks({"": table}, list_data_warnings([run])) if table else NO_DATA
    )


def _loading_section(run: RunRecords) -> PageSection:
    """Say where the run's models are, and how to load one."""
    results = run.results
    complete = ""
    if results.run is not None and describe_missing_part(results.recipe) is not None:
        complete = describe_complete_model(results.recipe, results.run, run.is_simulation)
    models = []
    if files := ", ".join(sorted(path.name for path in (run.path / "model").glob("*.pt"))):
        models.append(Text(MODEL.format(files, complete.replace("`", ""))))
    if (run.path / "supermodel" / "model.json").is_file():
        models.append(SUPER_MODEL)
    return make_section("models", "Models", "Where the models are", models or NO_MODEL)


def _recipe_section(run: RunRecords) -> PageSection:
    questions = list(run.results.recipe.get("questions", {}).items())
    if run.results.is_evaluation:
        # The answers are about a training, which there was none of here.
        questions = []
    settings = [
        ("Version of silofl", run.results.version or MISSING),
        *all_settings(run).items(),
    ]
    return make_section(
        "recipe",
        "Recipe and settings",
        "Recipe and settings",
        Fold("Recipe", [Pairs(questions)]) if questions else None,
        Fold(f"Settings ({len(settings)})", [Pairs(settings)]),
    )
