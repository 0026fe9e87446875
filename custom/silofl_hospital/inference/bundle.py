"""What an exported MONAI bundle runs where MONAI alone cannot predict: from an image file to its label map or class."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from silofl.base.errors import ConfigError, DataError
from silofl.base.files import read_json, write_json
from silofl.base.schema import read_record
from silofl.data.contrasts import list_case_files, parse_case
from silofl.data.domain import Domain
from silofl.inference.choice import ENSEMBLE
from silofl.inference.contents import Contents, check_threshold, unpack_calling
from silofl.inference.geometry import check_images, check_probabilities
from silofl.inference.prediction import CaseAnswer
from silofl.inference.super_model import BATCH_SIZE, SuperModel
from silofl.inference.usual import unpack_usual
from silofl.models.roles import GLOBAL
from silofl.reading.access import input_name
from silofl.study import STORED, Study, load_study
from silofl_hospital.inference.output import SUFFIXES, forbid_use, input_stem, write_map

logger = logging.getLogger(__name__)
# The file of a class, and what it holds of a prediction.
CLASS = "_class.json"
CLASS_KEYS = ("label", "findings", "class_scores", "temperature", "called_from", "warnings", "do_not_use")


def unpack_contents(
    about: Mapping[str, Any],
    study: Study,
    image_shape: Sequence[int],
    domain: Mapping[str, Any],
    calling: Mapping[str, Any],
    usual: Mapping[str, Any],
) -> Contents:
    """Return what a bundle says of its super model, without the weights.

    Args:
        about: ``super_model`` of its metadata. Of another kind, a key raises KeyError, TypeError or AttributeError, as
            of the other arguments.
        image_shape: (C, *spatial) of the training images, or of their patches.
        domain: The images that the models learnt from, as plain values.
        calling: How a classification's probabilities are read, as `silofl.inference.contents.pack_calling` packs it.
        usual: What is usual, as `silofl.inference.usual.pack_usual` packs it.

    Raises:
        ConfigError: They do not fit together.
    """
    facts = about["facts"]
    threshold = about["threshold"]
    check_threshold(threshold)
    known = {"domain": read_record(Domain, domain, "domain"), "calling": unpack_calling(calling, study)}
    known |= {"usual": unpack_usual(usual)}
    return Contents(study, tuple(image_shape), {GLOBAL: {}}, "only", threshold=threshold, facts=facts, **known)


class BundleModel(SuperModel):
    """A bundle's own network, as whoever has the bundle runs it.

    Args:
        contents: Of `unpack_contents`; its threshold is that of a selector's choice.
        network: One case's prepared images (n, C, *spatial) to probabilities; its ``weigher`` to the members' weights.
    """

    def __init__(self, contents: Contents, network: nn.Module, members: Sequence[str], device: torch.device) -> None:
        # Not the base class's, which builds the networks of weights.
        self.contents, self.device, self.selector, self._models = contents, device, None, {}
        self._network, self._members = network, members

    @property
    def rule(self) -> str:
        """Which of its models answers."""
        several = f"the {len(self._members)} models in it" if len(self._members) > 1 else "the model in it"
        return f"The network of a MONAI bundle answers, by its own rule for {several}."

    def answer(
        self, images: NDArray, batch_size: int = BATCH_SIZE, threshold: float | None = None, site: str | None = None
    ) -> CaseAnswer:
        """Return what the bundle says of one case; the arguments after it are the rule's, which is fixed here."""
        check_images(images, self.contents.image_shape, bool(self.contents.study.data.patches))
        with torch.inference_mode():
            given = torch.from_numpy(np.array(images, np.float32)).to(self.device)
            probabilities, weights = self._network(given).cpu().numpy(), self._network.weigher(given).tolist()
        check_probabilities(probabilities, self.contents.study.name)
        named = dict(zip(self._members, weights, strict=True))
        name = next((name for name, one in named.items() if one == 1), ENSEMBLE)
        # A selector that chooses by a threshold gives the global model weight below it alone.
        is_fallback = self.contents.threshold is not None and named.get(GLOBAL, 0) > 0
        return CaseAnswer(name, named, {}, is_fallback, probabilities)


class FilePredictor:
    """Prepares a file as the study did, runs the network on all its images, and writes the answer.

    Args:
        study_file: The bundle's ``configs/study.yaml``, beside its ``metadata.json``.
        image_shape: As `unpack_contents`, and so are domain, calling and usual.
        domain: The images that the models learnt from.
        calling: How a classification's probabilities are read.
        write_forbidden: Whether an answer is written too that the study's rule forbids to use.
        usual: What is usual of the answers.
    """

    def __init__(
        self,
        network: nn.Module,
        study_file: str,
        image_shape: Sequence[int],
        device: torch.device,
        domain: Mapping[str, Any] | None = None,
        calling: Mapping[str, Any] | None = None,
        write_forbidden: bool = False,
        usual: Mapping[str, Any] | None = None,
    ) -> None:
        self.write_forbidden = write_forbidden
        study, about = load_study(Path(study_file), STORED), read_json(Path(study_file).with_name("metadata.json"))
        read = (domain or {}, calling or {}, usual or {})
        contents = unpack_contents(about["super_model"], study, image_shape, *read)
        self.model = BundleModel(contents, network, about["super_model"]["members"], device)

    def __call__(self, image: str, out: str) -> Path:
        """Predict an image file or the folder of a DICOM series and return the file that was written.

        What `silofl predict` warns of, and that an answer must not be used, is in the log.

        Args:
            image: The input, ``FILE``, or ``T1=FILE,T2=FILE`` for contrasts in files of their own.
            out: Folder of the answer: ``<name>_labels.nii.gz`` or ``.png``, or ``<name>_class.json``.

        Raises:
            ConfigError: The folder holds an answer by this name.
            DataError: As `SuperModel.predict`, and where the study's rule forbids to use the answer.
        """
        case = parse_case(image)
        path = list_case_files(case)[0]
        stem, folder = input_stem(path), Path(out)
        _check_is_new(folder, stem)
        prediction = self.model.predict(case)
        forbidden = forbid_use(prediction.do_not_use)
        for sentence in (*forbidden, *prediction.warnings):
            logger.warning("%s: %s", input_name(path), sentence)
        if forbidden and not self.write_forbidden:
            raise DataError(f"{input_name(path)}: {forbidden[0]}; --write_forbidden True writes it anyway")
        if prediction.label_map is not None:
            map_and_grid = prediction.label_map, prediction.affine
            return folder / write_map(folder, stem, path, *map_and_grid, is_forbidden=bool(forbidden))
        read = {key: one for key in CLASS_KEYS if (one := getattr(prediction, key)) is not None}
        write_json(folder / f"{stem}{CLASS}", read)
        return folder / f"{stem}{CLASS}"


def _check_is_new(folder: Path, stem: str) -> None:
    """Refuse to replace an answer, which may be another patient's whose file has the same name."""
    for suffix in (CLASS, *SUFFIXES):
        if (folder / f"{stem}{suffix}").exists():
            raise ConfigError(
                f"{folder.name} must hold no answer by the name of the input, not {stem}{suffix}; name another folder, "
                "or move that file away"
            )
