"""All numbers of results as one tidy table."""

from dataclasses import astuple, fields
from pathlib import Path

import pytest

from silofl.report.run_records import ResultRow, RunRecords, list_result_rows
from silofl.schema import dump_record

from .test_joining import joined


@pytest.fixture
def rows(results):
    """Return the rows of a result."""

    def build(unseen=None, **changes):
        return list_result_rows({"first": [RunRecords(Path("run"), results(**changes), [], {}, {}, unseen=unseen)]})

    return build


def values_of(rows, **wanted):
    """Return (site, model, metric, label, value) of the rows in which these columns have these values."""
    return [
        (row.site, row.model, row.metric, row.label, row.value)
        for row in rows
        if all(getattr(row, key) == value for key, value in wanted.items())
    ]


def test_a_row_says_what_its_value_is_of(rows):
    first = rows()[0]
    assert (first.method, first.run, first.algorithm, first.seed) == ("first", "small-1", "harmofl", 0)
    assert (first.site, first.model, first.part, first.metric, first.label) == ("east", "federated", "test", "dice", "")
    assert (first.value, first.cases) == (0.5, 1)


def test_each_site_has_its_test_by_label_and_its_validation(rows):
    found = rows(by_label={"east": {"organ": 0.75, "lesion": 0.25}, "west": {}})
    assert values_of(found, site="east", part="test") == [
        ("east", "federated", "dice", "", 0.5),
        ("east", "federated", "dice", "organ", 0.75),
        ("east", "federated", "dice", "lesion", 0.25),
    ]
    assert values_of(found, part="validation") == [
        ("east", "federated", "dice", "", 0.4),
        ("west", "federated", "dice", "", 0.6),
    ]


def test_a_choice_has_the_own_and_the_kept_model_and_what_joining_adds(rows):
    choice = joined(local=0.5, federated=0.625, kept=0.75)
    found = rows(joining={"east": dump_record(choice)}, sites={"east": 0.625}, cases={"east": 1})
    test = [row for row in found if row.part == "test"]
    assert values_of(test) == [
        ("east", "federated", "dice", "", 0.625),
        ("east", "alone", "dice", "", 0.5),
        ("east", "kept", "dice", "", 0.75),
        ("east", "kept", "gain", "", 0.25),
    ]
    # the interval is that of joined()
    assert (test[-1].low, test[-1].high, test[-1].verdict) == (0.01, 0.2, "gains")


def test_a_super_models_parts_surfaces_and_other_metrics_have_rows(super_results, classes):
    found = list_result_rows({"a": [RunRecords(Path("run"), super_results(), [], {}, {})]})
    assert ("east", "ensemble", "dice", "", 0.55) in values_of(found)
    of_classes = list_result_rows({"a": [RunRecords(Path("run"), classes(), [], {}, {})]})
    assert ("west", "federated", "auroc", "", 0.875) in values_of(of_classes)
    # the study's own metric has its row already
    assert len(values_of(of_classes, site="west", part="test", metric="accuracy")) == 1


def test_distances_name_their_unit(rows):
    surface = {"hd95": 12.5, "surface_dice": 0.5, "num_cases": 1, "num_undefined": 0, "unit": "mm"}
    found = rows(surface={"east": surface})
    assert ("east", "federated", "hd95_mm", "", 12.5) in values_of(found)
    assert ("east", "federated", "surface_dice", "", 0.5) in values_of(found)


def test_a_site_that_took_no_part_has_its_rows(rows, unseen_plain):
    found = rows(unseen=unseen_plain())
    assert values_of(found, part="unseen") == [
        ("coast", "federated", "dice", "", 0.6),
        ("coast", "global", "dice", "", 0.6),
    ]


def test_a_site_without_a_value_has_an_empty_one_and_a_failed_run_no_row(rows):
    assert ("west", "federated", "dice", "", None) in values_of(rows(sites={"east": 0.5, "west": None}))
    assert rows(status="FAILED", reasons=["no"]) == []


def test_the_columns_are_those_of_a_row(rows):
    assert [field.name for field in fields(ResultRow)][:4] == ["method", "run", "algorithm", "seed"]
    assert len(astuple(rows()[0])) == 14
