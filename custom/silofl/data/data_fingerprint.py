"""The fingerprint of a site's training cases, from which nnU-Net plans a network, and that of all sites together.

Isensee et al., nnU-Net: a self-configuring method for deep learning-based biomedical image segmentation, Nature Methods
18, 2021, plan from the spacing, shape and intensities of every case. Skorupko et al., Federated nnU-Net for
Privacy-Preserving Medical Image Segmentation, arXiv:2503.02549, plan from those of all sites. Here a site says
quartiles and means only: a least or a largest value, and a list of cases, would each show single patients. They are
measured from the files as they are stored.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import ConfigError, DataError
from silofl.core.few import find_few
from silofl.core.findings import unpack_findings
from silofl.data.contrasts import list_missing_contrasts, read_source
from silofl.data.intensity import to_channels
from silofl.data.manifest import Manifest
from silofl.data.preparation import build_requests, read_label_map
from silofl.data.progress import track_progress
from silofl.data.records import Record
from silofl.data.targets import IGNORED, find_labelled
from silofl.reading.decoder import decode_ahead
from silofl.reading.image import SPACING_MM, Image, check_affine
from silofl.study import Study

# Of a case's foreground: 0.5, 50 and 99.5 percentile, mean, standard deviation.
NUM_INTENSITIES = 5
# Of the foreground of CT in Hounsfield units, also with 1024 too much; what lies outside counts in the end bins.
EDGES = np.arange(-2048, 6144 + 1, 4.0)
NUM_BINS = len(EDGES) - 1
# Values within fewer bins are no Hounsfield units.
LEAST_BINS = 4
# That a file can have.
SIDE = (1, 65536)
QUARTILES = (0.25, 0.5, 0.75)
# Digits of what leaves, and of what is planned from it: more could tell a scanner.
DIGITS = 3
# Probabilities at which a site's distribution is laid out: 0, 0.01, ..., 1.
STEPS = np.linspace(0, 1, 101)
PERCENTILES = (0.5, 50, 99.5)
QUARTERS = (25, 50, 75)


@dataclass(frozen=True)
class DataFingerprint:
    """A site's account of its training cases.

    Attributes:
        cases: Training cases.
        spacing_mm: Quartiles by axis, shape (3, 3): first quartile, median and third quartile of X, Y and Z; 1 where an
            axis has no length in mm.
        shape: Quartiles of the numbers of voxels, likewise; Z of a picture is 1.
        intensity: By channel, the mean over the cases of `NUM_INTENSITIES` numbers of the foreground, shape (C, 5); 0
            where the site lacks the channel.
        channels: 1 for each channel that the site has, 0 for the others, shape (C,).
        classes: Share of the voxels, or of the cases, that is of each class; of a segmentation the background's first.
        histogram: Foreground voxels between `EDGES`, shape (NUM_BINS,); zeros of images with several channels.
        few_channels: Numbers of the channels that the site does not tell of, which count as ones that it lacks.
        few_classes: Numbers of the classes that it does not tell of, whose share counts as 0.

    Raises:
        ConfigError: A number is none that images can have.
    """

    cases: int
    spacing_mm: NDArray[np.float64]
    shape: NDArray[np.float64]
    intensity: NDArray[np.float64]
    channels: NDArray[np.float64]
    classes: NDArray[np.float64]
    histogram: NDArray[np.float64] = field(default_factory=lambda: np.zeros(NUM_BINS))
    few_channels: tuple[int, ...] = ()
    few_classes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what no images have."""
        for name, (low, high) in {"spacing_mm": SPACING_MM, "shape": SIDE}.items():
            values = getattr(self, name)
            if values.min() < low or values.max() > high or (np.diff(values, axis=0) < 0).any():
                raise ConfigError(f"the quartiles of {name} must rise within {low:g} to {high:g}, not otherwise")
        if (self.intensity[:, 4] < 0).any() or not np.isin(self.channels, (0, 1)).all():
            raise ConfigError("a fingerprint must have deviations of at least 0, and 0 or 1 for a channel")
        # Shares are rounded.
        if self.classes.min() < 0 or self.classes.sum() > 1 + 0.01 * len(self.classes):
            raise ConfigError("the shares of the classes must be at least 0, and 1 together")


@dataclass(frozen=True)
class PooledFingerprint:
    """The training cases of all sites.

    Attributes:
        cases: Their number.
        spacing_mm: Median by axis, shape (3,).
        low_spacing_mm: 10th percentile by axis.
        shape: Median numbers of voxels by axis.
        intensity: By channel as in `DataFingerprint`; of one with a histogram the percentiles are those of all voxels.
    """

    cases: int
    spacing_mm: NDArray[np.float64]
    low_spacing_mm: NDArray[np.float64]
    shape: NDArray[np.float64]
    intensity: NDArray[np.float64]


def pool_fingerprints(fingerprints: Sequence[DataFingerprint]) -> PooledFingerprint:
    """Return the fingerprint of all sites' cases; a site counts by its number of cases.

    Means and histograms are weighted means. A channel's deviation is that within the sites and between their means.
    Quantiles are those of the mixture of the sites' distributions, as `pooled_quantile` says.

    Args:
        fingerprints: At least one, all with the same channels and classes.
    """
    cases = np.array([one.cases for one in fingerprints], dtype=np.float64)
    spacing, shape = (np.stack([getattr(one, key) for one in fingerprints]) for key in ("spacing_mm", "shape"))
    there = np.stack([one.channels for one in fingerprints])
    intensity = _pool_intensity(np.stack([one.intensity for one in fingerprints]), there * cases[:, None])
    # Shares, of which each site's cases decide what they count: by its voxels alone one site could outweigh all others.
    shares = [one.cases * one.histogram / max(one.histogram.sum(), 1) for one in fingerprints]
    percentiles = measure_histogram(np.sum(shares, axis=0))
    if percentiles is not None:
        intensity[0, : len(PERCENTILES)] = percentiles
    return PooledFingerprint(
        cases=int(cases.sum()),
        spacing_mm=pooled_quantile(spacing, cases, 0.5),
        low_spacing_mm=pooled_quantile(spacing, cases, 0.1),
        shape=pooled_quantile(shape, cases, 0.5),
        intensity=intensity,
    )


def measure_histogram(histogram: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Return the `PERCENTILES` of the voxels in a histogram, to a bin; None where they lie in too few to be told."""
    if not histogram.any():
        return None
    below = np.concatenate([[0], histogram.cumsum()])
    found = np.interp(np.array(PERCENTILES) / 100 * below[-1], below, EDGES)
    return found if found[-1] - found[0] >= LEAST_BINS * (EDGES[1] - EDGES[0]) else None


def pooled_quantile(quartiles: NDArray[np.float64], cases: NDArray[np.float64], share: float) -> NDArray[np.float64]:
    """Return a quantile by axis of the mixture of distributions of which the quartiles are known.

    A site's quantile function is taken as linear between its quartiles. Of the tails nothing is known: each ends where
    the ratio to its quartile is that of the quartile to the median. At 101 even steps it gives values of equal weight.

    Args:
        quartiles: Above 0, of each site, shape (K, 3, axes).
        cases: Of each site, shape (K,).
        share: From 0 to 1.
    """
    low, middle, high = quartiles[:, 0], quartiles[:, 1], quartiles[:, 2]
    knots = np.stack([low**2 / middle, low, middle, high, high**2 / middle], axis=1)
    weights = np.repeat(cases, len(STEPS))
    values = [
        np.concatenate([np.interp(STEPS, (0, *QUARTILES, 1), site) for site in knots[:, :, axis]])
        for axis in range(knots.shape[2])
    ]
    return np.array([np.quantile(one, share, weights=weights, method="inverted_cdf") for one in values])


def _pool_intensity(intensity: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (C, 5) from the sites' (K, C, 5) and what each counts, (K, C); 0 for a channel of no site."""
    total = np.maximum(weights.sum(axis=0), 1)

    def mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return (values * weights).sum(axis=0) / total

    means = np.stack([mean(intensity[:, :, i]) for i in range(NUM_INTENSITIES)], axis=1)
    means[:, 4] = np.sqrt(mean(intensity[:, :, 4] ** 2 + (intensity[:, :, 3] - means[:, 3]) ** 2))
    return means


@dataclass(frozen=True)
class CaseMeasures:
    """The measures of one case, or their means over the cases of one patient; as in `DataFingerprint`.

    A channel without a foreground is NaN. `bins` are the numbers of those with foreground voxels between `EDGES`, and
    `voxels` how many; none of an image with several channels.
    """

    spacing_mm: NDArray[np.float64]
    shape: NDArray[np.float64]
    intensity: NDArray[np.float64]
    classes: NDArray[np.float64]
    bins: NDArray[np.intp]
    voxels: NDArray[np.float64]


def turned_axes(study: Study) -> str | None:
    """Return the directions that the axes of a study's volumes run to; None where they are as they are stored."""
    named = [step.options for step in study.data.volume_transforms if step.name == "Orientation"]
    return named[0].get("axcodes") or "RAS" if named else "RAS" if study.data.dimensions == 3 else None


def measure_site(manifest: Manifest, study: Study, min_patients: int, has_progress: bool = True) -> DataFingerprint:
    """Return the fingerprint of a site's training cases.

    Each patient counts once, however many cases there are: their means come first, then quartiles over patients.
    A channel or a class that fewer patients than `min_patients` have is not told: it would describe them alone. Nor is
    a class from which the share of such a one would follow.

    Args:
        study: The study; its Orientation turns the axes, none of its other transforms counts.
        min_patients: Patients, known by name, that a number must come from.
        has_progress: Whether a terminal shows a progress bar while files are read.

    Raises:
        DataError: A case cannot be read, or is a window of a time series.
    """
    cases: dict[tuple[bool, str], list[CaseMeasures]] = {}
    measured = ((record, _measure_case(record, manifest, study)) for record in manifest.training)
    with decode_ahead(build_requests(manifest.training, manifest)):
        for record, found in track_progress(
            measured, len(manifest.training), f"measuring {manifest.folder.name}", has_progress
        ):
            # Whose patient nobody knows is taken as a patient of its own, and counts for no threshold.
            is_known = record.patient is not None
            cases.setdefault((is_known, record.patient if is_known else record.case), []).append(found)
    is_known = np.array([known for known, _ in cases])

    def means(key: str) -> NDArray[np.float64]:
        return np.stack([_mean_without_nan([getattr(one, key) for one in of_patient]) for of_patient in cases.values()])

    def list_few(there: NDArray[np.bool_], numbers: Iterable[int], is_partition: bool = False) -> list[int]:
        counts = there[is_known].sum(axis=0).tolist()
        return sorted(find_few({number: counts[number] for number in numbers}, min_patients, is_partition))

    intensity, classes = means("intensity"), means("classes")
    is_there = np.isfinite(intensity[:, :, 0])
    few_channels = list_few(is_there, range(is_there.shape[1]))
    few_classes = list_few(classes > 0, study.labels, study.task == "classification")
    channels = is_there.any(axis=0)
    channels[few_channels] = False
    intensity = np.where(channels[:, None], _mean_without_nan(intensity), 0)
    shares = classes.mean(axis=0)
    shares[few_classes] = 0
    if study.task == "segmentation":
        shares[0] = 1 - shares[1:].sum()
    spacing, shape = (np.percentile(means(key), QUARTERS, axis=0) for key in ("spacing_mm", "shape"))
    histogram = _add_histograms(cases, min_patients)
    rounded = [_round_to_digits(values) for values in (spacing, shape, intensity, shares, histogram)]
    few = tuple(few_channels), tuple(few_classes)
    return DataFingerprint(len(manifest.training), *rounded[:3], channels.astype(np.float64), *rounded[3:], *few)


def _add_histograms(cases: Mapping[tuple[bool, str], Sequence[CaseMeasures]], min_patients: int) -> NDArray[np.float64]:
    """Return the histogram of all patients, each with the mean of the own cases, shape (NUM_BINS,).

    What lies in a bin of too few patients counts in the nearest of enough, so that nobody's least or largest is seen.
    """
    total, holders = np.zeros(NUM_BINS), np.zeros(NUM_BINS, int)
    for (is_known, _), of_patient in cases.items():
        own = np.zeros(NUM_BINS)
        for one in of_patient:
            own[one.bins] += one.voxels / len(of_patient)
        total += own
        holders += is_known & (own > 0)
    shared = np.flatnonzero((total > 0) & (holders >= min_patients))
    if not len(shared):
        return np.zeros(NUM_BINS)
    nearest = shared[np.abs(np.arange(NUM_BINS)[:, None] - shared).argmin(axis=1)]
    return np.bincount(nearest, weights=total, minlength=NUM_BINS)


def _measure_case(record: Record, manifest: Manifest, study: Study) -> CaseMeasures:
    try:
        image = read_source(manifest.source(record), study.data)
        if image.is_window:
            raise DataError("the image must be a picture or a volume to be planned for, not a window of a time series")
        label = read_label_map(record, manifest, image, study)
        if image.affine is not None:
            check_affine(image.affine, record.image)
        return _measure_image(record, manifest, image, label, study)
    except DataError as error:
        raise DataError(f"case {record.case!r}: {error}") from None


def _share_classes(record: Record, study: Study, count: int) -> NDArray[np.float64]:
    """Return the share of each class in a case: all of one, or of findings as much of each."""
    if not study.is_multilabel:
        return np.eye(count)[record.label]
    found = unpack_findings(np.array([record.label]), count)[0]
    return found / max(found.sum(), 1)


def _measure_image(
    record: Record, manifest: Manifest, image: Image, label: NDArray | None, study: Study
) -> CaseMeasures:
    settings, numbers = study.data, record.numbers
    pixels = to_channels(image.array, settings.channels, image.has_contrasts)
    if numbers is not None:
        pixels = pixels[..., numbers]
        label = label if label is None else label[..., numbers]
    count = 1 + max(study.labels)
    if label is None:
        foreground, classes = np.ones(pixels.shape[1:], bool), _share_classes(record, study, count)
    else:
        foreground, is_known = find_labelled(label[0]), label != IGNORED
        classes = np.bincount(label[is_known], minlength=count)[:count] / max(1, is_known.sum())
    spacing, shape = np.ones(3), np.ones(3)
    shape[: pixels.ndim - 1] = pixels.shape[1:]
    if image.affine is not None:
        spacing = np.linalg.norm(image.affine[:3, :3], axis=0) * (1, 1, 1 if numbers is None else numbers.step)
        order = _order_axes(image.affine, turned_axes(study))
        spacing, shape = spacing[order], shape[order]
    intensity = np.stack([_summarise_intensities(channel[foreground]) for channel in pixels])
    for name in list_missing_contrasts(settings.channel_names, [manifest.source(record)]):
        intensity[settings.channel_names.index(name)] = np.nan
    return CaseMeasures(spacing, shape, intensity, classes, *_count_voxels(pixels, foreground))


def _count_voxels(pixels: NDArray, foreground: NDArray[np.bool_]) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Return the bins with foreground voxels, and how many; none of an image with several channels."""
    values = pixels[0][foreground] if len(pixels) == 1 else pixels[:0]
    low, high = EDGES[[0, -1]].tolist()
    counts = np.histogram(values.clip(low, high), NUM_BINS, (low, high))[0].astype(np.float64)
    bins = np.flatnonzero(counts)
    return bins, counts[bins]


def _summarise_intensities(values: NDArray) -> NDArray[np.float64]:
    if not values.size:
        return np.full(NUM_INTENSITIES, np.nan)
    values = values.astype(np.float64)
    return np.array([*np.percentile(values, PERCENTILES), values.mean(), values.std()])


def _order_axes(affine: NDArray[np.float64], axes: str | None) -> list[int]:
    """Return which stored axis comes first, second and third once a volume is turned."""
    if axes is None:
        return [0, 1, 2]
    from nibabel.orientations import axcodes2ornt, io_orientation, ornt_transform

    places = ornt_transform(io_orientation(affine), axcodes2ornt(axes))[:, 0]
    return np.argsort(places).tolist()


def _mean_without_nan(values: list[NDArray[np.float64]] | NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean over the first axis of what is not NaN; NaN where all is."""
    array = np.asarray(values)
    there = np.isfinite(array)
    total = np.where(there, array, 0).sum(axis=0)
    return np.divide(total, there.sum(axis=0), out=np.full(total.shape, np.nan), where=there.any(axis=0))


def _round_to_digits(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.array([float(f"{value:.{DIGITS}g}") for value in values.ravel()]).reshape(values.shape)
