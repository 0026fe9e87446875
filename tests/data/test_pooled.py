import numpy as np
import pytest

from silofl.base.errors import DataError
from silofl.data.manifest import read_manifest
from silofl_desk.studies.pooled_folder import pool_manifests, pool_sites

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


def test_a_pool_holds_all_records_of_all_sites_part_by_part_under_their_sites_names(pool, study):
    manifest = read_manifest(pool(), study())
    assert [record.case for record in manifest.training] == ["north/a", "north/b", "south/a", "south/b"]
    assert [record.patient for record in manifest.test] == ["north/d", "south/d"]
    assert manifest.validation[1].image == "south/c.png" and manifest.validation[1].label == "south/c-mask.png"


def test_every_file_of_a_dicom_series_is_brought(tmp_path, pool, sites):
    series = sites["north"].folder / "series"
    series.mkdir()
    for number in range(2):
        (series / f"{number}.dcm").write_bytes(bytes([number]))
    sites["north"].content["test"].append({"image": "series", "label": "d-mask.png", "patient": "d"})
    sites["north"].write()
    assert {path.name for path in (pool() / "north" / "series").iterdir()} == {"0.dcm", "1.dcm"}


def test_indices_classes_and_recordings_stay_as_they_are(empty_site, study):
    empty_site.content |= {"task": "classification", "labels": {"0": "normal", "1": "tumour"}}
    np.savez(empty_site.folder / "all.npz", images=np.zeros((2, 8, 8), np.uint8))
    for part, index in (("training", 0), ("test", 1)):
        record = {"image": "all.npz", "index": index, "label": index, "patient": f"p{index}", "recording": 4}
        empty_site.content[part].append(record)
    manifest = read_manifest(empty_site.write(), study("classification"))
    (record,) = pool_manifests({"north": manifest})["test"]
    wanted = {"image": "north/all.npz", "index": 1, "label": 1, "patient": "north/p1", "case": "north/all#1"}
    assert record == wanted | {"recording": "4"}


def contrasts_of(folder, study, names, images):
    """Return the manifest of a site whose cases have these images for these contrasts."""
    site = SiteFolder(folder)
    for part in ("training", "test"):
        for name in [*filter(None, images), "m.png"]:
            site.mask(f"{part}-{name}")
        files = [name and f"{part}-{name}" for name in images]
        site.content[part] = [{"image": files, "label": f"{part}-m.png", "patient": part}]
    return read_manifest(site.write(channel_names=names), study(channels=3, channel_names=["T1", "T2", "FLAIR"]))


@pytest.mark.parametrize("images", [["a.png", None], ["both.png"]])
def test_sites_are_pooled_where_all_name_the_same_contrasts(tmp_path, study, images):
    north = contrasts_of(tmp_path / "north", study, ["T1", "T2"], images)
    same = contrasts_of(tmp_path / "same", study, ["T1", "T2"], images)
    content = pool_manifests({"north": north, "same": same})
    assert content["channel_names"] == ["T1", "T2"] and len(content["test"]) == 2
    other = contrasts_of(tmp_path / "other", study, ["FLAIR", "T1"], ["f.png", "a.png"])
    with pytest.raises(DataError, match="site 'other' must have the channel_names of site 'north', .'T1', 'T2'."):
        pool_manifests({"north": north, "other": other})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"split_unit": "slices"}, "site 'south' must have the split_unit of site 'north', 'patient'.*'slices'"),
        ({"labels": {"1": "cell"}}, "site 'south': dataset.json must have labels {'1': 'nucleus'} as the study"),
        (None, "must hold the pool of north, south as they are now"),
    ],
)
def test_sites_that_do_not_go_together_and_other_data_are_not_pooled(tmp_path, pool, sites, changes, sentence):
    kept = tmp_path / "out" / "pooled" / "dataset.json"
    if changes is None:
        before = (pool() / "dataset.json").read_text()
        sites["north"].add("training", "new")
        sites["north"].write()
    else:
        sites["south"].write(**changes)
    with pytest.raises(DataError, match=sentence):
        pool()
    assert changes or kept.read_text() == before


def test_a_pool_says_which_labels_its_sites_annotate(empty_site, study):
    empty_site.content |= {"labels": {"1": "organ", "2": "lesion"}, "labels_annotated": [1]}
    for part, name in (("training", "a"), ("test", "b")):
        empty_site.add(part, name)
    settings = study(labels={1: "organ", 2: "lesion"})
    manifest = read_manifest(empty_site.write(), settings)
    assert pool_manifests({"north": manifest})["labels_annotated"] == [1]
    del empty_site.content["labels_annotated"]
    with pytest.raises(DataError, match="site 'south' must have the labels_annotated of site 'north', .1,.,"):
        pool_manifests({"north": manifest, "south": read_manifest(empty_site.write(), settings)})
