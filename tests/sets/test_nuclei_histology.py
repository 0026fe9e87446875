import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from silofl.base.errors import DataError
from silofl.data.manifest import read_manifest
from silofl.data.site_data import load_site_data
from silofl.importing.importers import ImportOptions, import_layout
from silofl.study import load_study
from silofl_desk.sets.nuclei_histology import parse_outlines

STUDY = Path(__file__).resolve().parents[2] / "jobs" / "harmofl_histology" / "app" / "config" / "study.yaml"
LAYOUT = "nuclei-histology"
MONUSEG, MONUSAC = "MoNuSeg 2018 Training Data", "MoNuSAC_images_and_annotations"
# A square with corners at columns 2 and 5, rows 1 and 3.
SQUARE = [(2, 1), (5, 1), (5, 3), (2, 3)]


def xml(regions, name="Epithelial"):
    """Return outlines as Aperio ImageScope stores them."""
    shown = "".join(
        "<Region><Vertices>" + "".join(f'<Vertex X="{x}" Y="{y}" Z="0"/>' for x, y in region) + "</Vertices></Region>"
        for region in regions
    )
    attributes = f'<Attributes><Attribute Name="{name}" Id="0" Value=""/></Attributes>'
    return f"<Annotations><Annotation>{attributes}<Regions>{shown}</Regions></Annotation></Annotations>"


def save_pair(folder, name, number):
    """Write a picture and the outline of its only nucleus beside it."""
    save_picture(folder / f"{name}.tif", number)
    (folder / f"{name}.xml").write_text(xml([SQUARE]))


def save_picture(path, number):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(number).integers(0, 256, (6, 8, 3), dtype=np.uint8)).save(path)


@pytest.fixture
def source(tmp_path):
    """Three patients of each set, in the folders of the downloads."""
    folder = tmp_path / "source"
    for number in range(1, 4):
        for picture in (1, 2):
            save_picture(folder / "TNBC" / f"Slide_0{number}" / f"0{number}_{picture}.png", 10 * number + picture)
            mask = folder / "TNBC" / f"GT_0{number}" / f"0{number}_{picture}.png"
            mask.parent.mkdir(exist_ok=True)
            Image.fromarray(np.uint8([[0, 255, 0, 0, 0, 0, 0, 7]] * 6)).save(mask)
            name = f"TCGA-5P-A9K{number}-01Z-00-DX1"
            save_pair(folder / MONUSAC / name, f"{name}_{picture}", 1000 * number + picture)
        name = f"TCGA-18-559{number}-01Z-00-DX1"
        save_picture(folder / MONUSEG / "Tissue Images" / f"{name}.tif", 100 + number)
        (folder / MONUSEG / "Annotations").mkdir(exist_ok=True)
        (folder / MONUSEG / "Annotations" / f"{name}.xml").write_text(xml([SQUARE], name="Description"))
    return folder


def test_a_set_is_a_site_whose_patients_stay_in_one_part(run, tmp_path, study):
    summary = run()
    # 3 patients: 1 test, round(2 * 0.2) = 0 but at least 1 validation, 1 training; two pictures each, MoNuSeg's one
    counts = dict.fromkeys(("training", "validation", "test"), 2)
    assert summary.examples == {"tnbc": counts, "monuseg": dict.fromkeys(counts, 1), "monusac-kidney": counts}
    assert summary.patients == {"tnbc": 3, "monuseg": 3, "monusac-kidney": 3}
    for site, name in {"tnbc": "Slide_0", "monuseg": "TCGA-18-559", "monusac-kidney": "TCGA-5P-A9K"}.items():
        manifest = read_manifest(tmp_path / "target" / site, study())
        patients = {record.patient for records in manifest.parts.values() for record in records}
        assert patients == {f"{name}{number}" for number in (1, 2, 3)}


def test_the_job_reads_what_was_imported(run, tmp_path):
    run()
    for site in ("tnbc", "monusac-kidney"):
        data = load_site_data(tmp_path / "target" / site, load_study(STUDY), tmp_path / "cache")
        assert data.training.images.shape == (2, 3, 256, 256)
        assert set(np.unique(data.test.targets)) == {0, 1}


@pytest.mark.parametrize("kept", ["TNBC", MONUSEG, MONUSAC])
def test_one_of_the_sets_is_enough(run, source, tmp_path, kept):
    (tmp_path / "alone").mkdir()
    (source / kept).rename(tmp_path / "alone" / kept)
    assert len(run(tmp_path / "alone").examples) == 1


def test_monusac_is_divided_by_the_organ_of_the_hospitals_study(run, source):
    codes = {"breast": ("A2", "E2", "EW"), "lung": ("55", "6A", "MP"), "prostate": ("G9", "KK", "YL")}
    for code in sum(codes.values(), ()):
        name = f"TCGA-{code}-A001-01Z-00-DX1"
        save_pair(source / MONUSAC / name, f"{name}_1", 7)
    sites = {"monusac-kidney", "monuseg", "tnbc", *(f"monusac-{organ}" for organ in codes)}
    assert run().patients == dict.fromkeys(sites, 3)
    # A hospital of the study of colon cancer.
    (source / MONUSAC / "TCGA-5P-A9K2-01Z-00-DX1").rename(source / MONUSAC / "TCGA-AA-A9K2-01Z-00-DX1")
    with pytest.raises(DataError, match="must be of breast, kidney, lung, prostate, by the hospital.*not of 'AA'"):
        import_layout(LAYOUT, source, source.with_name("other"))


@pytest.fixture
def with_tests(source):
    """The three sets with the further folders that two of them release for the test."""
    for number in (7, 8):
        save_pair(source / "MoNuSegTestData", f"TCGA-2Z-A9J{number}-01A-01-TS1", number)
    name = "TCGA-5P-A9K9-01Z-00-DX1"
    save_pair(source / "MoNuSAC Testing Data and Annotations" / name, f"{name}_1", 9)
    return source


def test_what_a_set_releases_for_the_test_is_tested_alone(run, with_tests, tmp_path):
    run()
    patients = {}
    for site in ("tnbc", "monuseg", "monusac-kidney"):
        content = json.loads((tmp_path / "target" / site / "dataset.json").read_text())
        parts = ("training", "validation", "test")
        patients[site] = [{record["patient"] for record in content[part]} for part in parts]
    assert patients["monuseg"][-1] == {"TCGA-2Z-A9J7", "TCGA-2Z-A9J8"}
    assert patients["monusac-kidney"][-1] == {"TCGA-5P-A9K9"}
    # Of the three others 0.2 are 0.6 patients, so one is for validation; TNBC releases none for the test.
    sizes = {site: [*map(len, parts)] for site, parts in patients.items()}
    assert sizes == {"tnbc": [1, 1, 1], "monuseg": [2, 1, 2], "monusac-kidney": [2, 1, 1]}
    # A share that is asked for is drawn from all patients: 0.6 of five, with a picture each.
    found = import_layout(LAYOUT, with_tests, tmp_path / "share", ImportOptions(test=0.6)).examples["monuseg"]
    assert found == {"training": 1, "validation": 1, "test": 3}
    # A test without training is divided.
    (tmp_path / "alone").mkdir()
    (with_tests / "MoNuSegTestData").rename(tmp_path / "alone" / "MoNuSegTestData")
    found = import_layout(LAYOUT, tmp_path / "alone", tmp_path / "divided").examples
    assert found == {"monuseg": {"training": 1, "validation": 0, "test": 1}}


SQUARE_MASK = np.pad(np.ones((3, 4), int), ((1, 2), (2, 2)))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("tnbc/masks/01_2.png", [[0, 1, 0, 0, 0, 0, 0, 1]] * 6),
        ("monuseg/masks/TCGA-18-5591-01Z-00-DX1.png", SQUARE_MASK),
        ("monusac-kidney/masks/TCGA-5P-A9K1-01Z-00-DX1_1.png", SQUARE_MASK),
    ],
)
def test_masks_become_one_where_there_is_a_nucleus_and_outlines_are_filled(run, tmp_path, path, expected):
    run()
    np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "target" / path)), expected)


@pytest.mark.parametrize(
    "content",
    [b"<Annotations>", b'<A><Annotation><Region><Vertex X="1"/></Region></Annotation></A>', xml([[("x", 1)]]).encode()],
)
def test_broken_outlines_are_refused_and_those_that_are_ambiguous_or_without_an_area_are_none(content):
    with pytest.raises(DataError, match="a.xml must be XML with the X and Y of each Vertex"):
        parse_outlines(content, "a.xml")
    assert parse_outlines(xml([SQUARE], name="Ambiguous").encode(), "a.xml") == []
    assert parse_outlines(xml([SQUARE[:2], SQUARE]).encode(), "a.xml") == [SQUARE]


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("TNBC/GT_02/02_1.png", "02_1.png must have its nuclei in GT_02/02_1.png"),
        (f"{MONUSEG}/Annotations/TCGA-18-5592-01Z-00-DX1.xml", "DX1.tif must have its nuclei in Annotations/TCGA"),
    ],
)
def test_a_picture_without_nuclei_and_a_folder_of_none_of_the_sets_are_refused(run, source, tmp_path, path, sentence):
    (source / path).unlink()
    with pytest.raises(DataError, match=sentence):
        run()
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="none must hold Slide_01/.*png of TNBC, Tissue Images.*or MoNuSAC"):
        run(tmp_path / "none")
