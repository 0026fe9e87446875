"""The two classes of errors: a wrong value of a key, and every other fault, which begins with what is wrong."""

import ast
import re
from pathlib import Path

CUSTOM = Path(__file__).parents[1] / "custom"
# "KEY must be Y, not Z" is the form of a wrong value.
WRONG_VALUE = re.compile(r"\bmust \w+ .*, not ")


def words_of(node):
    """Return the text of a literal; what is filled in is a pair of braces."""
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def list_refusals():
    for path in sorted(CUSTOM.glob("silofl*/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                for argument in node.exc.args:
                    yield f"{path.relative_to(CUSTOM)}:{node.lineno}", words_of(argument)


def test_errors_begin_with_the_fault_unless_a_value_is_wrong():
    refusals = [*list_refusals()]
    assert len(refusals) > 500
    is_mixed = re.compile(r"\bmust\b|, not ")
    assert [refusal for refusal in refusals if is_mixed.search(refusal[1]) and not WRONG_VALUE.search(refusal[1])] == []
