"""Export a super model as a MONAI bundle, which needs no SiloFL: its program, a configuration of MONAI, a README."""

import argparse
from datetime import date
from pathlib import Path
from typing import Any

import monai
import numpy as np
import torch
from monai.bundle.config_item import ConfigComponent
from monai.bundle.config_parser import ConfigParser
from monai.bundle.reference_resolver import ReferenceResolver
from monai.bundle.utils import EXPR_KEY, ID_REF_KEY, MACRO_KEY

from silofl import __version__
from silofl.base.errors import ConfigError, ExitCode, quote_value
from silofl.base.files import fill_folder, is_free, write_json, write_text
from silofl.base.settings import dump_yaml
from silofl.inference.contents import Contents, pack_operating_point
from silofl.inference.directory import plain_study, read_fingerprint
from silofl.inference.readme import bundle_readme
from silofl.inference.super_model import SuperModel
from silofl.study.sections import CardSettings
from silofl_desk.inference import monai_only, torchscript
from silofl_desk.inference.weigher import member_names

SCHEMA_URL = "https://github.com/Project-MONAI/MONAI-extra-test-data/releases/download/0.8.1/meta_schema_20240725.json"
COMMON = {
    "imports": ["$import torch"],
    "bundle_root": ".",
    "image": "",
    "output": "$@bundle_root + '/output'",
    "device": "$torch.device('cuda' if torch.cuda.is_available() else 'cpu')",
    "network_def": {
        "_target_": "torch.jit.load",
        "f": "$@bundle_root + '/models/model.ts'",
        "map_location": "@device",
    },
}


def run(options: argparse.Namespace) -> int:
    """Write the bundle and print its path."""
    print(export_bundle(options.super_model, options.out))
    return ExitCode.COMPLETE


def export_bundle(super_model_folder: Path, out: Path) -> Path:
    """Write a super model as a MONAI bundle that PyTorch loads without SiloFL, all of it or nothing.

    Args:
        out: The bundle's folder; it must not exist, or be empty.

    Returns:
        ``out``.

    Raises:
        ConfigError: The super model is incomplete, its network cannot be exported, or the place is taken.
    """
    # Asked before the model is loaded, and again when the folder is filled.
    if not is_free(out):
        raise ConfigError(f"{out.name} already exists; name another folder")
    super_model = SuperModel.load(super_model_folder, "cpu")
    with fill_folder(out) as folder:
        _write_bundle(folder, super_model, read_fingerprint(super_model_folder))
    return out


def _write_bundle(folder: Path, super_model: SuperModel, fingerprint: str) -> None:
    contents = super_model.contents
    metadata = _metadata(contents, fingerprint)
    data = contents.study.data
    # Names are judged first, as that takes no time, and the trace takes some.
    _refuse_commands([metadata, *(transform.options for transform in (*data.volume_transforms, *data.transforms))])
    obstacle = monai_only.find_obstacle(contents)
    torchscript.save_torchscript(torchscript.to_torchscript(super_model), folder / "models" / "model.ts")
    write_json(folder / "configs" / "metadata.json", metadata)
    if obstacle is None:
        write_json(folder / "configs" / "inference.json", monai_only.build_inference(contents, COMMON))
    write_text(folder / "configs" / "study.yaml", dump_yaml(plain_study(contents.study)))
    write_text(folder / "docs" / "README.md", bundle_readme(contents, member_names(contents), obstacle))


def _refuse_commands(value: object) -> None:
    """Refuse what MONAI would run, look up or build of a configuration."""
    if isinstance(value, dict):
        for key, inner in value.items():
            _refuse_command(key)
            _refuse_commands(inner)
    elif isinstance(value, list):
        for inner in value:
            _refuse_commands(inner)
    elif isinstance(value, str):
        _refuse_command(value)


def _refuse_command(text: str) -> None:
    is_command = text.startswith((EXPR_KEY, ID_REF_KEY, MACRO_KEY)) or text in ConfigComponent.non_arg_keys
    # MONAI follows references to neighbours wherever they stand in a text.
    if is_command or ConfigParser.relative_id_prefix.search(ReferenceResolver.normalize_id(text)):
        raise ConfigError(
            f"MONAI would take {quote_value(text)} for a command; predict with the super model's own folder"
        )


def _metadata(contents: Contents, fingerprint: str) -> dict[str, Any]:
    study = contents.study
    said = study.card or CardSettings()
    # Without a version of its lead a model has none but what decides its answers.
    version = said.version or f"0+{fingerprint[:12]}"
    return {
        "schema": SCHEMA_URL,
        "version": version,
        "changelog": {version: f"of {said.date or 'an unknown day'}; exported on {date.today().isoformat()}"},
        "monai_version": monai.__version__,
        "pytorch_version": str(torch.__version__),
        "numpy_version": np.__version__,
        "required_packages_version": {"silofl": __version__},
        "name": study.name,
        "task": study.task,
        "description": f"Super model of the federated study {study.name}, by {study.algorithm.name}",
        "authors": said.responsible or f"the sites of the study {study.name}",
        "copyright": said.responsible or f"the sites of the study {study.name}",
        "license": said.licence or "not stated: ask the authors",
        "intended_use": " ".join(filter(None, ["Research; no medical device.", said.intended_use, said.population])),
        "data_type": "slices of one case" if study.data.dimensions == 2 else "one volume",
        "super_model": {
            "fingerprint": fingerprint,
            "rule": contents.rule,
            "members": member_names(contents),
            "threshold": contents.threshold if contents.is_choice else None,
            "calling": pack_operating_point(contents.operating_point, contents.study),
        },
        "network_data_format": {
            "inputs": {"image": _input_format(contents)},
            "outputs": {"pred": _output_format(contents)},
        },
    }


def _input_format(contents: Contents) -> dict[str, Any]:
    channels, *spatial = contents.image_shape
    data = contents.study.data
    is_unit = data.intensity in ("dtype", "percentiles")
    # Neighbouring slices have the same channels again.
    names = data.channel_names or [f"channel {number}" for number in range(data.channels)]
    return {
        "type": "image",
        "format": "prepared",
        "modality": ", ".join(contents.data_profile.modalities) or "as trained",
        "num_channels": channels,
        "spatial_shape": spatial,
        "dtype": "float32",
        "value_range": [0, 1] if is_unit else [],
        "is_patch_data": False,
        "channel_def": {str(number): names[number % len(names)] for number in range(channels)},
    }


def _output_format(contents: Contents) -> dict[str, Any]:
    study = contents.study
    is_map = study.task == "segmentation"
    channels = {str(number): name for number, name in sorted(study.labels.items())}
    if is_map and study.out_channels == 1:
        # The background is what the only label leaves of 1.
        channels = {"0": study.labels[1]}
    elif is_map:
        channels = {"0": "background", **channels}
    return {
        "type": "probabilities",
        "format": study.task,
        "num_channels": study.out_channels,
        "spatial_shape": list(contents.image_shape[1:]) if is_map else [],
        "dtype": "float32",
        "value_range": [0, 1],
        "is_patch_data": False,
        "channel_def": channels,
    }
