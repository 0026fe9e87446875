import pytest

from silofl.data.domain import Domain, Range
from silofl.errors import AggregationError
from silofl.federation.numbers import check_domain, check_score

SCORE = {
    "value": 0.75,
    "num_cases": 4,
    "num_excluded": 0,
    "labels": {"0": 1.0, "2": 0.5},
    "also": {"accuracy": 0.75, "auroc": 0.9},
    "label_cases": {"0": 2, "2": 2},
}


def checked(**changes):
    return check_score("east", "test", {"metrics": {"test": SCORE | changes}})


def test_a_score_passes_as_it_is():
    assert checked().as_dict() == SCORE
    assert checked(value=None).value is None
    assert check_score("east", "test", {"metrics": {"test": None}}) is None


def test_a_score_of_a_segmentation_needs_no_numbers_of_classes():
    segmentation = {key: value for key, value in SCORE.items() if key not in ("also", "label_cases")}
    assert check_score("east", "validation", {"metrics": {"validation": segmentation}}).as_dict() == segmentation


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"value": float("nan")}, "must send its test as a finite number with counts"),
        ({"also": {"auroc": float("nan")}}, "site 'east' must send its test as plain finite values"),
        ({"also": {"auroc": "0.9"}}, "site 'east' must send the also of its test as finite numbers by name"),
        ({"also": [0.9]}, r"the also of its test as finite numbers by name, not \[0.9\]"),
        ({"labels": {"0": None, "2": 0.5}}, "the labels of its test as finite numbers by name"),
        ({"label_cases": {"0": 2.5, "2": 2}}, "the label_cases of its test as counts by name, not .*2.5"),
        ({"label_cases": {"0": 0, "2": 2}}, "the label_cases of its test as counts by name"),
        ({"label_cases": {"0": True, "2": 2}}, "the label_cases of its test as counts by name"),
        ({"label_cases": {"0": 2}}, r"the label_cases of its test for \['0', '2'\], not \['0'\]"),
    ],
)
def test_a_malformed_score_is_refused_with_site_and_key(changes, message):
    with pytest.raises(AggregationError, match=message):
        checked(**changes)


def test_a_domain_is_read_and_an_answer_without_one_says_nothing():
    sent = {"kinds": ["volumes"], "intensities": [{"measure": "mean", "low": 0, "high": 0.5}]}
    assert check_domain("east", {"domain": sent}) == Domain(("volumes",), intensities=(Range("mean", 0, 0.5),))
    assert check_domain("east", {}) == Domain()


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ("volumes", "the domain of site 'east': the content must be keys and values"),
        ({"kinds": ["holograms"]}, "the domain of site 'east': kinds.0 must be pictures, volumes, windows"),
        ({"modalities": ["Doe^Jane"]}, "the domain of site 'east': modalities.0 must be"),
        ({"axes": ["/home/jane"]}, "the domain of site 'east': axes must be three letters as 'LPS', not '/home/jane'"),
        ({"path": "/home/jane"}, "the domain of site 'east': path must be a known key"),
        ({"intensities": [{"measure": "mean", "low": 0, "high": float("nan")}]}, "mean must have a finite range"),
        ({"intensities": [{"measure": "mean", "low": 1, "high": 0}]}, "mean must have a finite range, not 1 to 0"),
        ({"intensities": [{"measure": "mean", "low": float("-inf"), "high": 0}]}, "mean must have a finite range"),
    ],
)
def test_a_domain_that_is_none_is_refused_with_the_site(sent, message):
    with pytest.raises(AggregationError, match=message):
        check_domain("east", {"domain": sent})
