"""The modalities that a study may name."""

from typing import Literal

# DICOM's codes for the images of the studies that hospitals ask for; DX stands for CR too.
Modality = Literal["CT", "MR", "PT", "NM", "US", "DX", "MG", "XA", "RF", "OP", "OPT", "SM", "GM", "ES", "XC"]
