import pytest

from silofl.training.site_score import SiteScore
from silofl_desk.report.rounds import ROUND_TEST, VALIDATION
from silofl_desk.report.run_records import read_run
from silofl_desk.studies.comparisons.comparison_figures import (
    best_so_far,
    comparison_images,
    curves_image,
    find_shared_case,
)
from silofl_hospital.report.canvas import PAGE


def test_the_case_that_most_runs_hold_is_shown(pictures):
    shown = {"1": pictures(("a", "b")), "2": pictures(("b", "c")), "3": pictures(("b", "c"))}
    assert find_shared_case(shown) == ("b", ["1", "2", "3"]) and find_shared_case({}) is None
    # A case of another name, truth or size is another case.
    for other in ({"cases": ("x", "y")}, {"labels": (2,)}, {"size": 32}):
        assert find_shared_case({"1": pictures(("a", "b")), "2": pictures(**{"cases": ("a", "b")} | other)}) is None


@pytest.mark.usefixtures("undrawn")
def test_the_same_case_of_the_runs_that_hold_it_is_drawn(finished, pictures):
    runs = [read_run(finished("a")), read_run(finished("b")), read_run(finished("c", pictures(("x",))))]
    image = comparison_images(runs)[0]
    assert image.caption == "east: a"
    # a is the first of two cases, whose values are 0.2 and 0.8
    assert image.alt == (
        "Site east, case a: truth and predictions of the runs, with their dice: 1: harmofl 0.200, 2: harmofl 0.200."
    )
    # The truth and each run.
    assert image.plot.draw(PAGE).axes[0].get_gridspec().ncols == 3


def scores(*values):
    """Return the test of a round at east and west."""
    return {
        site: SiteScore(value=value, num_cases=3, num_excluded=0)
        for site, value in zip(("east", "west"), values, strict=False)
    }


@pytest.fixture
def read(run, results, record):
    """Return the records of a run of two rounds, each with some test or none."""

    def make(name, *tests):
        files = run(name).json("results.json", results()).json("run.json", {})
        return read_run(files.ledger(*(record(i, test=one) for i, one in enumerate(tests, start=1))).path)

    return make


@pytest.mark.usefixtures("undrawn")
def test_tests_of_every_round_are_drawn_of_the_runs_that_have_them_and_chose_nothing(read):
    both = [read("with", scores(0.5, 0.6), scores(0.7, 0.8)), read("without", None, None)]
    image = curves_image(ROUND_TEST, both)
    assert best_so_far([None, 0.5, 0.25, None, 0.75]) == [None, 0.5, 0.5, 0.5, 0.75]
    # (0.5 + 0.6) / 2 and (0.7 + 0.8) / 2
    assert image.alt == (
        "Test by round. Mean over sites after round 2: 1: harmofl 0.75. east after round 2: 1: harmofl 0.7. "
        "west after round 2: 1: harmofl 0.8."
    )
    assert "These scores chose neither" in image.caption
    assert curves_image(ROUND_TEST, both[1:]) is None
    assert "1: harmofl 0.5, 2: harmofl 0.5" in curves_image(VALIDATION, both).alt
