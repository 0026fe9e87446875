"""Cell nuclei in H&E-stained tissue of three public sets, six sites as in HarmoFL's table.

HarmoFL (Jiang et al., AAAI 2022, arXiv:2112.10775) takes TNBC (Naylor et al., IEEE TMI 2018; from Zenodo, TNBC Nuclei
Segmentation), MoNuSeg (Kumar et al., IEEE TMI 2019; there called MoNuSAC2018, from monuseg.grand-challenge.org) and
MoNuSAC2020 (Verma et al., IEEE TMI 2021; from monusac-2020.grand-challenge.org)::

    SOURCE/                                      with one of these or more, as they are unpacked
      TNBC_NucleiSegmentation/
        Slide_01/01_1.png ...                    the pictures of a patient
        GT_01/01_1.png ...                       their masks; not 0 is a nucleus
      MoNuSeg 2018 Training Data/
        Tissue Images/TCGA-18-5592-01Z-00-DX1.tif ...
        Annotations/TCGA-18-5592-01Z-00-DX1.xml ...
      MoNuSegTestData/
        TCGA-2Z-A9J9-01A-01-TS1.tif              a picture and its outlines of nuclei, of the same name
        TCGA-2Z-A9J9-01A-01-TS1.xml ...
      MoNuSAC_images_and_annotations/
        TCGA-5P-A9K0-01Z-00-DX1/
          TCGA-5P-A9K0-01Z-00-DX1_1.tif
          TCGA-5P-A9K0-01Z-00-DX1_1.xml ...
      MoNuSAC Testing Data and Annotations/      as before

The sites are tnbc, monuseg, and MoNuSAC2020 by organ, as HarmoFL divides it: monusac-breast, monusac-kidney,
monusac-lung and monusac-prostate. The organ is that of the study for which a hospital collected tissue, by its code in
the second part of a TCGA name. A patient is a slide of TNBC, or the first three parts of that name. Patients whom a set
releases for the test are a site's test, unless a share for the test is given; without them it is a fifth of the
patients. Pictures keep their size. An outline in XML is filled; what is called Ambiguous, or has fewer than three
corners, is no nucleus.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np

from silofl.base.errors import DataError
from silofl.importing.options import FIFTHS, ImportOptions, Layout
from silofl.importing.site_files import CaseFiles, SitePlan, copy_image, plan_pairs
from silofl.reading.access import read_bytes
from silofl.reading.images import read_image, read_label
from silofl_desk.layouts.description import choose_labels

# Organ -> codes of the hospitals that collected tissue for TCGA's studies of it (BRCA; KICH, KIRC, KIRP; LUAD, LUSC;
# PRAD), by the Genomic Data Commons' table of tissue source sites.
HOSPITALS: Mapping[str, str] = {
    "breast": (
        "3C 3J 4H 5L 5T A1 A2 A7 A8 AC AN AO AQ AR B6 BH C8 D8 E2 E9 EW GI GM HN JL LD LL LQ MS OK OL PE PL S3 TV "
        "UL UU V7 W8 WT XX Z7"
    ),
    "kidney": (
        "2K 2Z 3Z 4A 5P 6D A3 A4 AK AL AS AT B0 B1 B2 B3 B4 B8 B9 BP BQ CB CJ CW CZ DV DW DZ EU EV F9 G6 G7 GK GL "
        "HE IA IZ J7 KL KM KN KO KV L8 MH MM MW NP O9 P4 PJ Q2 SX T7 UN UW UZ V8 V9 WM WN Y8"
    ),
    "lung": (
        "05 11 17 18 21 22 33 34 35 37 38 39 43 44 46 49 4B 50 51 52 53 55 56 58 60 62 63 64 66 67 68 69 6A 70 71 "
        "73 75 77 78 79 80 82 83 85 86 8C 90 91 92 93 94 95 96 97 98 99 J1 J2 L3 L4 L9 LA ME MF ML MN MP NB NC NJ "
        "NK O1 O2 OC S2 T6 UJ WG XC ZE"
    ),
    "prostate": (
        "2A 4L 4S CH EJ FC G9 H9 HC HI J4 J9 KC KK M7 MG QU SU TK TP UR V1 V2 VN VP WW X4 XA XJ XK XQ Y6 YJ YL ZG"
    ),
}
FIFTH = 0.2


class Collection(NamedTuple):
    """Where pictures are, how the file of a picture's nuclei is found, how its patient, and how its site.

    `is_test` says whether a set releases them for the test.
    """

    pictures: str
    nuclei: Callable[[Path], Path]
    patient: Callable[[Path], str]
    site: Callable[[Path], str]
    is_test: bool = False


def _barcode(picture: Path) -> str:
    return "-".join(picture.stem.split("-")[:3])


def _outlines_path(picture: Path) -> Path:
    return picture.with_suffix(".xml")


def _site_by_organ(picture: Path) -> str:
    code = picture.parent.name.split("-")[1]
    organ = next((organ for organ, codes in HOSPITALS.items() if code in codes.split()), None)
    if organ is None:
        raise DataError(
            f"{picture.name} must be of {', '.join(HOSPITALS)}, by the hospital's code in its folder's name, not of "
            f"{code!r}; leave it out"
        )
    return f"monusac-{organ}"


FORMS = (
    Collection(
        "Slide_*/*.png",
        lambda picture: picture.parents[1] / picture.parent.name.replace("Slide_", "GT_") / picture.name,
        lambda picture: picture.parent.name,
        lambda picture: "tnbc",
    ),
    Collection(
        "Tissue Images/*.tif",
        lambda picture: picture.parents[1] / "Annotations" / f"{picture.stem}.xml",
        _barcode,
        lambda picture: "monuseg",
    ),
    Collection("MoNuSegTest*/TCGA-*.tif", _outlines_path, _barcode, lambda picture: "monuseg", is_test=True),
    Collection("MoNuSAC_*/TCGA-*/*.tif", _outlines_path, _barcode, _site_by_organ),
    Collection("MoNuSAC Test*/TCGA-*/*.tif", _outlines_path, _barcode, _site_by_organ, is_test=True),
)


def plan_histology(source: Path, options: ImportOptions) -> dict[str, SitePlan]:
    """Plan the import of the sets of `FORMS` that SOURCE holds.

    Raises:
        ConfigError: More than one label is named.
        DataError: SOURCE holds none of them, a picture lacks its nuclei, or its organ is not known.
    """
    labels = choose_labels(options.labels, ("nucleus",), first=1)
    pairs: dict[str, list[CaseFiles]] = {}
    tested: dict[str, set[str]] = {}
    for form in FORMS:
        for picture in sorted(source.rglob(form.pictures)):
            if not picture.name.startswith("."):
                site, patient = form.site(picture), form.patient(picture)
                pairs.setdefault(site, []).append(_plan_pair(picture, form.nuclei(picture), patient))
                if form.is_test and options.test is None:
                    tested.setdefault(site, set()).add(patient)
    if not pairs:
        raise DataError(
            f"{source.name} must hold Slide_01/*.png of TNBC, Tissue Images/*.tif of MoNuSeg or MoNuSAC*/TCGA-*/*.tif, "
            "none is there: is it one of these sets?"
        )
    filled = replace(options, test=FIFTH if options.test is None else options.test)
    return {site: plan_pairs(site, found, labels, filled, tested=tested.get(site, ())) for site, found in pairs.items()}


def parse_outlines(content: bytes, name: str) -> list[list[tuple[float, float]]]:
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


def _plan_pair(picture: Path, nuclei: Path, patient: str) -> CaseFiles:
    if not nuclei.is_file():
        raise DataError(f"{picture.name} must have its nuclei in {nuclei.parent.name}/{nuclei.name}; it is not there")
    mask = f"masks/{picture.stem}.png", partial(_save_mask, picture, nuclei)
    return CaseFiles(picture.stem, patient, ((f"images/{picture.name}", partial(copy_image, picture)),), mask)


def _save_mask(picture: Path, nuclei: Path, target: Path) -> None:
    from PIL import Image, ImageDraw

    if nuclei.suffix == ".png":
        Image.fromarray((read_label(nuclei).array[0] != 0).astype(np.uint8)).save(target)
        return
    rows, columns = read_image(picture).spatial_shape
    mask = Image.new("L", (columns, rows))
    for corners in parse_outlines(read_bytes(nuclei, nuclei.name), nuclei.name):
        ImageDraw.Draw(mask).polygon(corners, fill=1)
    mask.save(target)


LAYOUT = Layout(plan_histology, {**FIFTHS, "test": None})
