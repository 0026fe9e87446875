from types import SimpleNamespace

import numpy as np
import pydicom
import pytest

from silofl.data.groups import UNKNOWN, divide_records, list_groups, name_group
from silofl.data.records import Record


@pytest.mark.parametrize(
    ("value", "wanted", "group"),
    [
        ("054Y", (18.0, 40.0, 65.0), "40 to under 65"),
        ("65", (18.0, 40.0, 65.0), "65 and above"),
        ("006M", (18.0, 40.0, 65.0), "under 18"),
        ("old", (18.0, 40.0, 65.0), UNKNOWN),
        ("nan", (18.0,), UNKNOWN),
        (None, ("F", "M"), UNKNOWN),
        ("O", ("F", "M"), "others"),
        ("GE MEDICAL SYSTEMS Optima", ("ge", "Siemens"), "ge"),
        ("Skyra", (), "Skyra"),
    ],
)
def test_a_value_is_in_the_group_of_its_limits(value, wanted, group):
    assert name_group(value, wanted) == group
    assert not wanted or group in list_groups(wanted)


def test_dicom_says_what_dataset_json_does_not(write_dicom, tmp_path):
    folder = write_dicom(tmp_path / "scan", np.zeros((4, 4, 2), np.int16))
    for path in folder.iterdir():
        data = pydicom.dcmread(path)
        data.PatientSex, data.PatientAge, data.StudyDate = "F", "061Y", "20240317"
        data.Manufacturer, data.ManufacturerModelName, data.KVP = "ACME", "Scan 3", 120
        data.save_as(path)
    manifest = SimpleNamespace(places={"scan": folder})
    records = [Record("a", ("scan",), 0, "p1"), Record("b", ("scan",), 0, "p2", groups={"sex": "M"})]
    divided = divide_records(manifest, records, dict.fromkeys(("sex", "age", "scanner", "year", "KVP"), ()))
    assert divided["sex"] == {"a": "F", "b": "M"} and divided["age"]["a"] == "40 to under 65"
    assert [divided[name]["a"] for name in ("scanner", "year", "KVP")] == ["ACME Scan 3", "2024", "120.0"]
