import csv
import io

import pytest

from silofl.base.csv_text import decode_csv, encode_csv

FORMULAS = ("=1+1", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1+1", "=cmd|' /C calc'!A0", "'=1", "''=1")
# A number is none, and neither is a sign within a name.
PLAIN = (
    "-12",
    "+3",
    "-0.5",
    "1e-3",
    "-1e-3",
    "a=b",
    "'a'",
    " =1",
    "north",
    "Ödem (T2)",
    'q"q',
    "a,b",
    "a;=1",
    "a\nb",
    "",
)


@pytest.mark.parametrize(("text", "shown"), [*((one, f"'{one}") for one in FORMULAS), *((one, one) for one in PLAIN)])
def test_a_formula_has_an_apostrophe_and_is_read_back(text, shown):
    written = encode_csv([("case", "value"), (text, -0.5)])
    # What a spreadsheet sees
    assert list(csv.reader(io.StringIO(written, newline="")))[1] == [shown, "-0.5"]
    assert decode_csv(written) == [["case", "value"], [text, "-0.5"]]


def test_numbers_stay_numbers_and_what_is_missing_is_empty():
    assert encode_csv([(-1, -0.25, None, True)]) == "-1,-0.25,,True\n"


def test_a_text_with_another_countrys_separator_is_quoted():
    # A spreadsheet there parts columns by semicolons, and would take what follows for a formula.
    assert encode_csv([("a;=1", "b\t=1")]) == '"a;=1","b\t=1"\n'
