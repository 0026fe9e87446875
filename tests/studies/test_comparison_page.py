import re

import pytest

from silofl.base.errors import ConfigError
from silofl.base.schema import dump_record
from silofl.cli import main
from silofl_desk.report.run_page import write_report
from silofl_desk.report.run_records import read_run
from silofl_desk.studies.comparison_page import Summary, make_comparison_page, write_comparison, write_rows
from silofl_desk.studies.conditions import results_by_row, rows_by_name
from silofl_desk.studies.method_table import methods_notes, methods_table, runs_table
from tests.report.conftest import PageText, joined, rows_of

pytestmark = pytest.mark.usefixtures("undrawn")


def test_the_page_of_a_comparison_has_the_drift_and_a_table_of_many_sites(measured, finished, tmp_path):
    rows = {"a": [read_run(measured("a", 0.1))], "b": [read_run(measured("b", 0.2))]}
    (section,) = (one for one in make_comparison_page(rows, tmp_path).sections if one.place == "drift")
    assert [row[:2] for row in section.blocks[0].content.rows] == [("a", "0.1"), ("b", "0.2")]
    runs = [finished(name, sites={f"s{i}": 0.5 for i in range(9)}) for name in ("c", "d")]
    text = PageText(write_comparison(runs, tmp_path / "c.html")).text
    assert "s8 0.500 0.500" in text and "A run with a selector" not in text


def test_a_comparison_shows_table_curves_and_the_same_case_with_its_files_beside_it(finished, tmp_path):
    runs = [finished("a", mean=0.6), finished("b", algorithm="fedavg", mean=0.7)]
    path = write_comparison(runs, tmp_path / "deep" / "two.html")
    page, beside = PageText(path), path.parent / "two_figures"
    # curves, one case a site
    assert page.open == [] and len(page.images) == 3
    assert "no best value is marked" in page.text and 'class="number strong' not in page.source
    assert "mean, spread, pooled: mean and standard deviation over a run's sites; mean over all" in page.text
    assert all(str(run) in page.text for run in runs)
    assert (beside / "validation.csv").is_file() and (path.parent / "two_results.csv").is_file()
    assert rows_of(beside / "same_case_east.csv")[1] == ["1: harmofl", "a", "0.2"]
    assert "two_figures" in page.source and "two_results.csv" in page.source


def test_a_comparison_leads_with_the_hospitals_and_their_conclusion(finished, tmp_path):
    choice = dump_record(joined(local=0.5, federated=0.625, kept=0.75))
    runs = [finished(name, joining={"east": choice}) for name in ("a", "b")]
    page = PageText(write_comparison(runs, tmp_path / "c.html"))
    assert page.images[0]["alt"].startswith("Test dice, mean over the hospitals: 1: harmofl alone 0.500")
    order = [page.source.index(f'<section id="{name}"') for name in ("hospitals", "pictures", "results", "curves")]
    assert order == sorted(order) and page.source.index("<img") < page.source.index('class="lead"')
    assert (
        "In 2 of 2 pairs of hospital and method, the model that the hospital keeps is better for its test patients"
        in page.text
    )


def test_all_links_of_the_navigation_lead_somewhere_and_settings_are_folded(finished, finished_super, tmp_path):
    runs = [finished("a"), finished_super("b")]
    pages = [PageText(path) for path in (*map(write_report, runs), write_comparison(runs, tmp_path / "c.html"))]
    for page in pages:
        places = {address[1:] for address in page.addresses if address.startswith("#")}
        assert places and all(f'id="{place}"' in page.source for place in places)
        assert "<details>" in page.source and "<details open" not in page.source
        # In print they are open.
        assert "details::details-content { content-visibility: visible" in page.source
    assert "A run with a selector has four answers" in pages[-1].text
    assert "2: fedsm personal 0.600 0.750 0.675" in pages[-1].text


def test_a_comparison_shows_settings_and_data_and_says_first_what_differs(finished, tmp_path):
    runs = [finished("a", algorithm="fedavg"), finished("b", algorithm="fedavg", rounds=5)]
    page = PageText(write_comparison(runs, tmp_path / "comparison.html"))
    sentence = "The rows differ in rounds: 2 (1: fedavg); 5 (2: fedavg); more of them are more training."
    assert 0 <= page.text.index(sentence) < page.text.index("reported round")
    assert "Settings in which the runs differ (1) setting 1: fedavg 2: fedavg rounds 2 5 Settings that all" in page.text
    assert "training.loss dice_ce" in page.text and page.text.count("training: patients") == 1


def test_a_run_of_a_named_row_says_which_it_is_of(finished, tmp_path):
    slow, fast = (read_run(finished(name)) for name in ("a", "b"))
    page = PageText(write_rows({"slow": [slow], "fast": [fast]}, tmp_path / "rows.html"))
    # in all else both are the same job with the same algorithm
    assert "run row reported round" in page.text and "1 slow 2" in page.text and "2 fast 2" in page.text
    assert "All runs share: study small, algorithm harmofl" in page.text
    assert "run reported round" in PageText(write_comparison([slow.path, fast.path], tmp_path / "runs.html")).text


def test_what_limits_the_rows_is_said_once_with_a_summary_and_without(finished, tmp_path):
    rows = {name: [read_run(finished(name))] for name in ("a", "b")}
    methods = results_by_row(rows)
    for summary in (Summary(), Summary(methods_table(methods, 1), methods_notes(methods, [0]))):
        assert PageText(write_rows(rows, tmp_path / "page.html", summary)).text.count("Split: by patient.") == 1


def test_a_centralised_run_is_counted_and_its_report_led_to(finished, tmp_path):
    rows, pooled = rows_by_name([read_run(finished("a"))]), finished("p")
    write_report(pooled)
    page = PageText(write_rows(rows, tmp_path / "page.html", Summary(centralised=[read_run(pooled)])))
    assert "Comparison of 2 runs" in page.text
    assert f"pooled in one place, and so in no table of single runs: report of {pooled}" in page.text
    assert "p/report.html" in page.addresses
    alone = PageText(write_rows(rows, tmp_path / "alone.html"))
    assert "Comparison of 1 run Results" in alone.text and "pooled in one place" not in alone.text


def test_a_comparison_leads_to_the_reports_of_its_runs(finished, tmp_path):
    a, b = finished("a"), finished("b c")
    write_report(a)
    write_report(b)
    page = PageText(write_comparison([a, b], tmp_path / "pages" / "one.html"))
    assert [address for address in page.addresses if "html" in address] == ["../a/report.html", "../b%20c/report.html"]


def test_a_comparison_takes_unfinished_and_failed_runs(finished, run, results, record, tmp_path):
    unfinished = run("u").study().ledger(record(1)).path
    failed = run("f").json("results.json", results(status="FAILED", reasons=["no"])).path
    folder = finished("a")
    page = PageText(write_comparison([folder, unfinished, failed], tmp_path / "c.html"))
    assert "UNFINISHED" in page.text and "FAILED" in page.text
    assert "same test case" not in page.text
    # Without a report they are named without a link.
    assert str(folder) in page.text and not [address for address in page.addresses if "html" in address]
    assert not (folder / "report.html").exists()


def test_a_comparison_needs_a_run_and_a_file_that_can_be_written(finished, tmp_path):
    (tmp_path / "file").write_text("")
    for runs, path, sentence in (
        ([], "c.html", "must have at least one run"),
        ([finished()], ".", "must be a file to write, not a folder"),
        ([tmp_path / "run"], "file/c.html", "c.html must be writable; it is not"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            write_comparison(runs, tmp_path / path)


def test_report_of_a_folder_that_is_no_run_and_another_file_than_a_page_are_refused(refused, tmp_path, capsys):
    for number in (1, 2):
        assert "must be the folder of a run" in refused("report", *[tmp_path] * number, "--out", tmp_path / "out.html")
        assert "must be the folder of a run" in refused("report", *[tmp_path / "nowhere"] * number)
    assert list(tmp_path.iterdir()) == []
    assert main(["report", ".", ".", "--out", "a" * 5000]) == 2
    assert re.fullmatch(r"silofl: --out must end in .html, not 'a{56}\.\.\.; name a page\n", capsys.readouterr().err)


def test_local_fedavg_and_the_models_of_fedsm_stand_below_one_another(results, super_results):
    fedavg, failed = results(sites={"east": 0.4, "west": None}), results(status="FAILED")
    table = runs_table({"1: fedavg": fedavg, "2: fedsm": super_results(), "3: failed": failed})
    assert table.columns == ("method", "east", "west", "client average", "pooled") and not table.best_cells
    assert table.rows[0] == ("1: fedavg", "0.400", "-", "-", "-") and runs_table({"1": failed}) is None
    assert table.rows[2][:4] == ("2: fedsm global", "0.400", "0.700", "0.550")
    names = ("super", "global", "personal", "ensemble")
    assert [row[0] for row in table.rows[1:]] == [f"2: fedsm {name}" for name in names]
