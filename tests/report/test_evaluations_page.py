from dataclasses import replace

import pytest

from silofl.core.heterogeneity import pool_estimates
from silofl.core.intervals import Estimate
from silofl.inference.evaluations import ALL, MISSING, Evaluations, HospitalEvaluation
from silofl_desk.report.evaluations_page import evaluations_section, hospital_tables, list_chance
from silofl_hospital.report.page import Text


def hospital(dice, distance, unit="patient"):
    scores = {ALL: {"dice": dice}, "organ": {"hd95": distance}}
    return HospitalEvaluation(
        num_cases=20, num_refused=1, unit=unit, num_units=10, distance_unit="mm", size_unit="ml", scores=scores
    )


@pytest.fixture
def found():
    sites = {
        "east": hospital(Estimate(0.8, (0.7, 0.9), 20), Estimate(3.25, (3.0, 4.0), 20)),
        "west": hospital(Estimate(0.5, (0.4, 0.6), 20), MISSING, "case"),
    }
    dice = pool_estimates({site: one.scores[ALL]["dice"] for site, one in sites.items()})
    return Evaluations("0123456789abcdef01", "organs", sites, {ALL: {"dice": dice}, "organ": {"hd95": None}})


def test_each_hospital_has_a_row_and_all_have_two(found):
    tables = hospital_tables(found)
    # Both deviate by 0.1 / 1.96: Q = 2 (0.15 * 1.96 / 0.1)^2 = 17.3, and I^2 = 16.3 / 17.3.
    *rows, pooled, spread = tables[ALL].rows
    assert rows == [
        ("east", "20", "10", "1", "0.800 (0.700 to 0.900)"),
        # whose patients nobody knows
        ("west", "20", "-", "1", "0.500 (0.400 to 0.600)"),
    ]
    assert pooled[-1].startswith("0.650 (") and spread == ("I^2, p", "", "", "", "94%, 3.2e-05")


def test_a_score_without_a_mean_has_a_dash(found):
    table = hospital_tables(found)["organ"]
    assert table.rows[0] == ("east", "3.2 (3.0 to 4.0) mm") and table.rows[1] == ("west", "-")
    assert [row[-1] for row in table.rows[2:]] == ["-", "-"]


def test_a_threshold_is_named(found):
    share = Estimate(0.9, (0.8, 1.0), 20)
    scores = {ALL: {"accuracy": share}, "large": {"recall": share, "specificity": share}}
    sites = {site: replace(one, scores=scores) for site, one in found.sites.items()}
    pooled = {group: dict.fromkeys(names) for group, names in scores.items()}
    model = {"temperature": 1.5, "decision_thresholds": {"large": 0.25}, "quality": "recall 0.9"}
    found = replace(found, sites=sites, pooled=pooled, **model)
    assert hospital_tables(found)["large"].columns[1:] == ("sensitivity", "specificity")
    texts = " ".join(block.text for block in evaluations_section(found).blocks if isinstance(block, Text))
    for text in ("calls large from a probability of 0.25 on", "temperature, 1.50", "models can do: recall 0.9"):
        assert text in texts


def test_a_result_that_may_be_a_guess_is_named(found):
    share, area = Estimate(0.6, (0.5, 0.7), 20), Estimate(0.55, (0.4, 0.7), 20)
    scores = {ALL: {"accuracy": share, "balanced_accuracy": share}, "large": {"auroc": area, "recall": share}}
    sites = {site: replace(one, scores=scores) for site, one in found.sites.items()}
    pooled = {
        group: {name: pool_estimates({site: one.scores[group][name] for site, one in sites.items()}) for name in names}
        for group, names in scores.items()
    }
    # Of both hospitals together: 0.55 with a margin of 0.15 / sqrt(2), and 0.6 with one of 0.07.
    (said,) = list_chance(replace(found, sites=sites, pooled=pooled))
    assert said.startswith("the model may recognise large no better than chance")
    assert list_chance(found) == []


def test_the_section_says_that_nothing_was_trained(found):
    texts = " ".join(block.text for block in evaluations_section(found).blocks if isinstance(block, Text))
    assert "tested on the own test cases of 2 hospitals; nothing was trained" in texts
    assert evaluations_section(None) is None


def test_hospitals_that_could_not_compare_their_images_are_named(found):
    def read(**is_checked):
        sites = {site: replace(found.sites[site], is_checked=one) for site, one in is_checked.items()}
        section = evaluations_section(replace(found, sites=sites))
        return " ".join(block.text for block in section.blocks if isinstance(block, Text))

    assert "the images that the model learnt from is at west: right for" in read(east=True, west=False)
    assert "No record" not in read(east=True, west=True)
