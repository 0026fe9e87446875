from collections import Counter

import numpy as np
import pytest
from dealing_options import Dealing
from examples import ClassificationSet, Stacked, plan_examples

from silofl.base.errors import ConfigError, DataError

NUM = 240
ALL = {"test": 0.5, "validation": 0.0}


def examples(**changes):
    """Four people with six recordings of ten windows each, a class a recording in turn; two people a ward."""
    numbers = np.arange(NUM)
    values = {
        "labels": {0: "sit", 1: "walk"},
        "targets": numbers // 10 % 2,
        "cases": [f"w{n}" for n in numbers],
        "content": Stacked("windows", np.zeros((NUM, 3, 4), np.float32) + numbers[:, None, None]),
        "patients": [f"p{n // 60}" for n in numbers],
        "recordings": [str(n % 60 // 10) for n in numbers],
        "sites": [("east", "west")[n // 120] for n in numbers],
    }
    return ClassificationSet(**values | changes)


def records_of(plan):
    return [(part, record) for part, records in plan.records.items() for record in records]


def parts_by(plan, key):
    found = {}
    for part, record in records_of(plan):
        found.setdefault(tuple(record[name] for name in key), set()).add(part)
    return found


@pytest.mark.parametrize(
    ("partition", "options", "num_sites"),
    [
        ("own", {}, 2),
        ("dirichlet", {"sites": 5, "alpha": 0.1}, 5),
        ("shards", {"sites": 6, "shards": 2}, 6),
    ],
)
def test_every_example_is_at_one_site_in_one_part(partition, options, num_sites):
    plans = plan_examples(examples(), Dealing(partition=partition, **options, **ALL))
    cases = [record["case"] for plan in plans.values() for _, record in records_of(plan)]
    assert len(plans) == num_sites and sorted(cases) == sorted(f"w{n}" for n in range(NUM))
    assert all(plan.records["training"] and plan.records["test"] for plan in plans.values())


def test_a_record_leads_to_its_own_values(tmp_path):
    plans = plan_examples(examples(), Dealing(partition="shards", sites=3, shards=2, **ALL))
    for plan in plans.values():
        plan.files["windows.npz"](tmp_path / "windows.npz")
        stored = np.load(tmp_path / "windows.npz")["windows"]
        for _, record in records_of(plan):
            number = int(record["case"][1:])
            assert stored[record["index"]].tolist() == np.full((3, 4), number).tolist()
            assert (record["label"], record["patient"]) == (number // 10 % 2, f"p{number // 60}")


def test_sites_of_whole_recordings_keep_these_apart_and_say_so():
    plans, seen = plan_examples(examples(), Dealing(partition="own", **ALL)), Counter()
    for plan in plans.values():
        parts_of = parts_by(plan, ("patient", "recording"))
        assert plan.split_unit == "recordings" and all(len(parts) == 1 for parts in parts_of.values())
        seen.update(parts_of.keys())
    # Each of 4 x 6 is at one site.
    assert set(seen.values()) == {1} and len(seen) == 24
    patients = {site: {record["patient"] for _, record in records_of(plan)} for site, plan in plans.items()}
    assert patients == {"east": {"p0", "p1"}, "west": {"p2", "p3"}}


@pytest.mark.parametrize("options", [{"partition": "dirichlet", "alpha": 0.3}, {"partition": "shards", "shards": 2}])
def test_windows_dealt_one_by_one_share_recordings(options):
    plans = plan_examples(examples(), Dealing(sites=2, **options, **ALL))
    assert {plan.split_unit for plan in plans.values()} == {"examples"}
    assert any(len(parts) == 2 for plan in plans.values() for parts in parts_by(plan, ("recording",)).values())


def test_without_patients_each_example_is_dealt():
    bare = examples(recordings=None, patients=None, sites=None)
    plans = plan_examples(bare, Dealing(partition="dirichlet", sites=4, alpha=0.1, **ALL))
    for plan in plans.values():
        assert plan.split_unit == "unknown"
        assert all("patient" not in record for _, record in records_of(plan))
        assert abs(len(plan.records["training"]) - len(plan.records["test"])) <= 1


OF_ALL = "partition must be one of {} for this set, not"


@pytest.mark.parametrize(
    ("changes", "options", "sentence"),
    [
        ({"sites": None}, {"partition": "own"}, OF_ALL.format("dirichlet, shards") + " 'own'"),
        # A patient's examples would come to several sites.
        ({"recordings": None}, {"partition": "shards"}, OF_ALL.format("own") + " 'shards'"),
        # test 0.15 of 6 recordings of a class: floor(0.9) = 0
        ({}, {"partition": "own", "test": 0.15}, "'east' must have enough recordings .* not 12 .* at test 0.15"),
    ],
)
def test_a_partition_that_the_set_does_not_allow_is_refused(changes, options, sentence):
    with pytest.raises((ConfigError, DataError), match=sentence):
        plan_examples(examples(**changes), Dealing(**ALL | options))
