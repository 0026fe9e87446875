"""The page of one run, ``report.html``: what its records say, section by section."""

import platform
from collections.abc import Mapping, Sequence
from os.path import relpath
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup

from silofl.federation.model_files import describe_complete_model, describe_missing_part
from silofl.federation.results import UNFINISHED
from silofl.report.evaluations_page import evaluations_section
from silofl.report.joining import describe_problems, joining_sentence
from silofl.report.page import (
    Banner,
    Block,
    Code,
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
    make_note,
    make_section,
)
from silofl.report.page_files import REPORT, write_with_files
from silofl.report.result_pictures import case_images, normalization_images
from silofl.report.result_rows import list_result_rows
from silofl.report.results_sections import joining_section, results_section
from silofl.report.round_sections import sites_section, traffic_section, training_section, weights_section
from silofl.report.round_tables import software_table
from silofl.report.run_records import RunRecords, all_settings, data_doubts, data_table, read_run
from silofl.report.sentences import (
    caveats,
    changes_sentence,
    early_sentence,
    left_sentences,
    normalization_label,
    remedy_sentence,
    status_sentence,
    unfinished_sentence,
)
from silofl.report.super_model_page import super_model_sections, unseen_section
from silofl.report.tables import MISSING, TextTable
from silofl.software import find_installed_version
from silofl.study.sections import CLASSIFICATION_ONLY

TONES = {"COMPLETE": "good", "INCOMPLETE": "warning", UNFINISHED: "warning", "FAILED": "bad"}
SEVERITY = ("good", "warning", "bad")
PACKAGES = ("silofl", "nvflare", "torch", "monai", "numpy", "matplotlib")
PICTURES_NOTE = (
    "Each site's worst, median and best test case. Shown is the slice with the largest truth, in the site's own grey "
    "scale; the value is that of the whole case. Prediction: the model that the run tests. Kept: what the site keeps."
)
DATA_NOTE = (
    "Images are pictures, slices of volumes or windows of recordings; where the network sees whole volumes, each is "
    "one. Of a real federation only the sites know all of their numbers, and patients are unknown too where a site's "
    "dataset.json names none."
)
NO_DATA = Text("No site has said anything of its data.")
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
    numbers = list_result_rows({records.method: [records]})
    return write_with_files(run / REPORT, make_run_page(records), numbers)


def make_run_page(run: RunRecords) -> Page:
    """Prepare the page of a run."""
    sections = (
        joining_section(run),
        evaluations_section(run.evaluations),
        results_section(run),
        *(_training_sections(run) if run.evaluations is None else ()),
        _data_section(run),
        _recipe_section(run),
        _software_section(run),
    )
    return Page(
        title=run.results.study,
        kicker=f"Report of a federated {'evaluation' if run.evaluations else 'training'}",
        subtitle=_subtitle(run),
        opening=[_status_banner(run), *(Banner("warning", "CAUTION", caveat) for caveat in caveats(run.results))],
        sections=[section for section in sections if section],
        closing=link_comparisons(run.path, run.comparisons),
        footer=f"Made from the run's folder {run.path}. The page holds all it shows and loads nothing.",
    )


def _training_sections(run: RunRecords) -> list[PageSection | None]:
    """Return what a run without a round has not."""
    return [
        training_section(run),
        _pictures_section(run),
        *super_model_sections(run),
        unseen_section(run.unseen),
        traffic_section(run),
        sites_section(run),
        weights_section(run),
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
        shown += [Text("To be looked at before anybody believes a result:"), Items(doubts)]
    return [*shown, Text(DATA_NOTE, "note")]


def link_comparisons(run: Path, pages: Sequence[str]) -> list[Block]:
    """Lead from a run's page to pages that compare it with other runs; nothing to those that are gone.

    Args:
        run: The run's folder.
        pages: Paths from there.
    """
    found = {page: page_address(run / page, run) for page in pages}
    link = Markup('Compared with other runs: <a href="{}">{}</a>')
    return [Text(link.format(address, page)) for page, address in found.items() if address]


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
    found = describe_problems(results) if results.is_finished else []
    # The worst of all: a run that is complete may have no good model.
    tone = max([TONES[results.status], *(tone for tone, _ in found)], key=SEVERITY.index)
    reasons = [*results.reasons, *left_sentences(results), *(sentence for _, sentence in found)]
    lead = joining_sentence(results)
    if results.status == UNFINISHED:
        sentence = unfinished_sentence(run.path, run.is_simulation, len(run.ledger), results.rounds)
        return Banner(tone, "RUNNING OR INTERRUPTED", sentence, reasons, lead=lead)
    remedy = remedy_sentence(run.path, results.status, run.is_simulation)
    sentence = " ".join(filter(None, (status_sentence(results), early_sentence(results))))
    return Banner(tone, results.status, sentence, reasons, remedy, lead)


def _pictures_section(run: RunRecords) -> PageSection:
    cases = [Picture(image, "titled shrink") for image in case_images(run)]
    normalized = [Picture(image, "shrink") for image in normalization_images(run)]
    absence = _explain_absence(run)
    return make_section(
        "pictures",
        "Pictures",
        "Pictures",
        [make_note(PICTURES_NOTE), Group(cases, "grid")] if cases else None,
        [Heading("What the network sees"), *normalized] if normalized else None,
        Text(absence) if absence else None,
    )


def _explain_absence(run: RunRecords) -> str:
    """Say why the report has no pictures of some sites; nothing where it has all."""
    if run.results.status in (UNFINISHED, "FAILED"):
        return "There are no pictures: the sites make them when they test the final model."
    if run.results.metric in CLASSIFICATION_ONLY["metric"]:
        kind = "finding" if run.results.has_findings else "class"
        return f"There are no pictures: the study classifies images, and a {kind} has no outline."
    if not run.is_simulation:
        return "The pictures stay at the sites: no image ever leaves one. Each site keeps its own as pictures.npz."
    missing, cases = [site for site in run.sites if site not in run.pictures], run.results.tested.cases
    reasons = {
        "no test case of theirs counted": [site for site in missing if cases.get(site) == 0],
        "they have not tested the model": [site for site in missing if site not in cases],
        "their folders hold no pictures.npz": [site for site in missing if cases.get(site)],
    }
    return " ".join(f"No picture is here of {', '.join(sites)}: {why}." for why, sites in reasons.items() if sites)


def _data_section(run: RunRecords) -> PageSection:
    table = data_table(run)
    return make_section("data", "Data", "Data", data_blocks({"": table}, data_doubts([run])) if table else NO_DATA)


def _recipe_section(run: RunRecords) -> PageSection:
    questions, settings = list(run.results.questions.items()), _list_settings(run)
    unknown = "The recipe is in the job's study.yaml; a run's folder holds it once there is a result."
    if run.evaluations is not None:
        # The answers are about a training, which there was none of here.
        questions, unknown = [], "Nothing was trained. The settings are those of the study that trained the model."
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
        ("Numbers come from", results.model or MISSING),
        ("Normalisation layers", normalization_label(results.normalization)),
        ("Changed in the job's study", changes_sentence(run.changes)),
    ]
    return facts + list(all_settings(run).items())


def _software_section(run: RunRecords) -> PageSection:
    versions = [
        ("silofl of the run", run.results.version or MISSING),
        ("Python", platform.python_version()),
        *((name, find_installed_version(name) or "not installed") for name in PACKAGES),
    ]
    at_sites = software_table(run.ledger)
    told = "As each site says itself. A simulated hospital has no filter that could record its answers."
    here = "The first row was noted by the run; the others are installed where this report was made."
    shown: list[Block] = [Table(at_sites), Text(told, "note")] if at_sites else []
    shown += [Pairs(versions), Text(here, "note")]
    return make_section("versions", "Software", "Software", Fold("Versions at each site and here", shown))


def _loading_section(run: RunRecords) -> PageSection:
    """Say where the run's models are, and how to load one."""
    results = run.results
    where = ""
    if results.run is not None and describe_missing_part(results.recipe) is not None:
        where = describe_complete_model(results.recipe, results.run, run.is_simulation)
    kept = None
    if results.run and not where and not (results.super_model and results.super_model.models):
        kept = Markup(
            "Each site also keeps the model it tested as <code>supermodel/</code> in its state folder of run "
            "<code>{}</code>."
        )
    at_sites = Text(kept.format(results.run)) if kept else None
    return make_section("models", "Models", "How to load the model", _loading_blocks(run, where), at_sites)


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
    is_local = run.results.recipe_value("stays_home") == "everything"
    why = ": each site trained its own" if is_local else " yet" * (run.results.status != "COMPLETE")
    return [Text(f"The run's folder holds no model{why}.")]


def _read_code(folder: Path) -> str:
    """Return the code in a folder's README.md; nothing without any."""
    readme = folder / "README.md"
    _, _, rest = (readme.read_text(encoding="utf-8") if readme.is_file() else "").partition("```python\n")
    return rest.partition("```")[0]
