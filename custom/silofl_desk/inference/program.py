"""A super model that looks through volumes by windows as two programs of torch.export, for PyTorch without SiloFL.

One goes from a volume to the weight of each member in its answer, the other from windows to the logits of each member.
Sliding and averaging lie between them, and are MONAI's ``sliding_window_inference``. All other super models are
TorchScript, which MONAI loads and which has no volumes of any size.
"""

import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from silofl import __version__
from silofl.base.errors import ConfigError, one_line
from silofl.base.files import write_by_torch
from silofl.inference.bundle import ABOUT, MODEL, WEIGHTS
from silofl.inference.contents import Contents, pack_calling
from silofl.inference.super_model import SuperModel
from silofl.inference.weigher import OfVolume, build_weigher, member_names

LONGEST_REASON = 160


class WindowProgram(nn.Module):
    """The members of a super model whose networks look through volumes by windows.

    Args:
        members: Windows to logits, in the order of the weights.
        answer_shape: Of one window's logits: (out_channels, X, Y, Z).
    """

    def __init__(self, members: Sequence[nn.Module], answer_shape: Sequence[int]) -> None:
        super().__init__()
        self.members, self.answer_shape = nn.ModuleList(members), tuple(answer_shape)

    def forward(self, windows: Tensor, weights: Tensor) -> Tensor:
        """Return logits (n, members * out_channels, X, Y, Z) of windows (n, C, X, Y, Z); zeros where a weight is 0."""
        logits = [self._logits(member, windows, weight) for member, weight in zip(self.members, weights, strict=True)]
        return torch.cat(logits, dim=1)

    def _logits(self, member: nn.Module, windows: Tensor, weight: Tensor) -> Tensor:
        return _skip_zero_weight(lambda windows, weight: member(windows), windows, weight, self.answer_shape)


def to_programs(super_model: SuperModel) -> dict[str, ExportedProgram]:
    """Return a super model of ``data.patches`` as programs by their names; the members have the order of their names.

    Returns:
        `WEIGHTS`, from a volume (1, C, X, Y, Z) of any size to the members' weights, and `MODEL`, a `WindowProgram` of
        any number of windows.

    Raises:
        ConfigError: torch.export does not take the study's network.
    """
    contents, device = super_model.contents, super_model.device
    # An example of two windows stands for any number.
    example = torch.zeros((2, *contents.image_shape), device=device)
    any_number, any_size = (
        {0: Dim("images", min=1)},
        {axis: Dim(n, min=1) for axis, n in zip((2, 3, 4), "xyz", strict=True)},
    )
    networks = [super_model.network(name) for name in member_names(contents)]
    with torch.no_grad():
        # It also refuses an amplitude that nothing is known of, which the programs no longer look at.
        answer_shape = [network(example) for network in networks][0].shape[1:]
    try:
        # Each network first: a branch of a program takes its operations, and not all Python of a network.
        exported = [_export_module(_copy_contiguous(network), (example,), (any_number,)) for network in networks]
        members = [program.module(check_guards=False) for program in exported]
        selector = None if super_model.selector is None else OfVolume(_copy_contiguous(super_model.selector))
        weights = torch.zeros(len(members), dtype=torch.float64, device=device)
        return {
            WEIGHTS: _export_module(build_weigher(contents, selector).to(device), (example[:1],), (any_size,)),
            MODEL: _export_module(WindowProgram(members, answer_shape), (example, weights), (any_number, {})),
        }
    except Exception as error:  # torch.export raises many kinds, its tracer's and those of Python
        network = contents.study.model.network or contents.study.model.name
        raise ConfigError(
            f"{network} must be a network that torch.export takes; it is not: {one_line(error, LONGEST_REASON)}; "
            "predict with the super model's own folder"
        ) from error


def save_program(program: ExportedProgram, path: Path, contents: Contents, fingerprint: str) -> None:
    """Write a program, with what it is, as JSON, in its extra file ``super_model.json``.

    Args:
        program: Of `to_programs`.
        path: A file whose name ends in ``.pt2``.
        contents: Of the same super model.
    """
    study, patches = contents.study, contents.study.data.patches
    about = {
        "silofl": __version__,
        "fingerprint": fingerprint,
        "study": study.name,
        "task": study.task,
        "labels": {str(number): name for number, name in sorted(study.labels.items())},
        "image_shape": list(contents.image_shape),
        "members": member_names(contents),
        # It comes after the windows' mean.
        "bias": contents.bias,
        # Of what the programs answer: it changes no answer to a case's images, but what their mean is called.
        **({"calling": calling} if (calling := pack_calling(contents)) else {}),
        "overlap": patches.overlap if patches else 0,
    }
    write_by_torch(path, lambda stream: torch.export.save(program, stream, extra_files={ABOUT: json.dumps(about)}))


def _skip_zero_weight(
    function: Callable[[Tensor, Tensor], Tensor], images: Tensor, weight: Tensor, shape: Sequence[int]
) -> Tensor:
    """Return a function of images and a weight, or zeros (n, *shape) where the weight is 0."""
    # A branch of the program itself: a member that is not chosen costs no time.
    return torch.cond(
        weight > 0, function, lambda images, weight: images.new_zeros((images.shape[0], *shape)), (images, weight)
    )


def _copy_contiguous(network: nn.Module) -> nn.Module:
    # A copy: torch.export warns of each weight whose channels come last in memory.
    return deepcopy(network).to(memory_format=torch.contiguous_format).eval()


def _export_module(module: nn.Module, example: tuple[Tensor, ...], dynamic: tuple[Any, ...]) -> ExportedProgram:
    with torch.no_grad():
        return torch.export.export(module, example, dynamic_shapes=dynamic, strict=False)
