import os
from dataclasses import replace

import numpy as np
import pytest

from silofl.base.errors import DataError
from silofl.data.cache import describe_source, fingerprint_preparation, load_or_prepare
from silofl.data.cache_entries import CacheSource
from silofl.data.manifest import read_manifest
from silofl.data.parts import PreparedCase
from silofl_desk.studies.runs.joined_examples import join_examples

DATA = CacheSource("/data/north", "as it is")


def case(name, count=2):
    images = np.full((count, 1, 4, 4), ord(name), np.float32)
    return PreparedCase(name, f"patient {name}", images, np.ones((count, 4, 4), np.uint8), tuple(range(count)))


def cases():
    yield "training", case("a")
    yield "training", case("b", 1)
    yield "test", case("c", 3)


@pytest.fixture
def name_of(site):
    return lambda study: fingerprint_preparation(describe_source(read_manifest(site.folder, study)), study)


def test_what_is_prepared_is_what_is_opened(tmp_path):
    def sized():
        yield "training", replace(case("a"), spacing=(0.5, 0.25, 3.0))
        yield from list(cases())[1:]

    parts = load_or_prepare(tmp_path, "name", sized, DATA)
    training = parts["training"]
    assert training.images[:, 0, 0, 0].tolist() == [97, 97, 98]
    assert (training.cases, training.slices) == (("a", "a", "b"), (0, 1, 0))
    assert training.patients == ("patient a", "patient a", "patient b")
    assert (len(parts["validation"]), len(parts["test"])) == (0, 3)
    # Of the cases that have one.
    assert training.spacings == {"a": (0.5, 0.25, 3.0)}
    pooled = join_examples({"north": training, "south": training})
    assert pooled.spacings == {"north/a": (0.5, 0.25, 3.0), "south/a": (0.5, 0.25, 3.0)}


@pytest.mark.parametrize("kind", ["training_images", "test_targets", "index.json"])
@pytest.mark.parametrize("damage", ["cut", "removed"])
def test_damage_is_noticed_and_made_anew(tmp_path, caplog, kind, damage):
    load_or_prepare(tmp_path, "name", cases, DATA)
    path = tmp_path / "name" / kind
    content = path.read_bytes()
    path.unlink()
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    parts = load_or_prepare(tmp_path, "name", cases, DATA)
    assert parts["training"].images[:, 0, 0, 0].tolist() == [97, 97, 98]
    has_warned = "cache name is damaged and is made anew" in caplog.text
    assert has_warned == (damage == "cut")
    assert {path.name for path in tmp_path.iterdir()} == {"lock", "name"}


@pytest.mark.parametrize("error", [DataError("broken"), KeyboardInterrupt()])
def test_an_interrupted_preparation_leaves_nothing(tmp_path, error):
    def stopped():
        yield "training", case("a")
        raise error

    with pytest.raises(type(error)):
        load_or_prepare(tmp_path, "name", stopped, DATA)
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_other_settings_that_matter_have_another_fingerprint(site, study, name_of):
    site.write()
    before = name_of(study())
    assert name_of(study()) == name_of(study(augment=["RandFlip"])) == before
    changes = ({"intensity": "raw"}, {"channels": 3}, {"neighbours": 1}, {"transforms": ["ScaleIntensity"]})
    for change in (*changes, {"volume_transforms": ["Spacing"]}):
        assert name_of(study(**change)) != before


def test_a_touched_longer_or_added_file_changes_the_fingerprint(site, study, name_of):
    def touch():
        os.utime(site.folder / "f-mask.png", ns=(1, 1))
        return name_of(study())

    (site.folder / "series").mkdir()
    (site.folder / "series" / "1.dcm").write_bytes(b"x")
    site.content["training"][0]["image"] = "series"
    site.write()
    names = {name_of(study()), touch()}
    with (site.folder / "f-mask.png").open("ab") as file:
        file.write(b"x")
    names.add(touch())
    (site.folder / "series" / "2.dcm").write_bytes(b"x")
    assert len(names | {touch()}) == 4
