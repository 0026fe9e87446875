import json
from pathlib import Path

import numpy as np
import pytest

from silofl.base.errors import ConfigError, DataError
from silofl.data.site_data import load_site_data
from silofl.importing.importers import ImportOptions, import_layout
from silofl.study import load_study

JOBS = Path(__file__).resolve().parents[2] / "jobs"
COUNTS = {"train": 60, "val": 20, "test": 30}


@pytest.fixture
def arrays():
    """Grey images of 4 x 4 in two classes; an image's pixels are its number in its part."""
    found = {}
    for prefix, count in COUNTS.items():
        found[f"{prefix}_images"] = np.broadcast_to(np.arange(count, dtype=np.uint8)[:, None, None], (count, 4, 4))
        found[f"{prefix}_labels"] = (np.arange(count, dtype=np.uint8) % 2)[:, None]
    return found


@pytest.fixture
def run(arrays, tmp_path):
    def go(is_folder=False, name="small.npz", **options):
        (tmp_path / "source").mkdir(exist_ok=True)
        np.savez(tmp_path / "source" / name, **arrays)
        source = tmp_path / "source" if is_folder else tmp_path / "source" / name
        return import_layout("medmnist", source, tmp_path / "target", ImportOptions(**options))

    return go


def test_every_image_lands_at_one_site_in_its_own_part(run, study, tmp_path):
    summary = run(num_sites=3, labels=("normal", "tumour"))
    assert set(summary.examples) == {"site-1", "site-2", "site-3"}
    wanted = study("classification", split_unit="unknown")
    seen = {"training": [], "validation": [], "test": []}
    for site in summary.examples:
        data = load_site_data(tmp_path / "target" / site, wanted, tmp_path / "cache")
        for part, found in (("training", data.training), ("validation", data.validation), ("test", data.test)):
            numbers = np.round(found.images[:, 0, 0, 0] * 255).astype(int)
            assert found.targets.tolist() == (numbers % 2).tolist()
            assert [int(case.split("-")[1]) for case in found.cases] == numbers.tolist()
            seen[part] += numbers.tolist()
    for part, count in zip(seen, COUNTS.values(), strict=True):
        assert sorted(seen[part]) == list(range(count))


def test_the_parts_of_a_site_share_its_classes(run, tmp_path):
    run(num_sites=2, alpha=0.05, seed=1)
    shares = {part: [] for part in ("training", "test")}
    for site in ("site-1", "site-2"):
        content = json.loads((tmp_path / "target" / site / "dataset.json").read_text())
        for part, found in shares.items():
            found.append(np.mean([record["label"] for record in content[part]]))
    np.testing.assert_allclose(shares["training"], shares["test"], atol=0.1)
    assert abs(shares["training"][0] - shares["training"][1]) > 0.5


@pytest.mark.parametrize(
    ("name", "described", "given", "labels"),
    [
        ("small.npz", None, None, ["class 0", "class 1"]),
        ("small.npz", ["well", "ill"], None, ["well", "ill"]),
        # What is given counts more than what the file's name says.
        ("pneumoniamnist.npz", None, ("well", "ill"), ["well", "ill"]),
    ],
)
def test_classes_have_the_names_that_are_given_or_of_the_description_beside_them(
    run, tmp_path, name, described, given, labels
):
    (tmp_path / "source").mkdir()
    if described:
        content = {"classes": {str(number): text for number, text in enumerate(described)}}
        (tmp_path / "source" / "dataset.json").write_text(json.dumps(content))
    summary = run(is_folder=True, name=name, num_sites=1, labels=given)
    assert "the set names no patients" in summary.notes[0]
    content = json.loads((tmp_path / "target" / "site-1" / "dataset.json").read_text())
    assert [*content["labels"].values()] == labels


@pytest.mark.parametrize(
    ("name", "labels", "num_classes"),
    # A name of a published set says how many there are.
    [("small.npz", ("normal",), 2), ("small.npz", ("normal",), 5), ("pneumoniamnist.npz", None, 3)],
)
def test_too_few_names_for_the_classes_are_refused(run, arrays, name, labels, num_classes):
    arrays["val_labels"][0] = num_classes - 1
    sentence = f"labels must name the {num_classes} classes of {name}, not {1 if labels else 2}"
    with pytest.raises(DataError, match=sentence):
        run(name=name, labels=labels)


@pytest.mark.parametrize(
    ("name", "classes"),
    [("organamnist.npz", 11), ("organcmnist.npz", 11), ("organsmnist_224.npz", 11), ("pneumoniamnist.npz", 2)],
)
def test_the_published_classes_are_known_by_the_name_of_the_file(run, arrays, tmp_path, name, classes):
    for prefix, count in COUNTS.items():
        arrays[f"{prefix}_labels"] = np.arange(count)[:, None] % classes
    run(name=name, num_sites=2, test=0.5)
    job = "adafed_organ" if classes == 11 else "adafed_pneumonia"
    study = load_study(JOBS / job / "app" / "config" / "study.yaml")
    for site in ("site-1", "site-2"):
        load_site_data(tmp_path / "target" / site, study, tmp_path / "cache")
    assert len(study.labels) == classes


LABELS = "train_labels of small.npz must hold one class from 0 an image, not"
SHAPES = r"train_images of small.npz must be of shape \(N, H, W\) or \(N, H, W, 3\)"


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("train_labels", np.zeros((60, 14), np.uint8), LABELS),
        ("train_labels", np.zeros(60), LABELS),
        ("train_labels", np.full(60, -1), LABELS),
        ("train_labels", np.zeros(59, np.uint8), LABELS),
        # As those of OrganMNIST3D, whose sites nobody could read.
        ("train_images", np.zeros((60, 4, 4, 28), np.uint8), SHAPES),
        ("train_images", np.zeros((60, 4, 4, 4, 3), np.uint8), SHAPES),
        ("train_images", np.zeros((60, 4), np.uint8), SHAPES),
        ("val_images", np.zeros((20, 5, 5), np.uint8), "small.npz must hold images of one size, not"),
        ("val_labels", None, "small.npz must hold the arrays of MedMNIST; val_labels missing"),
    ],
)
def test_arrays_of_another_form_are_refused_before_anything_is_written(run, arrays, tmp_path, name, values, message):
    arrays[name] = values
    if values is None:
        del arrays[name]
    with pytest.raises(DataError, match=message):
        run()
    assert not (tmp_path / "target").exists()


OWN_PARTS = "the set's own parts must be dealt by dirichlet shares and stay as they are"
UNNAMED = "partition must be one of dirichlet, shards for this set"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_sites": 21}, "num_sites must be at"),
        ({"num_sites": 0}, "num_sites must be at"),
        ({"partition": "shards"}, OWN_PARTS),
        ({"validation": 0.1}, OWN_PARTS),
        ({"partition": "own", "test": 0.5}, UNNAMED),
        ({"partition": "patients", "test": 0.5}, UNNAMED),
        ({"partition": "recordings", "test": 0.5}, UNNAMED),
    ],
)
def test_a_partition_that_the_set_does_not_allow_is_refused(run, options, message):
    with pytest.raises((ConfigError, DataError), match=message):
        run(**options)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no more"])
def test_a_broken_file_is_called_corrupt_and_a_folder_must_hold_one(tmp_path, content):
    for count in (0, 2):
        with pytest.raises(DataError, match=f"must be an npz file or a folder with one, not with {count}"):
            import_layout("medmnist", tmp_path, tmp_path / "target")
        for name in ("small.npz", "other.npz"):
            (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match="small.npz must be a whole npz file, not a corrupt one"):
        import_layout("medmnist", tmp_path / "small.npz", tmp_path / "target")


# --- sites split anew


def test_with_a_test_fraction_all_images_are_joined_and_every_site_split_by_example(run, tmp_path):
    summary = run(num_sites=2, alpha=100.0, test=0.5)
    assert sum(sum(parts.values()) for parts in summary.examples.values()) == sum(COUNTS.values())
    for site, parts in summary.examples.items():
        assert parts["validation"] == 0 and abs(parts["training"] - parts["test"]) <= 1
        content = json.loads((tmp_path / "target" / site / "dataset.json").read_text())
        for part in ("training", "test"):
            # Of the set's own parts.
            assert {record["case"].split("-")[0] for record in content[part]} == set(COUNTS)


EQUAL = {"alpha": 0.1, "is_equal": True}


@pytest.mark.parametrize(
    ("options", "sizes", "left"),
    [
        # As of AdaFed: 110 images at 20 sites are 5 each, round(2.5) = 2 of them for the test, and 10 left over.
        ({"num_sites": 20, "test": 0.5, **EQUAL}, [3, 0, 2], 10),
        # The set's own parts: 60, 20 and 30 images; 30 // 4 = 7.
        ({"num_sites": 4, **EQUAL}, [15, 5, 7], 2),
        # 110 images in 10 shards of 11, 2 a site.
        ({"num_sites": 5, "partition": "shards", "num_shards": 2, "test": 0.5}, [11, 0, 11], 0),
    ],
)
def test_sites_of_equal_size_have_equally_many_images_in_each_part(run, options, sizes, left):
    summary = run(**options)
    assert [[*parts.values()] for parts in summary.examples.values()] == [sizes] * options["num_sites"]
    sentence = f"{left} examples are at no site, so that all sites have equally many"
    assert (sentence in summary.notes) is (left > 0)


def test_colour_is_kept(run, arrays, study, tmp_path):
    for prefix, count in COUNTS.items():
        arrays[f"{prefix}_images"] = np.broadcast_to(np.uint8([10, 20, 30]), (count, 4, 4, 3))
    run(num_sites=1, labels=("normal", "tumour"))
    settings = study("classification", channels=3, intensity="raw", split_unit="unknown")
    data = load_site_data(tmp_path / "target" / "site-1", settings, tmp_path / "cache")
    assert data.test.images.shape == (30, 3, 4, 4) and data.test.images[0, :, 0, 0].tolist() == [10, 20, 30]


@pytest.mark.parametrize("name", ["pneumoniamnist_balanced", "mednist6_28"])
def test_a_real_set_loads(real_data, study, tmp_path, name):
    source = real_data(name)
    summary = import_layout("medmnist", source, tmp_path / "target", ImportOptions(num_sites=5, alpha=0.3))
    description = json.loads((source / "dataset.json").read_text())
    total = sum(sum(counts) for counts in description["counts"].values())
    assert sum(sum(parts.values()) for parts in summary.examples.values()) == total
    labels = {int(number): text for number, text in description["classes"].items()}
    wanted = study("classification", labels=labels, split_unit="unknown")
    data = load_site_data(tmp_path / "target" / "site-1", wanted, tmp_path / "cache")
    assert data.training.images.shape[1:] == (1, 28, 28)
    assert set(np.unique(data.training.targets)) <= set(labels)
