import json

import pytest
from PIL import Image

from silofl.base.errors import DataError
from silofl_desk.studies.plans.data_survey import SAMPLES, survey_sites

LABELS = {"1": "blob"}


@pytest.fixture
def write_site(tmp_path):
    """Write a site with four training pictures of a size and mode; changes go into its dataset.json."""

    def write(name="north", size=(8, 6), mode="L", **changes):
        folder = tmp_path / "data" / name
        folder.mkdir(parents=True)
        records = []
        for number in range(4):
            Image.new(mode, size).save(folder / f"{number}.png")
            Image.new("L", size).save(folder / f"{number}_label.png")
            records.append({"image": f"{number}.png", "label": f"{number}_label.png", "patient": f"p{number}"})
        content = {"task": "segmentation", "labels": LABELS, "training": records, "test": records[:1]} | changes
        (folder / "dataset.json").write_text(json.dumps(content))
        return folder.parent

    return write


def test_sites_are_surveyed_by_their_dataset_json_and_their_first_images(write_site):
    write_site("south")
    found = survey_sites(write_site("north", size=(12, 10)))
    assert found.sites == ("north", "south")
    assert (found.task, found.labels, found.split_unit) == ("segmentation", {1: "blob"}, "patient")
    assert len(found.samples) == 2 * SAMPLES
    # PIL gives width and height, an array rows and columns
    assert [sample.image.spatial_shape for sample in found.samples] == [(10, 12)] * 3 + [(6, 8)] * 3
    assert (found.kind, found.channels, found.has_bytes) == ("pictures", 1, True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": {"1": "spot"}}, "sites 'north' and 'south' differ in labels: {1: 'blob'} and {1: 'spot'}"),
        ({"split_unit": "slices"}, "sites 'north' and 'south' differ in split_unit: 'patient' and 'slices'"),
        ({"task": "detection"}, "site 'south': task of dataset.json must be segmentation or classification"),
        ({"task": {"segmentation": True}}, "site 'south': task of dataset.json must be segmentation or"),
        ({"labels": ["blob"]}, "site 'south': labels of dataset.json must be numbers and names, as"),
        ({"training": []}, "site 'south': training of dataset.json must be a list of at least one case"),
        ({"trainin": []}, "has the unknown key 'trainin'"),
        ({"channel_names": ["t1"]}, "site 'south' writes the contrast 't1', and another site 'T1'"),
    ],
)
def test_a_site_that_does_not_go_with_the_others_is_named(write_site, changes, message):
    write_site("north", **({"channel_names": ["T1"]} if "channel_names" in changes else {}))
    with pytest.raises(DataError, match=message):
        survey_sites(write_site("south", **changes))


@pytest.mark.parametrize("units", [("unknown", "patient"), ("patient", "unknown")])
def test_a_study_of_which_one_site_does_not_know_its_patients_is_unknown_where_the_others_agree(write_site, units):
    for name, unit in zip(("east", "north"), units, strict=True):
        data = write_site(name, split_unit=unit)
    assert survey_sites(data).split_unit == "unknown"
    write_site("south", split_unit="slices")
    with pytest.raises(DataError, match="sites '.*' and 'south' differ in split_unit"):
        survey_sites(data)
