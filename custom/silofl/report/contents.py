"""What the pages say: the values of the templates, from the records of one run or of several."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from silofl.report.class_scores import everyone_sentence
from silofl.report.comparison import comparison_notes
from silofl.report.folder import UNFINISHED, RunRecords
from silofl.report.illustrations import (
    case_images,
    comparison_images,
    curve_images,
    normalization_images,
    run_curve_image,
    run_names,
    traffic_image,
)
from silofl.report.ledger_tables import duration, incidents, last_weights, participation_table, traffic_table
from silofl.report.sentences import (
    caveats,
    changes_sentence,
    metric_sentence,
    normalization_label,
    recipe_answers,
    remedy_sentence,
    status_sentence,
    unfinished_sentence,
)
from silofl.report.super_contents import super_values, unseen_values
from silofl.report.super_tables import models_of_runs
from silofl.report.tables import (
    MISSING,
    comparison_table,
    count,
    label_table,
    number,
    site_comparison_table,
    site_table,
)
from silofl.report.weights_map import history_sentence, weights_image
from silofl.study import CLASSIFICATION_ONLY

TONES = {"COMPLETE": "good", "INCOMPLETE": "warning", UNFINISHED: "warning", "FAILED": "bad"}
PACKAGES = ("silofl", "nvflare", "torch", "monai", "numpy", "matplotlib")


def report_values(run: RunRecords) -> dict[str, Any]:
    """Return all that the report's template shows of a run."""
    return {
        "title": str(run.results.get("study") or run.path.name),
        "subtitle": _subtitle(run),
        "status": _status(run),
        "caveats": caveats(run.results),
        "facts": _facts(run),
        "folder": str(run.path),
        "model": run.results.get("model"),
        "metric": run.results.get("metric") or MISSING,
        "metric_sentence": metric_sentence(run.results.get("metric")),
        "site_table": site_table(run.results) if run.results["sites"] else None,
        "label_table": label_table(run.results),
        "everyone": everyone_sentence(run.results),
        "super_model": super_values(run),
        "unseen": unseen_values(run),
        "curves": curve_images(run),
        "cases": case_images(run),
        "normalization": normalization_images(run),
        "pictures_absence": _pictures_absence(run),
        "participation": participation_table(run.ledger, run.sites) if run.ledger else None,
        "incidents": incidents(run.ledger),
        "recipe": recipe_answers(run.results["recipe"]) if run.results.get("recipe") else [],
        "settings": _settings(run),
        "site_weights": weights_image(run.site_weights[-1]) if run.site_weights else None,
        "site_weights_history": history_sentence(run.site_weights) if run.site_weights else "",
        "weights": None if _is_local(run) else last_weights(run.ledger),
        "weights_absence": _weights_absence(run),
        "traffic": traffic_table(run.ledger, run.sites),
        "traffic_image": traffic_image(run),
        "models": _models(run),
        "versions": _versions(run.results.get("version")),
    }


def comparison_values(runs: Sequence[RunRecords]) -> dict[str, Any]:
    """Return all that the comparison's template shows of several runs."""
    results = [run.results for run in runs]
    return {
        "title": f"Comparison of {len(runs)} runs",
        "folders": [str(run.path) for run in runs],
        "results": comparison_table(results),
        "by_site": site_comparison_table(results),
        "notes": comparison_notes(results),
        "models": models_of_runs(results, list(run_names(runs))),
        "metrics": {run["metric"]: metric_sentence(run["metric"]) for run in results if run.get("metric")},
        "curves": run_curve_image(runs),
        "pictures": comparison_images(runs),
    }


def _subtitle(run: RunRecords) -> list[str]:
    results = run.results
    parts = []
    if results.get("algorithm"):
        parts.append(f"{results['algorithm']}, preset {results['preset']}")
    parts.append(str(results.get("run") or run.path.name))
    if run.ledger and run.ledger[0].started_at:
        parts.append(f"started {run.ledger[0].started_at[:16].replace('T', ' ')} UTC")
    return parts


def _status(run: RunRecords) -> dict[str, Any]:
    status, rounds = str(run.results["status"]), run.results.get("rounds")
    banner = {"tone": TONES.get(status, "warning"), "word": status, "reasons": run.results["reasons"], "remedy": ""}
    if status == UNFINISHED:
        sentence = unfinished_sentence(run.path, run.can_resume_here, len(run.ledger), rounds)
        return banner | {"word": "RUNNING OR INTERRUPTED", "sentence": sentence}
    remedy = remedy_sentence(run.path, status, run.can_resume_here)
    return banner | {"sentence": status_sentence(status), "remedy": remedy}


def _facts(run: RunRecords) -> list[tuple[str, str]]:
    """Return the numbers that a reader looks for first, without those that are missing."""
    results, cases = run.results, run.results.get("cases", {})
    planned = f" of {results['rounds']}" if results.get("rounds") else ""
    facts = [
        (f"{results.get('metric') or 'value'}, mean over sites", number(results.get("mean"))),
        ("spread (std)", number(results.get("spread"))),
        ("pooled over cases", number(results.get("pooled"))),
        ("best round" if results["status"] != UNFINISHED else "best round so far", count(run.best_round)),
        ("rounds finished", f"{len(run.ledger)}{planned}"),
        ("sites", count(len(run.sites) or None)),
        ("test cases", count(sum(cases.values()) or None)),
        ("time of all rounds", duration(sum(record.seconds for record in run.ledger)) if run.ledger else MISSING),
    ]
    return [(name, value) for name, value in facts if value != MISSING]


def _settings(run: RunRecords) -> list[tuple[str, str]]:
    keys = {"algorithm": "Algorithm", "preset": "Preset", "seed": "Seed", "rounds": "Rounds", "metric": "Metric"}
    found = [(name, run.results.get(key)) for key, name in keys.items()]
    found.append(("Numbers come from", run.results.get("model")))
    found.append(("Normalisation layers", normalization_label(run.results.get("normalization"))))
    found.append(("Split by", run.results.get("split_unit")))
    found.append(("Changed in the job's study", changes_sentence(run.changes)))
    return [(name, MISSING if value is None else str(value)) for name, value in found]


def _pictures_absence(run: RunRecords) -> str:
    """Return why sites have no pictures here; nothing where all have them."""
    missing = [site for site in run.sites if site not in run.pictures]
    if run.pictures:
        return f"No picture is here of {', '.join(missing)}: no test case of theirs counted." if missing else ""
    if run.results["status"] in (UNFINISHED, "FAILED"):
        return "There are no pictures: the sites make them when they test the final model."
    if run.results.get("metric") in CLASSIFICATION_ONLY["metric"]:
        return "There are no pictures: the study classifies images, and a class has no outline."
    return "The pictures stay at the sites: no image ever leaves one. Each site keeps its own as pictures.npz."


def _models(run: RunRecords) -> dict[str, Any]:
    """Return what of the models the folder holds, and the size of an image where it is known."""
    study = run.path / "job" / "app" / "config" / "study.yaml"
    shown = next(iter(run.pictures.values()), None)
    return {
        "files": sorted(path.name for path in (run.path / "model").glob("*.pt")),
        "has_super_model": (run.path / "supermodel" / "model.json").is_file(),
        "study": str(study.relative_to(run.path)) if study.is_file() else "model/study.yaml",
        "shape": str(shown.images.shape[1:]) if shown else "(C, H, W)",
        "stays_home": (run.results.get("recipe") or {}).get("stays_home"),
        "run": run.results.get("run"),
    }


def _is_local(run: RunRecords) -> bool:
    return (run.results.get("recipe") or {}).get("stays_home") == "everything"


def _weights_absence(run: RunRecords) -> str:
    return "No weights travel: each site trains alone." if _is_local(run) else "No round has finished."


def _versions(run_version: str | None) -> list[tuple[str, str]]:
    """Return the version that wrote the run, and those installed where the report is made."""
    return [("silofl of the run", run_version or MISSING), ("Python", platform.python_version())] + [
        (name, _installed(name)) for name in PACKAGES
    ]


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
