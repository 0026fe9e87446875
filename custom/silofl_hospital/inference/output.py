"""The files of a prediction: its label map on the input's grid, and its entry in prediction.json."""

import gzip
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from silofl.base.errors import DataError, quote_value
from silofl.base.files import write_atomically
from silofl.base.naming import is_one_line
from silofl.inference.choice import ENSEMBLE, MEAN
from silofl.inference.prediction import Prediction
from silofl.models.roles import GLOBAL
from silofl.reading.access import input_name
from silofl.reading.formats import READERS
from silofl.reading.nifti import read_nifti_header
from silofl.study import Study
from silofl.training.joined import LOCAL, describe_bias

# The files of an input end with these after its stem.
SUFFIXES = ("_labels.png", "_labels.nii.gz", "_picture.png", "_seg.dcm")
# What places a NIfTI file's voxels: its two grids, with their codes, and its unit.
NIFTI_GRID = (
    *("qform_code", "quatern_b", "quatern_c", "quatern_d", "qoffset_x", "qoffset_y", "qoffset_z"),
    *("sform_code", "srow_x", "srow_y", "srow_z", "pixdim", "xyzt_units"),
)


def input_stem(path: Path) -> str:
    """Return what the names of an input's results begin with: its own without the ending of its format.

    Raises:
        DataError: It is no name of a file, which would lead elsewhere, or it commands a terminal.
    """
    name = input_name(path)
    stem = name_stem(name)
    if stem in ("", ".", "..") or not is_one_line(name):
        raise DataError(
            f"{quote_value(name)} names no file of results: it is empty or of dots alone, or has a line break or a "
            "control character; rename it, or give a link of another name"
        )
    return stem


def name_stem(name: str) -> str:
    """Return a name without the ending of its format; one without such an ending whole."""
    endings = sorted(READERS, key=len, reverse=True)
    ending = next((e for e in endings if name.lower().endswith(e) and len(name) > len(e)), "")
    return name[: len(name) - len(ending)]


def write_map(
    folder: Path,
    stem: str,
    source: Path,
    label_map: NDArray[np.uint8],
    affine: NDArray[Any] | None,
) -> str:
    """Write an input's label map and return the file's name.

    Args:
        label_map: Label numbers, (X, Y, Z) or (rows, columns).
        affine: Voxel indices to millimetres, (4, 4), for NIfTI; None of a picture, for PNG.
    """
    if affine is None:
        name = f"{stem}_labels.png"
        content = _encode_png(label_map)
    else:
        name = f"{stem}_labels.nii.gz"
        content = _encode_nifti(label_map, affine, source)
    write_atomically(folder / name, lambda stream: stream.write(content))
    return name


def prediction_record(prediction: Prediction, study: Study, threshold: float | None) -> dict[str, Any]:
    """Return one input's entry in prediction.json."""
    record = {
        "model": prediction.model,
        "bias": prediction.bias,
        "scores": prediction.scores,
        "is_fallback": prediction.is_fallback,
        "threshold": threshold,
        "warnings": list(prediction.warnings),
        "do_not_use": None if prediction.do_not_use is None else list(prediction.do_not_use),
        "unchecked": list(prediction.unchecked),
        "deviations": {name: round(deviation, 3) for name, deviation in prediction.deviations.items()},
    }
    if prediction.label_map is not None:
        labels = {str(number): name for number, name in sorted(study.labels.items())}
        return record | {
            "labels": labels,
            "size": list(prediction.label_map.shape),
            "volumes_ml": prediction.volumes_ml,
        }
    if prediction.findings is not None:
        record["findings"] = list(prediction.findings)
    elif prediction.label is not None:
        record |= {"label": prediction.label, "label_name": study.labels[prediction.label]}
    for name in ("class_scores", "temperature", "decision_thresholds"):
        record[name] = getattr(prediction, name)
    return record


def forbid_use(reasons: Sequence[str] | None) -> list[str]:
    """Return the line by which the study's rule forbids to use an answer; none where there is no reason."""
    return [f"DO NOT USE this answer: {'; '.join(reasons)}"] if reasons else []


def prediction_sentence(prediction: Prediction, study: Study, threshold: float | None) -> str:
    """Return whose model answered, how sure the choice was, and its answer."""
    return f"{model_sentence(prediction, threshold)}; {_answer_sentence(prediction, study)}"


def model_sentence(prediction: Prediction, threshold: float | None) -> str:
    """Return whose model answered and how sure the choice was."""
    return f"{_choice_sentence(prediction, threshold)}{describe_bias(prediction.bias)}"


def _choice_sentence(prediction: Prediction, threshold: float | None) -> str:
    model = prediction.model
    scores = prediction.scores
    # A hospital may be called as what answers without a choice.
    name = f"model of {model}" if model in scores and model != GLOBAL else _name_answer(model)
    if not scores:
        return name
    best = max(scores, key=lambda output: scores[output])
    if prediction.is_fallback:
        return f"{name}, as no hospital is above {threshold:g} (nearest {best}, {scores[best]:.2f})"
    if model in scores:
        return f"{name} ({scores[model]:.2f})"
    return f"{name} (nearest {best}, {scores[best]:.2f})"


def _name_answer(model: str) -> str:
    """Name what answered without a choice: several models together, what a site has kept, or a site's model."""
    if model in (MEAN, ENSEMBLE):
        return model
    return f"{model} model" if model in (GLOBAL, LOCAL) else f"model of {model}"


def _answer_sentence(prediction: Prediction, study: Study) -> str:
    scores = prediction.class_scores or {}
    if prediction.findings is not None:
        answers = []
        for name, score in scores.items():
            answer = "yes" if name in prediction.findings else "no"
            answers.append(f"{name} {answer} ({score:.2f}{_call_sentence(prediction, name)})")
        return ", ".join(answers)
    if prediction.label is not None:
        name = study.labels[prediction.label]
        calls = "".join(f", {label}{_call_sentence(prediction, label)}" for label in prediction.decision_thresholds)
        return f"{name} ({scores[name]:.2f}{calls})"
    if prediction.volumes_ml is not None:
        return ", ".join(f"{name} {volume:.2f} ml" for name, volume in prediction.volumes_ml.items())
    label_map = np.asarray(prediction.label_map)
    counts = {name: int((label_map == number).sum()) for number, name in sorted(study.labels.items())}
    unit = "pixel" if label_map.ndim == 2 else "voxel"
    return ", ".join(f"{name} {count} {unit}{'s' * (count != 1)}" for name, count in counts.items())


def _call_sentence(prediction: Prediction, name: str) -> str:
    threshold = prediction.decision_thresholds.get(name)
    return "" if threshold is None else f" from {threshold:.2f} on"


def _encode_png(values: NDArray[np.uint8]) -> bytes:
    content = io.BytesIO()
    Image.fromarray(values).save(content, "PNG")
    return content.getvalue()


def _encode_nifti(values: NDArray[Any], affine: NDArray[Any], source: Path) -> bytes:
    image = nibabel.Nifti1Image(values, affine)  # type: ignore[no-untyped-call]
    image.header.set_xyzt_units("mm")  # type: ignore[no-untyped-call]
    if source.name.lower().endswith((".nii", ".nii.gz")):
        # A file may give no grid, or two that differ, of which programs take one or the other: they take the same here.
        stored = read_nifti_header(source)
        for key in NIFTI_GRID:
            image.header[key] = stored[key]
    # Without the time, so that equal label maps are equal files.
    return gzip.compress(image.to_bytes(), mtime=0)
