import json

import nibabel as nib
import numpy as np
import pytest

from silofl.base.errors import ConfigError, DataError
from silofl.base.settings import parse
from silofl.data.data_fingerprint import EDGES, DataFingerprint, measure_site, pool_fingerprints, pooled_quantile
from silofl.data.manifest import read_manifest
from silofl.study import Study


def study_of(**data):
    values = {"name": "small", "task": "segmentation", "labels": {1: "organ", 2: "lesion"}, "rounds": 1}
    return parse(Study, values | {"data": data, "algorithm": {"name": "plan"}}, "study.yaml")


def plan(task, labels, metric, network, **data):
    values = {"name": "small", "task": task, "labels": labels, "metric": metric, "rounds": 1, "data": data}
    values |= {"training": {"loss": "cross_entropy"}, "model": {"name": network}, "algorithm": {"name": "plan"}}
    return parse(Study, values, "study.yaml")


@pytest.fixture
def write(tmp_path):
    """Write volumes by their patient, spacing in mm, intensities and label maps; the last is the test's."""

    def save(name, array, affine):
        nib.save(nib.Nifti1Image(array, affine), tmp_path / name)
        return name

    def write(cases, names=(), **content):
        records = []
        for number, (patient, spacing, images, label) in enumerate([*cases, cases[-1]]):
            affine = spacing if np.ndim(spacing) == 2 else np.diag([*spacing, 1.0])
            shift = np.full((1, 1, 1), number == len(cases))
            paths = [
                None if image is None else save(f"{number}_{i}.nii", np.float32(image + shift), affine)
                for i, image in enumerate(images)
            ]
            record = {"image": paths if names else paths[0], "patient": patient if number < len(cases) else "other"}
            records.append(record | {"label": save(f"{number}_label.nii", np.uint8(label), affine)})
        content |= {"channel_names": list(names)} if names else {}
        content |= {"task": "segmentation", "labels": {"1": "organ", "2": "lesion"}}
        content |= {"training": records[:-1], "test": records[-1:]}
        (tmp_path / "dataset.json").write_text(json.dumps(content))
        return tmp_path

    return write


def volume(shape=(4, 3, 2), organ=1.0):
    """Return an image of zeros with one voxel of an organ, and its label map."""
    image, label = np.zeros(shape), np.zeros(shape)
    image[0, 0, 0], label[0, 0, 0] = organ, 1
    return [image], label


def measured(folder, study, min_patients=0):
    return measure_site(read_manifest(folder, study), study, min_patients, has_progress=False)


def change(folder, function, **content):
    """Change each record of dataset.json, and other keys of it."""
    content = json.loads((folder / "dataset.json").read_text()) | content
    for record in content["training"] + content["test"]:
        function(record)
    (folder / "dataset.json").write_text(json.dumps(content))


def test_each_patient_counts_once(write):
    # the patients' means are 1, 2 and 4 mm, however many scans the last one has
    cases = [("a", (1, 1, 1), *volume()), ("b", (2, 1, 1), *volume())]
    cases += [("c", (side, 1, 1), *volume((6, 3, 2))) for side in (3, 4, 5)]
    found = measured(write(cases), study_of())
    assert found.cases == 5
    assert found.spacing_mm[:, 0].tolist() == [1.5, 2, 3] and found.shape[:, 0].tolist() == [4, 4, 5]
    # a and b: 1 of 24 voxels, c: 1 of 36; their mean is 0.0370
    np.testing.assert_allclose(found.classes, [0.963, 0.037, 0])


def test_intensities_are_of_the_foreground_averaged_over_patients(write):
    image, label = np.arange(24.0).reshape(4, 3, 2), np.zeros((4, 3, 2))
    label[0, 0, :] = label[0, 1, 0] = 1
    found = measured(write([("a", (1, 1, 1), [image], label), ("b", (1, 1, 1), [image + 10], label)]), study_of())
    # of 0, 1 and 2: 0.01, 1, 1.99, mean 1, deviation sqrt(2 / 3); five more on average
    np.testing.assert_allclose(found.intensity, [[5.01, 6, 6.99, 6, 0.816]])


def test_axes_are_those_that_the_study_turns_volumes_to(write):
    # the first voxel axis runs to the head, the second to the left, the third to the back
    affine = np.array([[0, -2.0, 0, 0], [0, 0, -3, 0], [5, 0, 0, 0], [0, 0, 0, 1]])
    folder = write([("a", affine, *volume((7, 8, 9)))])
    as_stored = measured(folder, study_of())
    assert as_stored.spacing_mm[1].tolist() == [5, 2, 3] and as_stored.shape[1].tolist() == [7, 8, 9]
    turned = measured(folder, study_of(volume_transforms=[{"Orientation": {"axcodes": "LPS"}}]))
    assert turned.spacing_mm[1].tolist() == [2, 3, 5] and turned.shape[1].tolist() == [8, 9, 7]


def test_slices_of_a_record_are_the_volume(write, tmp_path):
    folder = write([("a", (1, 1, 2), *volume((4, 3, 9)))])
    change(folder, lambda record: record.update(slices=[0, 8, 2]))
    found = measured(folder, study_of())
    assert found.shape[1].tolist() == [4, 3, 5] and found.spacing_mm[1].tolist() == [1, 1, 4]


def test_what_few_patients_have_is_not_said(write):
    image, label = volume()
    ill = label.copy()
    ill[1] = 2
    cases = [("a", (1, 1, 1), [*image, *image], ill), ("b", (1, 1, 1), [*image, None], label)]
    study = study_of(channels=2, channel_names=["T1", "T2"])
    folder = write(cases, names=("T1", "T2"))
    two, one = measured(folder, study, min_patients=2), measured(folder, study, min_patients=1)
    assert two.channels.tolist() == [1, 0] and one.channels.tolist() == [1, 1]
    assert two.intensity[1].tolist() == [0] * 5 and one.intensity[1, 3] == 0.143
    # 1 in one of 7 voxels; the lesion has 6 of 24 voxels in one of two patients
    assert two.classes[2] == 0 and one.classes[2] == 0.125
    assert (two.few_channels, two.few_classes) == ((1,), (2,)) and one.few_channels == one.few_classes == ()
    # its voxels are the background's: 1 - 1 / 24, with three digits
    assert two.classes[0] == 0.958


def test_scans_of_nobody_knows_whom_are_no_patients(write):
    folder = write([(None, (1, 1, 1), *volume()), (None, (3, 1, 1), *volume())])
    change(folder, lambda record: record.pop("patient"), split_unit="unknown")
    study = study_of(split_unit="unknown")
    assert measured(folder, study).spacing_mm[1, 0] == 2
    assert measured(folder, study, min_patients=1).classes.tolist() == [1, 0, 0]


def test_three_digits_leave(write):
    found = measured(write([("a", (0.683594, 1, 1), *volume(organ=1234.5))]), study_of())
    assert found.spacing_mm[1, 0] == 0.684 and found.intensity[0, 3] == 1230


def test_windows_are_no_images(windows):
    labels, data = {0: "slow", 1: "fast"}, {"channels": 3, "split_unit": "recordings"}
    study = plan("classification", labels, "accuracy", "activity_cnn", **data)
    with pytest.raises(DataError, match="must be a picture or a volume to be planned for, not a window"):
        measured(windows / "ann", study)


def fingerprint(**changes):
    """Return 4 cases of 1 x 1 x 3 mm, one channel and two labels, half of the cases' quartiles apart along Z."""
    values = {
        "cases": 4,
        "spacing_mm": [[1, 1, 2], [1, 1, 3], [1, 1, 4]],
        "shape": [[90, 90, 20], [100, 100, 30], [110, 110, 40]],
        "intensity": [[0, 10, 20, 10, 4]],
        "channels": [1],
        "classes": [0.9, 0.1],
    }
    arrays = {key: value if key == "cases" else np.array(value, float) for key, value in (values | changes).items()}
    return DataFingerprint(**arrays)


def test_the_quantiles_of_one_site_are_its_own_and_sites_count_by_their_cases():
    quartiles, cases = np.array([[[1.0], [2.0], [3.0]]]), np.array([7.0])
    # the lower tail ends at 1 * 1 / 2; 0.1 lies at 0.4 of the way to the first quartile
    for share, wanted in ((0.25, 1), (0.5, 2), (0.75, 3), (0, 0.5), (0.1, 0.7), (1, 4.5)):
        np.testing.assert_allclose(pooled_quantile(quartiles, cases, share), [wanted])
    quartiles = np.array([[[1.0], [2.0], [3.0]], [[5.0], [6.0], [7.0]]])
    # half of all cases are the first site's, but for its upper tail to 4.5 and the second's lower one from 25 / 6
    assert 4.1 < pooled_quantile(quartiles, np.array([2.0, 2.0]), 0.5)[0] < 4.5
    both = np.array([[[1.0, 5.0]] * 3, [[2.0, 4.0]] * 3])
    # 3 cases of 1 and 1 of 2: the lower 75 % are 1; along the second axis the lower 25 % are 4
    for counts, share, wanted in (([3.0, 1.0], 0.5, [1, 5]), ([3.0, 1.0], 0.8, [2, 5]), ([1.0, 3.0], 0.5, [2, 4])):
        np.testing.assert_array_equal(pooled_quantile(both, np.array(counts), share), wanted)


def test_a_deviation_is_that_within_sites_and_between_their_means():
    low = fingerprint(cases=3, intensity=[[0, 9, 20, 10, 3]])
    high = fingerprint(cases=1, intensity=[[4, 21, 40, 20, 5]])
    found = pool_fingerprints([low, high])
    # mean 12.5; (3 * (9 + 2.5^2) + 25 + 7.5^2) / 4 = 31.75
    np.testing.assert_allclose(found.intensity, [[1, 12, 25, 12.5, 31.75**0.5]])
    assert found.cases == 4


def test_a_site_without_a_channel_has_no_say_in_its_intensities():
    both = fingerprint(intensity=[[0, 1, 2, 1, 1], [5, 6, 7, 6, 1]], channels=[1, 1])
    first = fingerprint(cases=100, intensity=[[0, 1, 2, 1, 1], [0, 0, 0, 0, 0]], channels=[1, 0])
    found = pool_fingerprints([both, first])
    np.testing.assert_allclose(found.intensity, both.intensity)
    assert pool_fingerprints([first]).intensity[1].tolist() == [0] * 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"spacing_mm": [[0, 1, 1], [1, 1, 1], [1, 1, 1]]}, "spacing_mm must rise within 0.001 to 1000"),
        ({"spacing_mm": [[2, 1, 1], [1, 1, 1], [1, 1, 1]]}, "spacing_mm must rise"),
        ({"shape": [[9, 9, 1], [9, 9, 1], [9, 9, 1e9]]}, "shape must rise within 1 to 65536"),
        ({"intensity": [[0, 1, 2, 1, -1]]}, "deviations of at least 0"),
        ({"channels": [0.5]}, "0 or 1 for a channel"),
        ({"classes": [0.9, 0.9]}, "and 1 together"),
    ],
)
def test_what_no_images_have_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        fingerprint(**changes)


def test_findings_of_a_case_share_it(write, tmp_path):
    folder = write([(patient, (1, 1, 1), *volume(organ=number + 1)) for number, patient in enumerate("abc")])
    labels, findings = {"0": "effusion", "1": "nodule"}, iter(([0, 1], [1], [], [0]))
    change(folder, lambda record: record.update(label=next(findings)), task="multilabel", labels=labels)
    study = plan("multilabel", {0: "effusion", 1: "nodule"}, "auroc", "densenet121")
    # a half of each in the first case, a whole nodule in the second, nothing in the third
    assert measured(folder, study).classes == pytest.approx([0.5 / 3, 1.5 / 3], rel=0.01)


def scans(count, seed=0, shift=0, size=(12, 10, 6)):
    """Return scans of as many patients, an organ of 40 to 60 HU about 50 in air, with values of its foreground."""
    rng, cases, values = np.random.default_rng(seed), [], []
    for number in range(count):
        image, label = np.full(size, -1000.0), np.zeros(size)
        label[2:9, 2:8] = 1
        image[label == 1] = rng.normal(50 + number, 15, int(label.sum())).round()
        cases.append((f"p{number}", (1, 1, 1), [image + shift], label))
        values.append(image[label == 1] + shift)
    return cases, np.concatenate(values)


def test_the_percentiles_of_all_sites_are_those_of_their_pooled_voxels_to_a_bin(write, tmp_path):
    (north, first), (south, second) = scans(6), scans(6, seed=1, shift=1024)
    found = [measured(write(cases), study_of()) for cases in (north, south)]
    for sites, values in ((found, np.concatenate([first, second])), (found[:1], first)):
        pooled = pool_fingerprints(sites).intensity[0, :3]
        # The median of two sites may lie anywhere between them.
        places = [0, 1, 2] if len(sites) == 1 else [0, 2]
        wanted = np.percentile(values, [0.5, 50, 99.5])
        np.testing.assert_allclose(pooled[places], wanted[places], atol=EDGES[1] - EDGES[0])


def test_no_bin_is_of_fewer_patients_than_may_be_told_and_no_voxel_is_lost(write):
    cases, values = scans(6)
    # A screw in one patient alone.
    cases[0][2][0][2, 2, :] = 3000
    folder = write(cases)
    apart, shared = (measured(folder, study_of(), least).histogram for least in (0, 5))
    assert apart[np.digitize(3000, EDGES) - 1] == 6 and shared[np.digitize(200, EDGES) :].sum() == 0
    held = np.stack([np.histogram(image[0][label == 1], EDGES)[0] for _, _, image, label in cases])
    assert set(np.flatnonzero(shared)) == set(np.flatnonzero((held > 0).sum(axis=0) >= 5))
    np.testing.assert_allclose([apart.sum(), shared.sum()], len(values), rtol=0.01)
    # Too few patients for any bin: nothing is told, and nothing fails.
    assert not measured(folder, study_of(), 7).histogram.any()


def test_values_that_are_no_hounsfield_units_keep_the_mean_of_the_sites_percentiles(write):
    image, label = np.linspace(0, 1, 24).reshape(4, 3, 2), np.ones((4, 3, 2))
    found = measured(write([("a", (1, 1, 1), [image], label)]), study_of())
    np.testing.assert_allclose(pool_fingerprints([found]).intensity, found.intensity)
