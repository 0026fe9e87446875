import io

import pytest
from rich.console import Console

from silofl.report.unseen_tables import print_unseen, threshold_table, unseen_table


def record(gamma, value, own, other):
    return {"threshold": gamma, "value": value, "num_counted": 4, "choices": {"global": other, "north": own}}


@pytest.fixture
def result():
    """The content of an unseen.json of four cases, with changes."""

    def build(**changes):
        found = {"site": "coast", "metric": "dice", "rule": "selector", "num_cases": 4, "answer": "choice"}
        found |= {"threshold_from": "tuned on validation data"} | record(0.9, 0.6, 1, 3)
        found["models"] = {"global": 0.55, "north": 0.5, "ensemble": 0.575}
        found["by_threshold"] = [record(0.0, 0.5, 4, 0), record(0.9, 0.6, 1, 3), record(1.0, 0.625, 0, 4)]
        found["best_in_hindsight"] = found["by_threshold"][2]
        return found | changes

    return build


def printed(result):
    stream = io.StringIO()
    print_unseen(result, Console(file=stream, width=60))
    return stream.getvalue()


def test_what_a_clinic_would_get_comes_first_and_hindsight_is_called_hindsight(result):
    table = unseen_table(result())
    assert table.columns == ("answer", "dice", "chosen: global", "chosen: north")
    assert table.rows == (
        ("super model, gamma 0.9 (tuned on validation data): what a clinic would get", "0.600", "3 (75%)", "1 (25%)"),
        ("super model, gamma 0 (always a site's model)", "0.500", "0 (0%)", "4 (100%)"),
        (
            "super model, gamma 1 (best in hindsight: chosen on the test data, shown and never used)",
            "0.625",
            "4 (100%)",
            "0 (0%)",
        ),
        ("global model alone", "0.550", "", ""),
        ("model of north alone", "0.500", "", ""),
        ("ensemble of all models", "0.575", "", ""),
    )


def test_every_candidate_of_gamma_has_its_row(result):
    assert threshold_table(result()).rows == (
        ("0", "0.500", "0 (0%)"),
        ("0.9", "0.600", "3 (75%)"),
        ("1", "0.625", "4 (100%)"),
    )


def test_a_selector_that_knows_the_global_model_has_no_gamma(result):
    found = result(threshold=None, by_threshold=[], best_in_hindsight=None)
    assert unseen_table(found).rows[0][0] == "super model, most probable model: what a clinic would get"
    assert "gamma" not in printed(found)


def test_an_ensemble_answers_as_an_ensemble(result):
    assert unseen_table(result(answer="ensemble")).rows[0][0] == "super model, ensemble: what a clinic would get"


def test_one_model_for_all_is_the_global_one(result):
    table = unseen_table(result(rule="only", models={"global": 0.6}, by_threshold=[]))
    assert table.rows == (("global model: what a clinic would get", "0.600"),)


def test_models_of_sites_answer_by_their_mean_and_it_is_said_where_they_come_from(result):
    found = result(rule="mean", models={"north": 0.5, "south": 0.25}, by_threshold=[])
    assert [row[0] for row in unseen_table(found).rows] == [
        "mean of all sites: what a clinic would get",
        "model of north alone",
        "model of south alone",
    ]
    text = printed(found | {"assembled_from": "the sites' own models"})
    assert "put together from the sites' own models: only a simulation can do this" in text


def test_a_printed_test_says_site_cases_and_metric_and_is_not_cropped(result):
    text = printed(result(num_counted=3))
    assert "unseen site coast: 4 cases (1 with empty truth and prediction excluded), none of them seen" in text
    assert "metric: dice" in text and "what a clinic would get" in text and "…" not in text
