import numpy as np
import pydicom
import pytest

from silofl.base.errors import DataError
from silofl_hospital.importing.cases import SiteCases, plan_cases
from silofl_hospital.importing.masks import Values
from silofl_hospital.importing.options import ImportOptions
from silofl_hospital.importing.patients import read_patients
from silofl_hospital.importing.site_files import Case


def patients_of(found):
    return {case.name: case.patient for case in read_patients(found).cases}


@pytest.fixture
def patients(tmp_path):
    """Read a table of the patients of three cases with two contrasts each, of which the last lacks one."""
    cases = [Case(name, (tmp_path / f"{name}/t1.nii", tmp_path / f"{name}/t2.nii")) for name in "ab"]
    cases.append(Case("c", (None, tmp_path / "c/t2.nii")))
    found = SiteCases("north", tmp_path, cases, ("T1", "T2"))

    def read(*rows):
        (tmp_path / "patients.csv").write_text("\n".join(rows))
        return patients_of(found)

    return read


@pytest.mark.parametrize(
    "rows",
    [
        ["a,p1", "b,p2", "c,p1"],
        ["a/t1.nii,p1", "b/t2.nii,p2", "c/t2.nii,p1"],
        ["a,p1", "a/t1.nii,p1", "a/t2.nii,p1", "b,p2", "c,", "c,p1", "d,p9"],
        ["./a/t1.nii,p1", r"b\t1.nii,p2", "c/t2.NII,p1"],
        ["a,p1", "a,\uff501\u200b", "b, p2", "c,p1\u200b"],
    ],
)
def test_a_row_names_a_case_or_one_of_its_images(patients, rows):
    assert patients("file,patient", *rows) == {"a": "p1", "b": "p2", "c": "p1"}
    # In two spellings.
    assert patients("file,patient", *rows, "a,P1^")["a"] == "P1^"


@pytest.mark.parametrize("word", ["nan", "NaN", "NA", "n/a", "#N/A", "None", "NULL", "-", " "])
def test_a_word_for_nothing_names_no_patient(patients, word):
    with pytest.raises(DataError, match="names no patient of b; .* .a word as nan or NA names nobody"):
        patients("file,patient", "a,p1", f"b,{word}", "c,p2")
    assert patients("file,patient", "a,p1", f"b,{word}", "b,p3", "c,p2")["b"] == "p3"


@pytest.mark.parametrize(
    "table",
    [
        ["File,Patient", "a,x", "b,y", "c,z"],
        ["FILE;PATIENT", "a;x", "b;y", "c;z"],
        ["\ufefffile,patient", "a,x", "b,y", "c,z"],
        [",file,patient,", "0,a,x,", "1,b,y,", "2,c,z,"],
    ],
)
def test_a_table_is_read_as_pandas_and_excel_write_it(patients, table):
    assert patients(*table) == {"a": "x", "b": "y", "c": "z"}


LACKS = "names no patient of b, c; add rows whose file is the case, as b, or its image, as b/t2.nii"


@pytest.mark.parametrize(
    ("header", "rows", "sentence"),
    [
        ("file,patient", ["a,p1", "a,p2", "b,p2", "c,p3"], "names several patients of a, p1, p2"),
        ("file,patient", ["a/t1.nii,p2", "a/t2.nii,p1", "b,p2", "c,p3"], "names several patients of a, p1, p2"),
        ("file,patient", ["a,p1", "t1.nii,p2"], LACKS),
        ("file,patient", ["a,p1", "b,", "c"], LACKS),
        ("file,patient", [f"a,{'x' * (1 << 18)}"], "is no table in UTF-8 .field larger"),
        ("file,patient,Patient", ["a,x,1", "b,y,2", "c,z,3"], "has the column 'patient' twice; rename or"),
        (
            "file,patient",
            ["a,x", "b,y, jr", "c,z"],
            "has 3 fields in row 2 below its 2 columns; put",
        ),
    ],
)
def test_a_table_must_name_one_patient_of_each_case(patients, header, rows, sentence):
    with pytest.raises(DataError, match=f"patients.csv of site 'north' {sentence}"):
        patients(header, *rows)
    # As the last ones say.
    assert patients("file,patient,old", "a,x,1", 'b,"y, jr",2', "c,z,3")["b"] == "y, jr"


@pytest.mark.parametrize("named", [("MRN1", "mrn1", "MRN1^", "p2"), ("p2", "MRN1", "mrn1 ^")])
def test_a_patient_in_several_spellings_is_in_one_part(plan, named):
    site = plan(*named)
    parts = {part: {record["patient"] for record in records} for part, records in site.records.items() if records}
    first = next(name for name in named if name.startswith("MRN1"))
    assert sorted(parts) == ["test", "training"] and sorted(map(sorted, parts.values())) == [[first], ["p2"]]
    assert "the patients are those of the DICOM headers" in site.notes[0] and "in several ways" in site.notes[1]


@pytest.mark.parametrize(
    ("form", "images_in"),
    [
        *((form, "images") for form in ("{}.png", r"images\{}.png", "./images/{}.PNG", "{}")),
        # The name of a file alone.
        ("{}.png", "."),
    ],
)
def test_a_row_may_name_an_image_by_its_path(tmp_path, form, images_in):
    cases = [Case(name, (tmp_path / "images" / f"{name}.png",)) for name in "ab"]
    rows = [f"{form.format(name)},p{name}" for name in "ab"]
    (tmp_path / "patients.csv").write_text("\n".join(["file,patient", *rows]))
    assert patients_of(SiteCases("north", tmp_path, cases, images_in=images_in)) == {"a": "pa", "b": "pb"}


@pytest.fixture
def series(tmp_path, write_dicom):
    """Cases that are DICOM series with these PatientIDs, without a table."""

    def build(*patients):
        for number, patient in enumerate(patients):
            volume = np.random.default_rng(number).integers(0, 9, (4, 4, 2)).astype(np.int16)
            for file in write_dicom(tmp_path / f"c{number}", volume).iterdir():
                header = pydicom.dcmread(file)
                header.PatientID = patient
                header.save_as(file)
        names = [f"c{number}" for number in range(len(patients))]
        return SiteCases("north", tmp_path, [Case(n, (tmp_path / n,), (tmp_path / f"{n}.nii",)) for n in names])

    return build


@pytest.fixture
def plan(series):
    """Plan the import of such cases."""

    def run(*patients):
        return plan_cases(read_patients(series(*patients)), Values({1: "x"}), ImportOptions(test=0.5, validation=0))

    return run


def test_without_a_table_patients_are_those_of_dicom_headers(series, tmp_path):
    found = series("p0", "p1", " p0 ")
    site = plan_cases(read_patients(found), Values({1: "x"}), ImportOptions(test=0.5, validation=0))
    assert {record["case"]: record["patient"] for record in site.list_records()} == {"c0": "p0", "c1": "p1", "c2": "p0"}
    assert site.notes == ("north: the patients are those of the DICOM headers (PatientID)",)
    (tmp_path / "patients.csv").write_text("file,patient\nc0,a\nc1,b\nc2,c")
    assert patients_of(found) == {"c0": "a", "c1": "b", "c2": "c"}


@pytest.mark.parametrize("patients", [("p0", "p0"), ("p0", ""), ("p0", "ANON")])
def test_patients_whom_headers_do_not_tell_apart_are_unknown(plan, patients):
    site = plan(*patients)
    assert site.split_unit == "unknown" and not any("patient" in record for record in site.list_records())
