"""Standard codes by which a DICOM file states what it shows and how it came about.

Only codes that the standard lists are read (PS3.16, Annex L, for body parts): words of a hospital's own are no
codes, and never leave.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from silofl.reading.header import dicom_headers, is_dicom

BODY_PARTS = """
ABDOMEN ABDOMENPELVIS ADRENAL ANKLE AORTA ARM BILEDUCT BLADDER BRAIN BREAST BRONCHUS BUTTOCK CALCANEUS CALF CAROTID
CEREBELLUM CHEST CHESTABDOMEN CHESTABDPELVIS CLAVICLE COCCYX COLON CSPINE CTSPINE EAR ELBOW ESOPHAGUS EXTREMITY EYE
FEMUR FINGER FOOT GALLBLADDER HAND HEAD HEADNECK HEART HIP HUMERUS IAC JAW KIDNEY KNEE LARYNX LEG LIVER LSPINE LSSPINE
LUNG MAXILLA MEDIASTINUM NECK NECKCHEST NECKCHESTABDOMEN NOSE ORBIT OVARY PANCREAS PELVIS PHARYNX PROSTATE RECTUM RIB
SCAPULA SHOULDER SINUS SKULL SPINE SPLEEN SSPINE STERNUM STOMACH TESTIS THIGH THUMB THYROID TLSPINE TOE TSPINE UTERUS
WHOLEBODY WRIST"""
# What is stated, in words for people -> the codes that it may have.
STATED: Mapping[str, frozenset[str]] = {
    "body part": frozenset(BODY_PARTS.split()),
    "side of the body": frozenset("RLUB"),
    "kind of image": frozenset({"ORIGINAL", "DERIVED"}),
    "compression": frozenset({"LOSSY", "LOSSLESS"}),
}


def read_codes(path: Path) -> dict[str, str]:
    """Return what the first image of a DICOM file or folder states; nothing of another form, or in other words."""
    header = next(dicom_headers(path), None) if is_dicom(path) else None
    if header is None:
        return {}
    image_type = header.get("ImageType")
    stated = {
        "body part": header.get("BodyPartExamined"),
        "side of the body": header.get("ImageLaterality") or header.get("Laterality"),
        "kind of image": image_type[0] if image_type else None,
        # The standard asks for the element where a compression has lost something; it stays when the file is unpacked.
        "compression": "LOSSY" if header.get("LossyImageCompression") == "01" else "LOSSLESS",
    }
    codes = {topic: str(value or "").strip().upper() for topic, value in stated.items()}
    return {topic: code for topic, code in codes.items() if code in STATED[topic]}


def group_codes(stated: Iterable[tuple[str | None, Mapping[str, str]]], least: int) -> dict[str, tuple[str, ...]]:
    """Return the codes that enough patients have.

    Args:
        stated: Of each case its patient, and what its file states; patients whom nobody knows count as none.
        least: Patients that must have a code.
    """
    patients: dict[tuple[str, str], set[str]] = {}
    for patient, codes in stated:
        for topic_and_code in codes.items():
            if patient:
                patients.setdefault(topic_and_code, set()).add(patient)
    grouped: dict[str, tuple[str, ...]] = {}
    # Sorted, so that no order of cases shows in what leaves.
    for topic, code in sorted(patients):
        if len(patients[topic, code]) >= least:
            grouped[topic] = (*grouped.get(topic, ()), code)
    return grouped
