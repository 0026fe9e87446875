import json
from contextlib import nullcontext
from pathlib import Path

import nibabel
import numpy as np
import pydicom
import pytest
from PIL import Image

from silofl.base.errors import DataError
from silofl.base.settings import parse
from silofl.reading.images import read_image
from silofl.study import Study


def add_volume(site, part, name, image, affine=None, label=None, **changes):
    """Write a volume and its label map, of ones where none is given, and add the record, with `changes` to it."""
    affine = np.eye(4) if affine is None else affine
    label = np.ones(image.shape, np.uint8) if label is None else label
    for end, array in (("", image), ("-mask", label)):
        nibabel.save(nibabel.Nifti1Image(array, affine), site.folder / f"{name}{end}.nii.gz")
    record = {"image": f"{name}.nii.gz", "label": f"{name}-mask.nii.gz", "patient": name, "case": name}
    site.content[part].append(record | changes)


# Of a hand-written volume of 2 x 3 x 4.
VOXELS = np.arange(24, dtype="<i2").tobytes()
LABELS = {"segmentation": {1: "nucleus"}, "classification": {0: "normal", 1: "tumour"}}


def affine_of(image):
    """Return the affine of SimpleITK's image in NIfTI's world."""
    num_axes, matrix = image.GetDimension(), np.eye(4)
    directions = np.reshape(image.GetDirection(), (num_axes, num_axes))
    matrix[:num_axes, :num_axes], matrix[:num_axes, 3] = directions * image.GetSpacing(), image.GetOrigin()
    return np.diag([-1, -1, 1, 1]) @ matrix


@pytest.fixture(autouse=True)
def decoding(monkeypatch):
    """Decode files in the decoders' process, as sites do; the next folder has the same one, which starts slowly."""
    for module in ("site_data", "inventory"):
        monkeypatch.setattr(f"silofl.data.{module}.decode_ahead", nullcontext)


@pytest.fixture
def study():
    """Build a study by its task and its data settings."""

    def build(task="segmentation", labels=None, **data):
        settings = {"name": "small", "task": task, "labels": labels or LABELS[task], "rounds": 1, "data": data}
        settings["algorithm"] = {"name": "fedavg"}
        if task != "segmentation":
            settings |= {"metric": "accuracy", "model": {"name": "densenet121"}, "training": {"loss": "cross_entropy"}}
        return parse(Study, settings, "study.yaml")

    return build


class SiteFolder:
    """A site's data folder that a test fills."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        self.rng = np.random.default_rng(0)
        self.content = {
            "task": "segmentation",
            "labels": {"1": "nucleus"},
            "training": [],
            "validation": [],
            "test": [],
        }

    def picture(self, name, array=None, size=(8, 8)):
        array = self.rng.integers(0, 256, size, dtype=np.uint8) if array is None else np.asarray(array)
        Image.fromarray(array).save(self.folder / name)
        return name

    def mask(self, name, array=None, size=(8, 8)):
        return self.picture(name, self.rng.integers(0, 2, size, dtype=np.uint8) if array is None else array)

    def add(self, part, name, size=(8, 8), **changes):
        """Write an image and its mask and add the record, with `changes` to it."""
        self.picture(f"{name}.png", size=size)
        self.mask(f"{name}-mask.png", size=size)
        record = {"image": f"{name}.png", "label": f"{name}-mask.png", "patient": name} | changes
        self.content[part].append(record)
        return record

    def write(self, **changes):
        """Write dataset.json with `changes` to its keys; return the folder."""
        text = json.dumps(self.content | changes)
        (self.folder / "dataset.json").write_text(text, encoding="utf-8")
        return self.folder


@pytest.fixture
def empty_site(tmp_path):
    return SiteFolder(tmp_path / "north")


@pytest.fixture
def site(empty_site):
    """A site with three training, one validation and two test pictures of 8 x 8."""
    for part, names in {"training": "abc", "validation": "d", "test": "ef"}.items():
        for name in names:
            empty_site.add(part, name)
    return empty_site


@pytest.fixture
def deny(monkeypatch):
    """Make every file of a name unreadable; permission bits do not bind root."""

    def refuse(name):
        opened = Path.open

        def guarded(path, *args, **kwargs):
            if path.name == name:
                raise PermissionError(13, "Permission denied")
            return opened(path, *args, **kwargs)

        monkeypatch.setattr(Path, "open", guarded)

    return refuse


def edit(path, change=lambda header: None, drop=(), **elements):
    """Change some elements of a DICOM file, or of every file in a folder, and take others away; returns the path."""
    for file in [path] if path.is_file() else [*path.iterdir()]:
        header = pydicom.dcmread(file)
        change(header)
        for name in drop:
            del header[name]
        header.update(elements)
        header.save_as(file)
    return path


def assert_refused(sentence, path, **options):
    """Check that an image is refused by a sentence that matches; returns all of it."""
    with pytest.raises(DataError, match=sentence) as caught:
        read_image(path, **options)
    return str(caught.value)
