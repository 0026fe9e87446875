"""What an exported MONAI bundle runs: the predictor, from an image file to its label map or class, and its network."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export.passes import move_to_device_pass

from silofl.data.access import input_name
from silofl.data.contrasts import build_source, list_case_files, parse_case
from silofl.data.domain import Domain
from silofl.data.preparation import build_preparation, prepare_with_way_back
from silofl.errors import ConfigError
from silofl.files import write_json
from silofl.inference.contents import unpack_calling
from silofl.inference.geometry import check_images, check_is_not_blank, check_probabilities, decide_on_input
from silofl.inference.output import SUFFIXES, input_stem, write_map
from silofl.inference.prediction import call_case
from silofl.inference.program import ABOUT, MODEL, WEIGHTS
from silofl.inference.super_model import shift_foreground, to_probabilities
from silofl.models.networks import apply_by_windows
from silofl.schema import read_record
from silofl.study import load_study

logger = logging.getLogger(__name__)
# Of the file of a class.
CLASS = "_class.json"


class VolumeNetwork(nn.Module):
    """The two programs of a super model whose networks look through volumes by windows, as one network.

    Args:
        folder: The bundle's ``models``.
        device: Where it computes.
    """

    def __init__(self, folder: str, device: torch.device) -> None:
        super().__init__()
        files = {ABOUT: ""}
        found = [torch.export.load(Path(folder) / f"{name}.pt2", extra_files=files) for name in (WEIGHTS, MODEL)]
        self.weigher, self.members = (move_to_device_pass(program, device).module() for program in found)
        about = json.loads(files[ABOUT])
        self.windows, self.overlap = about["image_shape"][1:], about["overlap"]
        # A bundle of an older version has none.
        self.bias = about.get("bias", 0.0)

    def train(self, mode: bool = True) -> VolumeNetwork:
        """Change nothing: a program has one mode, that of evaluation."""
        return self

    def forward(self, volume: Tensor) -> Tensor:
        """Return probabilities (1, out_channels, X, Y, Z) of one volume (1, C, X, Y, Z)."""
        weights = self.weigher(volume)
        logits = apply_by_windows(lambda windows: self.members(windows, weights), volume, self.windows, self.overlap)
        members = zip(weights, logits.chunk(len(weights), dim=1), strict=True)
        mean = torch.stack([weight.float() * to_probabilities(one) for weight, one in members]).sum(dim=0)
        return shift_foreground(mean, self.bias)


class FilePredictor:
    """Prepares a file as the study did, runs the network on all its images, and writes the answer.

    Args:
        network: A super model, from one case's prepared images to probabilities.
        study_file: The bundle's ``configs/study.yaml``.
        image_shape: (C, *spatial) of the training images, or of their patches.
        device: Where the network computes.
        domain: The images that the models learnt from, as plain values.
        calling: How a classification's probabilities are read, as `silofl.inference.contents.pack_calling` packs it.
    """

    def __init__(
        self,
        network: nn.Module,
        study_file: str,
        image_shape: Sequence[int],
        device: torch.device,
        domain: Mapping[str, Any] | None = None,
        calling: Mapping[str, Any] | None = None,
    ) -> None:
        self.network, self.device, self.image_shape = network, device, tuple(image_shape)
        self.study, self.domain = load_study(Path(study_file)), read_record(Domain, domain or {}, "domain")
        self.calling = unpack_calling(calling or {}, self.study)

    def __call__(self, image: str, out: str) -> Path:
        """Predict an image file or the folder of a DICOM series and return the file that was written.

        Args:
            image: The input, ``FILE``, or ``T1=FILE,T2=FILE`` for contrasts in files of their own.
            out: Folder of the answer: ``<name>_labels.nii.gz`` or ``.png``, or ``<name>_class.json``.

        Raises:
            ConfigError: The folder holds an answer by this name.
            DataError: The image cannot be read or prepared, is blank, is of another kind than the training images, or
                its answer is not finite.
        """
        steps = build_preparation(self.study, has_label_map=False)
        case = parse_case(image)
        path = list_case_files(case)[0]
        stem, folder = input_stem(path), Path(out)
        _check_is_new(folder, stem)
        source = build_source(case, self.study.data)
        prepared = prepare_with_way_back(source, steps, self.domain)
        check_is_not_blank(prepared.images, source.first[1])
        check_images(prepared.images, self.image_shape, bool(self.study.data.patches))
        with torch.inference_mode():
            probabilities = self.network(torch.from_numpy(prepared.images).to(self.device)).cpu().numpy()
        check_probabilities(probabilities, self.study.name)
        for doubt in prepared.doubts(self.domain, steps):
            logger.warning("%s: %s", input_name(path), doubt)
        if self.study.task != "segmentation":
            read = call_case(probabilities, self.calling, self.study)
            write_json(folder / f"{stem}{CLASS}", {name: one for name, one in read.items() if one is not None})
            return folder / f"{stem}{CLASS}"
        label_map = decide_on_input(probabilities, prepared, steps)
        return folder / write_map(folder, stem, path, label_map, prepared.affine)


def _check_is_new(folder: Path, stem: str) -> None:
    """Refuse to replace an answer, which may be another patient's whose file has the same name."""
    for suffix in (CLASS, *SUFFIXES):
        if (folder / f"{stem}{suffix}").exists():
            raise ConfigError(
                f"{folder.name} must hold no answer by the name of the input, not {stem}{suffix}; name another folder, "
                "or move that file away"
            )
