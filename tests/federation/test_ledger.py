import json
from dataclasses import replace

import pytest

from silofl.base.schema import dump_record
from silofl.federation.ledger import (
    Round,
    compare_with_best,
    find_best_round,
    metrics_csv,
    read_ledger,
)
from silofl.training.site_score import SiteScore
from tests.conftest import mark_best


def test_metrics_are_one_row_a_round_site_and_part():
    record = Round(1, asked=["a"], answered=["a"], metrics={"a": {"loss": 0.5, "drift": 2.0}})
    record.validation = {"a": SiteScore(value=0.25, num_cases=2, num_excluded=0)}
    record.test = {"a": SiteScore(value=0.5, num_cases=3, num_excluded=0)}
    # Of the second round nobody measured the drift.
    records = [record, Round(2, metrics={"a": {"loss": 0.5}})]
    assert metrics_csv(records, "dice", {"a": 1}, {"a": 0.75}).splitlines() == [
        "round,site,part,metric,value",
        "1,a,training,loss,0.5",
        "1,a,training,drift,2.0",
        "1,a,validation,dice,0.25",
        "1,a,round_test,dice,0.5",
        "2,a,training,loss,0.5",
        "1,a,test,dice,0.75",
    ]


def write(folder, records):
    (folder / "ledger.json").write_text(json.dumps(dump_record(records)))


def test_the_ledger_is_read_as_it_was_written(tmp_path):
    assert read_ledger(tmp_path) is None
    record = Round(1, asked=["a"], answered=["a"], metrics={"a": {"loss": 0.5}})
    record.outliers, record.is_best = {"a": {"cosine": -0.5}}, True
    record.validation = {"a": SiteScore(value=0.25, num_cases=2, num_excluded=0, labels={"1": 0.25})}
    write(tmp_path, [record])
    (found,) = read_ledger(tmp_path)
    assert found == record and found.validation_mean == 0.25
    # A run from before the comparison goes on.
    before = {key: value for key, value in dump_record(record).items() if key != "outliers"}
    (tmp_path / "ledger.json").write_text(json.dumps([before]))
    assert read_ledger(tmp_path)[0].outliers is None


# --- the better of two rounds


def validated(number, **values):
    cases = {site: 0 if value is None else 2 for site, value in values.items()}
    scores = {site: SiteScore(value=value, num_cases=cases[site], num_excluded=0) for site, value in values.items()}
    return Round(number, answered=[*"abcde"], validation=scores)


@pytest.mark.parametrize(
    ("new", "best", "expected"),
    [
        # the same sites: 0.6 > 0.5; equal medians are level
        ({"a": 0.8, "b": 0.4}, {"a": 0.5, "b": 0.5}, 1),
        ({"a": 0.6, "b": 0.4}, {"a": 0.5, "b": 0.5}, 0),
        # b has gone: on a alone 0.6 > 0.5, although the mean of both was 0.7
        ({"a": 0.6}, {"a": 0.5, "b": 0.9}, 1),
        ({"a": 0.4}, {"a": 0.5, "b": 0.0}, -1),
        # b comes back, or c leaves: they have no say, neither for nor against
        ({"a": 0.6, "b": 0.0}, {"a": 0.5}, 1),
        ({"a": 0.4, "b": 1.0}, {"a": 0.5}, -1),
        # level on a alone: a round without b does not replace one that suits it
        ({"a": 0.5}, {"a": 0.5, "b": 0.9}, -1),
        ({"a": 0.5, "b": 0.0}, {"a": 0.5}, 0),
        # no site validated both: more sites
        ({"b": 0.1, "c": 0.1}, {"a": 0.9}, 1),
        ({"b": 0.9}, {"a": 0.1}, -1),
        # a site whose cases are all excluded has no value
        ({"a": None, "b": 0.4}, {"a": 0.9, "b": 0.3}, 1),
        ({"a": None}, {}, -1),
        ({}, None, -1),
        # d was never there before, half of the two: no earlier round is known to suit it; of three it is too few
        ({"a": 0.1, "d": 0.1}, {"a": 0.9}, 1),
        ({"a": 0.1, "b": 0.1, "d": 0.9}, {"a": 0.9, "b": 0.9}, -1),
        # of three the median decides: 0.1 higher, though the mean falls by 0.2; where it stays, how many have risen
        ({"a": 0.6, "b": 0.6, "c": 0.2}, {"a": 0.5, "b": 0.5, "c": 1.0}, 1),
        ({"a": 0.5, "b": 0.6, "c": 0.5}, {"a": 0.5, "b": 0.5, "c": 0.5}, 1),
        ({"a": 0.5, "b": 0.6, "c": 0.3}, {"a": 0.5, "b": 0.5, "c": 0.5}, 0),
    ],
)
def test_rounds_are_compared_on_the_sites_that_validated_both(new, best, expected):
    before = [validated(1, a=0.1, b=0.1, c=0.1)]
    if best is not None:
        before.append(replace(validated(2, **best), is_best=True))
    assert compare_with_best(validated(3, **new), before) == expected


def test_of_level_rounds_the_last_is_reported_whatever_lies_between():
    ledger = mark_best([validated(number, a=value) for number, value in enumerate((0.5, 1.0, 0.9, 1.0, 0.8), start=1)])
    assert [record.is_best for record in ledger] == [True, True, None, True, None]
    assert find_best_round(ledger) == 4


def test_keys_of_an_earlier_release_are_not_read(tmp_path):
    former = {"distance": 0.5, "late": ["a"], "refused": {"b": "NaN"}, "withheld": {}, "software": {}, "drift": None}
    (tmp_path / "ledger.json").write_text(json.dumps([dump_record(Round(1)) | former]))
    assert read_ledger(tmp_path) == [Round(1)]
