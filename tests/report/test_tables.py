import io

import pytest
from rich.console import Console

from silofl_desk.report.result_tables import (
    label_table,
    mean_and_deviation,
    metric_columns,
    operating_point_table,
    site_table,
)
from silofl_desk.report.sentences import label_sentence
from silofl_desk.studies.runs.print_results import print_results
from silofl_hospital.report.tables import (
    TextTable,
    format_bytes,
    format_duration,
    format_number,
    markdown_table,
    print_table,
)

EXTRA = {"a==1/overlap": {"value": 0.25, "num_cases": 1}}
SURFACE = {"hd95": 12.25, "surface_dice": 0.5, "num_cases": 1, "num_undefined": 0}
NO_SURFACE = {"hd95": None, "surface_dice": None, "num_cases": 0, "num_undefined": 3}


def test_each_site_has_a_row_and_three_rows_sum_up(results):
    table = site_table(results(patients={"east": 1, "west": 3}))
    assert table.columns == ("site", "dice", "test cases", "test patients", "excluded cases", "validation")
    assert table.rows == (
        ("east", "0.500", "1", "1", "0", "0.400"),
        ("west", "0.750", "4", "3", "2", "0.600"),
        # (0.4 + 0.6) / 2
        ("mean over sites", "0.625", "", "", "", "0.500"),
        ("spread over sites (std)", "0.125", "", "", "", ""),
        ("mean over all cases", "0.700", "5", "4", "2", ""),
    )
    assert table.num_summary == 3


def test_what_is_not_known_is_a_dash(results):
    unknown = {"sites": {"east": 0.5, "west": None}, "cases": {"east": 1}, "excluded_cases": {"east": 0}}
    rows = site_table(results(**unknown, patients={"east": 1, "west": None})).rows
    assert rows[1][:5] == ("west", "-", "-", "-", "-")
    assert rows[2][0] == "mean over 1 of 2 sites"
    # An older result counted no patients.
    assert [row[3] for row in site_table(results()).rows] == ["-", "-", "", "", "-"]
    assert [row[5] for row in site_table(results(validation={})).rows[:3]] == ["-", "-", "-"]


def test_several_labels_have_a_column_each(results):
    table = site_table(
        results(
            labels={"1": "organ", "2": "lesion"},
            by_label={"east": {"organ": 0.75, "lesion": 0.25}, "west": {"organ": 0.75}},
        )
    )
    assert table.columns[-2:] == ("dice of organ", "dice of lesion")
    assert [row[-2:] for row in table.rows[:3]] == [("0.750", "0.250"), ("0.750", "-"), ("0.750", "0.250")]
    assert site_table(results(by_label={"east": {"organ": 0.5}})).columns[-1] == "validation"


def test_a_classification_has_its_other_scores_beside_its_value(classes):
    table = site_table(classes())
    assert table.columns[-2:] == ("balanced accuracy", "AUROC")
    # (0.25 + 0.75) / 2, and the one AUROC there is
    assert [row[-2:] for row in table.rows[:3]] == [("0.250", "-"), ("0.750", "0.875"), ("0.500", "0.875")]
    assert list(metric_columns(classes(metric="balanced_accuracy"))) == ["accuracy", "auroc"]


def test_many_labels_have_a_table_of_their_own(results):
    by_label = {"east": {f"class {i}": 0.1 * i for i in range(5)}, "west": {"class 4": 0.8}}
    run = results(by_label=by_label)
    assert site_table(run).columns[-1] == "validation"
    table = label_table(run)
    assert table.columns == ("site", *(f"class {i}" for i in range(5))) and table.num_summary == 1
    assert table.rows[1] == ("west", "-", "-", "-", "-", "0.800")
    # (0.4 + 0.8) / 2
    assert table.rows[2] == ("mean over sites", "0.000", "0.100", "0.200", "0.300", "0.600")
    assert label_table(results(by_label={"east": {"organ": 0.5, "lesion": 0.5}})) is None


def test_a_class_has_its_recall_with_its_cases(results):
    names = [f"class {i}" for i in range(5)]
    values = {"metric": "accuracy", "also": {"east": {"accuracy": 0.5}}}
    counts = {"east": dict.fromkeys(names, 3) | {"class 4": 0}}
    many = results(**values, by_label={"east": dict.fromkeys(names, 0.5)}, label_cases=counts)
    assert label_table(many).rows[0] == ("east", *["0.500 of 3"] * 4, "0.500")
    assert label_table(many).rows[-1][1] == "0.500" and "Recall" in label_sentence(many)
    few = results(**values, by_label={"east": {"ill": 0.5, "well": 1.0}})
    assert site_table(few).columns[-2:] == ("recall of ill", "recall of well")


def test_metrics_of_packages_stand_behind_the_surface_distances(results):
    run = results(surface={"east": SURFACE, "west": NO_SURFACE}, extra_metrics={"east": EXTRA})
    table = site_table(run)
    assert table.columns[-3:] == ("HD95", "surface Dice", "overlap")
    assert [row[-1] for row in table.rows] == ["0.250", "-", "0.250", "", ""]


def test_a_printed_result_says_status_reasons_model_metric_and_numbers(results, printed):
    text = printed(print_results, results(ended_early="the run ended", reasons=["no\n[bold]\x1b[2J"]), 200)
    assert "COMPLETE  small: harmofl, preset recommended, seed 0, at most 2 rounds\n  - no [bold] [2J\n" in text
    assert "\nThe run ended.\nmodel: best validation, round 2" in text and "metric: dice" in text and "0.625" in text
    assert "seed 0, 1 round\n" in printed(print_results, results(rounds=1))
    failed = printed(print_results, results(status="FAILED", reasons=["no site joined"]))
    assert "FAILED" in failed and "no site joined" in failed and "mean" not in failed


def test_distances_have_one_unit(results):
    table = site_table(results(surface={"east": SURFACE | {"unit": "mm"}, "west": SURFACE}))
    assert [row[-2:] for row in table.rows[:3]] == [("12.2 mm", "0.500"), ("12.2 px", "0.500"), ("-", "-")]
    table = site_table(results(surface={"east": SURFACE, "west": NO_SURFACE}))
    assert table.rows[1][-2:] == ("-", "-") and table.rows[2][-2:] == ("12.2 px", "0.500")
    assert site_table(results()).columns[-1] == "validation"


def test_places_are_marked_with_signs_where_letters_cannot_be_bold(printed):
    rows = (("a", "0.3"), ("b", "0.2"), ("c", "0.1"))
    table = TextTable(("method", "x"), rows, best_cells=frozenset({(0, 1)}))
    lines = printed(print_table, table).splitlines()
    assert [line.split() for line in lines[-3:]] == [["a", "0.3", "*"], ["b", "0.2"], ["c", "0.1"]]


def test_a_terminal_breaks_words_but_no_number():
    rows = (("aachen", "own and federated not trained to the end", "0.071 (0.078)", "+0.000 to +0.250"),)
    table = TextTable(("site", "verdict", "calibration error of the answers", "95 % interval"), rows, num_text=2)
    # Without a terminal all in one line; a narrower one gets the least that words and numbers need.
    for is_terminal, width, shown in ((True, 60, 60), (False, 60, 103), (True, 20, 53)):
        text = io.StringIO()
        print_table(table, Console(file=text, width=width, force_terminal=is_terminal, color_system=None))
        lines = text.getvalue().splitlines()
        assert any("0.071 (0.078)   +0.000 to +0.250" in line for line in lines)
        assert max(map(len, lines)) == shown
        assert any(rows[0][1] in line for line in lines) != is_terminal


def test_a_finding_has_area_sensitivity_and_specificity(findings, classes):
    table = label_table(findings())
    assert table.columns == ("finding", "site", "AUROC", "sensitivity", "specificity")
    assert table.rows == (
        ("effusion", "east", "0.875 of 2", "0.500 of 2", "0.750 of 4"),
        ("effusion", "west", "1.000 of 2", "0.500 of 2", "0.750 of 4"),
        # (0.875 * 2 + 1 * 2) / 4
        ("effusion", "all sites", "0.938 of 4", "0.500 of 4", "0.750 of 8"),
        ("nodule", "east", "0.625 of 4", "0.250 of 4", "1.000 of 2"),
        ("nodule", "west", "-", "-", "1.000 of 6"),
        ("nodule", "all sites", "0.625 of 4", "0.250 of 4", "1.000 of 8"),
    )
    assert label_table(findings(metric="auprc")).columns[2] == "AUPRC"
    assert not any("recall" in column for column in site_table(findings()).columns)
    assert "Sensitivity: share" in label_sentence(findings())
    # No area under a curve is one of all sites' cases.
    last = [site_table(one).rows[-1][0] for one in (findings(), classes())]
    assert last == ["mean over all cases, class by class", "mean over all cases"]


def test_areas_of_sites_with_different_classes_have_no_mean(classes):
    recalls = {"benign": 0.75, "malignant": 0.5}
    cases = {"benign": 30, "malignant": 10}
    own = {"east": {"benign": 0.9, "malignant": 0.8}, "west": {"benign": 0.7, "malignant": 0.8, "normal": 0.6}}
    found = classes(
        metric="auroc",
        labels={"0": "benign", "1": "malignant", "2": "normal"},
        by_label={"east": recalls, "west": recalls | {"normal": 1.0}},
        label_cases={"east": cases, "west": cases | {"normal": 5}},
        class_areas=own,
        mean=None,
    )
    table = label_table(found)
    assert table.columns == ("class", "site", "AUROC", "recall")
    assert table.rows[2] == ("benign", "all sites", "0.800 of 60", "0.750 of 60")
    assert table.rows[6:] == (
        ("normal", "east", "-", "-"),
        ("normal", "west", "0.600 of 5", "1.000 of 5"),
        ("normal", "all sites", "0.600 of 5", "1.000 of 5"),
    )
    assert (
        not found.has_findings
        and found.mean_of_sites([0.5, 0.7]) is None
        and found.mean_of_sites([0.5], "accuracy") == 0.5
    )
    same = classes(metric="auroc", label_cases={"east": cases, "west": cases})
    assert same.mean_of_sites([0.5, 0.75]) == 0.625


def test_markdown_has_the_best_in_bold_and_the_notes_below():
    rows = (("a", "0.500"), ("b|c", "0.250"), ("d", "0.125"))
    table = TextTable(("method", "east"), rows, best_cells=frozenset({(0, 1)}))
    assert markdown_table(table, ["One.", "Two."]).splitlines() == [
        "| method | east |",
        "| --- | --- |",
        "| a | **0.500** |",
        "| b/c | 0.250 |",
        "| d | 0.125 |",
        "",
        "- One.",
        "- Two.",
    ]


def test_names_in_markdown_are_no_links_images_tags_or_code():
    name = "![a](https://e.org/1.png) <b>`|`*c*\n\x1b# www.e.org"
    text = markdown_table(TextTable(("method", name), ((name, "1"),)), [name], [name])
    shown = r"!\[a](https\://e.org/1.png) \<b>\`|\`\*c\*  # www\.e.org"
    cell = shown.replace("|", "/")
    assert text == f"- {shown}\n\n| method | {cell} |\n| --- | --- |\n| {cell} | 1 |\n\n- {shown}\n"


@pytest.mark.parametrize(
    ("told", "text"),
    [
        *((format_number(value), text) for value, text in ((None, "-"), (0, "0.000"), (0.12345, "0.123"))),
        *((format_bytes(size), text) for size, text in ((0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2e6, "2.0 MB"))),
        *((format_bytes(size), text) for size, text in ((3e9, "3.0 GB"), (4e12, "4.0 TB"))),
        *((format_duration(s), text) for s, text in ((2.04, "2.0 s"), (120, "2.0 min"), (7200, "2.0 h"))),
        # mean 0.6, deviation of a sample sqrt((0.1 ** 2 + 0.1 ** 2) / 1), beside several seeds alone
        *((mean_and_deviation(v), text) for v, text in (((0.5, 0.7), "0.600 ± 0.141"), ((0.5,), "0.500"), ((), "-"))),
    ],
)
def test_values_are_told_in_the_unit_that_suits_them(told, text):
    assert told == text


READ = {"temperature": 1.5, "thresholds": {"tumour": 0.4}, "num_units": 9, "error": 0.2, "error_after": 0.1}
READ |= {"sensitivity": {"tumour": 0.8}, "specificity": {"tumour": 0.9}, "calibrated": 0.15, "calibrated_after": 0.125}


def test_each_site_has_its_temperature_its_errors_and_its_thresholds(results):
    older = {key: value for key, value in READ.items() if not key.startswith("calibrated")}
    operating_points_by_site = {"east": READ, "west": older | {"error_after": 0.25, "thresholds": {}}}
    classes = {"metric": "accuracy", "also": {}, "label_cases": {}}
    found = results(**classes, operating_points_by_site=operating_points_by_site)
    table = operating_point_table(found)
    assert table.columns[4:] == ("threshold of tumour", "sensitivity tumour", "specificity tumour")
    assert table.rows[0] == ("east", "1.50", "0.200 (0.150)", "0.100 (0.125)", "0.400", "0.800", "0.900")
    assert table.rows[1][:5] == ("west", "1.50", "0.200", "0.250", "-")
    assert operating_point_table(results()) is None
