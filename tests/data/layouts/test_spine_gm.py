import json

import nibabel
import numpy as np
import pytest

from silofl.data.importers import import_layout
from silofl.data.layouts.spine_gm import slices_by_part
from silofl.data.manifest import read_manifest
from silofl.data.records import slice_numbers
from silofl.errors import DataError


def test_every_second_slice_is_for_training_and_the_others_in_turn_for_validation_and_test():
    parts = {part: list(slice_numbers(slices)) for part, slices in slices_by_part(10).items()}
    assert parts == {"training": [0, 2, 4, 6, 8], "validation": [1, 5, 9], "test": [3, 7]}


@pytest.mark.parametrize("count", range(4, 60))
def test_every_slice_is_in_one_part(count):
    covered = [z for slices in slices_by_part(count).values() for z in slice_numbers(slices)]
    assert sorted(covered) == list(range(count))


@pytest.mark.parametrize("count", [0, 3])
def test_too_few_slices_are_refused(count):
    with pytest.raises(DataError, match=f"a volume must have at least 4 slices to be split, not {count}"):
        slices_by_part(count)


@pytest.fixture
def source(tmp_path):
    """Two sessions of one volunteer, in the form of the public set."""
    folder, samples = tmp_path / "source", []
    (folder / "milan" / "volumes").mkdir(parents=True)
    for number, session in enumerate(("Ses1", "Ses2")):
        names = {
            key: f"milan/volumes/sub-1{session}_{end}.nii.gz"
            for key, end in (("volume", "T2s"), ("volume_label", "label"))
        }
        volume = np.random.default_rng(number).integers(0, 99, (4, 4, 8), dtype=np.int16)
        nibabel.save(nibabel.Nifti1Image(volume, np.eye(4)), folder / names["volume"])
        nibabel.save(nibabel.Nifti1Image((volume % 3).astype(np.uint8), np.eye(4)), folder / names["volume_label"])
        samples += [{"id": z, "site": "milan", "group": f"sub-1{session}", **names} for z in range(8)]
    (folder / "dataset.json").write_text(json.dumps({"samples": samples}))
    return folder


def test_both_sessions_are_one_patient_in_three_parts(source, tmp_path, study):
    summary = import_layout("spine-gm", source, tmp_path / "target")
    assert summary.examples == {"milan": {"training": 8, "validation": 4, "test": 4}}
    assert summary.patients == {"milan": 1}
    labels = {1: "white matter", 2: "grey matter"}
    manifest = read_manifest(tmp_path / "target" / "milan", study(labels=labels, split_unit="slices"))
    assert [record.slices for record in manifest.training] == [(0, 7, 2), (0, 7, 2)]
    assert [record.case for record in manifest.test] == ["sub-1Ses1_T2s-test", "sub-1Ses2_T2s-test"]


def test_a_study_that_splits_by_patient_refuses_the_set(source, tmp_path, study):
    import_layout("spine-gm", source, tmp_path / "target")
    with pytest.raises(DataError, match="patient 'sub-1' must stand in one part"):
        read_manifest(tmp_path / "target" / "milan", study(labels={1: "white matter", 2: "grey matter"}))


@pytest.mark.parametrize("key", ["site", "volume", "volume_label"])
def test_a_sample_that_lacks_a_key_is_refused(source, tmp_path, key):
    content = json.loads((source / "dataset.json").read_text())
    del content["samples"][0][key]
    (source / "dataset.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="every sample of source must have site, group, volume and volume_label"):
        import_layout("spine-gm", source, tmp_path / "target")


@pytest.mark.parametrize("end", ["T2s", "label"])
def test_a_missing_volume_is_named(source, tmp_path, end):
    (source / "milan" / "volumes" / f"sub-1Ses2_{end}.nii.gz").unlink()
    with pytest.raises(DataError, match=f"source must hold milan/volumes/sub-1Ses2_{end}.nii.gz"):
        import_layout("spine-gm", source, tmp_path / "target")


def test_a_truncated_volume_is_named(source, tmp_path):
    path = source / "milan" / "volumes" / "sub-1Ses2_T2s.nii.gz"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(DataError, match="sub-1Ses2_T2s.nii.gz must be a whole file"):
        import_layout("spine-gm", source, tmp_path / "target")


def test_the_real_set_is_cut_by_slices(real_data, tmp_path):
    source = real_data("spine_gm_mri")
    summary = import_layout("spine-gm", source, tmp_path / "target")
    counts = json.loads((source / "dataset.json").read_text())["counts_per_site"]
    assert {site: sum(parts.values()) for site, parts in summary.examples.items()} == counts
    assert set(summary.patients.values()) == {1}
