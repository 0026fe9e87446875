"""Standard codes by which a DICOM file states what it shows and how it came about.

Only codes that the standard lists are read (PS3.16, Annex L, for body parts): words of a hospital's own are no
codes, and never leave.
"""

from collections import Counter
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
    first = next(dicom_headers(path), None) if is_dicom(path) else None
    if first is None:
        return {}
    # The standard asks for the element where a compression has lost something; it stays when the file is unpacked.
    is_lossy = first.get("LossyImageCompression") == "01"
    kind = first.get("ImageType")
    found = {
        "body part": first.get("BodyPartExamined"),
        "side of the body": first.get("ImageLaterality") or first.get("Laterality"),
        "kind of image": kind[0] if kind else None,
        "compression": "LOSSY" if is_lossy else "LOSSLESS",
    }
    words = {what: str(value or "").strip().upper() for what, value in found.items()}
    return {what: code for what, code in words.items() if code in STATED[what]}


def group_codes(stated: Iterable[tuple[str | None, Mapping[str, str]]], least: int) -> dict[str, tuple[str, ...]]:
    """Return the codes that enough patients have.

    Args:
        stated: Of each case its patient, and what its file states; patients whom nobody knows count as none.
        least: Patients that must have a code.
    """
    pairs = {(patient, what, code) for patient, codes in stated if patient for what, code in codes.items()}
    counts = Counter((what, code) for _, what, code in pairs)
    known = sorted(pair for pair, count in counts.items() if count >= least)
    return {what: tuple(code for one, code in known if one == what) for what, _ in known}
