import json

import pytest

from silofl.errors import ConfigError
from silofl.federation.ledger import Round, metrics_csv, read_ledger
from silofl.training.site_score import SiteScore


def test_metrics_are_one_row_a_round_site_and_part():
    record = Round(1, asked=["a"], answered=["a"], metrics={"a": {"loss": 0.5, "drift": 2.0}})
    record.validation = {"a": SiteScore(value=0.25, num_cases=2, num_excluded=0)}
    lines = metrics_csv([record], "dice", 1, {"a": 0.75}).splitlines()
    assert lines[0] == "round,site,part,metric,value"
    assert lines[1:] == [
        "1,a,training,loss,0.5",
        "1,a,training,drift,2.0",
        "1,a,validation,dice,0.25",
        "1,a,test,dice,0.75",
    ]


def test_the_ledger_is_read_as_it_was_written(tmp_path):
    assert read_ledger(tmp_path) is None
    record = Round(1, asked=["a"], answered=["a"], metrics={"a": {"loss": 0.5}}, withheld={"a": ["w"]})
    record.validation = {"a": SiteScore(value=0.25, num_cases=2, num_excluded=0, labels={"1": 0.25})}
    (tmp_path / "ledger.json").write_text(json.dumps([record.as_dict()]))
    (found,) = read_ledger(tmp_path)
    assert found == record and found.validation_mean == 0.25


def test_a_misspelt_key_of_the_ledger_is_named_with_the_nearest_one(tmp_path):
    (tmp_path / "ledger.json").write_text(json.dumps([Round(1).as_dict() | {"secnds": 1.0}]))
    with pytest.raises(ConfigError, match=r"ledger.json: secnds must .* mean 'seconds'\?\); read it with the version"):
        read_ledger(tmp_path)


def test_a_round_that_was_read_without_drift_has_a_loss_alone():
    lines = metrics_csv([Round(2, metrics={"a": {"loss": 0.5}})], "dice", 2, {}).splitlines()
    assert lines[1:] == ["2,a,training,loss,0.5"]
