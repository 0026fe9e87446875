"""The layer that gives images a shared Fourier amplitude (HarmoFL, Eqs. 2-4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from silofl.base.errors import ConfigError, TrainingError

# Images transformed at a time on a CPU, whose cache their spectra fit.
PIECE = 16


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
        ConfigError: ``shape`` is out of range.
    """

    running_amplitude: Tensor
    is_fixed: Tensor
    band_bins: Tensor

    def __init__(self, shape: Sequence[int], momentum: float = 0.1, band: Literal["full"] | int = "full") -> None:
        super().__init__()
        self.shape = tuple(int(size) for size in shape)
        if len(self.shape) not in (3, 4) or min(self.shape) < 1:
            raise ConfigError(f"shape must be (C, H, W) or (C, D, H, W) with sizes of at least 1, not {tuple(shape)}")
        self.momentum = momentum
        self.band = band
        # It is no buffer, because it is needed in the first round only, after which every site's amplitude is fixed.
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
            ConfigError: Another shape.
        """
        amplitude = torch.as_tensor(amplitude).to(self.running_amplitude)
        if amplitude.shape != self.running_amplitude.shape:
            wanted = tuple(self.running_amplitude.shape)
            raise ConfigError(f"the amplitude must have shape {wanted}, not {tuple(amplitude.shape)}")
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
                f"images of {tuple(images.shape[1:])} have another size than the amplitude, {self.shape}; resize them "
                "in the study's data.transforms"
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
                raise TrainingError("no amplitude has been learned or fixed yet; train one round before the evaluation")
            # A program and a trace hold for batches of all sizes.
            is_traced = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call] # torch does not type it
            is_whole = torch.compiler.is_exporting() or is_traced or images.device.type != "cpu"
            if is_whole or len(wide) <= PIECE:
                return self._apply_amplitude(*self._compute_spectrum(wide))
            return torch.cat(
                [self._apply_amplitude(*self._compute_spectrum(piece)) for piece in torch.split(wide, PIECE)]
            )

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
        images: Tensor = torch.fft.irfftn(self._replace_amplitude(spectrum, power), s=self.shape[1:], dim=self.axes)
        return images

    def _replace_amplitude(self, spectrum: Tensor, power: Tensor) -> Tensor:
        """Give the bins of the band the running amplitude; a bin without measurable phase gets phase 0."""
        bins = slice(None) if self.band == "full" else self.band_bins
        flat = spectrum.flatten(2)
        flat_power = power.flatten(2)
        running = self.running_amplitude.to(power).flatten(1)[:, bins]
        inside = flat[..., bins]
        inside_power = flat_power[..., bins]
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


def _band_bins(spatial: tuple[int, ...], band: Literal["full"] | int) -> Tensor:
    """Return which bins of the flattened half spectrum are replaced, as indices."""
    radius = max(spatial) if band == "full" else band
    # With a spacing of 1 / size these are signed indices, not frequencies.
    lines = [torch.fft.fftfreq(size, 1 / size).abs() <= radius for size in spatial[:-1]]
    lines.append(torch.fft.rfftfreq(spatial[-1], 1 / spatial[-1]).abs() <= radius)
    return torch.stack(torch.meshgrid(*lines, indexing="ij")).all(dim=0).flatten().nonzero().flatten()
