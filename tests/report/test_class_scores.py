import pytest

from silofl.report.class_scores import averages_also, everyone_sentence, scores_beside


@pytest.fixture
def classes(results):
    """Build a classification's result; the site east has no AUROC."""

    def build(**changes):
        also = {
            "east": {"accuracy": 0.5, "balanced_accuracy": 0.25},
            "west": {"accuracy": 0.75, "balanced_accuracy": 0.75, "auroc": 0.875},
        }
        return results(**{"metric": "accuracy", "also": also, **changes})

    return build


def test_the_scores_beside_the_metric_are_those_of_each_site(classes):
    assert scores_beside(classes()) == {"balanced accuracy": [0.25, 0.75], "AUROC": [None, 0.875]}
    assert list(scores_beside(classes(metric="balanced_accuracy"))) == ["accuracy", "AUROC"]


def test_a_segmentation_has_no_scores_beside_its_metric(results):
    assert scores_beside(results()) == {} and averages_also(results(), ["east", "west"]) == {}


def test_averages_are_over_all_sites_and_that_of_the_auroc_over_those_that_have_one(classes):
    # (0.25 + 0.75) / 2
    assert averages_also(classes(), ["east", "west"]) == {"balanced_accuracy": 0.5, "auroc": 0.875}
    assert averages_also(classes(), ["east", "west", "north"]) == {"auroc": 0.875}


def test_the_test_data_of_all_sites_are_an_average_and_a_sentence(classes):
    run = classes(everyone={"accuracy": 0.5, "balanced_accuracy": 0.125, "num_cases": 40})
    assert averages_also(run, ["east", "west"])["everyone_balanced_accuracy"] == 0.125
    assert everyone_sentence(run) == (
        "on all sites' test data (40 cases): accuracy 0.500, balanced accuracy 0.125, mean over the sites' models"
    )
    assert everyone_sentence(classes()) == ""
