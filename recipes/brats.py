"""Brain tumours on MRI in four contrasts: BraTS in the form of 2021 or of 2023 (Baid et al., arXiv:2107.02314).

SOURCE/<site>/BraTS2021_00000/BraTS2021_00000_t1.nii.gz and so on, or
BraTS-GLI-00000-000/BraTS-GLI-00000-000-t1n.nii.gz; the folders of the sites are made by hand. All scans of a patient
come into one part. The challenge scores regions of the labels, which are to be added to the study: {WT: [1, 2, 3],
TC: [1, 3], ET: [3]}.
"""

import re
import sys
from pathlib import Path

from folders import import_folders, link, write_patients

IS_NEWER = any(Path(sys.argv[1]).glob("*/*/*-seg.nii.gz")) if len(sys.argv) > 1 else False
NAMES = ("-t1n", "-t1c", "-t2w", "-t2f", "-seg") if IS_NEWER else ("_t1", "_t1ce", "_t2", "_flair", "_seg")
LABELS = "1=necrotic core,2=oedema,3=enhancing tumour" if IS_NEWER else "1=necrotic core,2=oedema,4=enhancing tumour"


def fill(source: Path, folder: Path) -> None:
    for site in source.glob("[!.]*"):
        files = sorted(site.glob("*/[!.]*.nii.gz"))
        for file in files:
            link(file, folder / file.relative_to(source))
        cases = {file.parent.name for file in files}
        write_patients(folder / site.name, {case: re.sub(r"-\d{3}$", "", case) for case in cases})


*images, mask = (f"{{case}}/{{case}}{name}.nii.gz" for name in NAMES)
contrasts = ",".join(f"{name}={image}" for name, image in zip(("T1", "T1Gd", "T2", "FLAIR"), images, strict=True))
import_folders(fill, "--image-pattern", contrasts, "--mask-pattern", mask, "--labels", LABELS)
