"""Take home statistics over a clinic's own images, without labels, and write the model that has them."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import ConfigError, ExitCode
from silofl.base.files import is_free
from silofl.data.contrasts import Case, parse_case
from silofl.data.volumes import Array, Volumes
from silofl.inference.directory import read_fingerprint, write_model_folder
from silofl.inference.geometry import check_images
from silofl.inference.names import HOME_STATISTICS
from silofl.inference.super_model import SuperModel
from silofl.training.home_statistics import ENOUGH
from silofl.training.local_model import copy_state
from silofl_hospital.inference.withdrawn import check_not_withdrawn


def run(options: argparse.Namespace) -> int:
    """Write the model and print its folder."""
    cases = [parse_case(text) for text in options.inputs]
    take_home_statistics(options.super_model, cases, options.out)
    print(options.out)
    if len(cases) < ENOUGH:
        print(
            f"CAUTION  The statistics are of few images ({len(cases)}). Give {ENOUGH} or more: answers may be far off.",
            file=sys.stderr,
        )
    return ExitCode.COMPLETE


def take_home_statistics(folder: Path, cases: list[Case], out: Path) -> None:
    """Write a super model whose statistics are those of a clinic's own images.

    Args:
        folder: The super model.
        cases: Images as `silofl_hospital.inference.command.predict_inputs` takes them.
        out: New folder.

    Raises:
        ConfigError: The folder is taken, or the model is withdrawn or has no home statistics.
        DataError: An image cannot be read, or is of another kind than the training images.
    """
    if not is_free(out):
        raise ConfigError(f"Folder {out.name!r} already exists. Choose another name.")
    model = SuperModel.load(folder)
    fingerprint = read_fingerprint(folder)
    check_not_withdrawn(folder, fingerprint)
    contents = model.contents
    study = contents.study
    if study.model.normalization != "batch_home":
        raise ConfigError(f"A model with {study.model.normalization} takes no home statistics. Use it as it is.")
    prepared = [model.prepare_case(case) for case in cases]
    for case in prepared:
        check_images(case.images, contents.image_shape, bool(study.data.patches))
    if study.data.patches:
        volumes: list[NDArray[Any]] = []
        for case in prepared:
            volumes += case.images
        images: Array = Volumes(tuple(volumes))
    else:
        images = np.concatenate([case.images for case in prepared])
    model.fix_home_statistics(images)
    states = {name: copy_state(model.network(name)) for name in contents.models}
    # A model that was withdrawn must not answer under another fingerprint.
    origin = contents.facts.get(HOME_STATISTICS, {}).get("of", fingerprint)
    facts = contents.facts | {HOME_STATISTICS: {"images": len(cases), "of": origin}}
    write_model_folder(out, replace(contents, models=states, facts=facts))
