import pytest

from silofl.base.errors import ConfigError
from silofl_hospital.importing.importers import LAYOUTS
from silofl_hospital.importing.options import ImportOptions


@pytest.mark.parametrize(
    ("layout", "given", "name"),
    [
        ("table", {"label_values": (1, 4), "labels": ("a", "b")}, "values in labels"),
        ("table", {"image_pattern": "{case}.png"}, "image-pattern"),
        ("table", {"mask_pattern": "{case}.png"}, "mask-pattern"),
        ("dicom", {"arrangement": "bids"}, "layout"),
    ],
)
def test_an_option_that_the_layout_does_not_use_is_refused(layout, given, name):
    with pytest.raises(ConfigError, match=f"Layout '{layout}' does not use {name}"):
        LAYOUTS[layout].check(layout, ImportOptions(**given))


@pytest.mark.parametrize(
    ("labels", "values", "sentence"),
    [
        (("a", "b", "a"), None, "Two of the labels a, b, a have one name"),
        (("a", "b"), (0, 1), "labels must have different values from 1 on, not 0, 1; correct them"),
        (("a", "b"), (4, 4), "labels must have different values from 1 on, not 4, 4"),
    ],
)
def test_labels_and_their_values_differ(labels, values, sentence):
    with pytest.raises(ConfigError, match=sentence):
        ImportOptions(labels=labels, label_values=values)
