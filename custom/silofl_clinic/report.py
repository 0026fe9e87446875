"""A DICOM structured report of an answer: the volume of each label, by TID 1500 of DICOM PS3.16 (highdicom)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from silofl import __version__
from silofl.base.files import write_atomically
from silofl.study import Study
from silofl_hospital.inference.dicom_seg import (
    MOST_IN_A_TEXT,
    MOST_LETTERS,
    RESEARCH,
    SERIES_NUMBER,
    derive_uid,
    find_codes,
)

if TYPE_CHECKING:
    from highdicom.sr import MeasurementReport
    from pydicom import Dataset

MILLILITRE = ("mL", "UCUM", "milliliter")
# UIDs are derived for these.
DEVICE, SERIES, INSTANCE, LABEL = "device", "report's series", "report", "label"


def write_report(
    target: Path,
    headers: Sequence[Dataset],
    segmentation: Path,
    record: Mapping[str, Any],
    study: Study,
    options: Mapping[str, object],
) -> None:
    """Write what an answer measures as a report in its source's study.

    Args:
        headers: Of the series that was predicted.
        segmentation: The answer to it, which the report refers to.
        record: Its entry in prediction.json, with millilitres and warnings.
        options: What the answer depends on, of which UIDs are made.
    """
    import pydicom
    from highdicom.sr import Comprehensive3DSR

    segments = pydicom.dcmread(segmentation)
    fingerprint = record["super_model"]
    # The same answer has the same UIDs, so that an archive that gets it twice has it once.
    purposes = (SERIES, INSTANCE, *(f"{LABEL} {number}" for number in study.labels))
    uid = {purpose: derive_uid(purpose, headers, fingerprint, options) for purpose in purposes}
    uid[DEVICE] = derive_uid(DEVICE, [], fingerprint, {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = Comprehensive3DSR(
            evidence=[segments, *headers],
            content=_describe_answer(segments, record, study, uid)[0],
            series_instance_uid=uid[SERIES],
            series_number=SERIES_NUMBER + 1,
            sop_instance_uid=uid[INSTANCE],
            instance_number=1,
            manufacturer="SiloFL",
            is_complete=True,
            # By a program: no physician has seen it.
            is_verified=False,
            series_description=f"{RESEARCH}, SiloFL {study.name}"[:MOST_LETTERS],
            manufacturer_model_name=study.name[:MOST_LETTERS],
            software_versions=__version__,
            specific_character_set="ISO_IR 192",
        )
    write_atomically(target, lambda stream: report.save_as(stream, enforce_file_format=True))


def _describe_answer(
    segments: Dataset, record: Mapping[str, Any], study: Study, uid: Mapping[str, str]
) -> MeasurementReport:
    from highdicom import sr
    from pydicom.sr.codedict import codes
    from pydicom.sr.coding import Code

    groups: list[sr.VolumetricROIMeasurementsAndQualitativeEvaluations | sr.MeasurementsAndQualitativeEvaluations] = []
    for number, name in sorted(study.labels.items()):
        category, finding = find_codes(study, number)
        size = record["volumes_ml"][name]
        volume = sr.Measurement(codes.SCT.Volume, round(size, 3), Code(*MILLILITRE))
        measured: dict[str, Any] = {
            "tracking_identifier": sr.TrackingIdentifier(uid[f"{LABEL} {number}"], name[:MOST_LETTERS]),
            "finding_category": category,
            "finding_type": finding,
            "measurements": [volume],
        }
        if size:
            part = sr.ReferencedSegment.from_segmentation(segments, number)
            groups.append(sr.VolumetricROIMeasurementsAndQualitativeEvaluations(referenced_segment=part, **measured))
        else:
            # No voxel has the label: there is nothing to refer to.
            groups.append(sr.MeasurementsAndQualitativeEvaluations(**measured))
    device = sr.DeviceObserverIdentifyingAttributes(uid[DEVICE], "SiloFL", model_name=study.name[:MOST_LETTERS])
    context = sr.ObservationContext(observer_device_context=sr.ObserverContext(codes.DCM.Device, device))
    # Without a library of the images: their headers say the same, and of 96 slices it takes longer than the answer.
    report = sr.MeasurementReport(context, codes.SCT.ImagingProcedure, groups)
    said = "; ".join([f"{RESEARCH}, no medical device", *record["warnings"]])
    report[0].ContentSequence.append(
        sr.TextContentItem(codes.DCM.Comment, said[:MOST_IN_A_TEXT], sr.RelationshipTypeValues.CONTAINS)
    )
    return report
