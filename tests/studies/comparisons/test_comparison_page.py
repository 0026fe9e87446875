import re

import pytest

from silofl.base.schema import dump_record
from silofl.command_line.cli import main
from silofl.core.gain import WORSE
from silofl_desk.report.run_page import write_report
from silofl_desk.report.run_records import read_run
from silofl_desk.studies.comparisons.comparison_page import print_comparison, write_comparison
from tests.report.conftest import PageText, joined, rows_of

pytestmark = pytest.mark.usefixtures("undrawn")


def test_a_comparison_shows_table_curves_and_the_same_case_with_its_files_beside_it(finished, finished_super, tmp_path):
    runs = [finished("a", mean=0.6), finished("b c", algorithm="fedavg", rounds=5), finished_super("d")]
    for run in runs[:2]:
        write_report(run)
    path = write_comparison(
        runs,
        tmp_path / "deep" / "two.html",
    )
    page, beside = PageText(path), path.parent / "two_figures"
    # curves, one case a site
    assert page.open == [] and len(page.images) == 3
    assert "with one seed a difference can be chance" in page.text and 'class="number strong' not in page.source
    assert all(str(run) in page.text for run in runs) and "harmofl, seed 0, COMPLETE" in page.text
    assert (beside / "validation.csv").is_file() and (path.parent / "two_results.csv").is_file()
    assert rows_of(beside / "same_case_east.csv")[1] == ["1: harmofl", "a", "0.2"]
    assert [address for address in page.addresses if "html" in address] == ["../a/report.html", "../b%20c/report.html"]
    # What differs is said before the numbers.
    sentence = "The rows differ in rounds: 2 (1: harmofl, 3: fedsm); 5 (2: fedavg)."
    assert 0 <= page.text.index(sentence) < page.text.index("client average")
    assert "3: fedsm personal 0.600 0.750 0.675" in page.text and page.text.count("Split: by patient.") == 1
    places = {address[1:] for address in page.addresses if address.startswith("#")}
    assert places and all(f'id="{place}"' in page.source for place in places)


def test_page_and_terminal_lead_with_the_hospitals_and_those_that_lose(finished, tmp_path, printed):
    gain, loss = joined(local=0.5, federated=0.625, kept=0.75), joined(kept=0.5, verdict=WORSE, p_below=0.001)
    runs = [finished(name, joining={"east": dump_record(one)}) for name, one in (("a", gain), ("b", loss))]
    page = PageText(write_comparison(runs, tmp_path / "c.html"))
    assert page.images[0]["alt"].startswith("Test dice, mean over the hospitals: 1: harmofl local 0.500")
    order = [page.source.index(f'<section id="{name}"') for name in ("hospitals", "pictures", "results", "curves")]
    assert order == sorted(order)
    rows = {name: [read_run(run)] for name, run in zip("ab", runs, strict=True)}
    text = printed(print_comparison, rows, width=300)
    problem = "b: east: the model that it keeps scores 0.500, its local model 0.700"
    assert text.index(f"BAD  {problem}") < text.index("In 1 of 2 pairs") < text.index("client average")


def test_a_comparison_takes_unfinished_and_failed_runs(finished, run, results, record, tmp_path):
    unfinished = run("u").study().ledger(record(1)).path
    failed = run("f").json("results.json", results(status="FAILED", reasons=["no"])).path
    page = PageText(write_comparison([finished("a"), unfinished, failed], tmp_path / "c.html"))
    assert "UNFINISHED" in page.text and "FAILED: no" in page.text and "same test case" not in page.text
    # Without a report they are named without a link.
    assert not [address for address in page.addresses if "html" in address]


def test_report_of_a_folder_that_is_no_run_and_another_file_than_a_page_are_refused(refused, tmp_path, capsys):
    for number in (1, 2):
        assert "has no results.json, ledger.json or run.json" in refused(
            "report", *[tmp_path] * number, "--out", tmp_path / "out.html"
        )
    assert list(tmp_path.iterdir()) == []
    assert main(["report", ".", ".", "--out", "a" * 5000]) == 2
    assert re.fullmatch(r"silofl: --out must end in .html, not 'a{56}\.\.\.; name a page\n", capsys.readouterr().err)
