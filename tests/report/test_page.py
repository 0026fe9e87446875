"""A page as typed parts, how the templates place them, and the files beside it."""

import re
import stat
from dataclasses import make_dataclass
from typing import get_args

import pytest
from markupsafe import Markup

from silofl.base.errors import ConfigError
from silofl_hospital.report.canvas import PageImage, Plot, make_image, make_panels
from silofl_hospital.report.page import (
    Banner,
    Block,
    Fold,
    Group,
    Heading,
    Items,
    Page,
    PageSection,
    Pairs,
    Picture,
    Table,
    Text,
    Tiles,
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


def test_a_figure_is_written_as_png_svg_and_table(tmp_path):
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


def test_no_figure_takes_the_files_of_another(tmp_path):
    names = ("cases_a.b", "cases_../a_b", "cases_../a b", "cases_North", "cases_north", "cases_north_2")
    write_figures(tmp_path, [make_image(dots(name), "alt", "caption") for name in names])
    stems = ["cases_a.b", "cases_.._a_b", "cases_.._a_b_2", "cases_North", "cases_north_2", "cases_north_2_2"]
    assert sorted(path.stem for path in tmp_path.glob("*.csv")) == sorted(stems)
    assert len(list(tmp_path.iterdir())) == 3 * len(names)


def drawn():
    return make_image(dots(), "alt", "caption")


EACH_KIND = [
    Heading("a"),
    Text("b", "note", "name"),
    Items(["c"]),
    Tiles([("e", "1")]),
    Pairs([("f", "2")]),
    Table(TextTable(("g", "h"), (("3", "4"),)), shares={(0, 1): 0.5}),
    Fold("m", [Text("n")]),
    Group([Text("o")], "grid"),
    Banner("good", "p", "q", ["r"], "s", "t"),
]


def test_every_kind_of_block_has_its_place():
    blocks = [*EACH_KIND, Picture(drawn())]
    assert {type(block) for block in blocks} == {*get_args(Block)}
    source = render(Page("title", "kicker", [PageSection("a", "", "A", blocks)], "footer"))
    words = re.findall(r">([a-t1-4])<", source)
    assert sorted(words) == sorted("acefghmnopqrst1234") and "<strong>name:</strong> b</p>" in source
    assert '<td class="number heated" style="--share: 0.500">4</td>' in source


def test_names_of_others_are_text_wherever_they_stand():
    evil, table = "<script>", TextTable(("<script>",), (("<script>", "<script>"),))
    blocks = [Heading(evil), Text(evil), Items([evil]), Pairs([(evil, evil)]), Table(table), Tiles([(evil, evil)])]
    blocks.append(Banner("bad", evil, evil, [evil]))
    sections = [PageSection("a", evil, evil, blocks), PageSection("b", "", evil, [])]
    # Words of our own may be marked, and names in them are still text.
    sections[1].blocks.append(Text(Markup("<code>{}</code>").format("<script>")))
    source = render(Page(evil, evil, sections, evil, [evil]))
    assert "<script" not in source and "<code>&lt;script&gt;</code>" in source
    # Links lead to the sections with a name.
    assert source.count('<a href="#') == 1


def test_a_section_holds_the_blocks_that_are_there():
    section = make_section("a", "A", "A", None, make_note(""), make_table(None), make_items([]), Text("here"))
    assert section.blocks == [Text("here")]


def test_numbers_stand_to_the_right_and_the_best_are_marked():
    rows = (("a", "word", "1", "2", "3"), ("b", "x" * 21, "4", "5", "6"), ("all", "", "7", "8", "9"))
    content = TextTable(("site", "what", "p", "q", "r"), rows, 2, 1, frozenset({(0, 3)}))
    table = Table(content)
    assert [table.head_style(column) for column in range(5)] == ["", "", "number", "number", "number"]
    assert [table.cell_style(0, column) for column in range(1, 5)] == ["short", "number", "number strong", "number"]
    assert [table.cell_style(1, column) for column in range(1, 5)] == ["", "number", "number", "number"]
    assert [table.row_style(row) for row in range(3)] == ["", "", "summary first"]


def test_a_terminal_shows_words_and_tables_of_blocks(printed):
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


def test_a_page_names_the_files_beside_it(tmp_path):
    rows = [make_dataclass("Row", [("value", float)])(0.5)]
    for name, blocks, numbers in (("bare", [Text("a")], ()), ("full", [Picture(make_image(dots(), "alt", "a"))], rows)):
        page = Page("title", "kicker", [PageSection("a", "", "A", blocks)], "footer")
        said = write_with_files(tmp_path / name / "comparison.html", page, numbers).read_text()
        assert ("<code>comparison_figures/</code>" in said) is ("comparison_results.csv" in said) is bool(numbers)
        beside = ["comparison_figures", "comparison_results.csv"] if numbers else []
        assert sorted(one.name for one in (tmp_path / name).iterdir()) == ["comparison.html", *beside]
    assert name_beside(tmp_path / "report.html", "figures") == tmp_path / "figures"
    with pytest.raises(ConfigError, match="cannot be written .Is a directory.; name another"):
        write_with_files(tmp_path, page, ())
