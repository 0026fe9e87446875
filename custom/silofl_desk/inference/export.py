"""Export a super model as a MONAI bundle: the model for PyTorch alone, a configuration to predict, a README."""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import monai
import numpy as np
import torch
from monai.bundle import ConfigComponent, ConfigParser, ReferenceResolver
from monai.bundle.utils import EXPR_KEY, ID_REF_KEY, MACRO_KEY

from silofl import __version__
from silofl.base import schema
from silofl.base.errors import ConfigError, ExitCode, quote_value
from silofl.base.files import fill_folder, is_free, write_json, write_text
from silofl.base.settings import dump_yaml, read_yaml
from silofl.inference.contents import SCORES, Contents, pack_calling
from silofl.inference.directory import plain_study, read_fingerprint
from silofl.inference.readme import bundle_readme
from silofl.inference.super_model import SuperModel
from silofl.inference.usual import pack_usual
from silofl.study.data_settings import DataSettings
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
PREDICT = COMMON | {
    "write_forbidden": False,
    "predictor": {
        "_target_": "silofl.inference.bundle.FilePredictor",
        "network": "@network_def",
        "study_file": "$@bundle_root + '/configs/study.yaml'",
        "image_shape": "@image_shape",
        "domain": "@domain",
        "calling": "@calling",
        "write_forbidden": "@write_forbidden",
        "usual": "@usual",
        "device": "@device",
    },
    "run": ["$print(@predictor(@image, @output))"],
}


def run(options: argparse.Namespace) -> int:
    """Write the bundle and print its path; warn of a network that answers by the other images of its batch."""
    print(export_bundle(options.super_model, options.out))
    if read_yaml(options.out / "configs" / "study.yaml")["model"]["normalization"] == "batch_stateless":
        print(
            "CAUTION  the network has model.normalization batch_stateless: its answer to an image depends on the other "
            "images of the batch, and no test was of a single image; train one with batch, group or instance",
            file=sys.stderr,
        )
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
    if not is_free(out):
        raise ConfigError(f"{out.name} must be a new folder; it is there already: name another")
    super_model = SuperModel.load(super_model_folder, "cpu")
    with fill_folder(out) as folder:
        _write_bundle(folder, super_model, read_fingerprint(super_model_folder))
    return out


def _write_bundle(folder: Path, super_model: SuperModel, fingerprint: str) -> None:
    contents = super_model.contents
    metadata = _metadata(contents, fingerprint)
    # First: it takes no time, and the trace takes some.
    _refuse_commands(metadata, {})
    data = contents.study.data
    _refuse_commands([one.options for one in (*data.volume_transforms, *data.transforms)], [])
    obstacle = monai_only.find_obstacle(contents)
    torchscript.save_torchscript(torchscript.to_torchscript(super_model), folder / "models" / "model.ts")
    write_json(folder / "configs" / "metadata.json", metadata)
    if obstacle is None:
        write_json(folder / "configs" / "inference.json", monai_only.build_inference(contents, COMMON))
    else:
        write_json(folder / "configs" / "predict.json", PREDICT | _describe_inputs(contents))
    study = dump_yaml(plain_study(contents.study))
    write_text(folder / "configs" / "study.yaml", study)
    write_text(folder / "docs" / "README.md", bundle_readme(contents, member_names(contents), obstacle))


def _describe_inputs(contents: Contents) -> dict[str, Any]:
    """Return how images are prepared and answers are read, as `silofl.inference.bundle.unpack_contents` takes it."""
    # The bundle's program gives neither features nor the selector's scores.
    usual = {site: replace(one, features=None, score=None) for site, one in contents.usual.items()}
    return {
        "image_shape": list(contents.image_shape),
        "domain": schema.dump_record(contents.domain),
        "calling": pack_calling(contents),
        "usual": pack_usual(usual),
    }


def _refuse_commands(value: object, own: object) -> None:
    """Refuse what MONAI would run, look up or build of a configuration, but for what SiloFL itself wrote there."""
    if isinstance(value, dict):
        known = own if isinstance(own, dict) else {}
        for key, one in value.items():
            if key not in known:
                _refuse_command(key)
            _refuse_commands(one, known.get(key))
    elif isinstance(value, list) and value != own:
        for one in value:
            _refuse_commands(one, None)
    elif isinstance(value, str) and value != own:
        _refuse_command(value)


def _refuse_command(text: str) -> None:
    is_command = text.startswith((EXPR_KEY, ID_REF_KEY, MACRO_KEY)) or text in ConfigComponent.non_arg_keys
    # References to neighbours count wherever they stand.
    if is_command or ConfigParser.relative_id_prefix.search(ReferenceResolver.normalize_id(text)):
        raise ConfigError(
            f"a bundle must hold no name that MONAI takes for a command, not {quote_value(text)}; predict with the "
            "super model's own folder"
        )


def _metadata(contents: Contents, fingerprint: str) -> dict[str, Any]:
    study, said = contents.study, contents.study.card or CardSettings()
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
            "facts": _select_facts(contents.facts),
            **_describe_inputs(contents),
        },
        "network_data_format": {
            "inputs": {"image": _input_format(contents)},
            "outputs": {"pred": _output_format(contents)},
        },
    }


def _select_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what warnings come from: the tests, the validations, and which data sets were learnt, by their digests."""
    data = {site: {"digest": counts.get("digest")} for site, counts in (facts.get("data") or {}).items()}
    keys = (*SCORES, "value", "labels", "calling", "run")
    return {key: facts[key] for key in keys if key in facts} | {"data": data}


def _input_format(contents: Contents) -> dict[str, Any]:
    channels, *spatial = contents.image_shape
    is_unit = contents.study.data.intensity in ("dtype", "percentiles")
    return {
        "type": "image",
        "format": "prepared",
        "modality": ", ".join(contents.domain.modalities) or "as trained",
        "num_channels": channels,
        "spatial_shape": spatial,
        "dtype": "float32",
        "value_range": [0, 1] if is_unit else [],
        "is_patch_data": False,
        "channel_def": {str(number): name for number, name in enumerate(_channel_names(contents.study.data))},
    }


def _channel_names(settings: DataSettings) -> list[str]:
    """Return the names of the network's input channels, as ``T1``, ``channel 0`` or ``channel 0 of slice z-1``."""
    channels = settings.channel_names or [f"channel {number}" for number in range(settings.channels)]
    if settings.neighbours == 0:
        return list(channels)
    offsets = range(-settings.neighbours, settings.neighbours + 1)
    slices = [f"slice z{offset:+d}" if offset else "slice z" for offset in offsets]
    return [f"{channel} of {name}" for name in slices for channel in channels]


def _output_format(contents: Contents) -> dict[str, Any]:
    study = contents.study
    is_map = study.task == "segmentation"
    labels = {str(number): name for number, name in sorted(study.labels.items())}
    channels = {"0": "background", **labels} if is_map else labels
    if is_map and study.out_channels == 1:
        channels = {"0": study.labels[1]}
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
