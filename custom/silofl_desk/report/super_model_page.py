"""The sections of a run's page on FedSM's models and selector, and on a site that never trained.

The map of the selector's features is Fig. 3 of Xu et al., CVPR 2022, arXiv:2203.10144.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from silofl.federation.results import Results, SuperResults
from silofl.training.site_score import Counts, SelectorCounts, Values
from silofl_desk.report.result_tables import name_tested, tested_sites
from silofl_desk.report.run_records import RunRecords
from silofl_hospital.report.canvas import (
    GRID,
    PageImage,
    Plot,
    draw_legend,
    make_image,
    make_legend_handle,
    make_panels,
    point_style,
)
from silofl_hospital.report.page import (
    Blocks,
    Heading,
    HeatCell,
    HeatRow,
    HeatTable,
    PageSection,
    Pairs,
    Picture,
    Table,
    Text,
    make_note,
    make_section,
)
from silofl_hospital.report.tables import TextTable, format_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GLOBAL, PERSONAL, SUPER, ENSEMBLE = "global", "personal", "super", "ensemble"
MODELS = (GLOBAL, PERSONAL, SUPER, ENSEMBLE)
MODELS_TEXT = (
    "Every site trains a global model, which all sites share, a personalised model of its own, and a selector, which "
    "guesses from an image which site it comes from."
)
COUNTS_NOTE = (
    "Row: the site that the images come from. Column: the site that the selector chose; darker = a larger share of "
    "the row. The choice for a case is made by the mean of its slices' scores."
)
BEST_MODELS = (
    "The selector learned which model is the best for an image, not where it comes from: off the diagonal is no error."
)
SEED = 0
# t-SNE's perplexity: the least that its authors advise, and the usual one.
PERPLEXITIES = (5, 30)
MAX_IMAGES = 1000


def super_model_sections(run: RunRecords) -> list[PageSection]:
    """Return the sections on a run's models and on its selector; none where the run has no such models."""
    found = run.results.super_model
    return [_models_section(run.results), _selector_section(run, found)] if found and run.results.tests else []


def _models_section(results: Results) -> PageSection:
    note = (
        f"Each site's test cases, mean {name_tested(results)} over them; none is marked as the best, because one "
        "seed is not enough to know."
    )
    local = " This run has no model that a site trained alone: compare it with a run of the algorithm local."
    return make_section(
        "models-of-sites",
        "Models of the sites",
        "Models of the sites",
        Text(MODELS_TEXT),
        Table(model_table(results), ""),
        make_note(note + ("" if results.joining else local)),
        Pairs(model_meanings(results)),
    )


def _selector_section(run: RunRecords, found: SuperResults) -> PageSection:
    tests = run.results.tests
    image, choices = feature_image(run), choice_table({site: one.choices for site, one in tests.items() if one.choices})
    return make_section(
        "selector",
        "Selector",
        "Selector",
        _count_blocks(found.outputs, {site: one.selector for site, one in tests.items() if one.selector}),
        [Heading("How it sees the sites"), Picture(image)] if image else None,
        [Heading("Which model it chooses"), Table(choices, "")] if choices else None,
        make_note(choices_sentence(run.results, found)) if choices else None,
        Text(threshold_sentence(run.results, found)),
    )


def _count_blocks(outputs: Sequence[str], counts: Mapping[str, SelectorCounts]) -> Blocks:
    """Show what the selector takes the test cases for."""
    counted = {site: one.cases for site, one in counts.items()}
    table = selector_counts(outputs, counted)
    if table is None:
        return []
    right = describe_right(outputs, counted)
    diagonal = f"Right answers are on the diagonal: {right}." if right else BEST_MODELS
    return [Heading("Which site it chose for the test cases"), table, make_note(f"{COUNTS_NOTE} {diagonal}")]


def model_values(results: Results) -> dict[str, Values]:
    """Return global, personal, super, ensemble -> site -> mean test value at the site."""
    tested = {site: one.models or {} for site, one in results.tests.items()}
    return {
        name: {site: tested.get(site, {}).get(site if name == PERSONAL else name) for site in results.sites}
        for name in MODELS
    }


def model_table(results: Results) -> TextTable:
    """Return one row a site with the test value of each model, and their means.

    Nothing is marked as the best: the models are of one run with one seed.
    """
    values = model_values(results)
    table = [[of_sites[site] for of_sites in values.values()] for site in results.sites]
    table.append([results.mean_of_sites(of_sites.values()) for of_sites in values.values()])
    names = (*results.sites, f"mean over {tested_sites(results)}")
    rows = tuple((name, *map(format_number, row)) for name, row in zip(names, table, strict=True))
    return TextTable(("site", *values), rows, num_summary=1)


def selector_counts(outputs: Sequence[str], counted: Mapping[str, Counts]) -> HeatTable | None:
    """Return the counts of the selector's choices for each site's test images; None where nothing was counted.

    Args:
        outputs: Names of the selector's outputs.
        counted: Site -> output -> number of its slices, each on its own, or of its cases, whose slices speak together.
    """
    if not any(sum(counts.values()) for counts in counted.values()):
        return None
    # In the order of the outputs, so that right choices lie on the diagonal; who is no output comes last.
    sites = sorted(counted, key=lambda site: (outputs.index(site) if site in outputs else len(outputs), site))
    known = {site: Counter(counted[site]) for site in sites}
    rows = [
        HeatRow(
            site,
            [HeatCell(str(counts[output]), counts[output] / max(1, counts.total())) for output in outputs],
            describe_right(outputs, {site: counts}),
        )
        for site, counts in known.items()
    ]
    return HeatTable("from", outputs, rows, "right" if any(row.end for row in rows) else "", "dense")


def describe_right(outputs: Sequence[str], counted: Mapping[str, Counts]) -> str:
    """Return how many are right, as ``13 of 14``; nothing where the selector learns no sites.

    Arguments as `selector_counts`.
    """
    # Where the global model is an output, the best model of an image is what is right, and not its site's.
    if GLOBAL in outputs:
        return ""
    right = sum(Counter(counts)[site] for site, counts in counted.items())
    return f"{right} of {sum(sum(counts.values()) for counts in counted.values())}"


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


def model_meanings(results: Results) -> list[tuple[str, str]]:
    """Return each model's name with a description."""
    meanings = {
        GLOBAL: "One model that all sites trained together and share.",
        PERSONAL: "The site's own model, which listens to the others a little; to use it, one must know the site.",
        SUPER: "All models with the selector: nobody says where a case comes from, the selector looks at its images "
        "and one model answers for the whole case, a site's or the global one.",
        ENSEMBLE: "Nobody is chosen: all models answer, and their probabilities are averaged by the selector's scores.",
    }
    if is_ensemble(results):
        meanings[SUPER] = "All models with the selector. This study answers with the ensemble: both columns are equal."
    return [(name, meanings[name]) for name in model_values(results)]


def is_ensemble(results: Results) -> bool:
    """Return whether the super model of a run answers with the ensemble instead of one chosen model."""
    return bool(results.recipe.get("weighs_models"))


def choices_sentence(results: Results, found: SuperResults) -> str:
    """Explain the counts of the chosen models."""
    if is_ensemble(results):
        return "A column counts the test cases that the selector would give its model; here the ensemble answers."
    if found.threshold is None:
        return "A column counts the test cases that its model answered."
    return "A column counts the test cases that its model answered: the global one where the selector was not sure."


def threshold_sentence(results: Results, found: SuperResults) -> str:
    """Name the threshold gamma of a run, its effect and its origin."""
    if is_ensemble(results):
        return "No threshold is used: the ensemble answers."
    if found.threshold is None:
        return "No threshold is used: the selector knows the global model too, and the most probable model answers."
    rule = "a site's model answers where the selector's score for it is above gamma, otherwise the global model."
    if found.threshold >= 1:
        rule = "no score is above it, so that the global model is chosen for every case, as if there were no selector."
    return f"The threshold gamma is {found.threshold:g}: {rule} {_threshold_origin(results)}".rstrip()


def _threshold_origin(results: Results) -> str:
    wanted = results.recipe.get("threshold")
    if wanted != "tuned":
        return "The study fixed it." if wanted else ""
    if not any(score.value is not None for score in results.validation.values()):
        return "No site had validation cases to tune it on, so that the global model always answers."
    return (
        "It was tuned on the sites' validation cases: each site sent only its sums by threshold. It is above 0 only "
        "where that answers these cases better than the selector alone, even with one more case per site that falls "
        "back to the global model."
    )


def feature_image(run: RunRecords) -> PageImage | None:
    """Draw the map of the selector's features; None in a real federation, or without a selector."""
    if not run.features:
        return None
    # Every so manieth image is shown.
    step = -(-sum(len(own.features) for own in run.features.values()) // MAX_IMAGES)
    owners = np.concatenate([np.full(len(own.features), site) for site, own in run.features.items()])[::step]
    points, method = project_to_plane(np.concatenate([own.features for own in run.features.values()])[::step])
    many = f"one in {step} of the validation and test images" if step > 1 else "validation and test images"
    alt = f"Map of {len(points)} images of the sites {', '.join(run.features)}, by {method}."
    caption = (
        f"What the selector sees, before its last layer, of {many}: one point an image, coloured by its true site; "
        f"neighbours look alike to the selector. Made by {method}; the axes have no unit. Features do not leave "
        "the sites: only a simulation, which holds all of them, or a site for itself can draw this."
    )
    rows = [*zip(owners.tolist(), *points.T.tolist(), strict=True)]
    draw = partial(_draw_features, points, owners, run.sites)
    return make_image(Plot("selector", ("site", "x", "y"), rows, draw), alt, caption)


def project_to_plane(features: NDArray) -> tuple[NDArray, str]:
    """Return points of the plane (n, 2) in which similar features (n, F) are neighbours, and the method's name.

    t-SNE compares a point with about three times its perplexity of neighbours, so that it needs more points than that;
    with less than 16 points the two principal components are taken.
    """
    perplexity = min(PERPLEXITIES[1], (len(features) - 1) // 3)
    if perplexity < PERPLEXITIES[0] or not np.ptp(features, axis=0).any():
        return principal_components(features), "PCA"
    from sklearn.manifold import TSNE  # here, because it takes a second to import and most pages need no map

    # From PCA, and with a seed: the same features always give the same map.
    tsne = TSNE(n_components=2, perplexity=perplexity, init="pca", random_state=SEED)
    return tsne.fit_transform(features.astype(np.float64)), f"t-SNE (perplexity {perplexity}, seed {SEED})"


def principal_components(features: NDArray) -> NDArray:
    """Return the first two principal components (n, 2) of features (n, F); 0 for those that do not exist."""
    centred = features.astype(np.float64) - features.mean(axis=0)
    left, lengths, _ = np.linalg.svd(centred, full_matrices=False)
    points = (left * lengths)[:, :2]
    return np.pad(points, ((0, 0), (0, 2 - points.shape[1])))


def _draw_features(points: NDArray, owners: NDArray, sites: Sequence[str], width: float) -> Figure:
    """Draw points (n, 2) in the colour and shape of their sites."""
    figure, ((axes,),) = make_panels(1, 1, (width, 5.6))
    handles = []
    for place, site in enumerate(sites):
        style = point_style(place)
        own = points[owners == site]
        axes.scatter(*own.T, s=60, marker=style["marker"], c=style["color"], edgecolors="white", linewidths=0.5)
        handles.append(make_legend_handle(linestyle="", markersize=8, **style))
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_color(GRID)
    axes.margins(0.06)
    draw_legend(figure, handles, sites, size=10)
    return figure
