import pytest

from silofl.report.run_records import read_run
from silofl.studies.comparison import compare_drift
from silofl.studies.comparison_page import make_comparison_page


@pytest.fixture
def measured(run, results, record):
    """Make a run's folder by the drift of its rounds."""

    def make(name, *drifts, **changes):
        files = run(name).json("results.json", results(**changes)).json("run.json", {}).study()
        more = {"dissimilarity": 2.0, "distance": 4e-5}
        return files.ledger(*(record(i, drift=one, **more) for i, one in enumerate(drifts, start=1))).path

    return make


def test_a_row_has_the_mean_over_rounds_and_its_deviation_over_seeds(measured):
    rows = {"a": [read_run(measured("a0", 0.1, 0.3)), read_run(measured("a1", 0.4, 0.4))]}
    # means of the seeds .2 and .4: .3, deviation .141
    assert compare_drift(rows).rows == (("a", "0.3 ± 0.14", "2 ± 0", "4e-05 ± 0"),)


def test_a_row_that_measured_nothing_is_marked_and_none_at_all_makes_no_table(measured, run, results, record):
    plain = read_run(run("b").json("results.json", results()).study().ledger(record(1, drift=None)).path)
    (row, other) = compare_drift({"a": [read_run(measured("a", 0.1))], "b": [plain]}).rows
    assert row == ("a", "0.1", "2", "4e-05") and other == ("b", "-", "-", "-")
    assert compare_drift({"b": [plain]}) is None


def test_the_page_of_a_comparison_has_the_drift(measured, tmp_path):
    rows = {"a": [read_run(measured("a", 0.1))], "b": [read_run(measured("b", 0.2))]}
    (section,) = (one for one in make_comparison_page(rows, tmp_path).sections if one.place == "drift")
    assert [row[:2] for row in section.blocks[0].content.rows] == [("a", "0.1"), ("b", "0.2")]
