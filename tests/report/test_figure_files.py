"""The files of a page's figures and of its numbers."""

import csv
import stat

import pytest

from silofl.errors import ConfigError
from silofl.report.canvas import PageImage, PlotData, make_image, make_panels
from silofl.report.page import Fold, Group, Page, Picture, Section, file_stem, name_beside, write_figures
from silofl.report.run_page import write_report
from silofl.studies.comparison_page import write_comparison


class Dots:
    def data(self):
        return PlotData("dots", ("site", "value"), (("east", 0.5), ("west", None)))

    def draw(self, width):
        return make_panels(1, 1, (2, 1))[0]


def rows_of(path):
    return list(csv.reader(path.open(newline="")))


def test_a_figure_is_written_as_png_svg_and_the_table_of_its_values(tmp_path):
    write_figures(tmp_path / "figures", [make_image(Dots(), "alt", "caption")])
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == ["dots.csv", "dots.png", "dots.svg"]
    assert (tmp_path / "figures" / "dots.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "figures" / "dots.svg").read_text().startswith("<?xml")
    assert rows_of(tmp_path / "figures" / "dots.csv") == [["site", "value"], ["east", "0.5"], ["west", ""]]


def test_the_same_figure_gives_the_same_files(tmp_path):
    for folder in (tmp_path / "a", tmp_path / "b"):
        write_figures(folder, [make_image(Dots(), "alt", "caption")])
    assert (tmp_path / "a" / "dots.svg").read_bytes() == (tmp_path / "b" / "dots.svg").read_bytes()


def test_figures_are_for_their_owner(tmp_path):
    write_figures(tmp_path / "figures", [make_image(Dots(), "alt", "caption")])
    assert stat.S_IMODE((tmp_path / "figures").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "figures").iterdir()} == {0o600}


def test_a_picture_without_values_has_no_files(tmp_path):
    write_figures(tmp_path / "figures", [PageImage(b"png", "alt", "caption")])
    assert not (tmp_path / "figures").exists()


@pytest.mark.parametrize(("name", "stem"), [("cases_east-1", "cases_east-1"), ("cases_../../x", "cases_______x")])
def test_a_name_that_others_chose_leaves_no_folder(name, stem):
    assert file_stem(name) == stem


@pytest.mark.parametrize(("page", "figures"), [("report.html", "figures"), ("comparison.html", "comparison_figures")])
def test_two_pages_in_one_folder_have_files_of_their_own(tmp_path, page, figures):
    assert name_beside(tmp_path / page, "figures") == tmp_path / figures


def test_images_are_found_wherever_a_page_has_them():
    one, two, three = (PageImage(b"", str(i), "") for i in range(3))
    inner = Group([Picture(two), Fold("more", [Picture(three)])], "grid")
    page = Page("title", "kicker", [Section("a", "", "A", [inner])], "footer", opening=[Picture(one)])
    assert page.images == [one, two, three]


def test_every_picture_of_a_report_has_its_files(finished):
    folder = finished()
    write_report(folder)
    names = {path.name for path in (folder / "figures").iterdir()}
    for stem in ("training", "drift", "traffic", "cases_east", "cases_west"):
        assert {f"{stem}.png", f"{stem}.svg", f"{stem}.csv"} <= names
    # two panels with two sites, validation with their mean too, over two rounds; the first validation is east's
    rows = rows_of(folder / "figures" / "training.csv")
    assert rows[0] == ["panel", "line", "round", "value"] and len(rows) == 1 + 2 * 3 + 2 * 2
    assert rows[1] == ["Validation: dice", "east", "1", "0.1"]


def test_a_comparison_has_its_figures_and_numbers_beside_it(finished, tmp_path):
    page = write_comparison([finished("a"), finished("b")], tmp_path / "out" / "two.html")
    assert (page.parent / "two_figures" / "validation.csv").is_file()
    assert rows_of(page.parent / "two_figures" / "same_case_east.csv")[1] == ["1: harmofl", "a", "0.2"]
    assert (page.parent / "two_results.csv").is_file()


def test_a_page_names_the_files_beside_it(finished, tmp_path):
    page = write_comparison([finished("a")], tmp_path / "two.html").read_text()
    assert "two_figures" in page and "two_results.csv" in page


def test_figures_that_cannot_be_written_are_named(finished):
    folder = finished()
    (folder / "figures").write_text("")
    with pytest.raises(ConfigError, match="training.png must be writable"):
        write_report(folder)
