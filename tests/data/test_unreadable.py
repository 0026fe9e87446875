import logging

import numpy as np
import pytest

from silofl.base.errors import DataError
from silofl.data.site_data import load_site_data
from silofl_hospital.site.input_warnings import find_warnings

pytestmark = pytest.mark.usefixtures("decoded_here")


@pytest.fixture
def site(empty_site):
    """A site with 16 training, 2 validation and 2 test pictures: with a share of 0.05 one may be left out."""
    for part, count in {"training": 16, "validation": 2, "test": 2}.items():
        for number in range(count):
            empty_site.add(part, f"{part}{number}")
    empty_site.write()
    return empty_site


@pytest.fixture
def load(site, study, tmp_path):
    def go(share=0.05, **data):
        return load_site_data(site.folder, study(**data), tmp_path / "cache", skip_unreadable=share)

    return go


def damage(site, name):
    path = site.folder / f"{name}.png"
    path.write_bytes(path.read_bytes()[:40])


def cases_of(data):
    return {case for part in (data.training, data.validation, data.test) for case in part.cases}


def test_damaged_cases_are_left_out_up_to_the_share(site, load, study, caplog):
    damage(site, "training3")
    with caplog.at_level(logging.WARNING):
        data = load()
    assert len(data.training) == 15 and "training3" not in cases_of(data)
    assert "training3" not in {record.case for record in data.manifest.training}
    assert dict(data.unreadable) == {"damaged": 1}
    assert "left out: case 'training3'" in caplog.text
    (warning,) = [one for one in find_warnings(data, study()) if "left out" in one]
    assert warning.startswith("1 of 20 cases cannot be read and are left out, as skip_unreadable allows (1 damaged);")
    assert "training3" not in warning


def test_more_than_the_share_is_refused_with_all_of_them(site, load):
    damage(site, "training3")
    with pytest.raises(DataError, match="^case 'training3': training3.png is truncated or corrupt"):
        load(share=0)
    damage(site, "training5")
    with pytest.raises(DataError, match="2 of 20 cases cannot be read, and skip_unreadable 0.05 leaves out 1: 2 fa"):
        load()


def test_the_first_reading_decides_until_dataset_json_changes(site, load, tmp_path):
    content = (site.folder / "training3.png").read_bytes()
    damage(site, "training3")
    load()
    (site.folder / "training3.png").write_bytes(content)
    # Mended, and read for a study of other settings.
    data = load(intensity="percentiles")
    assert "training3" not in cases_of(data) and dict(data.unreadable) == {"damaged": 1}
    # No case is named at rest.
    (kept,) = (tmp_path / "cache").glob("left-out-*.json")
    assert "training3" not in kept.read_text()
    site.content["training"].reverse()
    site.write()
    assert not load().unreadable


def test_what_was_left_out_first_counts_against_the_share(site, load):
    damage(site, "training3")
    load()
    with pytest.raises(
        DataError, match="1 of 20 cases cannot be read, .* leaves out 0; mend them and write dataset.json anew"
    ):
        load(share=0)
    damage(site, "test1")
    with pytest.raises(DataError, match="2 of 20 .* leaves out 1: case 'test1'"):
        load(intensity="percentiles")


def test_a_whole_part_that_cannot_be_read_is_refused(site, load):
    for number in (0, 1):
        damage(site, f"test{number}")
    with pytest.raises(DataError, match="no case of test can be read, and 2 of all parts cannot; mend one of test"):
        load(share=0.1)


def test_wrong_labels_and_equal_files_are_refused_at_any_share(site, load):
    (site.folder / "test1.png").write_bytes((site.folder / "training0.png").read_bytes())
    with pytest.raises(DataError, match="hold the same content"):
        load()
    site.mask("training3-mask.png", np.full((8, 8), 7, np.uint8))
    with pytest.raises(DataError, match="training3-mask.png holds 7, but the labels are"):
        load()
