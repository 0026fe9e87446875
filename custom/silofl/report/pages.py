"""The pages: report.html of one run and the comparison of several, each one file without anything from outside."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from silofl.errors import ConfigError
from silofl.report.comparison import comparison_notes
from silofl.report.folder import UNFINISHED, RunRecords, read_run
from silofl.report.illustrations import comparison_pictures, curve_images, picture_images, run_curve_image, traffic_image
from silofl.report.ledger_tables import duration, incidents, last_weights, participation_table, traffic_table
from silofl.report.sentences import (
    caveats,
    metric_sentence,
    normalization_label,
    recipe_answers,
    status_sentence,
    unfinished_sentence,
)
from silofl.report.tables import MISSING, comparison_table, number, site_table
from silofl.rounds.files import write_text

TONES = {"COMPLETE": "good", "INCOMPLETE": "warning", UNFINISHED: "warning", "FAILED": "bad"}
PACKAGES = ("silofl", "nvflare", "torch", "monai", "numpy", "matplotlib")


def write_report(run: Path) -> Path:
    """Write ``report.html`` into a run's folder and return its path; an unfinished run gets one too.

    Raises:
        ConfigError: The folder is no run, one of its files is broken, or it cannot be written to.
    """
    records = read_run(run)
    return _write(run / "report.html", _render("report.html.j2", report_values(records)))


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
    records = [read_run(run) for run in runs]
    return _write(out, _render("comparison.html.j2", comparison_values(records)))


def report_values(run: RunRecords) -> dict[str, Any]:
    """Return all that the report's template shows of a run."""
    return {
        "title": str(run.results.get("study") or run.path.name),
        "subtitle": _subtitle(run),
        "banner": _banner(run),
        "caveats": caveats(run.results),
        "facts": _facts(run),
        "metric": run.results.get("metric") or MISSING,
        "metric_sentence": metric_sentence(run.results.get("metric")),
        "site_table": site_table(run.results) if run.results["sites"] else None,
        "curves": curve_images(run),
        "pictures": picture_images(run),
        "pictures_absence": _pictures_absence(run),
        "participation": participation_table(run.ledger, run.sites),
        "incidents": incidents(run.ledger),
        "recipe": recipe_answers(run.results["recipe"]) if run.results.get("recipe") else [],
        "settings": _settings(run),
        "weights": {} if _is_local(run) else last_weights(run.ledger),
        "last_round": run.ledger[-1].round if run.ledger else None,
        "traffic": traffic_table(run.ledger, run.sites),
        "traffic_image": traffic_image(run) if run.ledger else None,
        "models": _models(run),
        "versions": _versions(run.results.get("version")),
    }


def comparison_values(runs: Sequence[RunRecords]) -> dict[str, Any]:
    """Return all that the comparison's template shows of several runs."""
    results = [run.results for run in runs]
    return {
        "title": f"Comparison of {len(runs)} runs",
        "folders": [str(run.path) for run in runs],
        "table": comparison_table(results),
        "notes": comparison_notes(results),
        "metrics": {run["metric"]: metric_sentence(run["metric"]) for run in results if run.get("metric")},
        "curves": run_curve_image(runs),
        "pictures": comparison_pictures(runs),
    }


def _render(template: str, values: dict[str, Any]) -> str:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(values)


def _write(path: Path, page: str) -> Path:
    if path.is_dir():
        raise ConfigError(f"{path} must be a file to write, not a folder; name one in it, as {path / 'comparison.html'}")
    try:
        write_text(path, page)
    except OSError as error:
        raise ConfigError(f"{path} must be writable; it is not: {error.strerror or error}") from None
    return path


def _subtitle(run: RunRecords) -> list[str]:
    results = run.results
    parts = []
    if results.get("algorithm"):
        parts.append(f"{results['algorithm']}, preset {results['preset']}")
    parts.append(str(results.get("run") or run.path.name))
    if run.ledger and run.ledger[0].started_at:
        parts.append(f"started {run.ledger[0].started_at[:16].replace('T', ' ')} UTC")
    return parts


def _banner(run: RunRecords) -> dict[str, Any]:
    status = str(run.results["status"])
    tone = TONES.get(status, "warning")
    if status != UNFINISHED:
        return {"tone": tone, "word": status, "sentence": status_sentence(status), "reasons": run.results["reasons"]}
    sentence = unfinished_sentence(run.path, run.can_resume_here, len(run.ledger), run.results.get("rounds"))
    return {"tone": tone, "word": "RUNNING OR INTERRUPTED", "sentence": sentence, "reasons": []}


def _facts(run: RunRecords) -> list[tuple[str, str]]:
    results, cases = run.results, run.results.get("cases", {})
    planned = f" of {results['rounds']}" if results.get("rounds") else ""
    best = "best round" if results["status"] != UNFINISHED else "best round so far"
    return [
        ("mean over sites", number(results.get("mean"))),
        ("spread (std)", number(results.get("spread"))),
        ("pooled over cases", number(results.get("pooled"))),
        (best, str(run.best_round or MISSING)),
        ("rounds finished", f"{len(run.ledger)}{planned}"),
        ("sites", str(len(run.sites))),
        ("test cases", str(sum(cases.values())) if cases else MISSING),
        ("time of all rounds", duration(sum(record.seconds for record in run.ledger)) if run.ledger else MISSING),
    ]


def _settings(run: RunRecords) -> list[tuple[str, str]]:
    keys = {"algorithm": "Algorithm", "preset": "Preset", "seed": "Seed", "rounds": "Rounds", "metric": "Metric"}
    found = [(name, run.results.get(key)) for key, name in keys.items()]
    found.append(("Numbers come from", run.results.get("model")))
    found.append(("Normalisation layers", normalization_label(run.results.get("normalization"))))
    found.append(("Split by", run.results.get("split_unit")))
    return [(name, MISSING if value is None else str(value)) for name, value in found]


def _pictures_absence(run: RunRecords) -> str:
    """Return why sites have no pictures here; nothing where all have them."""
    missing = [site for site in run.sites if site not in run.pictures]
    if not missing:
        return ""
    if run.results["status"] in (UNFINISHED, "FAILED"):
        return "There are no pictures: the sites make them when they test the final model."
    if run.results.get("metric") == "accuracy":
        return "There are no pictures: the study classifies images, and a class has no outline."
    who = "" if len(missing) == len(run.sites) else f" ({', '.join(missing)})"
    return f"The pictures stay at the sites{who}: a federation sends no image. Each site keeps its own, pictures.npz."


def _models(run: RunRecords) -> dict[str, Any]:
    """Return what of the models the folder holds, and the size of an image where it is known."""
    study = run.path / "job" / "app" / "config" / "study.yaml"
    shown = next(iter(run.pictures.values()), None)
    return {
        "files": sorted(path.name for path in (run.path / "model").glob("*.pt")),
        "study": str(study.relative_to(run.path)) if study.is_file() else "study.yaml",
        "shape": str(shown.images.shape[1:]) if shown else "(C, H, W)",
        "stays_home": (run.results.get("recipe") or {}).get("stays_home"),
        "run": run.results.get("run"),
    }


def _is_local(run: RunRecords) -> bool:
    return (run.results.get("recipe") or {}).get("stays_home") == "everything"


def _versions(run_version: str | None) -> list[tuple[str, str]]:
    """Return the version that wrote the run, and those installed where the report is made."""
    return [("run", run_version or MISSING), ("Python", platform.python_version())] + [
        (name, _installed(name)) for name in PACKAGES
    ]


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
