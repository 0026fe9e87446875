"""A super model as one TorchScript module: every member traced, the choice among them scripted.

torch has deprecated TorchScript, but still loads it: it is what MONAI takes without a line of Python, it takes a long
case a few slices at a time, and looks through a volume of any size by windows.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (as torch names it)
from monai.data.utils import compute_importance_map
from torch import Tensor, nn

from silofl.base.errors import ConfigError
from silofl.base.files import write_by_torch
from silofl.inference.probabilities import shift_foreground, to_probabilities
from silofl.inference.super_model import BATCH_SIZE, SuperModel
from silofl.models.networks import WINDOWS_AT_ONCE
from silofl.study import Study
from silofl.study.data_settings import PatchSettings
from silofl_desk.inference.weigher import OfVolume, build_weigher, member_names

WHOLE_CASE = 0
# A trial is of so many images, other than the example's, and probabilities may differ by so much: bfloat16 rounds.
TRIAL, TOLERANCE = 3, 1e-2
DEPRECATED = r"`torch\.jit\.\w+` is deprecated"
# The trace keeps only the branches that its example takes, and says so at each.
BRANCH = "Converting a tensor to a Python boolean might cause the trace to be incorrect"


class ByWindows(nn.Module):
    """A traced network that looks through a volume as MONAI's sliding_window_inference with a Gaussian does.

    Args:
        network: Windows (n, C, X, Y, Z) to logits, traced with `WINDOWS_AT_ONCE` of them.
        patches: Size and overlap of the windows.
    """

    importance: Tensor

    def __init__(self, network: nn.Module, patches: PatchSettings) -> None:
        super().__init__()
        self.network = network
        self.size = list(patches.size)
        self.at_once = WINDOWS_AT_ONCE
        self.steps = [max(int(side * (1 - patches.overlap)), 1) for side in patches.size]
        self.register_buffer("importance", compute_importance_map(patches.size, mode="gaussian", sigma_scale=0.125))

    def forward(self, volume: Tensor) -> Tensor:
        """Return the logits of a volume (1, C, X, Y, Z)."""
        sizes = [volume.size(axis) for axis in range(2, 5)]
        if sizes == self.size:
            whole: Tensor = self.network(volume)
            return whole
        lacking = [max(self.size[axis] - sizes[axis], 0) for axis in range(3)]
        before = [lack // 2 for lack in lacking]
        pads = [0, 0, 0, 0, 0, 0]
        for axis in range(3):
            # torch begins with the last axis.
            pads[4 - 2 * axis] = before[axis]
            pads[5 - 2 * axis] = lacking[axis] - before[axis]
        volume = F.pad(volume, pads)
        corners: list[list[int]] = []
        for x in self.starts(0, volume.size(2)):
            for y in self.starts(1, volume.size(3)):
                for z in self.starts(2, volume.size(4)):
                    corners.append([x, y, z])  # noqa: PERF401 (TorchScript has no such comprehension)
        # How many channels the network answers is known after the first windows only.
        total = torch.zeros(0, device=volume.device)
        weight = torch.zeros_like(volume[:1, :1])
        for start in range(0, len(corners), self.at_once):
            batch = corners[start : start + self.at_once]
            logits = self.network(torch.cat([self.look(volume, corner) for corner in batch])) * self.importance
            if total.numel() == 0:
                total = torch.zeros_like(volume[:, :1]).repeat(1, logits.size(1), 1, 1, 1)
            for number, corner in enumerate(batch):
                self.look(total, corner).add_(logits[number : number + 1])
                self.look(weight, corner).add_(self.importance)
        total = total / weight
        for axis in range(3):
            total = total.narrow(axis + 2, before[axis], sizes[axis])
        return total

    def starts(self, axis: int, length: int) -> list[int]:
        """Return where windows begin along an axis; the last one ends with the volume."""
        end = length - self.size[axis]
        return [min(start, end) for start in range(0, end + self.steps[axis], self.steps[axis])]

    def look(self, volume: Tensor, corner: list[int]) -> Tensor:
        """Return the window of a volume (1, C, X, Y, Z) that begins at a corner, without a copy."""
        for axis in range(3):
            volume = volume.narrow(axis + 2, corner[axis], self.size[axis])
        return volume


class ScriptAnswers(nn.Module):
    """One model with probabilities instead of logits as its output."""

    def __init__(self, network: nn.Module, is_multilabel: bool = False) -> None:
        super().__init__()
        self.network = network
        self.is_multilabel = is_multilabel

    def forward(self, images: Tensor) -> Tensor:
        """Return probabilities of images (B, C, *spatial)."""
        return to_probabilities(self.network(images), self.is_multilabel)


class InBatches(nn.Module):
    """A traced network that takes a case of any length some images at a time.

    Args:
        network: The network.
        batch_size: Slices at a time; `WHOLE_CASE` for all at once.
    """

    def __init__(self, network: nn.Module, batch_size: int) -> None:
        super().__init__()
        self.network = network
        self.batch_size = batch_size

    def forward(self, images: Tensor) -> Tensor:
        """Return the network's output for images (n, C, *spatial)."""
        # A literal: TorchScript cannot see WHOLE_CASE, or any other global.
        if self.batch_size == 0 or images.size(0) <= self.batch_size:
            whole: Tensor = self.network(images)
            return whole
        parts: list[Tensor] = []
        for start in range(0, images.size(0), self.batch_size):
            parts.append(self.network(images[start : start + self.batch_size]))
        return torch.cat(parts)


class Script(nn.Module):
    """The super model: from the images of one case, slices or one volume, to their probabilities.

    Args:
        weigher: Images to the weight of each member.
        members: Images to probabilities, in the order of the weights.
        image_shape: (C, *spatial) of the training images: the traces hold for no other.
        has_windows: Whether the members look through volumes of any size by windows of that shape.
        bias: What is added to the log-odds of the foreground.
    """

    def __init__(
        self,
        weigher: nn.Module,
        members: Sequence[nn.Module],
        image_shape: Sequence[int],
        has_windows: bool,
        bias: float,
    ) -> None:
        super().__init__()
        self.image_shape = list(image_shape)
        self.has_windows = has_windows
        self.bias = float(bias)
        self.weigher = weigher
        self.members = nn.ModuleList(members)

    def forward(self, images: Tensor) -> Tensor:
        """Return probabilities (n, out_channels, H, W) or (n, classes) of one case's images (n, C, *spatial)."""
        shape = list(images.shape[1:])
        # By windows a volume may have any size, but not any channels.
        if self.has_windows and len(shape) == len(self.image_shape):
            shape = shape[:1] + self.image_shape[1:]
        if shape != self.image_shape:
            raise ValueError(f"images have another shape (C, ...) than in training, {self.image_shape}; resize them")
        weights = self.weigher(images)
        total = torch.zeros(0, device=images.device)
        for number, member in enumerate(self.members):
            weight = float(weights[number])
            # A member without a weight is not asked: with a choice that is all but one.
            if weight > 0:
                share = weight * member(images)
                total = share if total.numel() == 0 else total + share
        return shift_foreground(total, self.bias)

    @torch.jit.export
    def member_weights(self, images: Tensor) -> Tensor:
        """Return the weight of each member for one case, in the order of their names."""
        weights: Tensor = self.weigher(images)
        return weights


def to_torchscript(super_model: SuperModel) -> torch.jit.ScriptModule:
    """Return a super model as TorchScript, on the device it is on; the members have the order of their names."""
    contents = super_model.contents
    is_volume = contents.study.data.dimensions == 3
    has_windows = bool(contents.study.data.patches)
    example = torch.zeros((1 if is_volume else 2, *contents.image_shape), device=super_model.device)
    with silence_known_warnings():
        members = [_to_member(super_model.network(name), contents.study, example) for name in member_names(contents)]
        selector: nn.Module | None = super_model.selector
        if selector is not None:
            traced = _trace_network(OfVolume(selector) if is_volume else selector, example)
            selector = InBatches(traced, BATCH_SIZE)
        script = Script(build_weigher(contents, selector), members, contents.image_shape, has_windows, contents.bias)
        scripted = torch.jit.script(script.to(super_model.device).eval())
        _check_equal(scripted, super_model, 1 if is_volume else TRIAL)
        return scripted


def _to_member(network: nn.Module, study: Study, example: Tensor) -> nn.Module:
    """Return a traced network, from a case's images to probabilities."""
    if study.data.patches:
        windows = torch.cat([example] * WINDOWS_AT_ONCE)
        return ScriptAnswers(ByWindows(_trace_network(network, windows), study.data.patches))
    size = WHOLE_CASE if study.model.normalization == "batch_stateless" else BATCH_SIZE
    return InBatches(_trace_network(ScriptAnswers(network, study.is_multilabel), example), size)


def _check_equal(script: torch.jit.ScriptModule, super_model: SuperModel, count: int) -> None:
    """Refuse a network whose way depends on its images: a trace takes the example's for all.

    Raises:
        ConfigError: The script says something else of random images than the super model.
    """
    contents = super_model.contents
    *axes, length = contents.image_shape
    if contents.study.data.patches:
        # Two windows lie behind one another then.
        length += length // 2
    images = np.random.default_rng(0).random((count, *axes, length), dtype=np.float32)
    with torch.no_grad():
        probabilities = script(torch.from_numpy(images).to(super_model.device)).cpu().numpy()
    if not np.allclose(probabilities, super_model.answer(images).probabilities, atol=TOLERANCE):
        network = contents.study.model.network or contents.study.model.name
        raise ConfigError(
            f"TorchScript cannot trace {network}, whose way depends on the images; predict with the super model's own "
            "folder"
        )


def save_torchscript(script: torch.jit.ScriptModule, path: Path) -> None:
    """Write TorchScript to a file."""
    with silence_known_warnings():
        write_by_torch(path, partial(torch.jit.save, script))


@contextmanager
def silence_known_warnings() -> Iterator[None]:
    """Silence what is known of TorchScript: its deprecation, and the tracer's notice of each branch that it fixes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=DEPRECATED, category=DeprecationWarning)
        warnings.filterwarnings("ignore", message=BRANCH)
        yield


def _trace_network(network: nn.Module, example: Tensor) -> torch.jit.ScriptModule:
    # A blank example takes amplitude normalisation's branch for bins without phase, which is right for all other bins
    # too.
    with torch.no_grad():
        return torch.jit.trace(network.eval(), example, check_trace=False)  # type: ignore[no-any-return, no-untyped-call]  # of torch
