"""A page as typed parts, how the templates place them, and the files beside it."""

import re
import shutil
import stat
import subprocess
from dataclasses import make_dataclass
from typing import get_args

import pytest
from markupsafe import Markup

from silofl_hospital.report.canvas import PageImage, Plot, make_image, make_panels
from silofl_hospital.report.page import (
    Banner,
    Block,
    Code,
    Fold,
    Group,
    Heading,
    HeatCell,
    HeatRow,
    HeatTable,
    Items,
    Page,
    PageSection,
    Pairs,
    Picture,
    Table,
    Text,
    Tiles,
    file_stem,
    make_items,
    make_note,
    make_section,
    make_table,
    name_beside,
    print_blocks,
    render,
    write_figures,
    write_with_files,
)
from silofl_hospital.report.tables import TextTable
from tests.report.conftest import rows_of


def dots(name="dots"):
    rows = [("east", 0.5), ("west", None)]
    return Plot(name, ("site", "value"), rows, lambda width: make_panels(1, 1, (2, 1))[0])


def test_a_figure_is_written_as_png_svg_and_the_table_of_its_values_for_its_owner(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    for folder in (first, second):
        write_figures(folder, [make_image(dots(), "alt", "caption")])
    assert sorted(path.name for path in first.iterdir()) == ["dots.csv", "dots.png", "dots.svg"]
    assert (first / "dots.png").read_bytes().startswith(b"\x89PNG")
    assert (first / "dots.svg").read_text().startswith("<?xml")
    assert rows_of(first / "dots.csv") == [["site", "value"], ["east", "0.5"], ["west", ""]]
    # The same figure gives the same files.
    assert (first / "dots.svg").read_bytes() == (second / "dots.svg").read_bytes()
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (first, *first.iterdir())]
    assert modes == [0o700, 0o600, 0o600, 0o600]
    # A picture without values has no files.
    write_figures(tmp_path / "none", [PageImage(b"png", "alt", "caption")])
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(("name", "stem"), [("cases_east-1", "cases_east-1"), ("cases_../a b", "cases_.._a_b")])
def test_a_name_that_others_chose_leaves_no_folder(name, stem):
    assert file_stem(name) == stem


def test_no_figure_takes_the_files_of_another_not_even_on_a_disk_that_does_not_tell_letter_case(tmp_path):
    names = ("cases_a.b", "cases_a_b", "cases_a b", "cases_North", "cases_north", "cases_north_2")
    write_figures(tmp_path, [make_image(dots(name), "alt", "caption") for name in names])
    stems = ["cases_a.b", "cases_a_b", "cases_a_b_2", "cases_North", "cases_north_2", "cases_north_2_2"]
    assert sorted(path.stem for path in tmp_path.glob("*.csv")) == sorted(stems)
    assert len(list(tmp_path.iterdir())) == 3 * len(names)


@pytest.mark.parametrize(("page", "figures"), [("report.html", "figures"), ("comparison.html", "comparison_figures")])
def test_two_pages_in_one_folder_have_files_of_their_own(tmp_path, page, figures):
    assert name_beside(tmp_path / page, "figures") == tmp_path / figures


def test_images_are_found_wherever_a_page_has_them():
    one, two, three = (PageImage(b"", str(i), "") for i in range(3))
    inner = Group([Picture(two), Fold("more", [Picture(three)])], "grid")
    page = Page("title", "kicker", [PageSection("a", "", "A", [inner])], "footer", opening=[Picture(one)])
    assert page.images == [one, two, three]


def drawn():
    return make_image(dots(), "alt", "caption")


EACH_KIND = [
    Heading("a"),
    Text("b", "note", "name"),
    Items(["c"]),
    Code("d"),
    Tiles([("e", "1")]),
    Pairs([("f", "2")]),
    Table(TextTable(("g",), (("3",),))),
    HeatTable("h", ["i"], [HeatRow("j", [HeatCell("4", 0.5)], "k")], "l"),
    Fold("m", [Text("n")]),
    Group([Text("o")], "grid"),
    Banner("good", "p", "q", ["r"], "s", "t"),
]


def test_every_kind_of_block_has_its_place():
    blocks = [*EACH_KIND, Picture(drawn())]
    assert {type(block) for block in blocks} == {*get_args(Block)}
    source = render(Page("title", "kicker", [PageSection("a", "", "A", blocks)], "footer"))
    words = re.findall(r">([a-t1-4])<", source)
    assert sorted(words) == sorted("acdefghijklmnopqrst1234") and "<strong>name:</strong> b</p>" in source


def test_names_of_others_are_text_wherever_they_stand():
    evil, table = "<script>", TextTable(("<script>",), (("<script>", "<script>"),))
    blocks = [Heading(evil), Text(evil), Items([evil]), Pairs([(evil, evil)]), Table(table), Tiles([(evil, evil)])]
    blocks += [HeatTable(evil, [evil], [HeatRow(evil, [HeatCell(evil, None)])]), Banner("bad", evil, evil, [evil])]
    assert "<script" not in render(Page(evil, evil, [PageSection("a", evil, evil, blocks)], evil, [evil]))


def test_words_of_our_own_may_be_marked_and_names_in_them_are_still_text():
    text = Markup("<code>{}</code>").format("<b>")
    assert "<code>&lt;b&gt;</code>" in render(Page("a", "b", [PageSection("c", "", "d", [Text(text)])], "e"))


def test_a_section_holds_the_blocks_that_are_there():
    section = make_section("a", "A", "A", None, make_note(""), make_table(None), make_items([]), Text("here"))
    assert section.blocks == [Text("here")]


def test_links_lead_to_the_sections_with_a_name():
    sections = [PageSection("a", "first", "A", []), PageSection("b", "", "B", [])]
    page = Page("title", "kicker", sections, "footer")
    assert page.navigation == sections[:1] and render(page).count('<a href="#') == 1


def test_numbers_stand_to_the_right_the_best_are_marked_and_short_words_stay_on_a_line():
    rows = (("a", "word", "1", "2", "3"), ("b", "x" * 21, "4", "5", "6"), ("all", "", "7", "8", "9"))
    content = TextTable(("site", "what", "p", "q", "r"), rows, 2, 1, frozenset({(0, 3)}))
    table = Table(content)
    assert [table.head_style(column) for column in range(5)] == ["", "", "number", "number", "number"]
    assert [table.cell_style(0, column) for column in range(1, 5)] == ["short", "number", "number strong", "number"]
    assert [table.cell_style(1, column) for column in range(1, 5)] == ["", "number", "number", "number"]
    assert [table.row_style(row) for row in range(3)] == ["", "", "summary first"]


def test_a_terminal_shows_the_words_and_tables_of_blocks_without_their_markup_and_pictures(printed):
    blocks = [
        Heading("Results"),
        Text(Markup("A <strong>global</strong> model &amp; more"), name="note"),
        Text("1 < 2"),
        Items(["one", "two"]),
        Table(TextTable(("site", "dice"), (("east", "0.500"),))),
        Picture(PageImage(b"", "alt", "caption")),
        Banner("bad", "BAD", "It fails.", ["Here."]),
    ]
    lines = [" ".join(line.split()) for line in printed(print_blocks, blocks).splitlines()]
    assert lines[:5] == ["", "Results", "note: A global model & more", "1 < 2", "one"]
    assert "east 0.500" in lines and lines[-2:] == ["BAD It fails.", "BAD Here."]


# Measures a page in a frame: a window of the browser is at least 500 pixels wide.
FRAME = """<iframe id="frame" src="page.html" width="400" height="800"></iframe><script>
window.addEventListener("load", () => {
  const page = document.getElementById("frame").contentDocument.documentElement
  document.title = page.scrollWidth <= page.clientWidth ? "fits" : "too wide"
})</script>"""


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs a browser")
def test_no_long_name_makes_a_page_wider_than_a_phone(tmp_path):
    name = 80 * "n"
    table, cells = Table(TextTable((name, name), ((name, name),))), [HeatCell("1", 1.0)]
    heat, banner = HeatTable(name, [name], [HeatRow(name, cells)]), Banner("bad", name, name, [name], name, name)
    group, picture = Group([Text(name), heat], "pair"), Picture(make_image(dots(), "alt", name))
    blocks = [Heading(name), Text(name, name=name), Items([name]), Code(name), Tiles([(name, name)]), table, picture]
    blocks += [Pairs([(name, name)]), group, Fold(name, [Text(name)]), banner]
    page = Page(name, name, [PageSection("a", "a", name, blocks)], name, [name], blocks)
    # What unfolds is open.
    (tmp_path / "page.html").write_text(render(page).replace("<details>", "<details open>"))
    (tmp_path / "frame.html").write_text(FRAME)
    command = ["chromium", "--headless", "--no-sandbox", "--disable-web-security", "--dump-dom"]
    command += [f"--user-data-dir={tmp_path / 'browser'}", (tmp_path / "frame.html").as_uri()]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "<title>fits</title>" in found.stdout


def test_a_page_names_the_files_beside_it_that_there_are(tmp_path):
    page = Page("title", "kicker", [PageSection("a", "", "A", [Text("nothing to draw")])], "footer")
    rows = [make_dataclass("Row", [("value", float)])(0.5)]
    for name, numbers in (("bare", ()), ("full", rows)):
        path = write_with_files(tmp_path / name / "report.html", page, numbers)
        said = path.read_text()
        assert "figures/" not in said and ("results.csv" in said) is bool(numbers)
        assert sorted(one.name for one in path.parent.iterdir()) == ["report.html", *["results.csv"] * bool(numbers)]
