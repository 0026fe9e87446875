"""What all hospitals can supply, what some lack, and what they withhold."""

from silofl.data.inventories import describe_inventories
from silofl.data.inventory import Inventory


def inventory(**changes):
    values = {"task": "segmentation", "kind": "volumes", "unit": "patients", "patients": 10, "cases": 10}
    values |= {"labels": {"organ": 10}, "contrasts": {}, "shape": (8.0, 8.0, 8.0), "least": 0}
    return Inventory(**(values | changes))


def test_supplied_lacking_and_withheld_labels_are_told_apart():
    sites = {
        "a": inventory(labels={"organ": 10, "lesion": 8, "cyst": 6}),
        "b": inventory(labels={"organ": 9, "lesion": None, "cyst": 0}, least=5),
        "c": inventory(labels={"organ": 7}),
    }
    assert describe_inventories(sites) == [
        "All can supply: organ.",
        "b withholds lesion: fewer than 5 patients, or such a number could be computed from it.",
        "b has no patient with cyst.",
        "c has no patient with lesion, cyst.",
    ]
    sites["d"] = inventory(task="classification")
    assert describe_inventories(sites) == [
        "The hospitals have data for different tasks: a has segmentation of volumes, b has segmentation of volumes, "
        "c has segmentation of volumes, d has classification of volumes. Make one study for each."
    ]
