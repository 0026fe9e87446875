"""The modalities that a study may name, and what the numbers of PET count."""

from typing import Literal

# DICOM's codes for the images of the studies that hospitals ask for; DX stands for CR too.
Modality = Literal["CT", "MR", "PT", "NM", "US", "DX", "MG", "XA", "RF", "OP", "OPT", "SM", "GM", "ES", "XC"]
# DICOM's Units: Bq/ml, uptake by weight (SUV), counts, counts in a second, and what is proportional to both.
PetUnit = Literal["BQML", "GML", "CNTS", "CPS", "PROPCNTS", "PROPCPS"]
