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
from silofl.training.joined import FEDERATED
from silofl_desk.report import sentences
from silofl_desk.report.evaluations_page import evaluations_section, list_chance
from silofl_desk.report.left_out_site import unseen_section
from silofl_desk.report.result_pictures import case_images, hospitals_image, normalization_images
from silofl_desk.report.result_tables import (
    calling_table,
    describe_round,
    label_table,
    name_models,
    site_table,
    tested_sites,
)
from silofl_desk.report.round_tables import participation_table, traffic_table
from silofl_desk.report.rounds import (
    curve_images,
    is_validated_with_selector,
    weights_image,
)
from silofl_desk.report.run_records import RunRecords, all_settings, data_doubts, data_table, list_result_rows, read_run
from silofl_desk.report.super_model_page import super_model_sections
from silofl_hospital.report.metrics import metric_sentence
from silofl_hospital.report.page import (
    REPORT,
    Banner,
    Block,
    Blocks,
    Code,
    Fold,
    Group,
    Heading,
    HeatCell,
    HeatRow,
    HeatTable,
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
from silofl_hospital.report.tables import MISSING, TextTable, format_count, format_duration, format_number

TONES = {"COMPLETE": "good", "INCOMPLETE": "warning", UNFINISHED: "warning", "FAILED": "bad"}
SEVERITY = ("good", "warning", "bad")
MEANS_NOTE = (
    "The mean gives each site the same weight, the pooled value each test case; the spread is the standard deviation "
    "over sites. Each column's mean is over the sites that have a value in it."
)
SUPER_NOTE = Markup(
    "The values are those of the super model; its single models are under "
    '<a href="#models-of-sites">Models of the sites</a>.'
)
SELECTOR_NOTE = (
    " The validation that chooses the round has no threshold gamma: a case counts with the site's personalised model "
    "if the selector chooses this site, else with the global model."
)
PICTURES_NOTE = (
    "Each site's worst, median and best test case. The slice with the largest truth is shown, in the site's own grey "
    "scale; the value is of the whole case. "
)
PREDICTION_NOTE = "Prediction: the model that the run tests."
OWN_NOTE = "Own: the site's own model, at its decision threshold. Federated: the model that the run tests, at 0.5."
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
SUPER_MODEL_FOLDER = Markup(
    "In the run's folder, <code>supermodel/</code> holds all models and the selector, with a README.md of its own."
)
LOAD_SUPER_MODEL = """from silofl.inference import SuperModel

prediction = SuperModel.load("supermodel").predict("scan.nii.gz")
print(prediction.model, prediction.scores)"""


def write_report(run: Path) -> Path:
    """Write ``report.html`` and the files beside it into a run's folder; an unfinished run gets them too.

    Returns:
        The page's path.

    Raises:
        ConfigError: The folder is no run, one of its files is broken, or it cannot be written to.
    """
    records = read_run(run)
    numbers = list_result_rows({_name_row(records): [records]})
    return write_with_files(run / REPORT, make_run_page(records), numbers)


def make_run_page(run: RunRecords) -> Page:
    """Prepare the page of a run."""
    sections = (
        unseen_section(run.unseen, _name_row(run)),
        _joining_section(run),
        evaluations_section(run.evaluations),
        _results_section(run) if run.results.tests or not run.results.is_evaluation else None,
        *(() if run.results.is_evaluation else _training_sections(run)),
        # Of a network's evaluation no more is known than the hospitals' table has.
        _data_section(run) if run.data or not run.results.is_evaluation else None,
        _recipe_section(run),
    )
    return Page(
        title=run.results.study,
        kicker=f"Report of a federated {'evaluation' if run.results.is_evaluation else 'training'}",
        subtitle=_subtitle(run),
        opening=[
            _status_banner(run),
            *(Banner("warning", "CAUTION", caveat) for caveat in sentences.caveats(run.results)),
        ],
        sections=[section for section in sections if section],
        footer=f"Made from the run's folder {run.path}. The page holds all it shows and loads nothing.",
    )


def _training_sections(run: RunRecords) -> list[PageSection | None]:
    """Return what a run without a round has not."""
    cautions = [Banner("warning", "CAUTION", caution) for caution in list_cautions(run.ledger)]
    return [
        make_section("training", "Training", "Training", list(map(Picture, curve_images(run))) or NO_ROUND, cautions),
        _pictures_section(run),
        *super_model_sections(run),
        _traffic_section(run),
        _sites_section(run),
        make_section("weights", "Weights", "Who listens to whom", _weight_blocks(run)),
        _loading_section(run),
    ]


def page_address(page: Path, folder: Path) -> str | None:
    """Return the address of a page from a folder; None where it is not there."""
    return quote(relpath(page, folder)) if page.is_file() else None


def data_blocks(tables: Mapping[str, TextTable], doubts: Sequence[str]) -> list[Block]:
    """Return tables of the sites' data, what should be looked at, and how to read them.

    Args:
        tables: Heading of a table -> the table; a single one has no heading.
        doubts: What should be looked at.
    """
    shown: list[Block] = []
    for name, table in tables.items():
        shown += [Heading(name)] if len(tables) > 1 else []
        shown.append(Table(table))
    shown = shown or [NO_DATA]
    if doubts:
        shown += [Text("Look at this before you believe a result:"), Items(doubts)]
    return [*shown, Text(DATA_NOTE, "note")]


def _name_row(run: RunRecords) -> str:
    return run.results.algorithm or run.path.name


def _subtitle(run: RunRecords) -> list[str]:
    results = run.results
    parts = []
    if results.algorithm:
        parts.append(f"{results.algorithm}, preset {results.preset}")
    parts.append(results.run or run.path.name)
    if run.ledger and run.ledger[0].started_at:
        parts.append(f"started {run.ledger[0].started_at[:16].replace('T', ' ')} UTC")
    return parts


def _status_banner(run: RunRecords) -> Banner:
    results = run.results
    found = sentences.describe_problems(results) if results.is_finished else []
    chance = list_chance(run.evaluations) if run.evaluations else []
    found += [("warning", sentence) for sentence in chance]
    # The worst of all: a run that is complete may have no good model.
    tones = [TONES[results.status], *(tone for tone, _ in found), *["warning"] * sentences.is_guessing(results)]
    tone = max(tones, key=SEVERITY.index)
    reasons = [
        *results.reasons,
        *sentences.withheld_sentences(results),
        *(sentence for _, sentence in found),
    ]
    lead = sentences.lead_sentence(results)
    if results.status == UNFINISHED:
        sentence = sentences.unfinished_sentence(run.path, run.is_simulation, len(run.ledger), results.rounds)
        return Banner(tone, "RUNNING OR INTERRUPTED", sentence, reasons, lead=lead)
    remedy = sentences.remedy_sentence(run.path, results.status, run.is_simulation)
    remedy = remedy or sentences.more_rounds_sentence(run.path, results, run.ledger)
    sentence = " ".join(filter(None, (sentences.status_sentence(results), sentences.early_sentence(results))))
    title = f"{results.status}, AND NO BETTER THAN CHANCE" if chance else results.status
    return Banner(tone, title, sentence, reasons, remedy, lead)


def _joining_section(run: RunRecords) -> PageSection | None:
    """Say what joining gave each site; None without a choice."""
    results, table = run.results, sentences.joining_table(run.results)
    if not table:
        return None
    details = make_items(sentences.joining_details(results))
    explained = [Table(table), details, make_note(sentences.joining_note(results))]
    image = make_picture(hospitals_image({_name_row(run): [run]}))
    return make_section("joining", "Does joining pay?", "Does joining pay?", image, explained)


def _results_section(run: RunRecords) -> PageSection:
    results = run.results
    regions = f" The labels that count are regions: {sentences.regions_text(results)}." if results.regions else ""
    by_label, calling = label_table(results), calling_table(results)
    return make_section(
        "results",
        "Results",
        "Results by site",
        Tiles(_headline(run)),
        _site_blocks(run) if results.sites else Text("No site has tested a model."),
        make_note(f"{metric_sentence(results.metric, results.has_findings)}{regions}", results.metric or MISSING),
        [Heading("By label"), Table(by_label), make_note(sentences.label_sentence(results))] if by_label else None,
        [Heading("Calibration"), Table(calling), make_note(sentences.calling_sentence(results))] if calling else None,
    )


def _site_blocks(run: RunRecords) -> Blocks:
    """Return the values by site, with the notes on them that the run needs."""
    results, found = run.results, run.results.super_model
    super_note = SUPER_NOTE + (SELECTOR_NOTE if is_validated_with_selector(run) else "")
    return [
        Table(site_table(results)),
        make_note(f"{results.model or MISSING}. {MEANS_NOTE}", "Model"),
        *(make_note(text, name) for name, text in sentences.list_result_notes(results).items()),
        make_note(super_note if found and results.tests else ""),
    ]


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
    rounds = (
        ("reported round", describe_round(results))
        if results.status != UNFINISHED
        else ("best round so far", format_count(run.best_round)),
        ("rounds finished", f"{len(run.ledger)}{planned}"),
    )
    facts = [
        *(joined or [(f"{results.metric or 'value'}, mean over {tested_sites(results)}", format_number(results.mean))]),
        *(() if results.is_evaluation else rounds),
        ("sites", format_count(len(run.sites) or None)),
        ("test cases", format_count(sum(one.num_cases for one in results.tests.values()) or None)),
        (
            "time of all rounds",
            format_duration(sum(record.seconds for record in run.ledger)) if run.ledger else MISSING,
        ),
    ]
    return [(name, value) for name, value in facts if value != MISSING]


def _pictures_section(run: RunRecords) -> PageSection | None:
    """Show the sites' cases; None of a network, whose sites keep their pictures."""
    if not run.pictures:
        return None
    cases = [Picture(image, "titled shrink") for image in case_images(run)]
    normalized = [Picture(image, "shrink") for image in normalization_images(run)]
    return make_section(
        "pictures",
        "Pictures",
        "Pictures",
        [make_note(PICTURES_NOTE + _explain_rows(run)), Group(cases, "grid")] if cases else None,
        [Heading("What the network sees"), *normalized] if normalized else None,
    )


def _explain_rows(run: RunRecords) -> str:
    """Say whose outlines the rows of the pictures have."""
    rows = dict.fromkeys(PREDICTION_NOTE if shown.own is None else OWN_NOTE for shown in run.pictures.values())
    return " ".join(rows)


def _traffic_section(run: RunRecords) -> PageSection:
    if not run.ledger:
        return make_section("traffic", "Traffic", "Traffic", NO_ROUND)
    return make_section("traffic", "Traffic", "Traffic", Table(traffic_table(run.ledger, run.sites), ""))


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


def _weight_blocks(run: RunRecords) -> Blocks:
    """Show the weights that statistics gave, otherwise those of the last round."""
    if run.site_weights:
        last = run.site_weights[-1]
        note = (
            f"Computed after {last.round} rounds. In a round without some sites, the others share their weight. For "
            "this each site sent these statistics, and no image."
        )
        return [Picture(weights_image(last)), make_note(note)]
    if run.results.recipe.get("stays_home") == "everything":
        return [Text("No model is mixed: each site trains alone.")]
    table = weights_table(run.ledger)
    if table is None:
        return [NO_ROUND]
    note = f"How much each site's update counts in round {run.ledger[-1].round}, the last: a row sums to 1."
    found = run.results.super_model
    of_models = " These are the weights of the personalised models." if found and run.results.tests else ""
    return [table, make_note(note + of_models)]


def weights_table(ledger: Sequence[Round]) -> HeatTable | None:
    """Return the weights of the last round; equal rows become one, ``every site``; None before the first round."""
    if not ledger or not ledger[-1].weights:
        return None
    weights = ledger[-1].weights
    columns = list(next(iter(weights.values())))
    rows = [
        HeatRow(listener, [HeatCell(format_number(row.get(site)), row.get(site)) for site in columns])
        for listener, row in weights.items()
    ]
    is_shared = all(row == next(iter(weights.values())) for row in weights.values())
    return HeatTable("listener", columns, [HeatRow("every site", rows[0].cells)] if is_shared else rows)


def _data_section(run: RunRecords) -> PageSection:
    table = data_table(run)
    return make_section("data", "Data", "Data", data_blocks({"": table}, data_doubts([run])) if table else NO_DATA)


def _loading_section(run: RunRecords) -> PageSection:
    """Say where the run's models are, and how to load one."""
    results, where = run.results, ""
    if results.run is not None and describe_missing_part(results.recipe) is not None:
        where = describe_complete_model(results.recipe, results.run, run.is_simulation)
    return make_section("models", "Models", "How to load the model", _loading_blocks(run, where))


def _loading_blocks(run: RunRecords, where: str) -> list[Block]:
    """Name the models in the run's folder, with the code that loads one from there."""
    files, code = sorted(path.name for path in (run.path / "model").glob("*.pt")), _read_code(run.path / "model")
    holds = Markup("In the run's folder, <code>model/</code> holds {}.")
    if code:
        loads = holds + Markup(" {} From <code>model/</code>:")
        return [Text(loads.format(", ".join(files) or "no model", where.replace("`", ""))), Code(code)]
    if (run.path / "supermodel" / "model.json").is_file():
        return [Text(SUPER_MODEL_FOLDER), Code(LOAD_SUPER_MODEL)]
    if files:
        return [Text(holds.format(", ".join(files)))]
    return [Text("The run's folder holds no model.")]


def _read_code(folder: Path) -> str:
    """Return the code in a folder's README.md; nothing without any."""
    readme = folder / "README.md"
    _, _, rest = (readme.read_text(encoding="utf-8") if readme.is_file() else "").partition("```python\n")
    return rest.partition("```")[0]


def _recipe_section(run: RunRecords) -> PageSection:
    questions, settings = list(run.results.recipe.get("questions", {}).items()), _list_settings(run)
    unknown = "The recipe is in the job's study.yaml; a run's folder holds it once there is a result."
    if run.results.is_evaluation:
        # The answers are about a training, which there was none of here.
        questions, unknown = [], "Nothing was trained. The settings are those of the study."
    return make_section(
        "recipe",
        "Recipe and settings",
        "Recipe and settings",
        Pairs(questions) if questions else Text(unknown),
        Fold(f"Settings ({len(settings)})", [Pairs(settings)]),
    )


def _list_settings(run: RunRecords) -> list[tuple[str, str]]:
    results = run.results
    facts = [
        ("Version of silofl", results.version or MISSING),
        ("Numbers come from", results.model or MISSING),
        ("Normalisation layers", sentences.normalization_label(results.normalization)),
        ("Changed in the job's study", sentences.changes_sentence(run.changes)),
    ]
    return facts + list(all_settings(run).items())
