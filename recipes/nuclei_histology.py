"""Cell nuclei in H&E-stained tissue of three public sets, six sites as in HarmoFL's table (arXiv:2112.10775).

SOURCE holds one of these or more, as they are unpacked: Slide_01/*.png and GT_01/*.png of TNBC (Naylor et al., TMI
2018); Tissue Images/*.tif, Annotations/*.xml and MoNuSegTestData of MoNuSeg (Kumar et al., TMI 2019);
MoNuSAC_*/TCGA-*/*.tif with *.xml and MoNuSAC Test* of MoNuSAC2020 (Verma et al., TMI 2021), whose sites are the
organs. Patients whom a set releases for the test are a site's test, unless --test is given. What is called Ambiguous
is no nucleus.
"""

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from folders import import_folders, link, write_patients
from PIL import Image, ImageDraw

from silofl_hospital.importing.partition import split_by_patient

# Organ -> codes of the hospitals that collected tissue for TCGA's studies of it (BRCA; KICH, KIRC, KIRP; LUAD, LUSC;
# PRAD), by the Genomic Data Commons' table of tissue source sites.
HOSPITALS = {
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
PATTERNS = (
    *("Slide_*/*.png", "Tissue Images/*.tif", "MoNuSegTest*/TCGA-*.tif"),
    *("MoNuSAC_*/TCGA-*/*.tif", "MoNuSAC Test*/TCGA-*/*.tif"),
)
# Site -> patients whom its set releases for the test.
tested: dict[str, set[str]] = {}


def find_site(picture: Path) -> str:
    """Say which site a picture is of: its set, of MoNuSAC2020 the organ."""
    if picture.suffix == ".png":
        return "tnbc"
    if not picture.parent.name.startswith("TCGA-"):
        return "monuseg"
    code = picture.name.split("-")[1]
    return next(f"monusac-{organ}" for organ, codes in HOSPITALS.items() if code in codes.split())


def draw_nuclei(picture: Path) -> Image.Image:
    """Return a picture's nuclei as 1, by its mask or by its outlines in an ImageScope XML."""
    if picture.suffix == ".png":
        mask = picture.parents[1] / picture.parent.name.replace("Slide_", "GT_") / picture.name
        return Image.fromarray((np.asarray(Image.open(mask).convert("L")) > 0).astype(np.uint8))
    folder = picture.parents[1] / "Annotations" if picture.parent.name == "Tissue Images" else picture.parent
    mask = Image.new("L", Image.open(picture).size)
    for annotation in ElementTree.parse(folder / f"{picture.stem}.xml").iter("Annotation"):
        if any(attribute.get("Name") == "Ambiguous" for attribute in annotation.iter("Attribute")):
            continue
        for region in annotation.iter("Region"):
            corners = [(float(corner.attrib["X"]), float(corner.attrib["Y"])) for corner in region.iter("Vertex")]
            if len(corners) > 2:
                ImageDraw.Draw(mask).polygon(corners, fill=1)
    return mask


def fill(source: Path, folder: Path) -> None:
    patients: dict[str, dict[str, str]] = {}
    for pattern in PATTERNS:
        for picture in source.rglob(pattern):
            site = find_site(picture)
            patient = picture.parent.name if site == "tnbc" else "-".join(picture.stem.split("-")[:3])
            link(picture, folder / site / "images" / picture.name)
            (folder / site / "masks").mkdir(exist_ok=True)
            draw_nuclei(picture).save(folder / site / "masks" / f"{picture.stem}.png")
            patients.setdefault(site, {})[picture.stem] = patient
            if "Test" in pattern:
                tested.setdefault(site, set()).add(patient)
    for site, known in patients.items():
        write_patients(folder / site, known)


def keep_tests(target: Path, options: list[str]) -> None:
    """Put the patients whom a set releases for the test into the test, and split the others."""
    share = float(options[options.index("--validation") + 1]) if "--validation" in options else 0.2
    seed = int(options[options.index("--seed") + 1]) if "--seed" in options else 0
    for site, released in tested.items():
        path = target / site / "dataset.json"
        content = json.loads(path.read_text())
        records = [record for part in ("training", "validation", "test") for record in content[part]]
        records.sort(key=lambda record: record["case"])
        others = [record["patient"] for record in records if record["patient"] not in released]
        if not others:
            continue
        part_of = {**dict.fromkeys(released, "test"), **split_by_patient(others, 0, share, seed)}
        for part in ("training", "validation", "test"):
            content[part] = [record for record in records if part_of[record["patient"]] == part]
        path.write_text(json.dumps(content, indent=1) + "\n")


import_folders(fill, "--labels", "nucleus")
if "--test" not in sys.argv:
    keep_tests(Path(sys.argv[2]), sys.argv[3:])
