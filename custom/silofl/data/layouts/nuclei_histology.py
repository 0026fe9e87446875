"""Cell nuclei in H&E-stained tissue of three public sets, as in HarmoFL's table; a set is a site.

HarmoFL (Jiang et al., AAAI 2022, arXiv:2112.10775) takes TNBC (Naylor et al., IEEE TMI 2018; from Zenodo, TNBC Nuclei
Segmentation), MoNuSeg (Kumar et al., IEEE TMI 2019; there called MoNuSAC2018, from monuseg.grand-challenge.org) and
MoNuSAC2020 (Verma et al., IEEE TMI 2021; from monusac-2020.grand-challenge.org)::

    SOURCE/                                      with one of these or more, in folders of any name
      TNBC_NucleiSegmentation/
        Slide_01/01_1.png ...                    the pictures of a patient
        GT_01/01_1.png ...                       their masks; not 0 is a nucleus
      MoNuSeg 2018 Training Data/
        Tissue Images/TCGA-18-5592-01Z-00-DX1.tif ...
        Annotations/TCGA-18-5592-01Z-00-DX1.xml ...
      MoNuSAC_images_and_annotations/
        TCGA-5P-A9K0-01Z-00-DX1/                 a picture and its outlines of nuclei, of the same name
          TCGA-5P-A9K0-01Z-00-DX1_1.tif
          TCGA-5P-A9K0-01Z-00-DX1_1.xml ...

The sites are tnbc, monuseg and monusac. HarmoFL divides MoNuSAC2020 into four by organ, which the files do not name:
here it is one. A patient is a slide of TNBC, or the first three parts of a TCGA name. Pictures keep their size. An
outline in XML is filled; what is called Ambiguous, or has fewer than three corners, is no nucleus.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np

from silofl.data.access import read_bytes
from silofl.data.images import read_image, read_label
from silofl.data.layouts.options import ImportOptions
from silofl.data.layouts.plan import Pair, SitePlan, chosen_labels, copy_of, plan_pairs
from silofl.errors import DataError


class Form(NamedTuple):
    """Where a set's pictures are, how the file of a picture's nuclei is found, and how its patient."""

    pictures: str
    nuclei: Callable[[Path], Path]
    patient: Callable[[Path], str]


def _barcode(picture: Path) -> str:
    return "-".join(picture.stem.split("-")[:3])


FORMS: Mapping[str, Form] = {
    "tnbc": Form(
        "Slide_*/*.png",
        lambda picture: picture.parents[1] / picture.parent.name.replace("Slide_", "GT_") / picture.name,
        lambda picture: picture.parent.name,
    ),
    "monuseg": Form(
        "Tissue Images/*.tif", lambda picture: picture.parents[1] / "Annotations" / f"{picture.stem}.xml", _barcode
    ),
    "monusac": Form("MoNuSAC*/TCGA-*/*.tif", lambda picture: picture.with_suffix(".xml"), _barcode),
}


def plan_histology(source: Path, options: ImportOptions) -> dict[str, SitePlan]:
    """Plan the import of the sets of `FORMS` that SOURCE holds.

    Raises:
        ConfigError: More than one label is named.
        DataError: SOURCE holds none of them, or a picture lacks its nuclei.
    """
    labels = chosen_labels(options.labels, ("nucleus",), first=1)
    pairs = {site: _pairs(source, form) for site, form in FORMS.items()}
    if not any(pairs.values()):
        raise DataError(
            f"{source.name} must hold Slide_01/*.png of TNBC, Tissue Images/*.tif of MoNuSeg or MoNuSAC*/TCGA-*/*.tif, "
            "none is there: is it one of these sets?"
        )
    return {site: plan_pairs(site, found, labels, options) for site, found in pairs.items() if found}


def outlines(content: bytes, name: str) -> list[list[tuple[float, float]]]:
    """Return the corners (x, y) in pixels of each nucleus that an ImageScope XML outlines.

    Raises:
        DataError: It is no XML, or a corner has no numbers.
    """
    try:
        found = [
            [(float(corner.attrib["X"]), float(corner.attrib["Y"])) for corner in region.iter("Vertex")]
            for annotation in ElementTree.fromstring(content).iter("Annotation")
            if not any(attribute.get("Name") == "Ambiguous" for attribute in annotation.iter("Attribute"))
            for region in annotation.iter("Region")
        ]
    except (ElementTree.ParseError, KeyError, ValueError) as error:
        raise DataError(
            f"{name} must be XML with the X and Y of each Vertex, not broken ({error}); copy it again"
        ) from None
    return [corners for corners in found if len(corners) > 2]


def _pairs(source: Path, form: Form) -> list[Pair]:
    pictures = [path for path in sorted(source.rglob(form.pictures)) if not path.name.startswith(".")]
    return [_pair(picture, form.nuclei(picture), form.patient(picture)) for picture in pictures]


def _pair(picture: Path, nuclei: Path, patient: str) -> Pair:
    if not nuclei.is_file():
        raise DataError(f"{picture.name} must have its nuclei in {nuclei.parent.name}/{nuclei.name}; it is not there")
    mask = f"masks/{picture.stem}.png", partial(_save_mask, picture, nuclei)
    return Pair(picture.stem, patient, ((f"images/{picture.name}", copy_of(picture)),), mask)


def _save_mask(picture: Path, nuclei: Path, target: Path) -> None:
    from PIL import Image, ImageDraw

    if nuclei.suffix == ".png":
        Image.fromarray((read_label(nuclei).array[0] != 0).astype(np.uint8)).save(target)
        return
    rows, columns = read_image(picture).spatial_shape
    mask = Image.new("L", (columns, rows))
    for corners in outlines(read_bytes(nuclei, nuclei.name), nuclei.name):
        ImageDraw.Draw(mask).polygon(corners, fill=1)
    mask.save(target)
