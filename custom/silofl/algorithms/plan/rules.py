"""The rules of nnU-Net: grid, patch, network, batch and intensities from the fingerprint of all sites' cases."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from silofl.algorithms.plan.patch import (
    BATCH_SHARE,
    BUDGET,
    COARSE,
    FEATURES,
    LEAST_BATCH,
    LEAST_HALVED,
    NetworkForm,
    PlannedPatch,
    fit_batch_size,
    fit_patch,
)
from silofl.base.errors import ConfigError
from silofl.core.algorithm_option import AlgorithmOption
from silofl.core.outliers import BEYOND, Range, cap_claims, compare_to_others, find_far_ranges
from silofl.data.data_fingerprint import (
    DIGITS,
    NUM_BINS,
    DataFingerprint,
    PooledFingerprint,
    measure_histogram,
    pool_fingerprints,
)

# A set is anisotropic where spacing and numbers of voxels differ by so many times.
ANISOTROPIC = 3
# A site is far from the plan where its voxels are so many times as long, or as short.
FAR = 2
AXES = "XYZ"
SOURCE = "nnU-Net"
CHECK_AIR = "check whether air is -1000 {}: a converter may have left out the rescale intercept"


class SharedPlan(AlgorithmOption):
    """A plan for a study from what all sites tell of their training data, before the first round."""

    section: ClassVar[str] = "plan"
    implementation: ClassVar[str] = "silofl.algorithms.plan.exchange"

    def sentence(self) -> str:
        """Return what a report says of it."""
        return "Once, a fingerprint of each site's training data, from which one plan for all is made."


@dataclass(frozen=True)
class Draft:
    """The choices of a study that a plan begins with.

    Attributes:
        dimensions: 2 or 3.
        task: The study's.
        labels: Number -> name.
        channel_names: Names of the channels; none where they have none.
        modality: DICOM's code, where the study names it.
        intensity: How intensities are scaled now.
        axes: The directions of the turned axes, as ``RAS``; None where volumes are not turned.
        network: What the network takes.
        has_square_sides: Whether an augmentation turns images by 90 degrees in the plane of X and Y.
    """

    dimensions: int
    task: str
    labels: Mapping[int, str]
    channel_names: tuple[str, ...]
    modality: str | None
    intensity: str
    axes: str | None
    network: NetworkForm
    has_square_sides: bool = False

    @property
    def has_patches(self) -> bool:
        """Whether the network sees patches of a volume, and not all of it."""
        return self.dimensions == 3 and self.task == "segmentation"

    @property
    def is_ct(self) -> bool:
        """Whether the images are CT of one channel, whose values have a meaning."""
        # nnU-Net goes by the channel's name, which files without a modality have alone.
        names = [self.modality] if self.modality else self.channel_names
        return [name.upper() for name in names] == ["CT"] and self.intensity != "dtype"


@dataclass(frozen=True)
class Decision:
    """One planned value.

    Attributes:
        key: Its dotted key in study.yaml.
        value: The value, plain.
        reason: The rule, with the numbers that it was applied to.
    """

    key: str
    value: Any
    reason: str


@dataclass(frozen=True)
class SiteFacts:
    """What a plan says of a site, for people.

    Attributes:
        cases: Training cases.
        spacing_mm: Median spacing by axis.
        shape: Median numbers of voxels by axis.
        classes: Shares of the classes; null where the site does not tell it.
    """

    cases: int
    spacing_mm: tuple[float, ...]
    shape: tuple[float, ...]
    classes: tuple[float | None, ...]


@dataclass(frozen=True)
class Plan:
    """A plan.

    Attributes:
        decisions: The planned values.
        warnings: A sentence on each site that is far from them.
        sites: Site -> what it has.
    """

    decisions: tuple[Decision, ...]
    warnings: tuple[str, ...]
    sites: Mapping[str, SiteFacts]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "decisions": [asdict(one) for one in self.decisions],
            "warnings": list(self.warnings),
            # Lists, as a file of JSON and a checkpoint give them back.
            "sites": {
                site: {key: list(one) if isinstance(one, tuple) else one for key, one in vars(facts).items()}
                for site, facts in self.sites.items()
            },
        }

    def sentences(self) -> list[str]:
        """Return each planned value with its rule, and the warnings."""
        planned = [f"planned: {one.key}: {one.value}. {one.reason}" for one in self.decisions]
        return planned + [f"warning: {warning}" for warning in self.warnings]


def make_plan(draft: Draft, fingerprints: Mapping[str, DataFingerprint], min_sites: int | None = None) -> Plan:
    """Plan a study from what the sites tell of their training data.

    Args:
        draft: The study as it is.
        fingerprints: By site.
        min_sites: From how many sites on what one of them tells is bounded by the others'; None for data at hand, which
            nobody has to believe.

    Raises:
        ConfigError: There is no site.
    """
    if not fingerprints:
        raise ConfigError("a plan must have at least 1 site's fingerprint, not 0; add a site, or lower min_patients")
    bounded: Mapping[str, DataFingerprint] = fingerprints
    doubts: list[str] = []
    if min_sites is not None and len(fingerprints) >= max(min_sites, 2):
        bounded, doubts = bound_fingerprints(draft, fingerprints, min_sites)
    found = pool_fingerprints(list(bounded.values()))
    is_cut = draft.dimensions == 2
    target = found.spacing_mm if is_cut else target_spacing(found)
    # Of single cases nobody knows both: the median of the products is taken as the product of the medians.
    shape = np.maximum(np.round(found.shape * found.spacing_mm / target), 1)[: draft.dimensions]
    patch = fit_patch(draft.network, shape, target[: draft.dimensions], draft.has_square_sides)
    batch = fit_batch_size(patch, found.cases * math.prod(found.shape * found.spacing_mm / target))
    size_reason = _size_reason(draft, patch, shape)
    decisions = [
        *_plan_channels(draft, fingerprints),
        *_plan_intensity(draft, found),
        *_plan_grid(draft, found, target),
        *([Decision("data.patches.size", list(patch.size), size_reason)] if draft.has_patches else []),
        _plan_transforms(draft, found, patch, size_reason),
        *_plan_network(draft, patch, target),
        _plan_batch(patch, batch, found.cases),
    ]
    facts = {
        site: SiteFacts(
            cases=one.cases,
            spacing_mm=tuple(one.spacing_mm[1].tolist()),
            shape=tuple(one.shape[1].tolist()),
            classes=tuple(None if i in one.few_classes else share for i, share in enumerate(one.classes.tolist())),
        )
        for site, one in fingerprints.items()
    }
    warnings = [*doubts, *collect_warnings(draft, target, fingerprints)]
    return Plan(tuple(decisions), (*warnings, *(_list_shifted_sites(bounded) if draft.is_ct else ())), facts)


def bound_fingerprints(
    draft: Draft, fingerprints: Mapping[str, DataFingerprint], min_sites: int
) -> tuple[dict[str, DataFingerprint], list[str]]:
    """Return what counts of each site's fingerprint, and a sentence on each site that is bounded.

    A site counts by at most 3 times the others' median of cases, and by fewer than all others together: alone it sets
    no median. Of CT the values of a site that lie far from all others' do not count.

    Args:
        draft: The study.
        fingerprints: By site, at least two.
        min_sites: With fewer sites that tell their values, nobody's are far.
    """
    claims = {site: one.cases for site, one in fingerprints.items()}
    capped = cap_claims(claims, BEYOND)
    total = sum(capped.values())
    bounded = {
        site: replace(one, cases=max(1, int(min(capped[site], total - capped[site] - 1))))
        for site, one in fingerprints.items()
    }
    doubts = [
        f"site {site!r} says that it has {claims[site]} cases, {ratio:.3g} times the others' median, and counts by "
        f"{bounded[site].cases}: ask it"
        for site, ratio in compare_to_others(claims).items()
        if ratio > BEYOND
    ]
    ranges = {site: _reach_values(one) for site, one in fingerprints.items() if draft.is_ct and one.channels.all()}
    for site, (least, most) in find_far_ranges(ranges, min_sites).items():
        low, high = ranges[site]
        bounded[site] = replace(bounded[site], channels=np.zeros(1), histogram=np.zeros(NUM_BINS))
        doubts.append(
            f"the values of site {site!r}, {low:.4g} to {high:.4g}, are far from all others' {least:.4g} to {most:.4g} "
            f"and count for no window; {CHECK_AIR.format('there')}"
        )
    return bounded, doubts


def _reach_values(fingerprint: DataFingerprint) -> Range:
    """Return the least and the largest value that a site tells of its foreground in CT."""
    low, middle, high, mean, deviation = fingerprint.intensity[0].tolist()
    told = [low, middle, high, mean - deviation, mean + deviation]
    percentiles = measure_histogram(fingerprint.histogram)
    told += [] if percentiles is None else percentiles.tolist()
    return min(told), max(told)


def target_spacing(found: PooledFingerprint) -> NDArray[np.float64]:
    """Return the spacing in mm that all volumes are brought to, by axis.

    The median; along the axis with the longest voxels of an anisotropic set the 10th percentile, but no finer than the
    other axes are: where few volumes have thin slices, interpolating between thick ones makes up less.
    """
    target, worst = found.spacing_mm.copy(), int(found.spacing_mm.argmax())
    if is_anisotropic(found):
        target[worst] = max(found.low_spacing_mm[worst], np.delete(target, worst).max())
    return np.array([float(f"{value:.{DIGITS}g}") for value in target])


def is_anisotropic(found: PooledFingerprint) -> bool:
    """Return whether the longest voxels are 3 times as long, and 3 times as few, as along another axis."""
    worst = int(found.spacing_mm.argmax())
    is_coarse = found.spacing_mm[worst] >= ANISOTROPIC * found.spacing_mm.min()
    return bool(is_coarse and found.shape.max() >= ANISOTROPIC * found.shape[worst])


def collect_warnings(
    draft: Draft, target: NDArray[np.float64], fingerprints: Mapping[str, DataFingerprint]
) -> list[str]:
    """Return a sentence on each thing in which a site is far from the plan.

    Args:
        draft: The study.
        target: The planned spacing in mm; in 2D the median.
        fingerprints: By site.
    """
    sentences = []
    for site, one in fingerprints.items():
        for axis in range(draft.dimensions):
            spacing = one.spacing_mm[1, axis]
            if not target[axis] / FAR <= spacing <= FAR * target[axis]:
                sentences.append(
                    f"site {site!r} has a median spacing of {spacing:g} mm along {AXES[axis]}, "
                    f"{spacing / target[axis]:.2g} times the plan's {target[axis]:g} mm"
                )
        first = 1 if draft.task == "segmentation" else 0
        numbers = [i for i in range(first, len(one.classes)) if one.classes[i] == 0 and i in draft.labels]
        absent = [draft.labels[i] for i in numbers if i not in one.few_classes]
        if absent:
            sentences.append(f"site {site!r} has no case annotated with {', '.join(absent)}")
        # Without names there is no channel to lack.
        gone = [i for i, (_, is_here) in enumerate(zip(draft.channel_names, one.channels, strict=False)) if not is_here]
        if lacking := [draft.channel_names[i] for i in gone if i not in one.few_channels]:
            sentences.append(f"site {site!r} lacks the channel {', '.join(lacking)}")
        few = [draft.labels[i] for i in numbers if i in one.few_classes]
        few += [draft.channel_names[i] for i in gone if i in one.few_channels]
        if few:
            sentences.append(f"site {site!r} withholds {', '.join(few)}: fewer patients than its min_patients have it")
    return sentences


def _list_shifted_sites(fingerprints: Mapping[str, DataFingerprint]) -> list[str]:
    """Return a sentence on two sites whose foregrounds lie further apart than either is wide, if there are any."""
    measured = {site: measure_histogram(one.histogram) for site, one in fingerprints.items()}
    known = sorted(((site, one) for site, one in measured.items() if one is not None), key=lambda pair: pair[1][1])
    return [
        f"the values of site {upper!r} lie {above[1] - below[1]:.0f} above those of site {lower!r}, more than the "
        f"range of either site; {CHECK_AIR.format('at both')}"
        for (lower, below), (upper, above) in pairwise(known)
        if above[1] - below[1] > max(below[2] - below[0], above[2] - above[0])
    ]


def _plan_channels(draft: Draft, fingerprints: Mapping[str, DataFingerprint]) -> list[Decision]:
    """Return the channels, which stay those of the study: a site's dataset.json may name no others."""
    if not draft.channel_names:
        return []
    counts = np.sum([one.channels for one in fingerprints.values()], axis=0)
    shown = ", ".join(f"{name} at {count:g}" for name, count in zip(draft.channel_names, counts, strict=True))
    is_withheld = any(one.few_channels for one in fingerprints.values())
    shown += f"{', and withheld by others,' if is_withheld else ''} of {len(fingerprints)} sites"
    reason = f"{shown}; of one that a site lacks the network sees zeros"
    names = list(draft.channel_names)
    return [Decision("data.channels", len(names), "their number"), Decision("data.channel_names", names, reason)]


def _plan_intensity(draft: Draft, found: PooledFingerprint) -> list[Decision]:
    if draft.intensity == "dtype":
        # The fixed scale of pictures, which needs no data.
        return []
    if _is_clipped(draft, found):
        return [Decision("data.intensity", "raw", "CT's values have a meaning; data.transforms scales them")]
    reason = f"{SOURCE}: images other than CT of one channel get mean 0 and deviation 1 by case"
    return [Decision("data.intensity", "zscore", reason)]


def _is_clipped(draft: Draft, found: PooledFingerprint) -> bool:
    # MONAI's transform has one range for all channels, and none of a single value.
    is_one = len(found.intensity) == 1 and found.intensity[0, 0] < found.intensity[0, 2]
    return draft.is_ct and bool(is_one)


def _plan_transforms(draft: Draft, found: PooledFingerprint, patch: PlannedPatch, size_reason: str) -> Decision:
    """Return the transforms of each image, in place of all that the study has: its size, then its scale."""
    steps: list[dict[str, dict[str, Any]]] = []
    reasons = []
    if not draft.has_patches:
        steps.append({"Resize": {"spatial_size": list(patch.size)}})
        reasons.append(size_reason)
    if _is_clipped(draft, found):
        low, _, high, mean, deviation = found.intensity[0].tolist()
        reasons.append(
            f"{SOURCE}: CT is clipped to the foreground's 0.5 and 99.5 percentile, {low:.4g} and {high:.4g}, and "
            f"scaled by its mean {mean:.4g} and deviation {deviation:.4g}"
        )
        # Rounding may leave nothing to be scaled by.
        deviation = deviation or 1.0
        scaled = {"b_min": round((low - mean) / deviation, 4), "b_max": round((high - mean) / deviation, 4)}
        steps.append({"ScaleIntensityRange": {"a_min": low, "a_max": high, **scaled, "clip": True}})
    return Decision("data.transforms", steps, "; ".join(reasons) or "none: volumes keep their grid and their scale")


def _plan_grid(draft: Draft, found: PooledFingerprint, target: NDArray[np.float64]) -> list[Decision]:
    if draft.dimensions == 2:
        return []
    reason = f"{SOURCE}: the median spacing by axis, {_format_values(found.spacing_mm)} mm"
    if is_anisotropic(found):
        worst = int(found.spacing_mm.argmax())
        reason += (
            f"; along {AXES[worst]} the 10th percentile, {found.low_spacing_mm[worst]:.3g} mm, or the coarsest of the "
            f"others, since its voxels are {found.spacing_mm[worst] / found.spacing_mm.min():.2g} times as long and "
            f"{found.shape.max() / found.shape[worst]:.2g} times as few (both at least {ANISOTROPIC})"
        )
    steps = [{"Orientation": {"axcodes": draft.axes}}, {"Spacing": {"pixdim": target.tolist()}}]
    return [Decision("data.volume_transforms", steps, reason)]


def _size_reason(draft: Draft, patch: PlannedPatch, shape: NDArray[np.float64]) -> str:
    what = "image in the plane" if draft.dimensions == 2 else "volume on this grid"
    longer = [axis for axis, side, median in zip(AXES, patch.size, shape, strict=False) if side > median]
    padded = f"; {' and '.join(longer)} beyond the median, as nnU-Net pads a side that it halves" if longer else ""
    return (
        f"{SOURCE}: the median {what} measures {_format_values(shape)} voxels; in multiples of "
        f"{_format_values(np.prod(patch.strides, axis=0))} two of {_format_values(patch.size)} need "
        f"{100 * LEAST_BATCH * patch.memory / BUDGET:.0f} % of the budget of {BUDGET:.3g} voxels x features{padded}"
    )


def _plan_network(draft: Draft, patch: PlannedPatch, target: NDArray[np.float64]) -> list[Decision]:
    if draft.network.name != "DynUNet":
        return []
    levels = len(patch.strides)
    most = FEATURES[-1] if draft.dimensions == 3 else 512
    widths = [min(32 * 2**level, most) for level in range(levels)]
    steps = np.prod(patch.strides, axis=0)
    values = {
        "strides": (
            patch.strides,
            f"{SOURCE}: a side is halved while it has at least {LEAST_HALVED} voxels, less than "
            f"{COARSE} times as long as the finest; by {_format_values(steps)} in {levels} levels",
        ),
        "kernel_size": (
            patch.kernels,
            f"{SOURCE}: 1 along an axis until its voxels, first of "
            f"{_format_values(target[: draft.dimensions])} mm, are less than {COARSE} times as long as the finest",
        ),
        "upsample_kernel_size": (patch.strides[1:], f"{SOURCE}: as the strides"),
        "filters": (widths, f"{SOURCE}: 32, doubled with each level up to {most}"),
    }
    return [
        Decision(f"model.arguments.{key}", [list(one) if isinstance(one, tuple) else one for one in value], reason)
        for key, (value, reason) in values.items()
    ]


def _plan_batch(patch: PlannedPatch, batch: int, cases: int) -> Decision:
    reason = (
        f"{SOURCE}: at least {LEAST_BATCH}; more where the budget holds {BUDGET / patch.memory:.1f} and they are at "
        f"most {BATCH_SHARE:.0%} of the voxels of all {cases} cases"
    )
    return Decision("training.batch_size", batch, reason)


def _format_values(values: Sequence[float] | NDArray) -> str:
    return " x ".join(f"{value:.3g}" for value in values)
