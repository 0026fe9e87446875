"""The benches call the package as it is now: each script can be loaded, and its calls fit what they name."""

import ast
import importlib
import inspect
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench"
SCRIPTS = sorted(path.stem for path in BENCH.glob("*.py"))


@pytest.fixture(autouse=True)
def bench_on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    known = set(sys.modules)
    yield
    # Their names, as `memory` and `scale`, are short ones that others may want.
    for name in set(SCRIPTS) & (sys.modules.keys() - known):
        del sys.modules[name]


def calls(module, tree):
    """Yield line, object and arguments of each call of a name that the script imports, without unpacked arguments."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            continue
        target = getattr(module, node.func.id, None)
        is_plain = not any(isinstance(one, ast.Starred) for one in node.args) and all(one.arg for one in node.keywords)
        # An exception takes whatever it is given.
        is_plain = is_plain and not (inspect.isclass(target) and issubclass(target, BaseException))
        if is_plain and getattr(target, "__module__", "").partition(".")[0] in ("silofl", *SCRIPTS):
            yield node.lineno, target, node.args, {one.arg: one.value for one in node.keywords}


def misfits(module, tree):
    """Return line and reason of each call that does not fit."""
    found = []
    for line, target, positional, keywords in calls(module, tree):
        try:
            inspect.signature(target).bind(*positional, **keywords)
        except TypeError as error:
            found.append((line, target.__name__, str(error)))
    return found


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_calls_the_package_as_it_is(name):
    tree = ast.parse((BENCH / f"{name}.py").read_text(encoding="utf-8"))
    assert misfits(importlib.import_module(name), tree) == []


def test_a_call_of_yesterday_is_found():
    tree = ast.parse("read_finished_run(options.run)\nnp.mean()\nlosses(*found)")
    ((line, name, reason),) = misfits(importlib.import_module("leakage"), tree)
    assert (line, name) == (1, "read_finished_run") and "moved" in reason


def test_the_breakdown_lists_functions_that_there_are():
    breakdown = importlib.import_module("breakdown")
    for end, function in [one for functions in breakdown.PARTS.values() for one in functions if one[0] != "-"]:
        tree = ast.parse((BENCH.parent / "custom" / "silofl" / end).read_text(encoding="utf-8"))
        assert function in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, end


@pytest.mark.parametrize(
    ("differences", "margin", "verdict"),
    [
        # mean .03, deviation .01
        ((0.02, 0.03, 0.04), 0, "holds"),
        ((-0.02, -0.03, -0.04), 0, "does not hold"),
        # mean .01, deviation .02: below the seeds' spread
        ((-0.01, 0.01, 0.03), 0, "not decided"),
        # as far as the spread is not beyond it
        ((0.01, 0.01, 0.04), 0, "holds"),
        ((0.0, 0.02, 0.04), 0, "not decided"),
        # not below by more than .05
        ((-0.02, -0.03, -0.04), 0.05, "holds"),
        ((-0.02, -0.03, -0.04), 0.03, "not decided"),
        ((0.5,), 0, "not decided"),
        ((0.5, float("nan"), 0.5), 0, "not decided"),
    ],
)
def test_a_difference_decides_where_it_is_beyond_the_seeds_spread(differences, margin, verdict):
    decide = importlib.import_module("verdicts").decide
    assert decide([float(one) for one in differences], margin) == verdict


def test_a_claim_holds_where_all_its_parts_do():
    verdicts = importlib.import_module("verdicts")
    steps = [(("b", "mean"), ("a", "mean")), (("c", "mean"), ("b", "mean"))]
    claim = verdicts.Claim("a < b < c", tuple(steps))
    figures = {row: {"mean": values} for row, values in {"a": [0.1, 0.2], "b": [0.3, 0.5], "c": [0.6, 0.7]}.items()}
    # b - a: .2 and .3; c - b: .3 and .2
    assert claim.judge(figures) == ("holds", "b - a 0.250 ± 0.071; c - b 0.250 ± 0.071")
    assert claim.judge(figures | {"c": {"mean": [0.3, 0.5]}})[0] == "not decided"
    assert claim.judge(figures | {"c": {"mean": [0.1, 0.2]}})[0] == "does not hold"
    # A row that was not run decides nothing.
    assert claim.judge({"a": figures["a"]})[0] == "not decided"
