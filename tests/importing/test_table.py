import json
import re
import shutil

import numpy as np
import pydicom
import pytest
from PIL import Image

from silofl.base.errors import ConfigError, DataError
from silofl_hospital.importing.importers import ImportOptions, import_layout
from tests.conftest import records_of


def write_site(folder, rows, header="file,label,patient"):
    rng = np.random.default_rng(0)
    for row in rows:
        path = folder / re.split("[,;]", row)[0]
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)).save(path)
    (folder / "labels.csv").write_text("\n".join([header, *rows]))


ROWS = [f"scans/{n}.png,{('healthy', 'sick')[n % 2]},p{n // 2}" for n in range(10)]


def write_sites(source, rows, header="file,label,patient"):
    for site in ("north", "south"):
        write_site(source / site, rows, header)


@pytest.fixture
def source(tmp_path):
    write_sites(tmp_path / "source", ROWS)
    return tmp_path / "source"


@pytest.fixture
def run(source, tmp_path):
    def go(site="north", place=source, **options):
        summary = import_layout("table", place, tmp_path / "target", ImportOptions(**options))
        content = json.loads((tmp_path / "target" / site / "dataset.json").read_text())
        return summary, content, records_of(content)

    return go


def test_a_table_has_the_classes_of_all_sites(run, source, tmp_path):
    write_site(source / "south", [row.replace("sick", "very sick") for row in ROWS])
    summary, content, records = run()
    assert (content["task"], content["labels"]) == ("classification", {"0": "healthy", "1": "sick", "2": "very sick"})
    assert records["scans/3.png"] == {"image": "images/scans/3.png", "label": 1, "patient": "p1", "case": "scans/3.png"}
    copied = tmp_path / "target" / "north" / "images" / "scans" / "3.png"
    assert copied.read_bytes() == (source / "north" / "scans" / "3.png").read_bytes()
    # 5 patients with two images each: 1 for the test, round(4 * 0.2) = 1 for the validation
    assert summary.examples["north"] == {"training": 6, "validation": 2, "test": 2}
    assert summary.patients == {"north": 5, "south": 5}


def test_one_table_may_name_the_sites(run, source):
    rows = [f"{site}/{row}-{site},{site}" for site in ("north", "south") for row in ROWS]
    (source / "all.csv").write_text("\n".join(["file,label,patient,site", *rows]))
    summary, _, records = run(place=source / "all.csv")
    assert summary.patients == {"north": 5, "south": 5}
    assert records["north/scans/0.png"]["image"] == "images/north/scans/0.png"


def test_without_a_column_the_patients_are_unknown(run, source):
    write_site(source / "north", [row.rpartition(",")[0] for row in ROWS], "file,label")
    summary, content, records = run()
    assert content["split_unit"] == "unknown" and not any("patient" in record for record in records.values())
    (note,) = (note for note in summary.notes if note.startswith("PATIENTS UNKNOWN"))
    assert "Name them in labels.csv" in note and "patients.csv" not in note and "If each folder" not in note


PARTS = ("train", "Validation", "test", "training", "val")


def test_a_column_of_parts_gives_the_split(run, source):
    write_sites(source, [f"{row},{PARTS[n // 2]}" for n, row in enumerate(ROWS)], "file,label,patient,Part")
    _, content, _ = run()
    cases = {part: [record["patient"] for record in content[part]] for part in ("training", "validation", "test")}
    assert cases == {"training": ["p0", "p0", "p3", "p3"], "validation": ["p1", "p1", "p4", "p4"], "test": ["p2", "p2"]}


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        (
            ["held out"],
            "must be training, validation or test, not 'held out'; correct the column",
        ),
        (["train", "test"], "site 'north' has p0 in training and test; correct the column part"),
        (["train"] * 10, "site 'north' has no row for the test; name some in the column part"),
    ],
)
def test_a_given_split_that_is_none_is_refused(run, source, parts, sentence):
    parts += ["test"] * (len(ROWS) - len(parts))
    write_sites(source, [f"{row},{part}" for row, part in zip(ROWS, parts, strict=True)], "file,label,patient,part")
    with pytest.raises(DataError, match=re.escape(sentence)):
        run()


@pytest.mark.parametrize("values", [["3.5", "4.25", "7"], [str(n) for n in range(21)]])
def test_a_label_that_measures_something_is_refused(run, source, values):
    write_sites(source, [f"{n}.png,{value},p{n}" for n, value in enumerate(values)])
    with pytest.raises(DataError, match="label must be the name of a class, not a number.*SiloFL has no regression"):
        run()


def test_numbers_of_few_kinds_are_classes_in_their_order(run, source):
    write_sites(source, [f"{n}.png,{(10, 9, 0)[n % 3]},p{n}" for n in range(9)])
    assert run()[1]["labels"] == {"0": "0", "1": "9", "2": "10"}


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("scans/77.png,sick,p9", "labels.csv of site 'north' names a file that is not there, 'scans/77.png'"),
        ("../x.png,sick,p9", "must name files by their path within its folder, not '../x.png'"),
        ("scans/1.png,sick,p0", "has several rows of scans/1.png"),
        ("scans/1.tga,,p9", "labels.csv of site 'north': scans/1.tga must end in one of .png"),
        ("scans/new.png,,p9", "has '' as the class of scans/new.png"),
        ("scans/new.png,sick,", "names no patient of scans/new.png, but those of the others"),
        ("scans/new.png,Sick,p9", "label writes one class as Sick and sick"),
    ],
)
def test_a_row_that_fits_nothing_is_refused(run, source, row, sentence):
    for name in ("new.png", "1.tga"):
        shutil.copy(source / "north" / "scans" / "1.png", source / "north" / "scans" / name)
    with (source / "north" / "labels.csv").open("a") as table:
        table.write(f"\n{row}")
    with pytest.raises(DataError, match=sentence):
        run()


FINDINGS = ["a.png, Effusion | Nodule|Effusion,p0", "b.png,No Finding,p1", "c.png,,p2", "d.png,Nodule,p3"]
FINDINGS += ["e.png,Effusion,p4"]


def test_rows_of_several_labels_make_findings_of_all_labels(run, source):
    for site in ("north", "south"):
        write_site(source / site, FINDINGS if site == "north" else FINDINGS[3:])
    summary, content, records = run()
    assert (content["task"], content["labels"]) == ("multilabel", {"0": "Effusion", "1": "Nodule"})
    labels = {case: record["label"] for case, record in records.items()}
    assert labels == {"a.png": [0, 1], "b.png": [], "c.png": [], "d.png": [1], "e.png": [0]}
    counts = summary.classes["north"]
    assert sum(part["Effusion"] for part in counts.values()) == sum(part["Nodule"] for part in counts.values()) == 2


def write_findings(source, values=("0", "1"), sites=("north", "south"), header="file,effusion,old device,patient"):
    for site in sites:
        rows = [f"{n}.png,{values[n % 2]},{values[n // 2 % 2]},p{n}" for n in range(8)]
        write_site(source / site, rows, header)


@pytest.mark.parametrize("values", [("0", "1"), ("0.0", "1.0")])
def test_columns_of_0_and_1_are_findings(run, source, values):
    write_findings(source, values)
    _, content, records = run()
    assert (content["task"], content["labels"]) == ("multilabel", {"0": "effusion", "1": "old device"})
    assert [records[f"{n}.png"]["label"] for n in range(4)] == [[], [0], [1], [0, 1]]
    assert records["3.png"]["patient"] == "p3"


@pytest.mark.parametrize("value", ["-1", "", "yes", "nan"])
def test_a_finding_that_is_neither_there_nor_not_is_refused(run, source, value):
    write_findings(source, ("0", value), sites=("south",))
    write_findings(source, sites=("north",))
    sentence = f"faults: .* 'south' must hold 0 or 1 in the column .* of findings, not '{value}'; .* more"
    with pytest.raises(DataError, match=sentence):
        run()


def write_table(source, patients=("p{n}", "q{n}"), files=("a{n}.png", "b{n}.png"), header="file,label,patient,site"):
    rows = [
        f"{file.format(n=n)},{('healthy', 'sick')[n % 2]},{patient.format(n=n)},{site}"
        for n in range(6)
        for file, patient, site in zip(files, patients, ("north", "south"), strict=True)
    ]
    write_site(source, rows, header)
    return source / "labels.csv"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"patients": ("p{n}", "P{n}^")}, r"patient 'p\d'"),
        ({"files": ("a{n}.png", "./a{n}.png"), "header": "file,label,scan,site"}, r"file 'a\d.png'"),
    ],
)
def test_a_patient_or_file_at_two_sites_is_refused(run, source, changes, sentence):
    with pytest.raises(DataError, match=f"{sentence} is at two sites, 'north' and 'south'; correct the"):
        run(place=write_table(source, **changes))


def test_a_patient_of_the_headers_at_two_sites_is_refused(run, tmp_path, write_dicom):
    rows = ["file,label,site"]
    for site in ("north", "south"):
        for n in range(6):
            (path,) = write_dicom(tmp_path / f"{site}{n}", np.ones((4, 4, 1), np.int16)).iterdir()
            header = pydicom.dcmread(path)
            header.PatientID = f"P{n}"
            pydicom.dcmwrite(path, header)
            rows.append(f"{path.relative_to(tmp_path)},{('healthy', 'sick')[n % 2]},{site}")
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    with pytest.raises(DataError, match=r"patient 'p\d' is at two sites, 'north' and 'south'"):
        run(place=tmp_path / "labels.csv")


def test_a_finding_whose_name_parts_findings_is_refused(run, source):
    for site in ("north", "south"):
        write_site(source / site, ["a.png,1,0,p1", "b.png,0,1,p2"], "file,Edema,Edema|Effusion,patient")
    with pytest.raises(DataError, match=r"must name a finding without '\|', .* not 'Edema\|Effusion'; rename its"):
        run()


@pytest.mark.parametrize("word", ["nan", "None", "#N/A"])
def test_a_word_for_nothing_is_no_class(run, source, word):
    write_sites(source, [*ROWS, f"scans/x.png,{word},p9", "scans/y.png,,p9"])
    with pytest.raises(DataError, match=f"^2 faults: .* has '{word}' as the class of scans/x.png; .* 1 more"):
        run()
    write_sites(source, [*ROWS, f"scans/x.png,{word},p9"])
    assert run(labels=("healthy", "sick", word))[2]["scans/x.png"]["label"] == 2


RARE = [f"{n}.png,{'rare' if n < 3 else 'common'},p{n}" for n in range(20)]


def test_a_rare_class_has_a_case_in_each_part(run, source):
    write_sites(source, RARE)
    for seed in range(5):
        shutil.rmtree(source.parent / "target", ignore_errors=True)
        _, content, _ = run(seed=seed)
        for part in ("training", "validation", "test"):
            assert [record["label"] for record in content[part]].count(1) == 1


def test_folders_of_classes_need_no_table(run, tmp_path):
    for site in ("north", "south"):
        for row in ROWS:
            file, label, _ = row.split(",")
            write_site(tmp_path / "own" / site, [f"{label}/{file.split('/')[1]}"])
        (tmp_path / "own" / site / "labels.csv").unlink()
        (tmp_path / "own" / site / "readme.txt").write_text("of the laboratory")
        (tmp_path / "own" / site / "sick" / "Thumbs.db").write_text("of Windows")
    summary, content, records = run(place=tmp_path / "own")
    assert content["labels"] == {"0": "healthy", "1": "sick"} and content["split_unit"] == "unknown"
    assert records["sick/3.png"] == {"image": "images/sick/3.png", "label": 1, "case": "sick/3.png"}
    assert "Name them in labels.csv (columns file, label and patient)" in " ".join(summary.notes)


def test_labels_give_the_order_of_the_classes(run):
    with pytest.raises(ConfigError, match="labels leave out classes of the tables, sick"):
        run(labels=("healthy", "ill"))
    assert run(labels=("sick", "healthy"))[1]["labels"] == {"0": "sick", "1": "healthy"}


# --- tables as programs write them


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("sep=;\nfile;label;patient\n{rows}\n;;\n", "utf-8-sig"),
        ("FILE\tLabel\tPatient\n{rows}\n\t\t\n\n", "utf-16-be"),
    ],
)
def test_excels_tables_are_read(run, source, text, encoding):
    separator = ";" if ";" in text else "\t"
    for site in ("north", "south"):
        # A decimal comma in a number that Excel took for one.
        rows = [row.replace(",p", ",10").replace(",", separator) for row in ROWS]
        rows[0] += ",0"
        content = text.format(rows="\n".join(rows))
        mark = "\ufeff" if encoding == "utf-16-be" else ""
        (source / site / "labels.csv").write_bytes((mark + content).encode(encoding))
    summary, content, _ = run()
    assert (summary.patients, content["labels"]) == ({"north": 5, "south": 5}, {"0": "healthy", "1": "sick"})


def test_a_table_in_another_encoding_is_refused(run, source):
    (source / "north" / "labels.csv").write_bytes("file,label\nscans/0.png,Mädchen".encode("latin-1"))
    with pytest.raises(DataError, match="no table in UTF-8 .*; save it anew, in Excel as CSV UTF-8"):
        run()


@pytest.mark.parametrize(("patients", "count"), [(("007", "7"), 3), (("7.0", "7"), 2), (("a.0", "a"), 3)])
def test_numbers_of_patients_that_differ_in_zeros(run, source, patients, count):
    rows = [f"{n}.png,{('healthy', 'sick')[n % 2]},{(*patients, 'x')[n % 3]}" for n in range(9)]
    write_sites(source, rows)
    summary, _, _ = run()
    assert summary.patients["north"] == count
    caution = "north: 007 and 7 differ in zeros at the beginning alone, and count as two patients"
    assert (caution in " ".join(summary.notes)) == (patients == ("007", "7"))


@pytest.mark.parametrize("words", [("1", "1.0"), ("very sick", "very_sick"), ("1", "1,0"), ("MEL", "mel")])
def test_one_class_in_two_writings_is_refused(run, source, words):
    rows = [f'{n}.png,"{(*words, "healthy")[n % 3]}",p{n}' for n in range(9)]
    write_sites(source, rows)
    first, second = sorted(words)
    with pytest.raises(DataError, match=f"label writes one class as {first} and {second}; correct the tables, or"):
        run()
    assert run(labels=("healthy", first), spellings={second: first})[1]["labels"] == {"0": "healthy", "1": first}


def test_findings_are_mapped_by_word(run, source):
    write_sites(source, ["a.png,Erguss|Nodule,p0", "b.png,Effusion,p1", "c.png,,p2"])
    _, content, records = run(labels=("Effusion", "Nodule"), spellings={"Erguss": "Effusion"})
    assert (content["labels"], records["a.png"]["label"]) == ({"0": "Effusion", "1": "Nodule"}, [0, 1])


def test_a_stem_of_two_files_names_none(run, source):
    write_sites(source, ROWS)
    shutil.copy(source / "north" / "scans" / "1.png", source / "north" / "scans" / "1.tif")
    with (source / "north" / "labels.csv").open("a") as table:
        table.write("\nscans/1,sick,p0")
    with pytest.raises(DataError, match="names a file that is 2 files, 'scans/1'; correct the row"):
        run()


# --- folders of classes


def draw_classes(folder, names=("a", "b"), count=6, ending=".png"):
    for name in names:
        for number in range(count):
            (folder / name).mkdir(parents=True, exist_ok=True)
            pixels = np.random.default_rng(number).integers(0, 256, (8, 8), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}{ending}")


def test_thumbnails_and_second_forms_are_left_out(run, tmp_path):
    place = tmp_path / "sets"
    draw_classes(place / "north")
    draw_classes(place / "north" / "a", ("Thumbs",), 3)
    draw_classes(place / "north", ("a",), 2, ".tif")
    draw_classes(place / "north", ("b",), 1, ".JPG")
    summary, _, records = run(place=place)
    assert len(records) == 12 and all(case.endswith(".png") for case in records)
    notes = " ".join(summary.notes)
    assert "north: thumbnails are left out: 3, as a/Thumbs/0.png" in notes
    assert "north: second forms of an image are left out: 3, as a/0.tif, a/1.tif, b/0.JPG" in notes


def test_a_tables_parts_lie_in_folders(run, tmp_path):
    place = tmp_path / "sets"
    for part, patients in (("Train", "pqr"), ("Testing", "xyz")):
        write_site(place / "north" / part, [f"{n}.png,{'ab'[n % 2]},{name}" for n, name in enumerate(patients)])
    _, content, _ = run(place=place)
    cases = {part: sorted(record["patient"] for record in content[part]) for part in ("training", "test")}
    assert (set(cases["training"]) | {record["patient"] for record in content["validation"]}) == {*"pqr"}
    assert cases["test"] == [*"xyz"]


def test_a_site_of_one_part_is_dealt(run, tmp_path):
    draw_classes(tmp_path / "sets" / "train")
    summary, content, _ = run(site="sets", place=tmp_path / "sets")
    assert summary.examples["sets"] == {"training": 8, "validation": 2, "test": 2}
