"""A super model as one program of torch.export, in a ``.pt2`` file that PyTorch loads without SiloFL."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from silofl import __version__
from silofl.errors import ConfigError, one_line
from silofl.inference.contents import Contents
from silofl.inference.super_model import SuperModel, to_probabilities
from silofl.inference.weigher import names, weigher_of

# The name inside the file of what it says of itself.
ABOUT = "super_model.json"
LONGEST_REASON = 160


class Program(nn.Module):
    """The super model: from the slices of one case to their probabilities, and to the weight of each member.

    Args:
        weigher: Images to the weight of each member.
        members: Images to logits, in the order of the weights.
        answer_shape: Of one slice's probabilities: (out_channels, H, W) or (classes,).
    """

    def __init__(self, weigher: nn.Module, members: Sequence[nn.Module], answer_shape: Sequence[int]) -> None:
        super().__init__()
        self.weigher, self.members, self.answer_shape = weigher, nn.ModuleList(members), tuple(answer_shape)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return probabilities (n, *answer_shape) of one case's slices (n, C, H, W), and the members' weights."""
        weights = self.weigher(images)
        shares = [self._share(member, images, weight) for member, weight in zip(self.members, weights, strict=True)]
        return torch.stack(shares).sum(dim=0), weights

    def _share(self, member: nn.Module, images: Tensor, weight: Tensor) -> Tensor:
        # A branch of the program itself: a member that is not chosen costs no time.
        return torch.cond(
            weight > 0,
            lambda images, weight: weight.float() * to_probabilities(member(images)),
            lambda images, weight: images.new_zeros((images.shape[0], *self.answer_shape)),
            (images, weight),
        )


def to_program(super_model: SuperModel) -> ExportedProgram:
    """Return a super model as a program for any number of slices; the members have the order of their names.

    Raises:
        ConfigError: torch.export does not take the study's network.
    """
    contents = super_model.contents
    example = torch.zeros((2, *contents.image_shape), device=super_model.device)
    networks = [super_model.network(name) for name in names(contents)]
    with torch.no_grad():
        # It also refuses an amplitude that nothing is known of, which the programs no longer look at.
        answers = [network(example) for network in networks]
    try:
        # Each network first: a branch of a program takes its operations, and not all Python of a network.
        members = [_exported(_plain(network), example).module(check_guards=False) for network in networks]
        selector = super_model.selector
        known = None if selector is None else _exported(_plain(selector), example).module(check_guards=False)
        weigher = weigher_of(contents, known).to(super_model.device)
        return _exported(Program(weigher, members, answers[0].shape[1:]), example)
    except Exception as error:  # torch.export raises many kinds, its tracer's and those of Python
        network = contents.study.model.network or contents.study.model.name
        raise ConfigError(
            f"{network} must be a network that torch.export takes; it is not: {one_line(error, LONGEST_REASON)}; "
            "predict with the super model's own folder"
        ) from error


def save(program: ExportedProgram, path: Path, contents: Contents, fingerprint: str) -> None:
    """Write a program, with what it is, as JSON, in its extra file ``super_model.json``.

    Args:
        program: Of `to_program`.
        path: A file whose name ends in ``.pt2``.
        contents: Of the same super model.
        fingerprint: The super model's.
    """
    study = contents.study
    about = {
        "silofl": __version__,
        "fingerprint": fingerprint,
        "study": study.name,
        "task": study.task,
        "labels": {str(number): name for number, name in sorted(study.labels.items())},
        "image_shape": list(contents.image_shape),
        "members": names(contents),
    }
    torch.export.save(program, path, extra_files={ABOUT: json.dumps(about)})


def _plain(network: nn.Module) -> nn.Module:
    # A copy: torch.export warns of each weight whose channels come last in memory.
    return deepcopy(network).to(memory_format=torch.contiguous_format).eval()


def _exported(module: nn.Module, example: Tensor) -> ExportedProgram:
    with torch.no_grad():
        slices = torch.export.Dim("slices", min=1)
        return torch.export.export(module, (example,), dynamic_shapes=({0: slices},), strict=False)
