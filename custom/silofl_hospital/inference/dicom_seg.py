"""A label map as a DICOM segmentation of its series, for viewers and archives (highdicom)."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from silofl import __version__
from silofl.base.errors import ConfigError, DataError, one_line, quote_value
from silofl.base.files import write_atomically
from silofl.reading.dicom_planes import DIRECTION, POSITION, SPACING, read_planes
from silofl.reading.raw_volume import LPS_TO_RAS
from silofl.study import Study

if TYPE_CHECKING:
    from highdicom.seg import SegmentDescription
    from pydicom import Dataset
    from pydicom.sr.coding import Code

# A viewer lists the series by it; those of scanners have low numbers.
SERIES_NUMBER = 9000
# A DICOM person, label or description holds no more.
MOST_LETTERS = 64
# Nor a short text.
MOST_IN_A_TEXT = 1024
RESEARCH = "Research only"
# What UIDs are derived for.
SERIES = "segmentation's series"
INSTANCE = "segmentation"
# Groups of elements with dates and numbers of an examination, and who was examined.
PERSONAL = (0x0008, 0x0010)


def check_can_write(study: Study) -> None:
    """Refuse to write segmentations before any work.

    Raises:
        ConfigError: highdicom is not installed, the study's answers are classes, or a segment cannot have a label's
            name.
    """
    if study.task != "segmentation":
        raise ConfigError(f"a model of task {study.task} has no DICOM segmentations; leave them out")
    if importlib.util.find_spec("highdicom") is None:
        raise ConfigError("the package highdicom is missing, which --dicom-seg needs; pip install 'silofl[dicom]'")
    for label in study.labels.values():
        if len(label) > MOST_LETTERS or "\\" in label or label != label.strip():
            raise ConfigError(
                f"label {quote_value(label)} has more than {MOST_LETTERS} letters, a backslash or a blank at an end, "
                "which --dicom-seg cannot write; leave it out and take the NIfTI label map"
            )


def write_dicom_seg(
    target: Path,
    headers: Sequence[Dataset],
    label_map: NDArray[np.uint8],
    affine: NDArray[np.float64],
    study: Study,
    fingerprint: str,
    remark: str,
    options: Mapping[str, object] | None = None,
) -> None:
    """Write a label map as a DICOM segmentation that belongs to its source's patient, study and frame of reference.

    Args:
        headers: Of the DICOM file, or the series, that was predicted.
        label_map: Label numbers, (X, Y, Z).
        affine: Voxel indices to millimetres in NIfTI's world, (4, 4).
        remark: Whose model answered, and the warnings: each segment's description.
        options: What the answer depends on beside source and model, as the threshold. The same source, model, version
            and options give the same UIDs, so that an archive keeps an answer once.

    Raises:
        DataError: The source lacks what a segmentation refers to, as its frame of reference.
    """
    # What highdicom says of unusual headers is of no use to who asked for a label map.
    logging.getLogger("highdicom").setLevel(logging.ERROR)
    # In the order of headers or frames, so that each takes its own place, be the gantry tilted or not.
    pixels = label_map.transpose(2, 1, 0)[_find_slices(headers, label_map, affine)]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            segments = [_describe_segment(number, study, fingerprint, remark) for number in sorted(study.labels)]
            uids = [derive_uid(kind, headers, fingerprint, options or {}) for kind in (SERIES, INSTANCE)]
            content = _encode(headers, pixels, segments, study, fingerprint, uids)
    except (AttributeError, KeyError, ValueError, TypeError) as error:  # a missing or odd element of the header
        reason = f"highdicom says: {one_line(_hide_patient_values(error, headers[0]), 160)}"
        if absent := getattr(error, "name", None):
            reason = f"{absent} is missing"
        raise _refusal(reason) from None
    write_atomically(target, lambda file: file.write(content))


def _find_slices(
    headers: Sequence[Dataset], label_map: NDArray[np.uint8], affine: NDArray[np.float64]
) -> NDArray[np.intp]:
    """Return which slice of a label map each plane of a series is."""
    step = (LPS_TO_RAS @ affine)[:3, 2]
    planes: list[Any] = []
    for header in headers:
        planes += read_planes(header)
    for key in (POSITION, DIRECTION, SPACING):
        if len(planes) != label_map.shape[2] or not all(plane[key] for plane in planes):
            raise _refusal(f"{key} is missing")
    return np.argsort(np.argsort([step @ plane[POSITION] for plane in planes]))


def _encode(
    headers: Sequence[Dataset],
    pixels: NDArray[np.uint8],
    segments: Sequence[SegmentDescription],
    study: Study,
    fingerprint: str,
    uids: Sequence[str],
) -> bytes:
    import highdicom

    segmentation = highdicom.seg.Segmentation(
        source_images=headers,
        pixel_array=pixels,
        segmentation_type="BINARY",
        segment_descriptions=segments,
        series_instance_uid=uids[0],
        series_number=SERIES_NUMBER,
        sop_instance_uid=uids[1],
        instance_number=1,
        manufacturer="SiloFL",
        manufacturer_model_name=study.name[:MOST_LETTERS],
        software_versions=__version__,
        device_serial_number=fingerprint[:MOST_LETTERS],
        series_description=f"{RESEARCH}, SiloFL {study.name}"[:MOST_LETTERS],
        content_description=f"{RESEARCH}, no medical device",
        # UTF-8: the series' own set may lack letters of a label's name, which would be written as "?".
        specific_character_set="ISO_IR 192",
    )
    stream = io.BytesIO()
    segmentation.save_as(stream, enforce_file_format=True)
    return stream.getvalue()


def derive_uid(kind: str, headers: Sequence[Dataset], fingerprint: str, options: Mapping[str, object]) -> str:
    """Return the UID of what a model answers to a series: the same for the same files, model, version and options.

    Args:
        kind: What is named, `SERIES` or `INSTANCE` of a segmentation, or another word.
        options: What else the answer depends on; as JSON.
    """
    source = sorted(str(header.get("SOPInstanceUID")) for header in headers)
    facts = json.dumps([kind, source, fingerprint, __version__, options], sort_keys=True)
    return f"2.25.{int.from_bytes(hashlib.sha256(facts.encode()).digest()[:16])}"


def _hide_patient_values(error: Exception, header: Dataset) -> str:
    """Return what a library says, with the names of elements in place of a patient's values."""
    message = str(error)
    for group in PERSONAL:
        for element in header.group_dataset(group):
            message = message.replace(f"'{element.value}'", element.keyword)
    return message


def _refusal(reason: str) -> DataError:
    return DataError(f"no DICOM segmentation, because {reason}; take the NIfTI label map, or export the series again")


def _describe_segment(number: int, study: Study, fingerprint: str, remark: str) -> SegmentDescription:
    from highdicom import AlgorithmIdentificationSequence
    from highdicom.seg import SegmentDescription
    from pydicom.sr.codedict import codes

    algorithm = AlgorithmIdentificationSequence(
        f"SiloFL {study.algorithm.name}", codes.DCM.ArtificialIntelligence, fingerprint[:MOST_LETTERS]
    )
    # A backslash would part it into two values.
    label = study.labels[number].replace("\\", "/")[:MOST_LETTERS]
    described = SegmentDescription(number, label, *find_codes(study, number), "AUTOMATIC", algorithm)
    described.SegmentDescription = f"{RESEARCH}: {remark}"[:MOST_IN_A_TEXT]
    return described


def find_codes(study: Study, number: int) -> tuple[Code, Code]:
    """Return DICOM's category and type of what a label shows; "tissue", which every viewer knows, without a code."""
    from pydicom.sr.codedict import codes
    from pydicom.sr.coding import Code

    label_code = study.codes.get(study.labels[number])
    if label_code is None:
        return codes.SCT.Tissue, codes.SCT.Tissue
    category = codes.SCT.MorphologicallyAbnormalStructure if label_code.is_abnormal else codes.SCT.AnatomicalStructure
    return category, Code(label_code.code, "SCT", label_code.meaning)
