"""The shared amplitude: every site learns one in its first round, the server averages them once, all use the mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from silofl.algorithms.harmofl.normalization import AmplitudeNorm, half_spectrum
from silofl.base.errors import ConfigError, DataError, TrainingError
from silofl.base.settings import MOST, Fraction, Positive
from silofl.core.algorithm_option import AlgorithmOption, Traits
from silofl.core.mixing import Arrays
from silofl.core.outliers import find_edges
from silofl.core.recipe import find_bounding_rule
from silofl.core.robust import bound_updates
from silofl.parts.answer import SiteAnswer
from silofl.parts.checked_cast import checked_cast
from silofl.parts.part import Compared, OutboundPayload, Outcome, Part, Run, WeightsOf
from silofl.parts.task import TRAIN, ArraySpec, Exchange, Message, PayloadSpec, SiteResults
from silofl.parts.work import SitePart
from silofl.study import Study
from silofl.training.loop import TrainingResult
from silofl.training.site_score import SiteScore

ROLE, MEAN = "amplitude", "amplitude/mean"
PURPOSE = "the mean frequency amplitude of the training images, sent once, so that all sites normalise alike"
RISK = (
    "the server sees the images' contrast, noise and stain, and all sites see it in the mean. With few patients it "
    "shows their outlines; min_patients, or amplitude: {band: 0}, which sends one number per channel only"
)


class Amplitude(AlgorithmOption):
    """Input normalisation by a shared Fourier amplitude.

    Attributes:
        band: ``full``, or the radius of the replaced frequencies (0: mean intensity only).
        momentum: The paper's v of the running amplitude.
        amplitude_factor: An amplitude is left out if it is more than so many times the largest of the others, or less
            than the smallest divided by it.
    """

    section: ClassVar[str] = ROLE
    implementation: ClassVar[str] = __name__
    traits: ClassVar[Traits] = Traits(
        beside="The mean amplitude of each site's training images, once.", deciding=("band",)
    )
    band: Literal["full"] | Annotated[int, Field(strict=True, ge=0, le=MOST)] = "full"
    momentum: Fraction = 0.1
    amplitude_factor: Annotated[Positive, Field(gt=1, le=MOST)] | None = None

    def check(self, study: Study, shape: Sequence[int] = (), missing: Sequence[str] = ()) -> None:
        """Refuse channels that are dropped or lacking: zeros have a phase of 0, and would get the others' amplitude."""
        training = study.training
        if training.drop_channels:
            raise ConfigError(
                f"training.drop_channels must be 0 for {self.section}, which would give a dropped channel the others' "
                f"amplitude, not {training.drop_channels}; leave it out"
            )
        if missing:
            raise DataError(
                f"some cases lack {', '.join(missing)}, and {self.section} normalisation needs all contrasts; add what "
                "they lack, or choose an algorithm without input normalisation for the study"
            )

    def make_layer(self, shape: Sequence[int]) -> AmplitudeNorm:
        """Return the layer that normalises images of shape (C, *spatial)."""
        return AmplitudeNorm(shape, momentum=self.momentum, band=self.band)

    def sentence(self) -> str:
        """Describe the answer for the report."""
        names = {"full": "all frequencies", 0: "the mean intensity alone"}
        band = names.get(self.band, f"frequencies up to radius {self.band}")
        return (
            f"Amplitude normalisation (HarmoFL) of {band}: a running mean, momentum {self.momentum:g}, shared by the "
            "sites."
        )


def mean_amplitude(amplitudes: Sequence[ArrayLike]) -> NDArray[Any]:
    """Return the sites' mean amplitude, every site counting the same (1/K), in the dtype they come in."""
    arrays = [np.asarray(amplitude) for amplitude in amplitudes]
    mean: NDArray[np.float64] = np.mean([array.astype(np.float64) for array in arrays], axis=0)
    return mean.astype(arrays[0].dtype)


def amplitude_level(amplitude: ArrayLike, spatial: Sequence[int]) -> float:
    """Return how bright images are by their mean amplitude: the root of its sum of squares, divided by the pixels.

    Of the frequency 0 alone it is the mean intensity; of all frequencies, by Parseval's theorem, it lies between the
    root mean square of the intensities and 0.7 times that, as the half spectrum has most frequencies once.

    Args:
        amplitude: Shape (C, ..., W // 2 + 1).
        spatial: The axes of the images.
    """
    return float(np.linalg.norm(np.asarray(amplitude, np.float64))) / prod(spatial)


def find_outlying_levels(levels: Mapping[str, float], factor: float, min_sites: int) -> dict[str, float]:
    """Return site -> how many times the nearest of the others' levels its own is, where it lies far beyond all of them.

    The one farthest away is found first, and no longer counts among the others.

    Args:
        levels: Site -> `amplitude_level`.
        factor: Times the largest of the others', or the smallest divided by it; above 1.
        min_sites: With fewer sites left nobody knows whose is odd.
    """
    odd = {}
    remaining = dict(levels)
    while len(remaining) >= max(min_sites, 2):
        times = {}
        for site, level in remaining.items():
            peers = [peer for name, peer in remaining.items() if name != site]
            times[site] = _times_the_nearest(level, peers)
        farthest = max(times, key=lambda site: max(times[site], 1 / times[site] if times[site] else np.inf))
        if 1 / factor <= times[farthest] <= factor:
            break
        odd[farthest] = times[farthest]
        del remaining[farthest]
    return odd


def _times_the_nearest(level: float, peers: Sequence[float]) -> float:
    """Return how many times the nearest of the peers' levels one is; 1 among them. See `find_edges`."""
    least, most = find_edges(peers)
    nearest = min(max(level, least), most)
    if level == nearest:
        return 1.0
    return level / nearest if nearest > 0 else np.inf


@dataclass(frozen=True)
class AmplitudePart(Part):
    """The sites' mean amplitude.

    Attributes:
        study: The study.
        amplitude: The mean, once it is known.
        shape: The shape of the first one that was accepted, which the others must have.
        informed: Site -> the round from which on it holds the mean.
    """

    study: Study
    amplitude: NDArray[Any] | None = None
    shape: tuple[int, ...] | None = None
    informed: dict[str, int] = field(default_factory=dict)
    role: str = ROLE
    saved = ("amplitude", "shape", "informed")
    outbound = (OutboundPayload("amplitude", PURPOSE, RISK, ROLE, is_of_images=True, is_bounded=True),)

    def to_send(self, site: str, exchange: Exchange, run: Run) -> Message:
        """Ask for the amplitude in the first round; bring the mean once to every site, and again where it is lost."""
        if not exchange.is_of_models:
            return Message()
        if self._is_wanted(exchange):
            return Message(meta={ROLE: {"is_wanted": True}})
        # The mean never changes, so it travels once and stays in the site's state. Only a site that begins from an
        # older state gets it again: one that was late, absent or whose answer or state was lost, and one that tests an
        # earlier round.
        is_informed = site in self.informed and self.informed[site] <= run.held(site, exchange.models_round)
        return Message() if self.amplitude is None or is_informed else Message({MEAN: self.amplitude})

    def payload_spec(self, site: str, exchange: Exchange, run: Run) -> PayloadSpec:
        """Return what an amplitude must be like: the first accepted one has the shape, as the server sees no image."""
        if not self._is_wanted(exchange):
            return PayloadSpec()
        return PayloadSpec({MEAN: _expect_spectrum(self.shape, run)})

    def checked(self, site: str, exchange: Exchange, answer: SiteAnswer, run: Run) -> AmplitudePart:
        """Remember the first shape, and which sites have trained with the mean and so hold it."""
        if MEAN in answer.arrays:
            return replace(self, shape=np.shape(answer.arrays[MEAN]))
        # Of a validation a site keeps nothing: it holds the mean once a training has been saved with it.
        if exchange.task == TRAIN and MEAN in self.to_send(site, exchange, run).arrays:
            return replace(self, informed=self.informed | {site: exchange.round})
        return self

    def compared(self, exchange: Exchange, answers: dict[str, SiteAnswer], run: Run) -> Compared:
        """Leave out amplitudes far beyond all others', by the study's factor."""
        factor = self.study.recipe.option(ROLE).amplitude_factor
        if factor is None:
            return Compared(answers)
        sent = {site: answer.arrays[MEAN] for site, answer in answers.items() if MEAN in answer.arrays}
        levels = {site: self._level(amplitude, run) for site, amplitude in sent.items()}
        odd = find_outlying_levels(levels, factor, self.study.federation.min_sites_for_ratio)
        counted = dict(answers)
        for site in odd:
            arrays = dict(answers[site].arrays)
            del arrays[MEAN]
            counted[site] = replace(answers[site], arrays=arrays)
        return Compared(counted, notes=[_explain_odd(site, times) for site, times in odd.items()])

    def merged(self, exchange: Exchange, site_results: SiteResults, weights_of: WeightsOf, run: Run) -> AmplitudePart:
        """Average the sites' amplitudes, once, as far as the study's robust rule lets each count."""
        amplitudes: dict[str, Arrays] = {}
        for site, answer in site_results.accepted.items():
            if MEAN in answer.arrays:
                amplitudes[site] = {MEAN: answer.arrays[MEAN]}
        # Every site counts the same, whatever its number of images, and so it does for the rule.
        rule = find_bounding_rule(self.study.recipe, len(amplitudes), self.study.federation.min_sites_for_ratio)
        if rule is not None:
            amplitudes, _ = bound_updates(rule, amplitudes, dict.fromkeys(amplitudes, 1.0), ())
        if not amplitudes:
            return self
        return replace(self, amplitude=mean_amplitude([arrays[MEAN] for arrays in amplitudes.values()]))

    def outcome(self, run: Run, tests: Mapping[str, SiteScore]) -> Outcome:
        """Return the buffers of `AmplitudeNorm` that hold the mean."""
        if self.amplitude is None:
            return Outcome()
        return Outcome(arrays={"input_norm.running_amplitude": self.amplitude, "input_norm.is_fixed": np.array(True)})

    def _level(self, amplitude: NDArray[Any], run: Run) -> float:
        level = amplitude_level(amplitude, run.image_shape[1:] if run.image_shape else ())
        # Z-scored images have a deviation of 1; levels below it differ by nothing but noise.
        return max(level, 1.0) if self.study.data.intensity == "zscore" else level

    def _is_wanted(self, exchange: Exchange) -> bool:
        is_alone = self.study.recipe.stays == "everything"
        return exchange.task == TRAIN and self.amplitude is None and not is_alone


class SiteAmplitude(SitePart):
    """A site's amplitude, equal in all its models because all see the same batches."""

    name = ROLE

    def prepare(self) -> None:
        """Fix the received mean in every model.

        Raises:
            TrainingError: The site's amplitude is wanted, and it would be a mean over too few patients.
        """
        work = self.work
        if work.message.find_entry(ROLE).get("is_wanted") and not work.has_enough_patients:
            raise TrainingError(
                f"site {work.site!r} has fewer than {work.min_patients} patients in training, so that no amplitude may "
                "leave it; add patients, stay out, or ask for a study without, as input: none"
            )
        # All models of a site see the same batches, so that they share one amplitude.
        if MEAN in self.work.message.arrays:
            for norm in self._norms():
                norm.fix(self.work.message.arrays[MEAN])

    def finish(self, results: Mapping[str, TrainingResult]) -> Message:
        """Return the amplitude where it is wanted; a site that trains alone fixes its own after its first round."""
        norms = self._norms()
        # Nobody sends a mean to a site that trains alone, so its own first round stands for it.
        if self.work.study.recipe.stays == "everything":
            for norm in norms:
                norm.fix(norm.running_amplitude)
        if not self.work.message.find_entry(ROLE).get("is_wanted"):
            return Message()
        return Message({MEAN: norms[0].band_amplitude().cpu().numpy()})

    def _norms(self) -> list[AmplitudeNorm]:
        return [checked_cast(model.input_norm, AmplitudeNorm) for model in self.work.models.values()]


def _expect_spectrum(shape: tuple[int, ...] | None, run: Run) -> ArraySpec:
    # Before the first accepted amplitude has given the shape, it follows from the run's images.
    if shape is None and run.image_shape:
        shape = half_spectrum(run.image_shape)
    origin = " as the other sites' images have it (name a Resize in data.transforms)"
    return ArraySpec(shape, is_required=True, minimum=0, origin=origin)


def _explain_odd(site: str, times: float) -> str:
    which = "largest" if times > 1 else "smallest"
    return (
        f"the amplitude of site {site!r} is left out of the mean: it is {times:.3g} times the {which} of the other "
        "sites'; look at the intensities of its images, or raise amplitude_factor under algorithm.amplitude"
    )


PART, SITE = AmplitudePart, SiteAmplitude
