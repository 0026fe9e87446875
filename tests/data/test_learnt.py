import json
import shutil

import pytest
from PIL import Image

from silofl.base.errors import DataError
from silofl.data.learnt import FILE, check_not_learnt, record_learnt
from silofl.data.site_data import load_site_data


@pytest.fixture
def load(tmp_path, study):
    """Read a folder's data, whose study has some settings."""

    def read(folder, **data):
        wanted = study(**data)
        return load_site_data(folder, wanted, tmp_path / "cache", has_progress=False), wanted

    return read


@pytest.fixture
def renamed(site, tmp_path):
    """A copy of the site, with a training picture under another name, in another format, as another patient's test."""
    site.write()
    target = shutil.copytree(site.folder, tmp_path / "renamed")
    content = json.loads((target / "dataset.json").read_text())
    stolen = content["training"].pop(0)
    with Image.open(target / stolen["image"]) as picture:
        picture.save(target / "new.tif")
    content["test"].append(stolen | {"image": "new.tif", "case": "new", "patient": "somebody"})
    write_content(target, content)
    return target


def write_content(folder, content):
    (folder / "dataset.json").write_text(json.dumps(content))


def read_content(folder):
    return json.loads((folder / "dataset.json").read_text())


def test_a_training_image_is_recognised_by_its_pixels(site, renamed, load, tmp_path):
    before, study = load(site.folder)
    record_learnt(tmp_path / "run", before)
    check_not_learnt([tmp_path / "run", tmp_path / "none"], before, study)
    with pytest.raises(DataError, match="images that the model learnt from: 1 .first: 'new'.; take"):
        check_not_learnt([tmp_path / "none", tmp_path / "run"], *load(renamed))
    # The remedy.
    content = read_content(renamed)
    write_content(renamed, content | {"test": content["test"][:-1]})
    check_not_learnt([tmp_path / "run"], *load(renamed))


def test_what_was_learnt_before_a_change_stays_recorded(site, renamed, load, tmp_path):
    data, _ = load(site.folder)
    record_learnt(tmp_path / "run", data)
    before = json.loads((tmp_path / "run" / FILE).read_text())
    assert before["cases"].keys() == {*data.training.cases, *data.validation.cases}
    record_learnt(tmp_path / "run", load(renamed)[0])
    after = json.loads((tmp_path / "run" / FILE).read_text())
    assert after["cases"] == before["cases"] and len(after["datasets"]) == 2
    assert (tmp_path / "run" / FILE).stat().st_mode & 0o777 == 0o600
