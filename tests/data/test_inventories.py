"""Whether hospitals look different: by colour casts, halves of one hospital, phantoms and real sets."""

import json

import numpy as np
import pytest
from PIL import Image

from silofl.data.inventories import describe_inventories, describe_looks, find_differences
from silofl.data.inventory import Inventory, Look, take_inventory
from silofl_desk.phantoms import stains
from silofl_desk.phantoms.phantoms import make_phantoms
from silofl_desk.phantoms.stains import make_stains
from tests.recipes.run_recipes import run_recipe

CASTS = {"orange": (1.0, 0.65, 0.3), "grey": (0.7, 0.7, 0.7), "pink": (1.0, 0.6, 0.75)}
ADVICE = "begin with GroupNorm, compare FedBN"


def write_hospital(folder, cast, seed, patients=12):
    """Write tissue in the colour of a laboratory: brightness and texture differ from patient to patient."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    records = []
    for number in range(patients):
        texture = rng.uniform(0.3, 0.8) + 0.1 * rng.standard_normal((16, 16, 1))
        pixels = 255 * np.clip(texture * np.array(cast) * rng.normal(1, 0.03, 3), 0, 1)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
        Image.fromarray(np.ones((16, 16), np.uint8)).save(folder / f"m{number}.png")
        records.append({"image": f"{number}.png", "label": f"m{number}.png", "patient": f"p{number}"})
    write_records(folder, records)
    return records


def write_records(folder, records):
    content = {"task": "segmentation", "labels": {"1": "tissue"}, "training": records}
    (folder / "dataset.json").write_text(json.dumps(content))


def surveyed(folders):
    return {folder.name: take_inventory(folder, 0, has_progress=False) for folder in folders}


def measure_distances(inventories):
    return find_differences({site: one.looks for site, one in inventories.items()})


def inventory(look, patients=10, deviation=1.0, **changes):
    """Return the inventory of a site of which one look is known."""
    values = {"task": "segmentation", "kind": "volumes", "unit": "patients", "patients": patients, "cases": patients}
    values |= {"labels": {"organ": patients}, "contrasts": {}, "shape": (8.0, 8.0, 8.0), "vendors": {}, "least": 0}
    looks = {"": {"brightness": Look(patients=patients, mean=look, deviation=deviation)}}
    return Inventory(**(values | {"looks": looks} | changes))


def test_orange_grey_and_pink_hospitals_look_different_in_colour(tmp_path):
    for seed, (name, cast) in enumerate(CASTS.items()):
        write_hospital(tmp_path / name, cast, seed)
    *_, sentence = describe_inventories(surveyed(sorted(tmp_path.iterdir())))
    assert sentence.startswith(f"The hospitals look different in colour: {ADVICE} (")
    colours = ("red", "green", "blue")
    pairs = {
        one.sites
        for one in measure_distances(surveyed(sorted(tmp_path.iterdir())))
        if one.is_different and one.measure in colours
    }
    assert pairs == {("grey", "orange"), ("grey", "pink"), ("orange", "pink")}


def test_halves_of_one_hospital_look_alike_however_they_are_cut(tmp_path):
    records, measured = write_hospital(tmp_path / "whole", CASTS["pink"], 3, patients=20), []
    for record in records:
        write_records(tmp_path / "whole", [record])
        looks = take_inventory(tmp_path / "whole", 0, has_progress=False).looks[""]
        measured.append({name: look.mean for name, look in looks.items()})
    rng, answers = np.random.default_rng(0), []

    def half(rows):
        values = {name: [measured[row][name] for row in rows] for name in measured[0]}
        looks = {name: Look(patients=10, mean=np.mean(v), deviation=np.std(v, ddof=1)) for name, v in values.items()}
        return inventory(0.0, kind="pictures", looks={"": looks})

    for _ in range(400):
        order = rng.permutation(len(records))
        distances = measure_distances({"one": half(order[:10]), "other": half(order[10:])})
        answers.append(any(one.is_different for one in distances))
    # At a level of 1 %: 4 of 400 to be expected, and hardly more than 10.
    assert answers[:40].count(True) == 0 and answers.count(True) <= 10


def test_a_distance_is_in_deviations_between_patients_and_beyond_chance():
    # 1.5 - 0 over a deviation of 1; t = 1.5 * sqrt(10 * 10 / 20) = 3.4 with 18 degrees of freedom, p = 0.004
    (one,) = measure_distances({"a": inventory(0.0), "b": inventory(1.5)})
    assert one.deviations == pytest.approx(1.5) and one.is_different
    # t = 1.5 * sqrt(5 * 5 / 10) = 2.4, p = 0.05
    (few,) = measure_distances({"a": inventory(0.0, patients=5), "b": inventory(1.5, patients=5)})
    assert few.deviations == pytest.approx(1.5) and not few.is_different
    # Certain, with so many patients, but small.
    (small,) = measure_distances({"a": inventory(0.0, patients=10**4), "b": inventory(0.5, patients=10**4)})
    assert not small.is_different


def test_a_class_is_compared_with_itself_alone():
    def site(healthy, sick):
        shares = {"healthy": (healthy, 0.0), "sick": (sick, 8.0)}
        looks = {name: {"brightness": Look(patients=n, mean=m, deviation=1.0)} for name, (n, m) in shares.items()}
        return inventory(0.0, looks=looks)

    # Nine of ten are dark at one, and nine of ten bright at the other: only the shares of the classes differ.
    (one,) = measure_distances({"a": site(90, 10), "b": site(10, 90)})
    assert one.deviations == 0 and not one.is_different


def test_of_too_few_patients_nothing_is_said():
    (sentence,) = describe_looks({"a": inventory(0.0), "b": inventory(9.0, patients=4)})
    assert sentence == "b: too few patients to compare looks; 5 are needed."
    unknown = {name: inventory(mean, patients=12, unit="cases") for name, mean in (("a", 0.0), ("b", 9.0))}
    assert "by 9.0 deviations between cases of one hospital;" in describe_looks(unknown)[0]


def test_what_all_can_supply_what_some_lack_and_what_is_withheld_are_three_things():
    sites = {
        "a": inventory(0.0, labels={"organ": 10, "lesion": 8, "cyst": 6}),
        "b": inventory(0.0, labels={"organ": 9, "lesion": None, "cyst": 0}, least=5),
        "c": inventory(0.0, labels={"organ": 7}),
    }
    assert describe_inventories(sites)[:4] == [
        "All can supply: organ.",
        "b withholds lesion: fewer than 5 patients, or such a number could be computed from it.",
        "b has no patient with cyst.",
        "c has no patient with lesion, cyst.",
    ]
    sites["d"] = inventory(0.0, task="classification")
    assert describe_inventories(sites) == [
        "The hospitals have data for different tasks: a has segmentation of volumes, b has segmentation of volumes, "
        "c has segmentation of volumes, d has classification of volumes. Make one study for each."
    ]


def test_phantoms_of_other_scanners_and_stains_look_different(tmp_path, monkeypatch):
    monkeypatch.setattr(stains, "PATIENTS", {"training": 6, "validation": 2, "test": 2})
    scans = make_phantoms(tmp_path / "scans", patients={"north": 6, "south": 6})
    sentence = describe_inventories(surveyed([scans / "north", scans / "south"]))[-1]
    assert sentence.startswith(f"The hospitals look different in brightness: {ADVICE}")
    drawn = make_stains(tmp_path / "stains")
    assert "look different in colour" in describe_inventories(surveyed([drawn / "north", drawn / "east"]))[-1]


@pytest.mark.slow
def test_real_nuclei_look_different_and_halves_of_real_classes_do_not(tmp_path, real_data):
    run_recipe("nuclei_dsb2018", real_data("nuclei_dsb2018"), tmp_path / "nuclei")
    found = surveyed([tmp_path / "nuclei" / name for name in ("histo_purple", "histo_white", "fluo_512x640")])
    assert "look different in colour and brightness" in describe_looks(found)[0]
    chests = real_data("pneumoniamnist_balanced") / "pneumoniamnist_balanced.npz"
    dealt = ["--partition", "dirichlet", "--sites", "3", "--alpha", "0.5"]
    run_recipe("medmnist", chests, tmp_path / "chests", *dealt)
    assert "look alike" in describe_looks(surveyed(sorted((tmp_path / "chests").glob("site-*"))))[0]
