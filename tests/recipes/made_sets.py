"""Public data sets as they are downloaded, small and made up: their form is right, their content noise."""

import json
from itertools import count

import nibabel
import numpy as np
from PIL import Image

AFFINE = np.array([[-0.6, 0, 0, 10], [0, -0.6, 0, 20], [0, 0, 3.6, -30], [0, 0, 0, 1]])
# One hospital of each organ of MoNuSAC2020.
ORGANS = ("A2", "5P", "55", "G9")
PROSTATE_SITES = ("BIDMC", "BMC", "HK", "I2CVB", "RUNMC", "UCL")
COVID_CLASSES = ("COVID-19", "Normal", "Pneumonia-Bacterial", "Pneumonia-Viral")
BRATS_CONTRASTS = {"_": ("t1", "t1ce", "t2", "flair"), "-": ("t1n", "t1c", "t2w", "t2f")}
HMP_ACTIVITIES = (
    *("Brush_teeth", "Climb_stairs", "Comb_hair", "Descend_stairs", "Drink_glass", "Eat_meat", "Eat_soup"),
    *("Getup_bed", "Liedown_bed", "Pour_water", "Sitdown_chair", "Standup_chair", "Use_telephone", "Walk"),
)
# Background, rim of the disc, cup: by label number.
GREYS = np.array([255, 128, 0], np.uint8)
# A square with corners at columns 2 and 5, rows 1 and 3.
SQUARE = [(2, 1), (5, 1), (5, 3), (2, 3)]
GREY_DARK, GREY_LIGHT, ON_PURPLE, ON_WHITE = (20, 20, 20), (220, 220, 220), (180, 160, 210), (210, 208, 215)
NUCLEUS = {GREY_DARK: (200, 200, 200), GREY_LIGHT: (60, 60, 60), ON_PURPLE: (90, 30, 140), ON_WHITE: (90, 30, 140)}


def save_volume(array, path, affine=AFFINE):
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(array, affine), path)


def save_colours(path, number, size=(6, 8)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(number).integers(0, 256, (*size, 3), dtype=np.uint8)).save(path)


def xml(regions, name="Epithelial"):
    """Return outlines as Aperio ImageScope stores them."""
    shown = "".join(
        "<Region><Vertices>" + "".join(f'<Vertex X="{x}" Y="{y}" Z="0"/>' for x, y in region) + "</Vertices></Region>"
        for region in regions
    )
    attributes = f'<Attributes><Attribute Name="{name}" Id="0" Value=""/></Attributes>'
    return f"<Annotations><Annotation>{attributes}<Regions>{shown}</Regions></Annotation></Annotations>"


def write_histology(source):
    """Write four patients of TNBC, and three to train and one to test with of the other five sites."""
    numbers = count()
    for slide in ("01", "02", "03", "04"):
        save_colours(source / f"Slide_{slide}" / f"{slide}_1.png", next(numbers))
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
    # What is ambiguous, or has no area, is no nucleus.
    (outlined,) = (source / "Annotations").glob("TCGA-18-5590*.xml")
    outlined.write_text(xml([SQUARE[:2], SQUARE]))
    (outlined,) = (source / "Annotations").glob("TCGA-18-5591*.xml")
    outlined.write_text(xml([SQUARE], name="Ambiguous"))


def _write_outlined(pictures, outlines, name, number):
    save_colours(pictures / f"{name}.tif", number)
    outlines.mkdir(parents=True, exist_ok=True)
    (outlines / f"{name}.xml").write_text(xml([SQUARE]))


def write_prostate(source):
    """Write six sites with five or more volumes of zones 1 and 2, so that one of them is the smallest."""
    for number, site in enumerate(PROSTATE_SITES):
        for case in range(5 + number % 2):
            rng = np.random.default_rng([case, len(site)])
            size = (12, 10, 5 if case else 4)
            save_volume(rng.integers(0, 900, size, dtype=np.int16), source / site / f"Case{case:02d}.nii.gz")
            ending = "_segmentation" if site == "HK" else "_Segmentation"
            save_volume(rng.integers(0, 3, size).astype(np.int16), source / site / f"Case{case:02d}{ending}.nii.gz")
    (source / "HK" / "README.txt").write_text("x")


def write_camelyon17(source):
    """Write five hospitals with five patients each, and two or four patches of a patient, half with tumour."""
    rng, rows = np.random.default_rng(0), [",patient,node,x_coord,y_coord,tumor,slide,center,split"]
    for center, patches in {0: 2, 1: 4, 2: 2, 3: 4, 4: 2}.items():
        for patient in (f"{10 * center + number:03d}" for number in range(5)):
            place = source / "patches" / f"patient_{patient}_node_1"
            place.mkdir(parents=True)
            for number in range(patches):
                x, y, tumor = 32 * number, 64 * center, number % 2
                pixels = rng.integers(0, 256, (96, 96, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"patch_patient_{patient}_node_1_x_{x}_y_{y}.png")
                rows.append(f"{len(rows) - 1},{int(patient)},1,{x},{y},{tumor},{center},{center},0")
    (source / "metadata.csv").write_text("\n".join(rows) + "\n")


def write_retina(source):
    """Write DoFE's four sources in their own form, and two hospitals as folders of images and masks."""
    for number in range(1, 5):
        for part, names in (("train", "abcdef"), ("test", "gh")):
            place = source / f"Domain{number}" / part
            place = place if number == 4 else place / "ROIs"
            _write_fundus(place / "image", place / "mask", names, seed=10 * number + len(names))
    for number in (5, 6):
        place = source / f"hospital{number}"
        _write_fundus(place / "images", place / "masks", "abcdefgh", seed=number)
    # Greys between the three, as interpolated masks have them.
    between = np.array([[0, 50], [51, 200], [201, 255]], np.uint8).repeat(16, 0).repeat(16, 1)
    Image.fromarray(between).save(source / "hospital5" / "masks" / "a.png")
    Image.fromarray(np.zeros((48, 32, 3), np.uint8)).save(source / "hospital5" / "images" / "a.png")


def _write_fundus(images, masks, names, seed):
    rng = np.random.default_rng(seed)
    masks.mkdir(parents=True)
    for number, name in enumerate(names):
        save_colours(images / f"{name}.png", 100 * seed + number, (16, 16))
        mask = Image.fromarray(GREYS[rng.integers(0, 3, (16, 16))])
        (mask.convert("RGB") if seed % 2 else mask).save(masks / f"{name}.png")


def write_pamap2(source):
    """Write two subjects who do each of the ten activities for eight windows, with two gaps."""
    (source / "Protocol").mkdir(parents=True)
    for subject in ("subject101", "subject102"):
        bouts = [(activity, 900) for activity in (1, 2, 3, 4, 5, 6, 7, 12, 13, 16)]
        activities = np.repeat([activity for activity, _ in bouts], [length for _, length in bouts])
        lines = np.tile(np.arange(54.0), (len(activities), 1))
        lines[:, 0] = 8.38 + 0.01 * np.arange(len(lines))
        lines[:, 1] = activities
        lines[:, 4] = np.arange(len(lines))
        # A short gap is filled, a longer one is not.
        lines[30:40, 4], lines[1000:1050, 21] = np.nan, np.nan
        np.savetxt(source / "Protocol" / f"{subject}.dat", lines, fmt="%.6g")


def write_organ(source, images=240):
    """Write grey images of 28 x 28 in eleven classes into the three parts of one file."""
    rng, arrays = np.random.default_rng(0), {}
    for prefix, share in (("train", 0.6), ("val", 0.1), ("test", 0.3)):
        number = int(images * share)
        arrays[f"{prefix}_images"] = rng.integers(0, 256, (number, 28, 28), dtype=np.uint8)
        arrays[f"{prefix}_labels"] = np.arange(number)[:, None] % 11
    if source.suffix != ".npz":
        source.mkdir()
        source = source / "organamnist.npz"
    np.savez(source, **arrays)


def write_covid(source):
    """Write twenty pictures of each of four classes."""
    rng = np.random.default_rng(0)
    for name in COVID_CLASSES:
        (source / name).mkdir(parents=True)
        for number in range(20):
            pixels = rng.integers(0, 256, (32, 40), dtype=np.uint8)
            Image.fromarray(pixels).save(source / name / f"{name} ({number}).png")


def write_hmp(source):
    """Write two volunteers with ten and twelve recordings of two activities, and one with too few."""
    rng = np.random.default_rng(0)
    for activity in (*HMP_ACTIVITIES, "Walk_MODEL"):
        (source / "HMP_Dataset" / activity).mkdir(parents=True)
    for volunteer, number in (("f1", 10), ("m1", 12), ("m2", 8)):
        for minute in range(number):
            activity = "Walk" if minute < 6 else "Comb_hair"
            name = f"Accelerometer-2011-04-11-13-{minute:02}-18-{activity.lower()}-{volunteer}.txt"
            samples = rng.integers(0, 64, (100 + 40 * minute, 3))
            np.savetxt(source / "HMP_Dataset" / activity / name, samples, fmt="%d")


def write_hmp_windows(source):
    """Write the windows of two volunteers, two of each recording, that are cut already."""
    source.mkdir()
    samples = []
    for site, classes in {"f1": (0, 0, 0, 1), "m1": (1, 1, 0, 0)}.items():
        recordings = np.repeat(np.arange(len(classes), dtype=np.int16), 2)
        first = 2 * recordings + np.tile([0, 1], len(classes))
        x = (first[:, None, None] + 16 * np.arange(3) + np.zeros((8, 1))).astype(np.uint8)
        np.savez(source / f"{site}.npz", x=x, y=np.repeat(np.array(classes, np.uint8), 2), recording=recordings)
        samples.append({"site": site, "file": f"{site}.npz"})
    content = {"classes": {"0": "Walk", "1": "Comb_hair"}, "samples": samples}
    (source / "dataset.json").write_text(json.dumps(content))


def add_nuclei(root, name, shape, background, nuclei=((100, 120), (130, 160))):
    """Add an RGBA picture with nuclei of 20 x 20 pixels, and a mask of each, as Kaggle ships them."""
    folder = root / name
    (folder / "images").mkdir(parents=True)
    (folder / "masks").mkdir()
    pixels = np.full((*shape, 4), (*background, 255), np.uint8)
    for number, (row, column) in enumerate(nuclei):
        mask = np.zeros(shape, np.uint8)
        mask[row : row + 20, column : column + 20] = 255
        pixels[mask > 0, :3] = NUCLEUS[background]
        Image.fromarray(mask).save(folder / "masks" / f"{number}.png")
    Image.fromarray(pixels).save(folder / "images" / f"{name}.png")
    return folder


def write_stage1(source):
    """Write three images of each kind of microscopy, and one of no kind."""
    kinds = {
        "dark": ((256, 256), GREY_DARK),
        "dim": ((512, 640), GREY_DARK),
        "light": ((1024, 1024), GREY_LIGHT),
        "purple": ((256, 320), ON_PURPLE),
        "white": ((256, 320), ON_WHITE),
    }
    for name, (shape, background) in kinds.items():
        for number in range(3):
            nuclei = [(shape[0] // 2 - 10, shape[1] // 2 - 10), (shape[0] // 2 - 100, shape[1] // 2 + 20 * number)]
            add_nuclei(source / "stage1_train", f"{name}{number}", shape, background, nuclei)
    add_nuclei(source / "stage1_train", "none", (300, 300), GREY_LIGHT)


def write_tiles(source):
    """Write a site of four source images with two ready tiles each."""
    rng, samples = np.random.default_rng(0), []
    for number in range(8):
        names = {}
        for key, kind, high, factor in (("image", "images", 256, 1), ("mask", "masks", 2, 255)):
            names[key] = f"dark/{kind}/tile{number}.png"
            (source / names[key]).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, high, (8, 8), dtype=np.uint8) * factor).save(source / names[key])
        samples.append({"id": f"tile{number}", "site": "dark", "group": f"source{number // 2}", **names})
    (source / "dataset.json").write_text(json.dumps({"samples": samples}))


def write_stained(source):
    """Write two laboratories of twelve pictures of 256 x 256 each, in every one a column of tiles for each kind."""
    samples = []
    mask = np.zeros((256, 256), np.uint8)
    # In tiles of 64 x 64, by column: none; a tenth; 20 %, which is neither; all of it.
    mask[:, 64:70], mask[:, 128:141], mask[:, 192:] = 255, 255, 255
    for laboratory in ("histo_purple", "histo_white"):
        for number in range(12):
            name = f"{laboratory}_{number}"
            save_colours(source / f"{name}.png", number, (256, 256))
            Image.fromarray(mask).save(source / f"{name}_mask.png")
            files = {"image": f"{name}.png", "mask": f"{name}_mask.png"}
            samples.append({"id": name, "site": laboratory, "group": name, **files})
    (source / "dataset.json").write_text(json.dumps({"samples": samples}))


def write_challenge(source):
    """Write two sites of four volunteers with volumes of 6 x 5 x 3 and four raters' masks, as in the challenge."""
    rng = np.random.default_rng(0)
    for patient in (f"site{site}-sc{number:02}" for site in (1, 2) for number in range(1, 5)):
        save_volume(rng.integers(0, 999, (6, 5, 3), dtype=np.int16), source / f"{patient}-image.nii.gz")
        for rater in range(1, 5):
            save_volume(rng.integers(0, 3, (6, 5, 3), dtype=np.uint8), source / f"{patient}-mask-r{rater}.nii.gz")
        (source / f"{patient}-levels.txt").write_text("3,C4")


def write_volunteers(source):
    """Write two sessions of one volunteer and one of another, as the set describes them."""
    samples = []
    for number, (site, session) in enumerate((("milan", "sub-1Ses1"), ("milan", "sub-1Ses2"), ("ucl", "sub-2"))):
        ends = {"volume": "T2s", "volume_label": "label"}
        names = {key: f"{site}/volumes/{session}_{end}.nii.gz" for key, end in ends.items()}
        volume = np.random.default_rng(number).integers(0, 99, (4, 4, 8 + number), dtype=np.int16)
        save_volume(volume, source / names["volume"])
        save_volume((volume % 3).astype(np.uint8), source / names["volume_label"])
        samples += [{"id": z, "site": site, "group": session, **names} for z in range(8)]
    (source / "dataset.json").write_text(json.dumps({"samples": samples}))


def write_brats_case(folder, separator="_", size=(6, 6, 3)):
    """Write a case as BraTS ships it, in the form of 2021 (_) or of 2023 (-)."""
    rng = np.random.default_rng([*folder.name.encode()])
    for name in BRATS_CONTRASTS[separator]:
        save_volume(rng.integers(0, 900, size, dtype=np.int16), folder / f"{folder.name}{separator}{name}.nii.gz")
    mask = rng.choice(np.uint8([0, 1, 2, 4 if separator == "_" else 3]), size)
    save_volume(mask, folder / f"{folder.name}{separator}seg.nii.gz")


def write_brats_2021(source):
    """Write two sites of three patients each, of whom one lacks a contrast."""
    for number in range(6):
        write_brats_case(source / ("north" if number < 3 else "south") / f"BraTS2021_{number:05}")
    (source / "north" / "BraTS2021_00001" / "BraTS2021_00001_flair.nii.gz").unlink()


def write_brats_2023(source):
    """Write two sites of three patients with two scans each."""
    for number in range(6):
        for scan in range(2):
            write_brats_case(source / ("north" if number < 3 else "south") / f"BraTS-GLI-{number:05}-{scan:03}", "-")


# Script in recipes/ -> writes the set of a paper into the folder or the file that it is given.
WRITERS = {
    "nuclei_histology": write_histology,
    "prostate_saml": write_prostate,
    "camelyon17_wilds": write_camelyon17,
    "fundus_disc_cup": write_retina,
    "pamap2": write_pamap2,
    "medmnist": write_organ,
    "covid_xray": write_covid,
}
# Name in expected/ -> the script, what writes its set, and its options.
CASES = {
    "brats_2021": ("brats", write_brats_2021, ()),
    "brats_2023": ("brats", write_brats_2023, ()),
    "camelyon17": ("camelyon17_wilds", write_camelyon17, ("--validation", "0.25")),
    "covid": ("covid_xray", write_covid, ("--sites", "4")),
    "fundus": ("fundus_disc_cup", write_retina, ("--test", "0.25", "--validation", "0.3334")),
    "hmp": ("hmp", write_hmp, ("--validation", "0.3")),
    "hmp_windows": ("hmp", write_hmp_windows, ()),
    "hmp_dealt": ("hmp", write_hmp_windows, ("--partition", "dirichlet", "--sites", "2", "--seed", "3")),
    "medmnist": ("medmnist", write_organ, ()),
    "medmnist_equal": ("medmnist", write_organ, ("--sites", "5", "--alpha", "0.1", "--equal-sizes", "--test", "0.5")),
    "medmnist_shards": ("medmnist", write_organ, ("--partition", "shards", "--sites", "5", "--test", "0.3")),
    "nuclei": ("nuclei_dsb2018", write_stage1, ()),
    "nuclei_named": ("nuclei_dsb2018", write_tiles, ()),
    "histology": ("nuclei_histology", write_histology, ()),
    "histology_drawn": ("nuclei_histology", write_histology, ("--test", "0.3")),
    "tiles": ("nuclei_tiles", write_stained, ("--seed", "1")),
    "pamap2": ("pamap2", write_pamap2, ("--sites", "3", "--equal-sizes")),
    "prostate": ("prostate_saml", write_prostate, ("--test", "0.25", "--seed", "2")),
    "spine_challenge": ("spine_gm", write_challenge, ()),
    "spine_volunteers": ("spine_gm", write_volunteers, ()),
}
