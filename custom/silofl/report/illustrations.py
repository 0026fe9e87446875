"""The pages' figures with their alternative texts and captions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from silofl.report.canvas import Image
from silofl.report.figures import (
    drift_curves,
    mean_validation,
    model_curves,
    run_curves,
    selector_accuracy,
    traffic_bars,
    training_curves,
)
from silofl.report.folder import Pictures, RunRecords
from silofl.report.ledger_tables import duration
from silofl.report.pictures import before_and_after, case_grid, case_ranks, same_case, shared_window
from silofl.report.selector_map import FeatureMap, draw_map
from silofl.report.tables import number

SITES_IN_A_ROW = 4
MODEL_CURVES = "Each site's validation cases with the global model, and with the site's personalised model."
ACCURACY_CURVES = (
    f"{MODEL_CURVES} On the right the share of its slices that the selector takes for this site's. The validation "
    "above is of both models together: a case that the selector gives to its own site counts with the personalised "
    "model, any other with the global one."
)


def curve_images(run: RunRecords) -> list[Image]:
    """Return the curves of validation, loss and drift; none before the first finished round."""
    if not run.ledger:
        return []
    validation = f"Validation {_metric(run)} and t" if any(record.validation for record in run.ledger) else "T"
    alt = f"{validation}raining loss of {len(run.sites)} sites over {len(run.ledger)} rounds"
    curves = training_curves(run.ledger, run.sites, _metric(run), run.best_round)
    images = [Image(curves, f"{alt}. {_best_sentence(run)}", _best_sentence(run))]
    models = model_curves(run.ledger, run.sites, _metric(run), run.best_round)
    if models:
        images.append(_model_image(run, models))
    drift = drift_curves(run.ledger, run.sites)
    if drift:
        last = run.ledger[-1]
        caption = "Squared distance of a site's weights to the round's start, mean over its steps (HarmoFL, Eq. 9)."
        images.append(Image(drift, f"Drift of each site by round; mean {number(last.drift)} in the last.", caption))
    return images


def feature_image(run: RunRecords) -> Image | None:
    """Return the map of the selector's features; None where the sites keep theirs, or the run has no selector."""
    if not run.features:
        return None
    shown = FeatureMap.of(run.features)
    many = f"one in {shown.step} of the validation and test images" if shown.step > 1 else "validation and test images"
    alt = f"Map of {len(shown.points)} images of the sites {', '.join(run.features)}, by {shown.method}."
    if shown.is_wrong.any():
        alt += f" {int(shown.is_wrong.sum())} of them are taken for another site's."
    caption = (
        f"What the selector sees, before its last layer, of {many}: one point an image, coloured by its true site; "
        f"neighbours look alike to the selector. Made by {shown.method}; the axes have no unit. Features do not leave "
        "the sites: only a simulation, which holds all of them, or a site for itself can draw this."
    )
    return Image(draw_map(shown, run.sites), alt, caption)


def traffic_image(run: RunRecords) -> Image | None:
    """Return the bytes and seconds of each round; None before the first finished round."""
    if not run.ledger:
        return None
    longest = duration(max(record.seconds for record in run.ledger))
    alt = f"Bars of the megabytes and seconds of {len(run.ledger)} rounds; the longest took {longest}."
    caption = "Bytes of the arrays, before the transport wraps them. The time includes waiting for the slowest site."
    return Image(traffic_bars(run.ledger), alt, caption)


def case_images(run: RunRecords) -> list[Image]:
    """Return each site's worst, median and best case with the outlines of truth and prediction."""
    return [_case_image(run, site, shown) for site, shown in run.pictures.items()]


def normalization_images(run: RunRecords) -> list[Image]:
    """Return the sites' images before and after amplitude normalisation; none where it changed nothing."""
    if not any(shown.is_normalized for shown in run.pictures.values()):
        return []
    window = shared_window(run.pictures)
    caption = f"Before and after amplitude normalisation: black is {window[0]:.2f}, white {window[1]:.2f} everywhere."
    sites = list(run.pictures)
    rows = [sites[i : i + SITES_IN_A_ROW] for i in range(0, len(sites), SITES_IN_A_ROW)]
    alt = "One test image of each of the sites {}, before and after amplitude normalisation."
    return [
        Image(before_and_after({site: run.pictures[site] for site in row}, window), alt.format(", ".join(row)), caption)
        for row in rows
    ]


def run_curve_image(runs: Sequence[RunRecords]) -> Image | None:
    """Return the validation curves of several runs; None where none has validated a round."""
    named = run_names(runs).items()
    ledgers = {name: run.ledger for name, run in named if any(record.validation for record in run.ledger)}
    if not ledgers:
        return None
    sites = sorted({site for run in runs for site in run.sites})
    metrics = " or ".join(sorted({_metric(run) for run in runs}))
    alt = f"Validation of {len(ledgers)} runs over their rounds: mean over sites, and {', '.join(sites)}."
    caption = f"Validation ({metrics}) of the model that each round made; the mean is over the sites that validated."
    return Image(run_curves(ledgers, sites), alt, caption)


def comparison_images(runs: Sequence[RunRecords]) -> list[Image]:
    """Return for each site one test case that most runs hold a picture of, with each such run's prediction."""
    sites = sorted({site for run in runs for site in run.pictures})
    images = (_comparison_image(site, runs) for site in sites)
    return [image for image in images if image]


def run_names(runs: Sequence[RunRecords]) -> dict[str, RunRecords]:
    """Return name -> run: its row in the table, its algorithm, and preset and seed where the runs differ in them."""
    differing = [key for key in ("preset", "seed") if len({run.results.get(key) for run in runs}) > 1]
    names = {}
    for i, run in enumerate(runs, start=1):
        words = [f"{i}: {run.results.get('algorithm') or run.path.name}"]
        words += [f"seed {run.results.get(key)}" if key == "seed" else str(run.results.get(key)) for key in differing]
        names[" ".join(words)] = run
    return names


def shared_case(pictures: Mapping[str, Pictures]) -> tuple[str, list[str]] | None:
    """Return the case that most runs hold with the same truth, and those runs; None where no two do.

    Args:
        pictures: Name of the run -> its pictures of one site.
    """
    holders: dict[tuple[str, bytes], list[str]] = {}
    for name, shown in pictures.items():
        cases = {str(case): truth for case, truth in zip(shown.cases, shown.truths, strict=True)}
        for case, truth in cases.items():
            holders.setdefault((case, repr(truth.shape).encode() + truth.tobytes()), []).append(name)
    (case, _), names = max(holders.items(), key=lambda item: len(item[1]), default=(("", b""), []))
    return (case, names) if len(names) > 1 else None


def _comparison_image(site: str, runs: Sequence[RunRecords]) -> Image | None:
    names = run_names(runs)
    pictures = {name: run.pictures[site] for name, run in names.items() if site in run.pictures}
    shared = shared_case(pictures)
    if shared is None:
        return None
    case, holders = shared
    labels, metric = names[holders[0]].labels, _metric(names[holders[0]])
    alt = f"Site {site}, case {case}: truth and the predictions of runs {', '.join(holders)}."
    others = [name for name in names if name not in holders]
    without = f" (no picture of it: {', '.join(others)})" if others else ""
    shown = same_case({name: pictures[name] for name in holders}, case, labels, metric)
    return Image(shown, alt, f"{site}: {case}{without}")


def _model_image(run: RunRecords, curves: bytes) -> Image:
    has_accuracy = any(selector_accuracy(record, site) is not None for record in run.ledger for site in run.sites)
    alt = f"Validation {_metric(run)} of the global model and of the personalised models of {len(run.sites)} sites"
    alt += f" over {len(run.ledger)} rounds{', and the accuracy of the selector' if has_accuracy else ''}."
    return Image(curves, alt, ACCURACY_CURVES if has_accuracy else MODEL_CURVES)


def _case_image(run: RunRecords, site: str, shown: Pictures) -> Image:
    ranks = case_ranks(shown)
    values = ", ".join(f"{rank} {number(float(shown.values[place]))}" for place, rank in ranks.items())
    alt = f"Site {site}: image, outline of the truth and of the prediction; {_metric(run)} of the cases: {values}."
    return Image(case_grid(shown, run.labels, _metric(run)), alt, site)


def _best_sentence(run: RunRecords) -> str:
    """Return which round is reported, and why."""
    if run.best_round is None:
        return "No site has validated a model yet."
    values = [mean_validation(record) for record in run.ledger if record.round == run.best_round]
    value = values[0] if values else None
    if value is None:
        return f"The reported round is {run.best_round}, the last: there are no validation data."
    return f"The best round on validation is {run.best_round}: {_metric(run)} {number(value)}, mean over sites."


def _metric(run: RunRecords) -> str:
    return run.results.get("metric") or "metric"
