"""The files that a test score passes on its way from a site to the page, as `federation.results` lists them."""

import importlib
import re
import sys
from dataclasses import replace

import pytest

from silofl.federation import results as schema_of_results
from silofl.federation.outcome import finished_results
from silofl.report.page import render
from silofl.report.tables import site_table
from silofl.training.site_score import SiteScore
from silofl_desk.report.run_page import make_run_page
from silofl_desk.report.run_records import read_run
from silofl_desk.studies.comparison import comparison_table
from silofl_desk.studies.comparison_page import make_comparison_page

pytestmark = pytest.mark.usefixtures("undrawn")
OWN = "federation.results"


def noting(name, readers):
    """Return a dictionary's method that notes which module calls it."""

    def call(self, *arguments):
        note_reader(readers)
        return getattr(dict, name)(self, *arguments)

    return call


def note_reader(readers):
    readers.add(sys._getframe(2).f_globals["__name__"].removeprefix("silofl."))


def watch_score(readers):
    """Return a class of scores that note who reads their value."""

    class Watched(SiteScore):
        def __getattribute__(self, name):
            if name == "value":
                note_reader(readers)
            return super().__getattribute__(name)

    return Watched


def listed_files():
    """Return the modules that the docstring lists, in their order; this room's own file is one of them."""
    walk = schema_of_results.__doc__.partition("A test score")[2].partition("\n\n")[0].replace("this file", f"`{OWN}`")
    return re.findall(r"`([\w.]+)`", walk.partition("Files between")[0])


def test_a_test_score_passes_eight_files_to_its_cell(play, finished):
    files, readers = listed_files(), set()
    assert len(files) == 8
    for name in files:
        importlib.import_module(name if name.startswith("silofl_desk.") else f"silofl.{name}")
    game = play(rounds=1)
    game.rounds(1)
    tests = game.finish()
    watched = watch_score(readers)
    scores = {site: watched(**vars(score)) for site, score in tests.scores.items()}
    readers.clear()
    finished_results(game.server, replace(tests, scores=scores))
    assert readers == {"federation.outcome", "training.site_score"}
    run = read_run(finished())
    kinds = {name: noting(name, readers) for name in ("__getitem__", "get", "values", "items")}
    sites = type("Sites", (dict,), kinds)(run.results.sites)
    watched_run = replace(run, results=replace(run.results, sites=sites))
    readers.clear()
    table = site_table(watched_run.results)
    assert readers == {OWN, "report.tables"}
    assert readers | {"federation.outcome"} <= {*files}
    page = render(make_run_page(watched_run))
    assert readers == {OWN, "report.tables", "silofl_desk.report.sentences"}
    assert all(row[1] in page for row in table.rows)


def test_on_the_page_of_a_comparison_another_file_alone_takes_the_place_of_one(finished, tmp_path):
    readers, run = set(), read_run(finished())
    kinds = {name: noting(name, readers) for name in ("__getitem__", "get", "values", "items")}
    sites = type("Sites", (dict,), kinds)(run.results.sites)
    watched_run = replace(run, results=replace(run.results, sites=sites))
    table = comparison_table([watched_run.results])
    assert readers == {"silofl_desk.studies.comparison"}
    page = render(make_comparison_page({"first": [watched_run]}, tmp_path))
    assert "silofl_desk.studies.comparison_page" not in readers and "report.page" not in readers
    # the sites are the last columns
    assert all(cell in page for cell in table.rows[0][-len(sites) :])
