"""HarmoFL: amplitude normalisation of the images and weight perturbation of the step.

Jiang et al., HarmoFL: Harmonizing Local and Global Drifts in Federated Learning on Heterogeneous Medical Images,
AAAI 2022, arXiv:2112.10775.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from math import prod
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from pydantic import Field
from torch import Tensor, nn

from silofl.algorithms.recipe import Answer, Recipe
from silofl.algorithms.steps import (
    Batch,
    Loss,
    Step,
    frozen_statistics,
    full_precision,
    move_parameters,
    random_state,
    set_random_state,
)
from silofl.errors import ConfigError, DataError, TrainingError
from silofl.settings import MOST, Fraction, Positive

# Images transformed at a time on a CPU, whose cache their spectra fit.
PIECE = 16


class Amplitude(Answer):
    """Input normalisation by a shared Fourier amplitude.

    Attributes:
        band: ``full``, or the radius of the replaced frequencies (0 = mean intensity only).
        momentum: The paper's v of the running amplitude, in [0, 1].
        amplitude_factor: A site's amplitude is left out of the mean if it is more than this many times the largest of
            the others, or that many times below their smallest, among ``federation.min_sites_for_ratio`` sites or more.
            The paper leaves none out.
    """

    section: ClassVar[str] = "amplitude"
    method: ClassVar[str] = "amplitude"
    deciding: ClassVar[tuple[str, ...]] = ("band",)
    band: Literal["full"] | Annotated[int, Field(strict=True, ge=0, le=MOST)] = "full"
    beside: ClassVar[str] = "The mean amplitude of each site's training images, once."
    momentum: Fraction = 0.1
    amplitude_factor: Annotated[float, Field(gt=1, le=MOST)] | None = None

    def check_training(self, training: Any) -> None:  # noqa: ANN401 - `silofl.study_sections.TrainingSettings`
        """Refuse channels that are dropped at random."""
        if training.drop_channels:
            raise ConfigError(
                f"training.drop_channels must be 0 for {self.section}, which would give a dropped channel the others' "
                f"amplitude, not {training.drop_channels}; leave it out"
            )

    def check_contrasts(self, missing: Sequence[str]) -> None:
        """Refuse images without a contrast: zeros have a phase of 0, and the others' amplitude would make a peak."""
        if missing:
            raise DataError(
                f"all cases must have all contrasts for {self.section} normalisation; some lack {', '.join(missing)}: "
                "add what they lack, or choose an algorithm without input normalisation for the study"
            )

    def make_layer(self, shape: Sequence[int]) -> AmplitudeNorm:
        """Return the layer that normalises images of shape (C, *spatial)."""
        return AmplitudeNorm(shape, momentum=self.momentum, band=self.band)

    def sentence(self) -> str:
        """Describe the answer for the report."""
        what = {"full": "all frequencies", 0: "the mean intensity alone"}
        band = what.get(self.band, f"frequencies up to radius {self.band}")
        momentum = f"momentum {self.momentum:g}"
        return f"Amplitude normalisation (HarmoFL) of {band}: a running mean, {momentum}, shared by the sites."


class Perturbation(Answer):
    """A step along the gradient at perturbed weights.

    Attributes:
        alpha: Length of the weight perturbation, above 0.
        follows_rate: Whether alpha falls as the learning rate does, by ``training.schedule``; the paper's is constant.
    """

    section: ClassVar[str] = "perturbation"
    measures_drift: ClassVar[bool] = True
    alpha: Positive = 0.05
    follows_rate: bool = False

    def check_training(self, training: Any) -> None:  # noqa: ANN401 - `silofl.study_sections.TrainingSettings`
        """Refuse to follow a rate that does not fall."""
        if self.follows_rate and training.schedule == "constant":
            raise ConfigError(
                f"{self.section}.follows_rate must be false with a constant training.schedule, along which alpha would "
                "not fall; set training.schedule: poly"
            )

    def make_step(self) -> Step:
        """Return `perturbed_step` with alpha."""
        return perturbed_step(self.alpha, self.follows_rate)

    def sentence(self) -> str:
        """Describe the answer for the report."""
        falling = ", which falls with the learning rate" if self.follows_rate else ""
        return f"Perturbed: the gradient is taken at weights moved by alpha = {self.alpha:g} uphill (HarmoFL){falling}."


PRESETS = {
    # Eqs. 2-7 and Algorithm 1: the whole amplitude, alpha = 0.05, v = 0.1, p_k = n_k / n.
    "paper": Recipe(input=Amplitude(), step=Perturbation()),
    # The authors' released code: the mean intensity alone, frozen at the first batch, uniform weights.
    "reference": Recipe(input=Amplitude(band=0, momentum=0.0), step=Perturbation(), weights="uniform"),
    "recommended": Recipe(input=Amplitude(band=0, amplitude_factor=5.0), step=Perturbation(), stays_home="batchnorm"),
}


class AmplitudeNorm(nn.Module):
    """Replace each image's Fourier amplitude by a running mean over images and keep its phase (Eqs. 2-4).

    In training, until the amplitude is fixed, ``running = (1 - v) * running + v * mean over the batch``; the first
    batch sets it. The half spectrum of a real FFT stands for the whole.

    Args:
        shape: (C, *spatial) of an image, two or three spatial axes; the amplitude belongs to this size.
        momentum: The paper's v, in [0, 1].
        band: ``"full"``, or a radius: only frequencies whose signed index is at most the radius in absolute value on
            every axis are replaced; 0 replaces the mean intensity alone.

    Attributes:
        running_amplitude: Float buffer (C, ..., W // 2 + 1); zero until the first batch.
        is_fixed: Boolean buffer: whether training leaves the amplitude as it is.

    Raises:
        ConfigError: ``shape``, ``momentum`` or ``band`` is out of range.
    """

    running_amplitude: Tensor
    is_fixed: Tensor
    band_bins: Tensor

    def __init__(self, shape: Sequence[int], momentum: float = 0.1, band: Literal["full"] | int = "full") -> None:
        super().__init__()
        self.shape = tuple(int(size) for size in shape)
        if len(self.shape) not in (3, 4) or min(self.shape) < 1:
            raise ConfigError(f"shape must be (C, H, W) or (C, D, H, W) with sizes of at least 1, not {tuple(shape)}")
        if not 0 <= momentum <= 1:
            raise ConfigError(f"momentum must lie in [0, 1], not {momentum}")
        if band != "full" and (isinstance(band, bool) or not isinstance(band, int) or band < 0):
            raise ConfigError(f"band must be 'full' or a radius of at least 0, not {band!r}")
        self.momentum, self.band = momentum, band
        # No buffer: it is needed in the first round only, after which every site's amplitude is fixed.
        self.has_learned = False
        self.axes = tuple(range(-len(self.shape) + 1, 0))
        self.register_buffer("running_amplitude", torch.zeros(half_spectrum(self.shape)))
        self.register_buffer("is_fixed", torch.tensor(False))
        # Not persistent: it follows from shape and band, and a state dict holds what was learned.
        self.register_buffer("band_bins", _band_bins(self.shape[1:], band), persistent=False)

    @property
    def is_known(self) -> bool:
        """Whether an amplitude has been learned or fixed."""
        # An amplitude of zeros may be that of blank images; one that was loaded is known by its numbers.
        return self.has_learned or bool(self.is_fixed) or bool(self.running_amplitude.any())

    def fix(self, amplitude: ArrayLike | Tensor) -> None:
        """Set the amplitude, shape (C, ..., W // 2 + 1), and keep it in training too.

        Raises:
            ConfigError: Another shape, a negative or non-finite value.
        """
        amplitude = torch.as_tensor(amplitude).to(self.running_amplitude)
        if amplitude.shape != self.running_amplitude.shape:
            wanted = tuple(self.running_amplitude.shape)
            raise ConfigError(f"the amplitude must have shape {wanted}, not {tuple(amplitude.shape)}")
        if not torch.isfinite(amplitude).all() or (amplitude < 0).any():
            raise ConfigError("the amplitude must be finite and at least 0 everywhere")
        self.running_amplitude.copy_(amplitude)
        self.is_fixed.fill_(True)

    def band_amplitude(self) -> Tensor:
        """Return the running amplitude, zero outside the band: all that another site needs of it."""
        if self.band == "full":
            return self.running_amplitude.clone()
        bins = torch.zeros_like(self.running_amplitude).flatten(1)
        bins[:, self.band_bins] = self.running_amplitude.flatten(1)[:, self.band_bins]
        return bins.view_as(self.running_amplitude)

    def forward(self, images: Tensor) -> Tensor:
        """Return the images with the running amplitude and their own phase.

        Args:
            images: (B, C, *spatial) of the module's shape; not changed.

        Returns:
            The same shape, float32 or better.

        Raises:
            TrainingError: Images of another size, or evaluation before any amplitude is known.
        """
        if images.shape[1:] != self.shape:
            raise TrainingError(
                f"images must have the amplitude's size {self.shape}, not {tuple(images.shape[1:])}; "
                "resize them in the study's data.transforms"
            )
        # torch has no FFT in bfloat16, and half precision would lose the phase.
        with torch.autocast(images.device.type, enabled=False):
            wide = images if images.dtype == torch.float64 else images.float()
            if self.training and not self.is_fixed:
                # The amplitude is the whole batch's, so all of it is transformed before the first image is changed.
                spectrum, power = self._compute_spectrum(wide)
                self._update_amplitude(power.detach().sqrt())
                return self._apply_amplitude(spectrum, power)
            if not (torch.compiler.is_exporting() or self.is_known):
                raise TrainingError("the amplitude must be learned or fixed before evaluation; train one round first")
            # A program and a trace hold for batches of all sizes.
            is_whole = torch.compiler.is_exporting() or torch.jit.is_tracing() or images.device.type != "cpu"
            if is_whole or len(wide) <= PIECE:
                return self._apply_amplitude(*self._compute_spectrum(wide))
            return torch.cat([self._apply_amplitude(*self._compute_spectrum(piece)) for piece in wide.split(PIECE)])

    def extra_repr(self) -> str:
        """Describe the module in a printed model."""
        return f"shape={self.shape}, momentum={self.momentum}, band={self.band!r}"

    def _update_amplitude(self, amplitude: Tensor) -> None:
        mean = amplitude.mean(dim=0).to(self.running_amplitude)
        # The first batch replaces the zeros that the buffer begins with.
        weight = self.momentum if self.is_known else 1.0
        self.running_amplitude.lerp_(mean, weight)
        self.has_learned = True

    def _compute_spectrum(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the half spectrum and its squared amplitude; a complex abs() costs four times as much."""
        spectrum = torch.fft.rfftn(images, dim=self.axes)
        return spectrum, spectrum.real.square().addcmul_(spectrum.imag, spectrum.imag)

    def _apply_amplitude(self, spectrum: Tensor, power: Tensor) -> Tensor:
        return torch.fft.irfftn(self._replace_amplitude(spectrum, power), s=self.shape[1:], dim=self.axes)

    def _replace_amplitude(self, spectrum: Tensor, power: Tensor) -> Tensor:
        """Give the bins of the band the running amplitude; a bin without measurable phase gets phase 0."""
        bins = slice(None) if self.band == "full" else self.band_bins
        flat, flat_power = spectrum.flatten(2), power.flatten(2)
        running = self.running_amplitude.to(power).flatten(1)[:, bins]
        inside, inside_power = flat[..., bins], flat_power[..., bins]
        # Below this an amplitude is rounding noise of the FFT, and its phase means nothing.
        floor = (4 * torch.finfo(power.dtype).eps) ** 2 * flat_power.amax(dim=-1, keepdim=True)
        scale = running * inside_power.rsqrt()
        # In place where nothing else needs the spectrum: a batch's worth of memory less.
        replaced = inside * scale if spectrum.requires_grad else inside.mul_(scale)
        # rsqrt of 0 is infinite; most batches hold no such bin and are spared the extra pass. An exported program holds
        # for all images, and branches on none.
        if torch.compiler.is_exporting() or (inside_power.amin(dim=-1, keepdim=True) <= floor).any():
            replaced = torch.where(inside_power > floor, replaced, running.to(replaced.dtype))
        if self.band != "full":
            replaced = flat.index_copy(-1, self.band_bins, replaced)
        return replaced.view(spectrum.shape)


def half_spectrum(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of the half spectrum that rfftn returns of images (C, *spatial)."""
    return (*shape[:-1], shape[-1] // 2 + 1)


def mean_amplitude(amplitudes: Sequence[ArrayLike]) -> NDArray:
    """Return the sites' mean amplitude, every site counting the same (1/K), in the dtype they come in."""
    arrays = [np.asarray(amplitude) for amplitude in amplitudes]
    return np.mean([array.astype(np.float64) for array in arrays], axis=0).astype(arrays[0].dtype)


def amplitude_level(amplitude: ArrayLike, spatial: Sequence[int]) -> float:
    """Return how bright images are by their mean amplitude: the root of its sum of squares, divided by the pixels.

    Of the frequency 0 alone it is the mean intensity; of all frequencies, by Parseval's theorem, it lies between the
    root mean square of the intensities and 0.7 times that, as the half spectrum has most frequencies once.

    Args:
        amplitude: Shape (C, ..., W // 2 + 1).
        spatial: The axes of the images.
    """
    return float(np.linalg.norm(np.asarray(amplitude, np.float64))) / prod(spatial)


def find_odd_levels(levels: Mapping[str, float], factor: float, min_sites: int) -> dict[str, float]:
    """Return site -> how many times the nearest of the others' levels its own is, where it lies far beyond all of them.

    The one farthest away is found first, and no longer counts among the others.

    Args:
        levels: Site -> `amplitude_level`.
        factor: Times the largest of the others', or the smallest divided by it; above 1.
        min_sites: With fewer sites left nobody knows whose is odd.
    """
    odd, here = {}, dict(levels)
    while len(here) >= max(min_sites, 2):
        times = {
            site: _times_the_nearest(level, [here[one] for one in here if one != site]) for site, level in here.items()
        }
        farthest = max(times, key=lambda site: max(times[site], 1 / times[site] if times[site] else np.inf))
        if 1 / factor <= times[farthest] <= factor:
            break
        odd[farthest] = times[farthest]
        del here[farthest]
    return odd


def _times_the_nearest(level: float, others: Sequence[float]) -> float:
    """Return how many times the nearest of other levels one is; 1 among them."""
    nearest = min(max(level, min(others)), max(others))
    if level == nearest:
        return 1.0
    return level / nearest if nearest > 0 else np.inf


def perturbed_step(alpha: float, follows_rate: bool = False) -> Step:
    """Return the step that follows the gradient at perturbed weights (Eqs. 6-7).

    With g the gradient at theta and ``delta = alpha * g / ||g||_2`` over all parameters together, the base optimiser
    steps from theta with the gradient at ``theta + delta``. Running statistics move in the first pass only, and both
    passes draw the same dropout. A zero gradient means no perturbation. The first pass is in full precision:
    in bfloat16 it would find another direction (`bench/precision.py`).

    Args:
        alpha: Length of the perturbation, above 0.
        follows_rate: Whether it is multiplied by the optimiser's learning rate over the one that it was made with.

    Returns:
        ``step(model, optimizer, loss, batch)``, which returns the loss at theta, detached.

    Raises:
        ConfigError: ``alpha`` is not above 0.
    """
    if not alpha > 0:
        raise ConfigError(f"perturbation must be above 0, not {alpha}; for 0 choose step: plain")

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, batch: Batch) -> Tensor:
        inputs, targets = batch
        device = inputs.device
        optimizer.zero_grad(set_to_none=True)
        # Both passes must draw the same dropout, or the second gradient is that of another network.
        drawn = random_state(device)
        with full_precision(model):
            value = loss(model(inputs), targets)
        value.backward()
        length = alpha * optimizer.param_groups[0]["lr"] / optimizer.defaults["lr"] if follows_rate else alpha
        with frozen_statistics(model), _perturb_parameters(model, length):
            # Only now: `_perturb_parameters` needed the first gradients to move along.
            optimizer.zero_grad(set_to_none=True)
            set_random_state(device, drawn)
            loss(model(inputs), targets).backward()
        optimizer.step()
        return value.detach()

    return step


def _perturb_parameters(model: nn.Module, alpha: float) -> AbstractContextManager[None]:
    """Move the parameters by alpha along their gradient for a while."""
    moved = [(p, p.grad) for p in model.parameters() if p.grad is not None]
    parameters, gradients = [p for p, _ in moved], [gradient for _, gradient in moved]
    norm = torch.nn.utils.get_total_norm(gradients)
    scale = torch.where(norm > 0, alpha / norm, torch.zeros_like(norm))
    return move_parameters(parameters, torch._foreach_mul(gradients, scale))


def drift(trajectory: ArrayLike, start: ArrayLike) -> float:
    """Return the drift of Eq. 9: the mean over sites and steps of ``||theta_{i,k} - theta^t||^2``.

    Args:
        trajectory: Parameters of every site after every step, shape (K, S, P).
        start: Parameters that all sites started from, shape (P,).
    """
    difference = np.asarray(trajectory, np.float64) - np.asarray(start, np.float64)
    return float(np.mean(np.sum(difference**2, axis=-1)))


def _band_bins(spatial: tuple[int, ...], band: Literal["full"] | int) -> Tensor:
    """Return which bins of the flattened half spectrum are replaced, as indices."""
    radius = max(spatial) if band == "full" else band
    # With a spacing of 1 / size these are signed indices, not frequencies.
    lines = [torch.fft.fftfreq(size, 1 / size).abs() <= radius for size in spatial[:-1]]
    lines.append(torch.fft.rfftfreq(spatial[-1], 1 / spatial[-1]).abs() <= radius)
    return torch.stack(torch.meshgrid(*lines, indexing="ij")).all(dim=0).flatten().nonzero().flatten()
