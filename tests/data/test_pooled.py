import os

import numpy as np
import pytest

from silofl.base.errors import DataError
from silofl.data.manifest import read_manifest
from silofl_desk.studies.comparisons.pooled_folder import pool_sites

from .conftest import SiteFolder

SITES = ("north", "south")


@pytest.fixture
def sites(tmp_path):
    """Two sites whose files, patients and cases have the same names, and whose pixels differ."""
    (tmp_path / "data").mkdir()
    folders = {name: SiteFolder(tmp_path / "data" / name) for name in SITES}
    for seed, folder in enumerate(folders.values()):
        folder.rng = np.random.default_rng(seed)
        for part, names in {"training": "ab", "validation": "c", "test": "d"}.items():
            for name in names:
                folder.add(part, name)
        folder.write()
    return folders


@pytest.fixture
def pool(tmp_path, sites, study):
    return lambda **settings: pool_sites(tmp_path / "data", SITES, study(**settings), tmp_path / "out") / "pooled"


def test_a_pool_holds_all_records_under_their_sites_names(pool, study):
    manifest = read_manifest(pool(), study())
    assert [record.case for record in manifest.training] == ["north/a", "north/b", "south/a", "south/b"]
    assert [record.patient for record in manifest.test] == ["north/d", "south/d"]
    assert manifest.validation[1].image == "south/c.png" and manifest.validation[1].label == "south/c-mask.png"


def test_files_of_a_pool_are_linked_with_all_dicom_slices(pool, sites):
    source = sites["north"].folder / "a.png"
    series = sites["north"].folder / "series"
    series.mkdir()
    for number in range(2):
        (series / f"{number}.dcm").write_bytes(bytes([number]))
    sites["north"].content["test"].append({"image": "series", "label": "d-mask.png", "patient": "d"})
    sites["north"].write()
    assert os.path.samefile(pool() / "north" / "a.png", source)
    source.unlink()
    sites["north"].picture("a.png", np.zeros((8, 8), np.uint8))
    assert (pool() / "north" / "a.png").read_bytes() == source.read_bytes()
    assert {path.name for path in (pool() / "north" / "series").iterdir()} == {"0.dcm", "1.dcm"}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"split_unit": "slices"}, "sites 'north' and 'south' differ in split_unit: 'patient' and 'slices'"),
        ({"labels": {"1": "cell"}}, "site 'south': labels of dataset.json must be {'1': 'nucleus'} as in the study"),
    ],
)
def test_sites_that_do_not_go_together_are_not_pooled(pool, sites, changes, sentence):
    sites["south"].write(**changes)
    with pytest.raises(DataError, match=sentence):
        pool()
