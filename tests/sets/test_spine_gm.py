import json
from collections import Counter

import nibabel
import numpy as np
import pytest
from PIL import Image

from silofl.base.errors import ConfigError, DataError
from silofl.data.manifest import read_manifest
from silofl.data.records import slice_numbers
from silofl.data.site_data import load_site_data
from silofl.importing.importers import import_layout
from silofl_desk.sets.spine_gm import majority, slices_by_part

LAYOUT = "spine-gm"
AFFINE = np.diag([0.5, 0.5, 5.0, 1.0])
LABELS = {1: "white matter", 2: "grey matter"}


def test_every_second_slice_is_for_training_and_the_others_in_turn_for_validation_and_test():
    parts = {part: list(slice_numbers(slices)) for part, slices in slices_by_part(10).items()}
    assert parts == {"training": [0, 2, 4, 6, 8], "validation": [1, 5, 9], "test": [3, 7]}
    for count in range(4, 60):
        covered = [z for slices in slices_by_part(count).values() for z in slice_numbers(slices)]
        assert sorted(covered) == list(range(count))
    with pytest.raises(DataError, match="a volume must have at least 4 slices to be split, not 3"):
        slices_by_part(3)


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


def test_both_sessions_are_one_patient_in_three_parts(run, tmp_path, study):
    summary = run()
    assert summary.examples == {"milan": {"training": 8, "validation": 4, "test": 4}}
    assert summary.patients == {"milan": 1}
    manifest = read_manifest(tmp_path / "target" / "milan", study(labels=LABELS, split_unit="slices"))
    assert [record.slices for record in manifest.training] == [(0, 7, 2), (0, 7, 2)]
    assert [record.case for record in manifest.test] == ["sub-1Ses1_T2s-test", "sub-1Ses2_T2s-test"]
    with pytest.raises(DataError, match="patient 'sub-1' must stand in one part"):
        read_manifest(tmp_path / "target" / "milan", study(labels=LABELS))


@pytest.mark.parametrize("key", ["site", "volume", "volume_label"])
def test_a_sample_that_lacks_a_key_is_refused(run, source, key):
    content = json.loads((source / "dataset.json").read_text())
    del content["samples"][0][key]
    (source / "dataset.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="every sample of source must have site, group, volume and volume_label"):
        run()


def test_a_missing_and_a_truncated_volume_are_named(run, source):
    path = source / "milan" / "volumes" / "sub-1Ses2_T2s.nii.gz"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(DataError, match="sub-1Ses2_T2s.nii.gz must be a whole file"):
        run()
    path.unlink()
    with pytest.raises(DataError, match="source must hold milan/volumes/sub-1Ses2_T2s.nii.gz"):
        run()


def test_the_real_set_loads_and_its_volumes_show_what_its_pictures_show(real_data, study, tmp_path):
    source = real_data("spine_gm_mri")
    summary = import_layout("spine-gm", source, tmp_path / "target")
    counts = json.loads((source / "dataset.json").read_text())["counts_per_site"]
    assert {site: sum(parts.values()) for site, parts in summary.examples.items()} == counts
    assert set(summary.patients.values()) == {1}
    settings = study(labels=LABELS, intensity="percentiles", split_unit="slices")
    for site, counts in summary.examples.items():
        data = load_site_data(tmp_path / "target" / site, settings, tmp_path / "cache")
        parts = (data.training, data.validation, data.test)
        assert [len(part) for part in parts] == [*counts.values()]
        assert data.training.images.shape[1:] == (1, 128, 128) and {*np.unique(data.test.targets)} == {0, 1, 2}
        if site != "ucl":
            continue
        # The set's pictures are the same slices, by the same percentiles, turned or not.
        pictures, labels = (
            np.stack([np.asarray(Image.open(path)) for path in sorted((source / site / kind).iterdir())])
            for kind in ("images", "masks")
        )
        order = np.argsort(np.concatenate([part.slices for part in parts]))
        images = np.concatenate([part.images[:, 0] for part in parts])[order]
        targets = np.concatenate([part.targets for part in parts])[order]
        assert [np.bincount(t.ravel()).tolist() for t in targets] == [np.bincount(t.ravel()).tolist() for t in labels]
        np.testing.assert_allclose(images.mean(axis=(1, 2)), pictures.mean(axis=(1, 2)) / 255, atol=0.01)


# --- the challenge as it is downloaded


@pytest.mark.parametrize(
    ("votes", "label"),
    [
        # what four raters draw (0 nothing, 1 grey, 2 white) and the label (1 white, 2 grey)
        ((0, 0, 0, 0), 0),
        ((1, 1, 1, 1), 2),
        ((2, 2, 2, 2), 1),
        ((0, 0, 1, 1), 0),  # half of the raters are no majority
        ((0, 0, 1, 2), 0),
        ((0, 2, 2, 2), 1),
        ((0, 1, 1, 2), 2),  # three see the cord, two of them grey matter
        ((1, 1, 2, 2), 1),  # all see the cord: a tie is white matter
        ((1, 1, 1, 2), 2),
    ],
)
def test_raters_decide_by_majority(votes, label):
    assert majority(np.array(votes)[:, None]).tolist() == [label]


@pytest.fixture
def challenge(tmp_path):
    """Two sites of four volunteers with volumes of 6 x 5 x 3 and four raters' masks, named as in the challenge."""
    folder, rng = tmp_path / "download" / "training-data-gm-sc-challenge-ismrm16-v20160302b", np.random.default_rng(0)
    folder.mkdir(parents=True)
    for patient in (f"site{site}-sc{number:02}" for site in (1, 2) for number in range(1, 5)):
        image = rng.integers(0, 999, (6, 5, 3), dtype=np.int16)
        nibabel.save(nibabel.Nifti1Image(image, AFFINE), folder / f"{patient}-image.nii.gz")
        for rater in range(1, 5):
            mask = rng.integers(0, 3, (6, 5, 3), dtype=np.uint8)
            nibabel.save(nibabel.Nifti1Image(mask, AFFINE), folder / f"{patient}-mask-r{rater}.nii.gz")
        (folder / f"{patient}-levels.txt").write_text("3,C4")
    return folder


@pytest.mark.parametrize("is_folder_itself", [False, True])
def test_a_volunteer_of_the_challenge_is_in_one_part_with_all_slices(run, challenge, tmp_path, study, is_folder_itself):
    summary = run(challenge if is_folder_itself else challenge.parent)
    # 4 volunteers: round(4 * 0.2) = 1 test, round(3 * 0.2) = 1 validation, 2 training, of 3 slices each
    assert summary.examples == dict.fromkeys(("site1", "site2"), {"training": 6, "validation": 3, "test": 3})
    assert summary.patients == {"site1": 4, "site2": 4} and summary.notes == ()
    data = load_site_data(tmp_path / "target" / "site1", study(labels=LABELS), tmp_path / "cache")
    assert data.manifest.split_unit == "patient"
    slices = [Counter(part.patients) for part in (data.training, data.validation, data.test)]
    assert sum(slices, Counter()) == {f"site1-sc{number:02}": 3 for number in range(1, 5)}
    assert [len(part) for part in slices] == [2, 1, 1]


def test_the_raters_masks_become_one_on_the_same_grid(run, challenge, tmp_path):
    assert run(challenge, test=0.5, validation=0.0).examples["site1"] == {"training": 6, "validation": 0, "test": 6}
    masks = [nibabel.load(challenge / f"site2-sc03-mask-r{rater}.nii.gz").get_fdata() for rater in range(1, 5)]
    written = nibabel.load(tmp_path / "target" / "site2" / "labels" / "site2-sc03.nii.gz")
    for voxel in np.ndindex(6, 5, 3):
        votes = [mask[voxel] for mask in masks]
        grey, white = votes.count(1), votes.count(2)
        assert written.get_fdata()[voxel] == (0 if grey + white < 3 else 2 if grey > white else 1)
    np.testing.assert_array_equal(written.affine, AFFINE)
    image = tmp_path / "target" / "site2" / "images" / "site2-sc03-image.nii.gz"
    assert image.read_bytes() == (challenge / "site2-sc03-image.nii.gz").read_bytes()


@pytest.mark.parametrize(
    ("mask", "sentence"),
    [
        (np.full((6, 5, 3), 3, np.uint8), r"-mask-r3.nii.gz must hold 0, 1 and 2 .*not up to 3 in \(6, 5, 3\)"),
        (np.zeros((6, 5, 2), np.uint8), r"-mask-r3.nii.gz must hold 0, 1 and 2 .*not up to 0 in \(6, 5, 2\)"),
        (None, " must have the masks of 4 raters; .*-r3.nii.gz missing"),
    ],
)
def test_a_mask_of_another_form_or_none_is_refused(run, challenge, mask, sentence):
    path = challenge / "site1-sc02-mask-r3.nii.gz"
    path.unlink()
    if mask is not None:
        nibabel.save(nibabel.Nifti1Image(mask, AFFINE), path)
    with pytest.raises(DataError, match=f"site1-sc02{sentence}"):
        run(challenge)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"labels": tuple("abc")}, "labels must name 2 labels, instead of white matter, grey matter, not 3"),
        ({"test": 0.3}, "test and validation must not be given with one volunteer a hospital"),
        ({"validation": 0.0}, "test and validation must not be given with one volunteer a hospital"),
        ({}, "none must hold site1-sc01-image.nii.gz .*, or a dataset.json"),
    ],
)
def test_other_labels_than_two_fractions_of_slices_and_a_folder_of_neither_form_are_refused(
    run, source, tmp_path, options, sentence
):
    (tmp_path / "none").mkdir()
    with pytest.raises((ConfigError, DataError), match=sentence):
        run(source if options else tmp_path / "none", **options)
