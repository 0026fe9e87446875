"""A super model as a folder: model.json, the weights with their checksums, and a model card."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from silofl import __version__
from silofl.base import schema
from silofl.base.documents import ABSENT, check_kind, read_json_document
from silofl.base.errors import ConfigError
from silofl.base.files import is_free, load_tensors, save_tensors, write_json, write_text
from silofl.base.settings import parse
from silofl.data.data_profile import DataProfile
from silofl.inference import card
from silofl.inference.contents import PLAIN_NAME, Contents, pack_operating_point, unpack_operating_point
from silofl.inference.names import HEAD
from silofl.inference.reference_statistics import pack_reference_statistics, unpack_reference_statistics
from silofl.models.roles import SELECTOR
from silofl.models.weights import is_state
from silofl.study import STORED, Study, plain_study

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FOLDER", "Contents", "plain_study", "read_fingerprint", "read_model_folder", "write_model_folder"]

# The folder has this name in a run's folder, at the server and at each site.
FOLDER = "supermodel"
# Inside a site's folder of a run this one holds the model that the site trained alone.
OWN = "own"
FORMAT = 3


def write_model_folder(folder: Path, contents: Contents) -> None:
    """Write a super model's folder, all of it or nothing; an older one is replaced.

    Raises:
        ConfigError: The place is taken by something else, or the facts are no plain values.
    """
    if not is_free(folder) and not (folder / HEAD).is_file():
        raise ConfigError(f"{folder.name} already exists and is no super model; move it away")
    # Beside the folder, as only within one file system a rename is at once.
    new = folder.with_name(f".{folder.name}.new")
    old = folder.with_name(f".{folder.name}.old")
    # A write that was killed may have left one.
    shutil.rmtree(new, ignore_errors=True)
    try:
        _write_files(new, contents)
        # A folder cannot be replaced in one rename while it has files. A crash between these two leaves no folder, only
        # the older one under another name, and the next write repairs that.
        if folder.exists():
            shutil.rmtree(old, ignore_errors=True)
            folder.rename(old)
        new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


def read_model_folder(folder: Path) -> Contents:
    """Read a super model's folder on the CPU, and check every file of it.

    Raises:
        ConfigError: A file is missing, broken or changed, or the format is not known.
    """
    facts = _read_facts(folder)
    try:
        study = parse(Study, facts["study"], f"{folder.name}/model.json", STORED)
        if facts["fingerprint"] != _compute_fingerprint(facts, study) or facts["content"] != _hash_facts(facts):
            raise ConfigError(f"{folder.name}/{HEAD} was changed after it was written; copy the folder again")
        states = {name: _read_weights(folder, name, entry) for name, entry in facts["weights"].items()}
        # A folder of version 0.4 has a README.md too, which this one does not read.
        _read_checked(folder, card.FILE, facts["pages"][card.FILE])
        return build_contents(facts, study, states)
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{error} of {folder.name}/model.json is missing or of another kind; copy the folder again"
        ) from None


def check_facts(facts: object, name: str) -> dict[str, Any]:
    """Return the content of a model.json, whose file is called by a name.

    Raises:
        ConfigError: A version before 0.4 wrote it, as the mean of the federated and a site's own model, or it is none.
    """
    if not isinstance(facts, dict) or facts.get("format") != FORMAT or facts.get("beside") is not None:
        raise ConfigError(
            f"{name} is damaged, or was written by a version before 0.4. Copy the folder again, or read it with the "
            "version of SiloFL that wrote it."
        )
    return facts


def build_contents(facts: Mapping[str, Any], study: Study, states: Mapping[str, dict[str, Tensor]]) -> Contents:
    """Return the super model that a model.json describes.

    Args:
        facts: The content of model.json; of another kind, a key raises KeyError, TypeError or AttributeError.
        states: Name -> state of each of its models, the selector among them.

    Raises:
        ConfigError: They do not fit together.
    """
    return Contents(
        study=study,
        image_shape=tuple(facts["image_shape"]),
        models={name: state for name, state in states.items() if name != SELECTOR},
        rule=facts["rule"],
        selector=states.get(SELECTOR),
        outputs=tuple(facts["outputs"]),
        threshold=facts["threshold"],
        bias=facts.get("bias", 0.0),
        operating_point=unpack_operating_point(facts.get("calling", {}), study),
        own_operating_points={
            name: unpack_operating_point(plain, study) for name, plain in facts.get("calling_by_model", {}).items()
        },
        reference_statistics=unpack_reference_statistics(facts.get("usual", {})),
        facts=dict(facts["facts"]),
        data_profile=schema.read_record(DataProfile, facts["domain"], "domain"),
    )


def read_fingerprint(folder: Path) -> str:
    """Return the fingerprint in a super model's model.json, unchecked; `read_model_folder` checks it.

    Raises:
        ConfigError: There is no model.json, it is broken, or its format is not known.
    """
    return str(_read_facts(folder).get("fingerprint", ""))


def _write_files(folder: Path, contents: Contents) -> None:
    states = dict(contents.models)
    if contents.selector is not None:
        states[SELECTOR] = contents.selector
    weights = {}
    for name, state in states.items():
        path = folder / "weights" / f"{name}.pt"
        save_tensors(path, {key: value.detach().cpu().clone() for key, value in state.items()})
        weights[name] = {"file": f"weights/{name}.pt", "sha256": _sha256(path.read_bytes())}
    try:
        facts = _collect_facts(contents, weights)
        # NaN would be written, and is no JSON for other readers.
        json.dumps(facts, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"the facts of the super model hold other things than plain finite values: {error}; convert them"
        ) from None
    # After the fingerprint, which stands in the card.
    text = card.model_card(contents, facts["versions"], facts["fingerprint"])
    write_text(folder / card.FILE, text)
    facts["pages"] = {card.FILE: _sha256(text.encode())}
    write_json(folder / HEAD, facts | {"content": _hash_facts(facts)})


def _collect_facts(contents: Contents, weights: dict[str, dict[str, str]]) -> dict[str, Any]:
    study = contents.study
    facts = {
        "format": FORMAT,
        "study": plain_study(study),
        "sites": list(contents.sites),
        "algorithm": study.algorithm.name,
        "preset": study.algorithm.preset,
        "recipe": study.recipe.as_dict(),
        "rule": contents.rule,
        "threshold": contents.threshold,
        "outputs": list(contents.outputs),
        "image_shape": list(contents.image_shape),
        "domain": schema.dump_record(contents.data_profile),
        "facts": contents.facts,
        "versions": read_versions(),
        "weights": weights,
    }
    # Only what there is, so that the fingerprints of older super models stay.
    optional = {
        "bias": contents.bias,
        "calling": pack_operating_point(contents.operating_point, study),
        "calling_by_model": {
            name: pack_operating_point(point, study) for name, point in contents.own_operating_points.items()
        },
        "usual": pack_reference_statistics(contents.reference_statistics),
    }
    facts |= {key: value for key, value in optional.items() if value}
    return facts | {"fingerprint": _compute_fingerprint(facts, study)}


def _compute_fingerprint(facts: dict[str, Any], study: Study) -> str:
    """Return the SHA-256 of everything that decides predictions, the weights by their checksums."""
    deciding = {key: facts[key] for key in ("format", "rule", "threshold", "outputs", "image_shape")}
    deciding |= {key: facts[key] for key in ("bias", "calling", "calling_by_model") if facts.get(key) is not None}
    # Which images are refused is a part of the answer; the facts of the run are none.
    deciding["domain"] = facts["domain"]
    deciding["study"] = {key: facts["study"][key] for key in ("task", "labels", "data", "model")}
    deciding["recipe"] = {}
    for option in study.recipe.options:
        for name in option.traits.deciding:
            deciding["recipe"][f"{option.section}.{name}"] = getattr(option, name)
    deciding["weights"] = {name: entry["sha256"] for name, entry in facts["weights"].items()}
    # JSON makes text of a label's number: the same text before writing and after reading.
    return _sha256(json.dumps(deciding, sort_keys=True).encode())


def _hash_facts(facts: dict[str, Any]) -> str:
    """Return the SHA-256 of all that model.json says, also of what decides no prediction."""
    said = {key: value for key, value in facts.items() if key != "content"}
    # Written and read once, so that the numbers of labels are texts here too, before they are sorted.
    return _sha256(json.dumps(json.loads(json.dumps(said)), sort_keys=True).encode())


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def read_versions() -> dict[str, str]:
    """Return the versions of what computes a model's answers here."""
    # Importing MONAI would take seconds and memory. Of torch only the import says for which CUDA it was built.
    import torch

    versions = {"silofl": __version__, "torch": str(torch.__version__)}
    return versions | {"monai": version("monai"), "numpy": version("numpy")}


def _read_facts(folder: Path) -> dict[str, Any]:
    facts = read_json_document(folder / HEAD)
    if facts is ABSENT:
        raise ConfigError(
            f"{folder} has no model.json of a super model; name a folder {FOLDER} or chosen that a run has written"
        )
    return check_facts(facts, f"{folder.name}/{HEAD}")


def _read_weights(folder: Path, name: str, entry: dict[str, str]) -> dict[str, Tensor]:
    file = f"weights/{name}.pt"
    if not PLAIN_NAME.fullmatch(name) or entry["file"] != file:
        raise ConfigError(f"{folder.name}/{HEAD} must name weights by their models, not {name!r}; copy it again")
    content = _read_checked(folder, file, entry["sha256"])
    try:
        state = load_tensors(content)
    except Exception:  # torch raises many kinds on bytes that are no weights
        state = None
    if not is_state(state):
        raise ConfigError(f"{folder.name}/{file} holds no weights; copy the folder again")
    return state


def _read_checked(folder: Path, file: str, sha256: str) -> bytes:
    try:
        # A pipe or a device would be read without end.
        check_kind(folder / file)
        content = (folder / file).read_bytes()
    except OSError:
        content = None
    if content is None or _sha256(content) != sha256:
        raise ConfigError(f"{folder.name}/{file} is missing or was changed; copy the folder again")
    return content
