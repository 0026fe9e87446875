import numpy as np
import pytest
from PIL import Image

from silofl.base.errors import ConfigError, DataError
from silofl_hospital.importing import cases, importers
from silofl_hospital.importing.importers import LAYOUTS, ImportOptions, import_layout


@pytest.fixture
def source(tmp_path):
    """Two sites with six pictures and masks of 0 and 255 each."""
    rng = np.random.default_rng(0)
    for site in ("north", "south"):
        for kind in ("images", "masks"):
            (tmp_path / "source" / site / kind).mkdir(parents=True)
            for number in range(6):
                high = 256 if kind == "images" else 2
                pixels = rng.integers(0, high, (8, 8), dtype=np.uint8) * (1 if kind == "images" else 255)
                Image.fromarray(pixels).save(tmp_path / "source" / site / kind / f"{number}.png")
        rows = ["file,patient", *(f"{number}.png,{site}{number}" for number in range(6))]
        (tmp_path / "source" / site / "patients.csv").write_text("\n".join(rows))
    return tmp_path / "source"


def content_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_same_seed_writes_the_same_files(source, tmp_path):
    for name, seed in (("first", 1), ("second", 1), ("other", 2)):
        summary = import_layout("folders", source, tmp_path / name, ImportOptions(seed=seed))
        # 6 patients: round(6 * 0.2) = 1 test, round(5 * 0.2) = 1 validation, 4 training.
        counts = {"training": 4, "validation": 1, "test": 1}
        assert summary.examples == {"north": counts, "south": counts}
        assert summary.patients == {"north": 6, "south": 6}
    assert content_of(tmp_path / "first") == content_of(tmp_path / "second") != content_of(tmp_path / "other")


# --- targets


FREE = "is not empty"


@pytest.mark.parametrize(
    ("target", "sentence"), [("target", FREE), ("target/mine", FREE), ("target/mine/deeper", "cannot be written")]
)
def test_a_target_that_is_taken_is_left_alone(source, tmp_path, target, sentence):
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "mine").write_text("mine")
    with pytest.raises(DataError, match=f"TARGET .*{sentence}"):
        import_layout("folders", source, tmp_path / target)
    assert content_of(tmp_path / "target") == {"mine": b"mine"}


def test_all_wrong_masks_are_told_before_images_are_copied(source, tmp_path, monkeypatch):
    Image.fromarray(np.zeros((4, 8), np.uint8)).save(source / "north" / "masks" / "1.png")
    Image.fromarray(np.zeros((9, 9), np.uint8)).save(source / "south" / "masks" / "0.png")
    Image.fromarray(np.full((8, 8), 7, np.uint8)).save(source / "south" / "masks" / "3.png")
    (source / "south" / "masks" / "2.png").write_bytes(b"no picture")
    monkeypatch.setattr(cases, "copy_image", lambda *arguments: pytest.fail("an image was copied"))
    with pytest.raises(DataError) as error:
        import_layout("folders", source, tmp_path / "target")
    told = str(error.value)
    assert "masks/0.png" not in told
    for sentence in (
        "4 faults: (1) site 'north': masks/1.png has 4 x 8 pixels, and its image 8 x 8; export it anew",
        " (and 1 more of this kind). (2) site 'south': masks/2.png is truncated or corrupt",
        "(3) site 'south': masks/3.png holds 7, but the labels are 0 (background), 1 (foreground)",
    ):
        assert sentence in told
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), DataError("broken"), OSError(28, "No space left on device")])
def test_an_interrupted_import_leaves_nothing(source, tmp_path, monkeypatch, error):
    write_site, calls = importers._write_site, []

    def interrupted(plan, folder):
        if calls:
            raise error
        calls.append(folder)
        write_site(plan, folder)

    monkeypatch.setattr(importers, "_write_site", interrupted)
    expected = DataError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected):
        import_layout("folders", source, tmp_path / "target")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_an_unknown_layout_is_refused_with_the_nearest(source, tmp_path):
    with pytest.raises(ConfigError, match="must be one of folders,.* not 'folder'.*did you mean 'folders'"):
        import_layout("folder", source, tmp_path / "target")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_absent_source_or_another_layout_is_refused(tmp_path, layout):
    with pytest.raises(DataError, match="SOURCE nowhere is missing"):
        import_layout(layout, tmp_path / "nowhere", tmp_path / "target")
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("x")
    for wrong in ("empty", "text"):
        with pytest.raises((ConfigError, DataError), match="SOURCE has no|is missing|holds no|be read|text lacks"):
            import_layout(layout, tmp_path / wrong, tmp_path / "target")
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("name", ["our site", "süd"])
def test_a_site_name_that_the_network_cannot_use_is_refused(source, tmp_path, name):
    (source / "south").rename(source / name)
    with pytest.raises(DataError, match="a site's name must be letters, digits"):
        import_layout("folders", source, tmp_path / "target")
