"""The papers' data sets as they are downloaded, small and made up: their form is right, their content noise."""

from itertools import count

import numpy as np
from PIL import Image

from ..sets.test_camelyon17_wilds import write_set
from ..sets.test_fundus_disc_cup import write_pictures
from ..sets.test_nuclei_histology import SQUARE, save_picture, xml
from ..sets.test_pamap2 import table
from ..sets.test_prostate_saml import write_case

# One hospital of each organ of MoNuSAC2020.
ORGANS = ("A2", "5P", "55", "G9")
PROSTATE_SITES = ("BIDMC", "BMC", "HK", "I2CVB", "RUNMC", "UCL")
COVID_CLASSES = ("COVID-19", "Normal", "Pneumonia-Bacterial", "Pneumonia-Viral")


def write_histology(source):
    """Write four patients of TNBC, and three to train and one to test with of the other five sites."""
    numbers = count()
    for slide in ("01", "02", "03", "04"):
        save_picture(source / f"Slide_{slide}" / f"{slide}_1.png", next(numbers))
        (source / f"GT_{slide}").mkdir()
        Image.fromarray(np.uint8([[0, 255, 0, 0, 0, 0, 0, 7]] * 6)).save(source / f"GT_{slide}" / f"{slide}_1.png")
    for patient in range(4):
        name = f"TCGA-18-559{patient}-01Z-00-DX1"
        pictures, outlines = (
            ("MoNuSegTestData", "MoNuSegTestData") if patient == 3 else ("Tissue Images", "Annotations")
        )
        _write_outlined(source / pictures, source / outlines, name, next(numbers))
        for organ in ORGANS:
            name = f"TCGA-{organ}-A00{patient}-01Z-00-DX1"
            part = "MoNuSAC Testing Data and Annotations" if patient == 3 else "MoNuSAC_images_and_annotations"
            _write_outlined(source / part / name, source / part / name, f"{name}_1", next(numbers))


def _write_outlined(pictures, outlines, name, number):
    save_picture(pictures / f"{name}.tif", number)
    outlines.mkdir(parents=True, exist_ok=True)
    (outlines / f"{name}.xml").write_text(xml([SQUARE]))


def write_prostate(source):
    """Write six sites with five or more volumes, so that one of them is the smallest."""
    for number, site in enumerate(PROSTATE_SITES):
        for case in range(5 + number % 2):
            write_case(source / site, case)


def write_camelyon17(source):
    """Write five hospitals with five patients each, and two or four patches of a patient."""
    write_set(source, {0: 2, 1: 4, 2: 2, 3: 4, 4: 2})


def write_retina(source):
    """Write DoFE's four sources in their own form, and two hospitals as folders of images and masks."""
    for number in range(1, 5):
        for part, names in (("train", "abcdef"), ("test", "gh")):
            place = source / f"Domain{number}" / part / "ROIs"
            write_pictures(place / "image", place / "mask", names, seed=10 * number + len(names))
    for number in (5, 6):
        place = source / f"hospital{number}"
        write_pictures(place / "images", place / "masks", "abcdefgh", seed=number)


def write_pamap2(source):
    """Write two subjects who do each of the ten activities for eight windows, and again."""
    (source / "Protocol").mkdir(parents=True)
    for subject in ("subject101", "subject102"):
        bouts = [(activity, 900) for activity in (1, 2, 3, 4, 5, 6, 7, 12, 13, 16)]
        np.savetxt(source / "Protocol" / f"{subject}.dat", table(bouts), fmt="%.6g")


def write_organ(source, images=240):
    """Write grey images of 28 x 28 in eleven classes into the three parts of one file."""
    rng, arrays = np.random.default_rng(0), {}
    for prefix, share in (("train", 0.6), ("val", 0.1), ("test", 0.3)):
        number = int(images * share)
        arrays[f"{prefix}_images"] = rng.integers(0, 256, (number, 28, 28), dtype=np.uint8)
        arrays[f"{prefix}_labels"] = np.arange(number)[:, None] % 11
    np.savez(source, **arrays)


def write_covid(source):
    """Write twenty pictures of each of four classes."""
    rng = np.random.default_rng(0)
    for name in COVID_CLASSES:
        (source / name).mkdir(parents=True)
        for number in range(20):
            pixels = rng.integers(0, 256, (32, 40), dtype=np.uint8)
            Image.fromarray(pixels).save(source / name / f"{name} ({number}).png")


# Layout, as `import` names it -> writes the set into the folder or the file that it is given.
WRITERS = {
    "nuclei-histology": write_histology,
    "prostate-saml": write_prostate,
    "camelyon17-wilds": write_camelyon17,
    "fundus-disc-cup": write_retina,
    "pamap2": write_pamap2,
    "medmnist": write_organ,
    "covid-xray": write_covid,
}
