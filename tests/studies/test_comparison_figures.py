import pytest

from silofl.report.canvas import PAGE, PHONE
from silofl.training.site_score import SiteScore
from silofl_desk.report.rounds import ROUND_TEST, VALIDATION, mean_over_sites
from silofl_desk.report.run_records import read_run
from silofl_desk.studies.comparison_figures import (
    best_so_far,
    comparison_images,
    curves_image,
    draw_panes,
    find_shared_case,
    mean_over_cases,
    run_curves,
)
from tests.report.conftest import LABELS


@pytest.mark.parametrize(
    ("number", "width", "grid"),
    # Six in a row; two in a row on a phone.
    [(3, PAGE, (1, 3)), (4, PAGE, (1, 4)), (8, PAGE, (2, 6)), (4, PHONE, (2, 2))],
)
def test_panes_lie_in_as_many_rows_as_the_width_asks_for(pictures, number, width, grid):
    shown = pictures(("b", "a"), labels=(1, 2))
    panes = [("title", "name", shown.images[0], shown.truths[0])] * number
    found = draw_panes(panes, LABELS, width).axes[0].get_gridspec()
    assert (found.nrows, found.ncols) == grid


def test_the_case_that_most_runs_hold_is_shown(pictures):
    shown = {"1": pictures(("a", "b")), "2": pictures(("b", "c")), "3": pictures(("b", "c"))}
    assert find_shared_case(shown) == ("b", ["1", "2", "3"]) and find_shared_case({}) is None
    # A case of another name, truth or size is another case.
    for other in ({"cases": ("x", "y")}, {"labels": (2,)}, {"size": 32}):
        assert find_shared_case({"1": pictures(("a", "b")), "2": pictures(**{"cases": ("a", "b")} | other)}) is None


@pytest.mark.usefixtures("undrawn")
def test_a_comparison_names_the_runs_without_the_case(finished, pictures):
    runs = [read_run(finished("a")), read_run(finished("b")), read_run(finished("c", pictures(("x",))))]
    image = comparison_images(runs)[0]
    assert image.caption == "east: a (no picture of it: 3: harmofl)"
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


def test_a_mean_is_over_sites_or_over_their_cases_and_the_best_so_far_never_falls():
    assert best_so_far([None, 0.5, 0.25, None, 0.75]) == [None, 0.5, 0.5, 0.5, 0.75]
    found = {
        "east": SiteScore(value=0.5, num_cases=1, num_excluded=0),
        "new": SiteScore(value=None, num_cases=0, num_excluded=2),
        "west": SiteScore(value=0.75, num_cases=4, num_excluded=0),
    }
    # (0.5 + 0.75) / 2, and (1 * 0.5 + 4 * 0.75) / 5
    assert (mean_over_sites(found), mean_over_cases(found)) == (0.625, 0.7)
    assert mean_over_sites({}) is None and mean_over_cases({"new": found["new"]}) is None


@pytest.mark.usefixtures("undrawn")
def test_tests_of_every_round_are_drawn_of_the_runs_that_have_them_and_chose_nothing(read):
    both = [read("with", scores(0.5, 0.6), scores(0.7, 0.8)), read("without", None, None)]
    image = curves_image(ROUND_TEST, both)
    # (0.5 + 0.6) / 2 and (0.7 + 0.8) / 2
    assert image.alt == (
        "Test by round. Mean over sites after round 2: 1: harmofl 0.75. east after round 2: 1: harmofl 0.7. "
        "west after round 2: 1: harmofl 0.8."
    )
    assert "These scores chose neither" in image.caption
    assert curves_image(ROUND_TEST, both[1:]) is None
    assert "1: harmofl 0.5, 2: harmofl 0.5" in curves_image(VALIDATION, both).alt


def test_another_test_is_another_picture_and_leaves_that_of_the_validation_as_it_is(read, run):
    one, other = (
        [read(name, scores(0.5, 0.6), scores(*last))] for name, last in (("a", (0.7, 0.8)), ("b", (0.1, 0.8)))
    )
    assert run_curves(ROUND_TEST, one).panels != run_curves(ROUND_TEST, other).panels
    assert run_curves(VALIDATION, one).panels == run_curves(VALIDATION, other).panels
    # Before the first round there is nothing to draw.
    records = read_run(run("c").json("run.json", {}).path)
    assert curves_image(VALIDATION, [records]) is None and curves_image(ROUND_TEST, [records]) is None


@pytest.fixture
def pooled_run(run, results, record):
    """Return the records of a run of two rounds on pooled data, whose validations are given."""

    def make(*values, seed=0):
        files = run(f"pooled{seed}").json("results.json", results(seed=seed)).json("run.json", {})
        ledger = []
        for number, value in enumerate(values, start=1):
            score = {"pooled": SiteScore(value=value, num_cases=5, num_excluded=0)}
            ledger.append(record(number, asked=["pooled"], validation=(None, None), test=score))
            ledger[-1].validation = score
        return read_run(files.ledger(*ledger).path)

    return make


@pytest.mark.usefixtures("undrawn")
def test_a_centralised_run_stands_beside_the_others_where_all_cases_count_alike(read, pooled_run):
    runs = [read("a", scores(0.5, 0.6), scores(0.7, 0.8))]
    pooled = pooled_run(0.75, 0.5)
    image = curves_image(VALIDATION, runs, [pooled])
    drawn = {panel.title: panel.lines for panel in image.plot.panels}
    by_site, by_case = ["Mean over sites", "Best so far over sites"], ["Mean over cases", "Best so far over cases"]
    assert [*drawn] == [*by_site, *by_case, "east", "west"]
    assert [drawn[title]["centralised"] for title in by_case] == [[0.75, 0.5], [0.75, 0.75]]
    assert not any("centralised" in drawn[title] for title in [*by_site, "east", "west"])
    # one case of 0.4 at east and of 0.6 at west
    assert drawn["Mean over cases"]["1: harmofl"] == [0.5, 0.5]
    assert "Mean over cases after round 2: 1: harmofl 0.5, centralised 0.5." in image.alt
    assert "has no sites: it is shown only where all cases have the same weight" in image.caption
    # The best test so far would be a choice.
    tested = run_curves(ROUND_TEST, runs, [pooled, pooled_run(0.5, 1.0, seed=1)])
    lines = {panel.title: panel.lines for panel in tested.panels}
    assert [*lines] == ["Mean over sites", "Mean over cases", "east", "west"]
    assert lines["Mean over cases"]["centralised seed 1"] == [0.5, 1.0]
    alone = curves_image(VALIDATION, runs)
    assert "centralised" not in alone.alt + alone.caption
