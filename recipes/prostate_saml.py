"""Prostate MRI of six sites, collected for SAML (Liu et al., MICCAI 2020, arXiv:2007.02035; from its authors' page).

SOURCE/<site>/Case00.nii.gz with Case00_Segmentation.nii.gz or Case00_segmentation.nii.gz. A case is a patient, and
both zones of the prostate become one label.
"""

from pathlib import Path

import nibabel
import numpy as np
from folders import import_folders, link, write_patients


def fill(source: Path, folder: Path) -> None:
    for mask in source.glob("[!.]*/[!.]*_[Ss]egmentation.nii*"):
        site, case = folder / mask.parent.name, mask.name.rpartition("_")[0]
        (image,) = mask.parent.glob(f"{case}.nii*")
        link(image, site / "images" / image.name)
        zones = nibabel.load(mask)
        prostate = (np.asanyarray(zones.dataobj) > 0).astype(np.uint8)
        (site / "masks").mkdir(exist_ok=True)
        nibabel.save(nibabel.Nifti1Image(prostate, zones.affine), site / "masks" / f"{case}.nii.gz")
    for site in folder.iterdir():
        cases = [path.name.partition(".")[0] for path in (site / "images").iterdir()]
        write_patients(site, {case: case for case in cases})


import_folders(fill, "--labels", "prostate")
