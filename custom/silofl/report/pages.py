"""``silofl report``: the page of one run, or one that compares several; each is a single file that loads no other."""

import argparse
import os
import platform
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from silofl.errors import ConfigError, ExitCode, quote_value
from silofl.federation.results import UNFINISHED
from silofl.federation.run_folder import describe_complete_model, describe_missing_part
from silofl.files import write_json
from silofl.report.canvas import PageImage
from silofl.report.comparison import compare_joining, comparison_notes, comparison_table, site_comparison_table
from silofl.report.conditions import (
    RowRuns,
    all_settings,
    data_doubts,
    data_table,
    data_tables,
    list_differences,
    results_by_row,
    rows_by_name,
    settings_rows,
)
from silofl.report.drift import DRIFT_NOTE, compare_drift
from silofl.report.figure_files import (
    FIGURES,
    REPORT,
    RESULT_ROWS,
    list_images,
    name_beside,
    write_figures,
    write_file,
    write_result_rows,
)
from silofl.report.hospitals import NOTE, conclude, explain_losses, hospital_table, hospitals_image
from silofl.report.maps import history_sentence, weights_image
from silofl.report.pictures import case_images, comparison_images, normalization_images
from silofl.report.result_rows import list_result_rows
from silofl.report.rounds import (
    ROUND_TEST,
    VALIDATION,
    curve_images,
    curves_image,
    is_validated_with_selector,
    list_incidents,
    participation_table,
    software_table,
    traffic_image,
    traffic_table,
)
from silofl.report.run_records import COMPARISONS, Comparisons, RunRecords, read_run, run_names
from silofl.report.sentences import (
    caveats,
    changes_sentence,
    describe_problems,
    early_sentence,
    joining_sentence,
    left_sentences,
    metric_sentence,
    normalization_label,
    privacy_sentence,
    regions_text,
    remedy_sentence,
    status_sentence,
    unfinished_sentence,
)
from silofl.report.super_model import run_models_table, super_values, unseen_values
from silofl.report.tables import (
    MISSING,
    TextTable,
    drop_equal_columns,
    empty_cases_sentence,
    everyone_sentence,
    extra_metrics_sentence,
    format_count,
    format_duration,
    format_number,
    joining_note,
    joining_table,
    label_sentence,
    label_table,
    last_weights,
    missing_labels_sentence,
    site_table,
    surface_sentence,
    tested_sites,
)
from silofl.schema import dump_record
from silofl.software import find_installed_version
from silofl.study_sections import CLASSIFICATION_ONLY
from silofl.training.joined import CHOSEN, FEDERATED, LOCAL

TEMPLATES = Path(__file__).parent / "templates"
TONES = {"COMPLETE": "good", "INCOMPLETE": "warning", UNFINISHED: "warning", "FAILED": "bad"}
SEVERITY = ("good", "warning", "bad")
PACKAGES = ("silofl", "nvflare", "torch", "monai", "numpy", "matplotlib")


def run(options: argparse.Namespace) -> int:
    """Write the page of one run, or that of several, and print its path."""
    runs = [_find_run(path) for path in options.runs]
    if len(runs) == 1 and options.out is None:
        print(write_report(runs[0]))
        return ExitCode.COMPLETE
    out = options.out or Path("comparison.html")
    if out.suffix != ".html":
        raise ConfigError(f"--out must end in .html, not {quote_value(out.name)}; name a page")
    print(write_comparison(runs, out))
    return ExitCode.COMPLETE


def _find_run(path: Path) -> Path:
    """Return the run's folder within the folder of a downloaded job, otherwise the folder itself."""
    downloaded = path / "workspace" / "silofl"
    return downloaded if downloaded.is_dir() else path


def write_report(run: Path) -> Path:
    """Write ``report.html`` and the files beside it into a run's folder; an unfinished run gets them too.

    Returns:
        The page's path.

    Raises:
        ConfigError: The folder is no run, one of its files is broken, or it cannot be written to.
    """
    records = read_run(run)
    rows = {records.results.algorithm or run.name: [records]}
    return _write_with_files(run / REPORT, "report.html.j2", report_values(records), rows)


def write_comparison(runs: Sequence[Path], out: Path) -> Path:
    """Write one page with the results, curves and predictions of several runs side by side, and return its path.

    Args:
        runs: The runs' folders.
        out: The page's file.

    Raises:
        ConfigError: No run was named, a folder is no run, or the page cannot be written.
    """
    if not runs:
        raise ConfigError("a comparison must have at least one run, not none; name the runs' folders")
    return write_rows(rows_by_name([read_run(run) for run in runs]), out)


@dataclass(frozen=True)
class Summary:
    """The table, the notes and the figure that sum up the rows of a comparison.

    Attributes:
        table: Of all rows, where each stands for several seeds.
        notes: Sentences below it.
        known: Settings in which the rows' names say that they differ.
        centralised: Runs on the same sites' data in one place, for the curves and links alone.
        swept: The table of a sweep.
        figure: Its figure.
    """

    table: TextTable | None = None
    notes: Sequence[str] = ()
    known: Collection[str] = ()
    centralised: Sequence[RunRecords] = ()
    swept: TextTable | None = None
    figure: PageImage | None = None


NO_SUMMARY = Summary()


def write_rows(rows: RowRuns, out: Path, summary: Summary = NO_SUMMARY) -> Path:
    """Write one page on rows of runs with the files beside it, and a link to it into each report; return its path.

    Args:
        rows: Name of the row -> its runs.
        out: The page's file.
        summary: What they come to.

    Raises:
        ConfigError: The page or a file beside it cannot be written.
    """
    values = comparison_values(rows, out.parent, summary.known, summary.centralised)
    values |= {"summary": summary, "swept_image": summary.figure}
    page = _write_with_files(out, "comparison.html.j2", values, {**rows, "centralised": summary.centralised})
    for run in _list_runs(rows):
        _link_back(run, page)
    return page


def _write_with_files(page: Path, template: str, values: dict[str, Any], rows: RowRuns) -> Path:
    """Write a page, its figures and its numbers, and return its path."""
    figures, numbers = name_beside(page, FIGURES), name_beside(page, RESULT_ROWS)
    result_rows = list_result_rows(rows)
    names = {"figures": figures.name, "numbers": numbers.name if result_rows else ""}
    # First: its errors are the ones that name the path that was asked for.
    write_page(page, render(template, values | names))
    write_figures(figures, list_images(values))
    write_result_rows(numbers, result_rows)
    return page


def _link_back(run: RunRecords, page: Path) -> None:
    """Name a page in the run's folder, and write the report anew with a link to it; nothing where that cannot be."""
    place = os.path.relpath(page, run.path)
    if place in run.comparisons or not (run.path / REPORT).is_file():
        return
    try:
        write_json(run.path / COMPARISONS, dump_record(Comparisons((*run.comparisons, place))))
        write_report(run.path)
    except (ConfigError, OSError):
        # The folder is another's, who lets it be read alone.
        return


def report_values(run: RunRecords) -> dict[str, Any]:
    """Return the values that fill the template of a run's report."""
    return {
        "title": run.results.study,
        "subtitle": _subtitle(run),
        "status": _status_banner(run),
        "joining": joining_sentence(run.results),
        "hospitals_image": hospitals_image({run.results.algorithm or run.path.name: [run]}),
        "joining_table": joining_table(run.results),
        "joining_note": joining_note(run.results),
        "caveats": caveats(run.results),
        "facts": _headline(run),
        "folder": str(run.path),
        "model": run.results.model,
        "metric": run.results.metric or MISSING,
        "metric_sentence": metric_sentence(run.results.metric),
        "regions": regions_text(run.results),
        "site_table": site_table(run.results) if run.results.sites else None,
        "label_table": label_table(run.results),
        "label_sentence": label_sentence(run.results),
        "privacy": privacy_sentence(run.results),
        "everyone": everyone_sentence(run.results),
        "empty_cases": empty_cases_sentence(run.results),
        "missing_labels": missing_labels_sentence(run.results),
        "surface": surface_sentence(run.results),
        "extra_metrics": extra_metrics_sentence(run.results),
        "super_model": super_values(run),
        "is_validated_with_selector": is_validated_with_selector(run),
        "unseen": unseen_values(run.unseen),
        "curves": curve_images(run),
        "cases": case_images(run),
        "normalization": normalization_images(run),
        "pictures_absence": _pictures_absence(run),
        "participation": participation_table(run.ledger, run.sites) if run.ledger else None,
        "incidents": list_incidents(run.ledger),
        "data": data_table(run),
        "doubts": data_doubts([run]),
        "comparisons": [(page, link) for page in run.comparisons if (link := _page_address(run.path / page, run.path))],
        "recipe": list(run.results.questions.items()),
        "settings": _settings_facts(run),
        "site_weights": weights_image(run.site_weights[-1]) if run.site_weights else None,
        "site_weights_history": history_sentence(run.site_weights) if run.site_weights else "",
        "weights": None if _is_local(run) else last_weights(run.ledger),
        "weights_absence": "No model is mixed: each site trains alone." if _is_local(run) else "No round has finished.",
        "traffic": traffic_table(run.ledger, run.sites),
        "traffic_image": traffic_image(run),
        "models": _model_files(run),
        "software": software_table(run.ledger),
        "versions": [
            ("silofl of the run", run.results.version or MISSING),
            ("Python", platform.python_version()),
            *((name, find_installed_version(name) or "not installed") for name in PACKAGES),
        ],
    }


def comparison_values(
    rows: RowRuns, folder: Path, known: Collection[str] = (), centralised: Sequence[RunRecords] = ()
) -> dict[str, Any]:
    """Return the values that fill the template of a comparison.

    Args:
        rows: Name of the row -> its runs.
        folder: Of the page, from which its links lead.
        known: Settings in which the rows' names say that they differ.
        centralised: Runs on the same sites' data in one place, for the curves and links alone.
    """
    runs = _list_runs(rows)
    results, number = [run.results for run in runs], len(runs) + len(centralised)
    shared, others, partial = settings_rows(rows)
    numbered = list(run_names(runs))
    names = [name for name, of_row in rows.items() for _ in of_row]
    # A row of several seeds has a table of its own.
    single = {name: of_row[0] for name, of_row in rows.items() if len(of_row) == 1}
    # Rows that are named by their runs' numbers have no other name.
    table, alike = drop_equal_columns(comparison_table(results, names if names != numbered else ()))
    folders, centralised_folders = (
        [(str(run.path), _page_address(run.path / REPORT, folder)) for run in group] for group in (runs, centralised)
    )
    return {
        "hospitals": hospital_table(single),
        "hospitals_image": hospitals_image(rows),
        "hospitals_note": NOTE,
        "conclusion": conclude(rows),
        "losses": explain_losses(single),
        "joining": compare_joining(results_by_row(rows)),
        "drift": compare_drift(rows),
        "drift_note": DRIFT_NOTE,
        "title": f"Comparison of {number} run{'s' * (number != 1)}",
        "folders": folders,
        "centralised_folders": centralised_folders,
        "differences": list_differences(rows, known),
        "settings": shared,
        "other_settings": others,
        "partial_settings": partial,
        "data": data_tables(rows),
        "doubts": data_doubts(runs),
        "results": table,
        "results_alike": alike,
        "by_site": site_comparison_table(results),
        "notes": comparison_notes(results),
        "models": run_models_table(results, numbered),
        "metrics": {run.metric: metric_sentence(run.metric) for run in results if run.metric},
        "curves": curves_image(VALIDATION, runs, centralised),
        "round_tests": curves_image(ROUND_TEST, runs, centralised),
        "pictures": comparison_images(runs),
    }


def _list_runs(rows: RowRuns) -> list[RunRecords]:
    return [run for of_row in rows.values() for run in of_row]


def _page_address(page: Path, folder: Path) -> str | None:
    """Return the address of a page from a folder; None where it is not there."""
    return quote(os.path.relpath(page, folder)) if page.is_file() else None


def _subtitle(run: RunRecords) -> list[str]:
    results = run.results
    parts = []
    if results.algorithm:
        parts.append(f"{results.algorithm}, preset {results.preset}")
    parts.append(results.run or run.path.name)
    if run.ledger and run.ledger[0].started_at:
        parts.append(f"started {run.ledger[0].started_at[:16].replace('T', ' ')} UTC")
    return parts


def _status_banner(run: RunRecords) -> dict[str, Any]:
    status = run.results.status
    found = describe_problems(run.results) if run.results.is_finished else []
    # The worst of all: a run that is complete may have no good model.
    tone = max([TONES[status], *(tone for tone, _ in found)], key=SEVERITY.index)
    reasons = [*run.results.reasons, *left_sentences(run.results), *(sentence for _, sentence in found)]
    banner = {"tone": tone, "word": status, "reasons": reasons, "remedy": ""}
    if status == UNFINISHED:
        sentence = unfinished_sentence(run.path, run.is_simulation, len(run.ledger), run.results.rounds)
        return banner | {"word": "RUNNING OR INTERRUPTED", "sentence": sentence}
    remedy = remedy_sentence(run.path, status, run.is_simulation)
    sentences = (status_sentence(run.results), early_sentence(run.results))
    return banner | {"sentence": " ".join(filter(None, sentences)), "remedy": remedy}


def _headline(run: RunRecords) -> list[tuple[str, str]]:
    """Return the numbers at the top of the report, without those that are missing."""
    results = run.results
    planned = f" of {results.rounds}" if results.rounds else ""
    names = {LOCAL: "alone", FEDERATED: "federated", CHOSEN: "kept"}
    num_sites = len(results.joining or ())
    of_sites = f"mean over {num_sites} site{'s' * (num_sites != 1)}"
    joined = [(f"{names[one]}, {of_sites}", format_number(value)) for one, value in results.joining_means.items()]
    facts = [
        *(joined or [(f"{results.metric or 'value'}, mean over {tested_sites(results)}", format_number(results.mean))]),
        ("best round" if results.status != UNFINISHED else "best round so far", format_count(run.best_round)),
        ("rounds finished", f"{len(run.ledger)}{planned}"),
        ("sites", format_count(len(run.sites) or None)),
        ("test cases", format_count(sum(results.tested.cases.values()) or None)),
        (
            "time of all rounds",
            format_duration(sum(record.seconds for record in run.ledger)) if run.ledger else MISSING,
        ),
    ]
    return [(name, value) for name, value in facts if value != MISSING]


def _settings_facts(run: RunRecords) -> list[tuple[str, str]]:
    results = run.results
    found = [
        ("Numbers come from", results.model),
        ("Normalisation layers", normalization_label(results.normalization)),
        ("Changed in the job's study", changes_sentence(run.changes)),
    ]
    facts = [(name, MISSING if value is None else str(value)) for name, value in found]
    return facts + list(all_settings(run).items())


def _pictures_absence(run: RunRecords) -> str:
    """Say why the report has no pictures of some sites; nothing where it has all."""
    missing = [site for site in run.sites if site not in run.pictures]
    if run.pictures:
        return f"No picture is here of {', '.join(missing)}: no test case of theirs counted." if missing else ""
    if run.results.status in (UNFINISHED, "FAILED"):
        return "There are no pictures: the sites make them when they test the final model."
    if run.results.metric in CLASSIFICATION_ONLY["metric"]:
        return "There are no pictures: the study classifies images, and a class has no outline."
    return "The pictures stay at the sites: no image ever leaves one. Each site keeps its own as pictures.npz."


def _model_files(run: RunRecords) -> dict[str, Any]:
    """Return the files of the models in the run's folder, and the code that loads one from there."""
    results, readme = run.results, run.path / "model" / "README.md"
    keeps_home = results.run is not None and describe_missing_part(results.recipe) is not None
    _, _, rest = (readme.read_text(encoding="utf-8") if readme.is_file() else "").partition("```python\n")
    return {
        "files": sorted(path.name for path in (run.path / "model").glob("*.pt")),
        "code": rest.partition("```")[0],
        "has_super_model": (run.path / "supermodel" / "model.json").is_file(),
        "where": describe_complete_model(results.recipe, results.run, run.is_simulation) if keeps_home else "",
        "stays_home": results.recipe_value("stays_home"),
        "run": results.run,
    }


def _is_local(run: RunRecords) -> bool:
    return run.results.recipe_value("stays_home") == "everything"


def render(template: str, values: dict[str, Any]) -> str:
    """Return a page from its template."""
    # Escaped, because names of sites and cases come from others; strict, because a misspelt name would print nothing.
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(values)


def write_page(path: Path, page: str) -> Path:
    """Write a page, whole or not at all, and return its path.

    Raises:
        ConfigError: It cannot be written.
    """
    if path.is_dir():
        raise ConfigError(
            f"{path} must be a file to write, not a folder; name one in it, as {path / 'comparison.html'}"
        )
    write_file(path, page.encode())
    return path
