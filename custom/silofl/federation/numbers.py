"""Checks of the numbers of an answer against its task and its study, and of answers against one another."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from silofl.base.errors import AggregationError, quote_value
from silofl.core.outliers import find_edges, find_far_ranges, medians_of_others
from silofl.data.data_profile import DataProfile, VoxelSizes
from silofl.parts.answer import TRAINING, Metrics, Numbers
from silofl.parts.task import TRAIN, Exchange
from silofl.study import Study
from silofl.study.sections import CLASSIFICATION_ONLY
from silofl.training.site_score import SiteScore, SuperScore
from silofl.training.small_cells import EMPTY, SURFACE

# What a classification's score has beside its value.
METRICS = frozenset(CLASSIFICATION_ONLY["metric"])
# Times the other sites' sizes of voxels, either way: slices of one body part are 0.6 to 7 mm apart.
MOST_SIZE_RATIO = 12
# An object covers less of its images, and its background more.
MOST_LABELLED = 0.7


def check_numbers(
    site: str, exchange: Exchange, numbers: Numbers[Any], study: Study, most_examples: int | None
) -> None:
    """Refuse numbers of another round, without those that were asked for, or beyond what the study makes possible.

    Args:
        numbers: The answer's numbers, each in its own range already.
        most_examples: The site's training examples in its first round; None where there was none yet.

    Raises:
        AggregationError: Names the site and the number.
    """
    if numbers.round != exchange.round:
        raise AggregationError(f"site {site!r} answered for round {numbers.round} in round {exchange.round}")
    if numbers.metrics.round_test and not study.evaluate_every_round:
        raise AggregationError(f"site {site!r} sent a test score of a round, for which the study does not ask")
    examples = numbers.num_examples
    steps = numbers.steps
    metrics = numbers.metrics
    # An evaluation says no examples; then those of the first round bound its patients.
    most_patients = examples or most_examples
    if most_patients is not None and (numbers.num_patients or 0) > most_patients:
        raise AggregationError(
            f"site {site!r} must have at most as many patients in training as examples, {most_patients}, not "
            f"{numbers.num_patients}: each example is one patient's"
        )
    # An evaluation has no training whose numbers could be missing.
    if not exchange.is_needed:
        return
    wanted: dict[str, float | None] = {"num_examples": examples, "steps": steps}
    if study.is_private:
        wanted["epsilon"] = metrics.epsilon
    else:
        wanted["loss"] = metrics.loss
    if exchange.task == TRAIN and study.training.measures_drift:
        wanted["drift"] = metrics.drift
    missing = next((name for name, value in wanted.items() if value is None), None)
    if missing or examples is None or steps is None:
        raise AggregationError(f"the answer of site {site!r} lacks its {missing}")
    if most_examples is not None and examples > most_examples:
        raise AggregationError(
            f"site {site!r} must have at most {most_examples} training examples, as in its first round, not "
            f"{examples}; start the study anew with other data"
        )
    # With more steps than its data allow, a site's update would look short by step.
    most = study.training.local_epochs * study.steps_an_epoch(examples)
    if steps > most:
        raise AggregationError(
            f"site {site!r} claims {steps} steps; with {examples} examples it can take at most {most}"
        )


def check_image_shape(site: str, shape: tuple[int, ...] | None, study: Study) -> None:
    """Refuse images of other channels or axes than the study's; None is an answer that says nothing of them.

    Raises:
        AggregationError: Names the site and the number.
    """
    if shape is None:
        return
    wanted = (study.data.in_channels, study.data.dimensions)
    if (shape[0], len(shape) - 1) != wanted:
        raise AggregationError(
            f"site {site!r} must have images of {wanted[0]} channels and {wanted[1]} axes, not of {shape[0]} and "
            f"{len(shape) - 1}"
        )


def check_modality(site: str, data_profile: DataProfile, study: Study) -> None:
    """Refuse images of another modality than the study states, by which the super model refuses images.

    Raises:
        AggregationError: Names the site and the modality.
    """
    stated = study.data.modality
    for modality in data_profile.modalities:
        if stated not in (None, modality):
            raise AggregationError(f"site {site!r} must have {stated} images, as data.modality says, not {modality}")


def check_names(site: str, metrics: Metrics[Any], study: Study, parts: Collection[str]) -> None:
    """Refuse an answer whose numbers are of what the study has not: a name could say anything, and cards repeat some.

    Args:
        study: Names labels, regions and metrics of packages.
        parts: Roles of the study's parts, of which some learn.

    Raises:
        AggregationError: Names the site and the first such name.
    """
    roles = {*study.recipe.roles, *parts}
    losses = {*TRAINING, *(f"loss_{role}" for role in roles)}
    # What the study has, and what an answer names of it.
    named: list[tuple[Collection[str], Collection[str]]] = [(losses, metrics.training)]
    for score in (metrics.validation, metrics.round_test, metrics.test):
        if score:
            named += _list_names(score, study, roles)
    unknown: list[str] = []
    for allowed, names in named:
        unknown += [name for name in names if name not in allowed]
    if unknown:
        raise AggregationError(
            f"site {site!r} sent numbers of {quote_value(min(unknown))}, which is no label, metric or model of the "
            "study"
        )


def _list_names(
    score: SiteScore, study: Study, roles: Collection[str]
) -> Iterator[tuple[Collection[str], Collection[str]]]:
    """Yield the names that a score may have, and those of the same sort that it has."""
    labels = {"0", *map(str, study.scored)}
    yield labels, score.labels or ()
    yield METRICS, score.also or ()
    yield {*map(str, study.labels)}, score.areas or ()
    yield study.extra_metrics, score.extra_metrics or ()
    if score.withheld:
        yield {*labels, *study.extra_metrics, EMPTY, SURFACE}, score.withheld.names
    if score.operating_point:
        yield {*map(str, study.called if study.operating_point else ())}, score.operating_point.thresholds
    # A super model's test has the values of the sites' models, of which the site itself learns with the task.
    if not isinstance(score, SuperScore):
        yield roles, score.models or ()
        yield (), score.choices or ()


def find_long_updates(norms: Mapping[str, float], most: float, min_sites: int) -> dict[str, str]:
    """Return why updates are refused that are much longer than the others.

    A site is compared with the median of the others, which one mad site among three does not move above an honest one.

    Args:
        norms: Site -> norm of its update by step.
        most: How many times the others' median a norm may be.
        min_sites: With fewer sites nothing is refused.

    Returns:
        Site -> reason.
    """
    if len(norms) < min_sites:
        return {}
    reasons = {}
    for site, median in medians_of_others(norms).items():
        # Where most others have not moved, any length would be too long.
        if norms[site] > most * median > 0:
            reasons[site] = (
                f"the update of site {site!r} is {norms[site]:.3g} long by step, more than {most:g} times the others' "
                f"median {median:.3g}; look for a fault there, or raise federation.max_update_ratio"
            )
    return reasons


def find_outlying_ranges(data_profiles: Mapping[str, DataProfile], min_sites: int) -> dict[str, str]:
    """Return why the ranges of sites are left out whose images lie far from those of all others.

    The super model doubts images outside of all sites' ranges: by one without end it would doubt none.

    Args:
        data_profiles: Site -> what its training images are like.
        min_sites: With fewer sites that say a measure, nothing is left out.

    Returns:
        Site -> reason, for the ledger.
    """
    reasons = _find_outlying_voxels(data_profiles, min_sites)
    ranges: dict[str, dict[str, tuple[float, float]]] = {}
    for site, data_profile in data_profiles.items():
        for intensity in data_profile.intensities:
            ranges.setdefault(intensity.measure, {})[site] = intensity.low, intensity.high
    for measure, of_sites in ranges.items():
        for site, (least, most) in find_far_ranges(of_sites, min_sites).items():
            low, high = of_sites[site]
            reasons[site] = (
                f"{site}: its images' {measure}, {low:g} to {high:g}, is far from all others' {least:g} to {most:g}; "
                "the warnings of predict do without its ranges"
            )
    return reasons


def describe_unlike_data(data_profiles: Mapping[str, DataProfile]) -> list[str]:
    """Return sentences where PET counts in other units at some sites, and where masks of some may be inverted."""
    sentences = []
    units = {site: data_profile.units[0] for site, data_profile in data_profiles.items() if data_profile.units}
    if len({*units.values()}) > 1:
        shown = ", ".join(f"{unit} at {site}" for site, unit in units.items())
        sentences.append(f"PET counts in {shown}, and nothing converts it; bring all hospitals to one unit")
    shares = {site: profile.labelled for site, profile in data_profiles.items() if profile.labelled is not None}
    most = {site: share for site, share in shares.items() if share > MOST_LABELLED}
    others = [share for site, share in shares.items() if site not in most]
    if others and max(others) < 1 - MOST_LABELLED:
        for site, share in most.items():
            sentences.append(
                f"{site}: labels lie on {share:.0%} of its pixels, and on at most {max(others):.0%} elsewhere; look "
                "whether its masks are inverted"
            )
    return sentences


def _find_outlying_voxels(data_profiles: Mapping[str, DataProfile], min_sites: int) -> dict[str, str]:
    sizes = {
        site: data_profile.voxels for site, data_profile in data_profiles.items() if data_profile.voxels is not None
    }
    reasons: dict[str, str] = {}
    if len(sizes) < max(min_sites, 2):
        return reasons
    for site, voxels in sizes.items():
        peers = [sizes[peer] for peer in sizes if peer != site]
        least = []
        most = []
        for side in range(3):
            least.append(find_edges([peer.least[side] for peer in peers])[0])
            most.append(find_edges([peer.most[side] for peer in peers])[1])
        typical = VoxelSizes((least[0], least[1], least[2]), (most[0], most[1], most[2]))
        if not typical.reaches(voxels, MOST_SIZE_RATIO):
            reasons[site] = (
                f"{site}: its images' voxels, {voxels}, are far from all others' {typical}; the warnings of predict do "
                "without its ranges"
            )
    return reasons
