"""The benches call the package as it is now: each script can be loaded, and its calls fit what they name."""

import ast
import importlib
import inspect
import json
import logging
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import t as student
from scipy.stats import ttest_1samp
from torch import nn

from silofl.base.errors import ConfigError
from tests.conftest import SHARED

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
        package = getattr(target, "__module__", "").partition(".")[0]
        if is_plain and package in ("silofl", "silofl_desk", "silofl_clinic", *SCRIPTS):
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


def test_every_script_calls_the_package_as_it_is():
    trees = {name: ast.parse((BENCH / f"{name}.py").read_text(encoding="utf-8")) for name in SCRIPTS}
    found = {name: misfits(importlib.import_module(name), tree) for name, tree in trees.items()}
    assert len(found) > 30 and {name: one for name, one in found.items() if one} == {}


@pytest.mark.parametrize("name", [name for name in SCRIPTS if "__main__" in (BENCH / f"{name}.py").read_text("utf-8")])
def test_every_bench_says_how_it_is_called(name, monkeypatch, capsys):
    bench = importlib.import_module(name)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit) as ending:
        bench.main()
    assert ending.value.code == 0 and capsys.readouterr().out.startswith(f"usage: {name}.py [-h]")


@pytest.mark.parametrize("margin", [0, 0.05])
def test_a_difference_is_compared_by_a_paired_t_test_with_its_interval(margin):
    differences = np.array([0.02, -0.01, 0.04, 0.05, 0.01, 0.03])
    found = importlib.import_module("verdicts").compare(differences, margin)
    above, below = (ttest_1samp(differences, -margin, alternative=one) for one in ("greater", "less"))
    assert (found.p_above, found.p_below) == pytest.approx((2 * above.pvalue, min(1, 2 * below.pvalue)))
    interval = ttest_1samp(differences, 0).confidence_interval(0.95)
    assert (found.mean, found.low, found.high) == pytest.approx((differences.mean(), *interval))


def test_splits_that_share_pictures_have_the_corrected_resampled_t_test():
    verdicts = importlib.import_module("verdicts")
    # Mean 0.03 and variance 0.0001: an error of 0.01 * sqrt(1 / 3 + 8 / 24) = 0.01 * sqrt(2 / 3), with 2 degrees.
    found = verdicts.compare([0.02, 0.03, 0.04], test_to_train=8 / 24)
    error = 0.01 * (2 / 3) ** 0.5
    reach = student.ppf(0.975, 2) * error
    assert (found.low, found.high) == pytest.approx((0.03 - reach, 0.03 + reach))
    assert found.p_above == pytest.approx(2 * student.sf(0.03 / error, 2))
    # Simulated hospitals are drawn anew for each split: the plain error is 0.01 / sqrt(3).
    assert verdicts.compare([0.02, 0.03, 0.04]).high == pytest.approx(0.03 + student.ppf(0.975, 2) * 0.01 / 3**0.5)


def test_the_difference_that_four_of_five_tests_find_is_found_by_four_of_five_tests():
    verdicts, rng = importlib.import_module("verdicts"), np.random.default_rng(0)
    # Deviation 1 over ten splits: (2.262 + 0.883) / sqrt(10) = 0.995.
    known = verdicts.compare([*[1.0] * 5, *[-1.0] * 5])
    wanted = known.detectable / (10 / 9) ** 0.5
    assert wanted == pytest.approx(0.995, abs=0.001)
    found = [verdicts.compare(wanted + rng.normal(size=10)).p_above <= 0.05 for _ in range(1000)]
    # Three deviations of a share of 1000 around 0.8.
    assert np.mean(found) == pytest.approx(0.8, abs=0.04)


def test_the_share_of_test_pictures_is_counted_from_the_splits_of_a_public_set(tmp_path):
    claims = importlib.import_module("claims")
    for split, numbers in {"a": (8, 2), "b": (16, 4)}.items():
        for site, count in zip(("north", "south"), (1, 2), strict=True):
            folder = tmp_path / split / "job" / site
            folder.mkdir(parents=True)
            train, test = ([{}] * (count * number) for number in numbers)
            (folder / "dataset.json").write_text(json.dumps({"training": train, "test": test}))
    # (3 * 2 + 3 * 4) of (3 * 8 + 3 * 16)
    assert claims.compare_sizes([tmp_path / "a", tmp_path / "b"], "job") == 18 / 72


@pytest.mark.parametrize(
    ("differences", "margin", "p_above", "p_below"),
    [
        ([0.5], 0, 1, 1),
        ([0.5, float("nan"), 0.5], 0, 1, 1),
        # As sure as can be where all deals are alike, and nothing where they are equal.
        ([0.5, 0.5, 0.5], 0, 0, 1),
        ([0.0, 0.0, 0.0], 0, 1, 1),
        ([0.0, 0.0, 0.0], 0.01, 0, 1),
    ],
)
def test_too_few_or_unknown_deals_tell_nothing_and_alike_ones_all(differences, margin, p_above, p_below):
    found = importlib.import_module("verdicts").compare(differences, margin)
    assert (found.p_above, found.p_below) == pytest.approx((p_above, p_below), abs=1e-9)


def test_two_equal_methods_are_told_apart_in_at_most_one_table_of_twenty():
    verdicts, rng = importlib.import_module("verdicts"), np.random.default_rng(0)
    claims = [
        verdicts.Claim("one", ((("a", "mean"), ("b", "mean")),)),
        verdicts.Claim("two", ((("c", "mean"), ("d", "mean")),)),
        verdicts.Claim("three", ((("a", "mean"), ("d", "mean")), (("b", "mean"), ("c", "mean")))),
    ]
    tables = [{row: {"mean": rng.normal(size=3)} for row in "abcd"} for _ in range(800)]
    for some in (claims[:1], claims):
        decided = np.mean(
            [any(verdict != verdicts.OPEN for verdict, *_ in verdicts.judge(some, one)) for one in tables]
        )
        # Two deviations above 0.05 of 800 tables.
        assert decided <= 0.066, len(some)


def test_each_image_is_a_batch_of_its_own_where_one_is_asked_at_a_time(monkeypatch, tmp_path):
    class ByBatch(nn.Module):
        """Answers 1 to the images that are brighter than the mean of their batch: to none that is alone."""

        def forward(self, images):
            return torch.stack([torch.zeros(len(images)), images.flatten(1)[:, 0] - images.mean()], dim=1)

    claims = importlib.import_module("claim_harmofl")
    test = SimpleNamespace(images=np.float32([1, 2, 3, 4]).reshape(4, 1, 1, 1), targets=np.array([0, 0, 1, 1]))
    monkeypatch.setattr(claims, "_load_networks", lambda run: [(ByBatch(), SimpleNamespace(test=test))])
    for normalization, expected in (("batch_stateless", 0.5), ("group", None)):
        monkeypatch.setattr(claims, "read_results", lambda run, n=normalization: SimpleNamespace(normalization=n))
        assert claims.one_at_a_time(tmp_path) == expected


def test_a_claim_holds_where_all_its_parts_do_and_fails_where_one_does():
    verdicts = importlib.import_module("verdicts")
    claim = verdicts.Claim("a < b < c", ((("b", "mean"), ("a", "mean")), (("c", "mean"), ("b", "mean"))))
    figures = {row: {"mean": values} for row, values in {"a": [0.1, 0.2, 0.1], "b": [0.3, 0.41, 0.3]}.items()}

    def judge(c, num_claims=1):
        return verdicts.judge([claim] * num_claims, figures | {"c": {"mean": c}})[0]

    verdict, p, (first, second) = judge([0.6, 0.7, 0.61])
    assert verdict == "holds" and p == max(first.p_above, second.p_above) and first.mean == pytest.approx(0.61 / 3)
    assert judge([0.31, 0.4, 0.3])[0] == "not decided"
    verdict, p, (_, second) = judge([0.1, 0.2, 0.1])
    assert verdict == "does not hold" and p == 2 * second.p_below
    # Holm: of ten claims that are as sure, each must be ten times as sure.
    assert judge([0.6, 0.7, 0.61], 10)[1] == pytest.approx(10 * judge([0.6, 0.7, 0.61])[1])
    # A row that was not run decides nothing.
    assert verdicts.judge([claim], {"a": figures["a"]})[0][0] == "not decided"


def test_a_claim_is_printed_with_its_verdict_p_and_intervals():
    verdicts = importlib.import_module("verdicts")
    pairs = ((("b", "mean"), ("a", "mean")), (("b", "spread"), ("a", "spread")))
    claims = (verdicts.Claim("b is best", pairs, about="of two"),)
    table = verdicts.Table("set", "job", print, (), {}, {"mean": print}, claims)
    figures = {row: {"mean": [0.5, 0.6], "spread": [0.1, 0.1]} for row in "ab"}
    *_, line = verdicts.describe(table, figures, {"a": "0.1", "b": "0.3, alpha 1"})
    assert line == (
        '- **not decided** (p = 1.000; 80 % of such tests find 0.000): "b is best", of two (b - a 0.000 '
        "[0.000, 0.000]; b - a, spread 0.000 [0.000, 0.000])"
    )
    # The part that is hardest to tell: 0.1 / sqrt(2) * (12.706 + 1.376) = 0.996 and nothing.
    figures["b"]["mean"] = [0.5, 0.7]
    *_, note, blank, line = verdicts.describe(table, figures, {"a": "0.1", "b": "0.3"}, 0.25)
    assert note.endswith("(Nadeau and Bengio 2003), n_test / n_train = 0.25.") and not blank
    # Corrected: sqrt(1 / 2 + 1 / 4) in place of sqrt(1 / 2), 0.0707 * 0.866 * 14.08 = 0.862.
    assert "not decided** (p = 1.000; 80 % of such tests find 0.862)" in line


def list_papers():
    """Return name -> a paper with its claims."""
    return {name: importlib.import_module(f"claim_{name}").PAPER for name in importlib.import_module("claims").PAPERS}


def find_misquoted(words, text):
    """Return the pieces between ellipses that a text does not have."""
    return [piece for piece in words.split(" ... ") if piece not in text]


def test_a_claim_quotes_its_paper_word_for_word():
    if not (SHARED / "papers").is_dir():
        pytest.skip("the papers' texts are not there")
    misquoted, texts = [], []
    for name, paper in list_papers().items():
        texts.append(" ".join((SHARED / "papers" / f"{name}.txt").read_text(encoding="utf-8").split()))
        quoted = [claim.words for table in paper.tables for claim in table.claims]
        misquoted += [piece for words in quoted for piece in find_misquoted(words, texts[-1])]
    page = " ".join((BENCH / "claims.md").read_text(encoding="utf-8").split())
    on_page = re.findall(r'"([^"]+)"', page)
    misquoted += [piece for words in on_page for piece in find_misquoted(words, " ".join(texts))]
    assert len(on_page) > 10 and misquoted == []


def test_make_claims_has_one_table_a_paper_and_quick_rows_have_thirty_splits():
    papers = list_papers()
    assert [[table.name for table in one.tables if table.is_main] for one in papers.values()] == [
        ["stains-1"],
        ["phantoms"],
        ["labels-shifted"],
    ]
    splits = {table.name: len(table.seeds) for paper in papers.values() for table in paper.tables if table.claims}
    assert splits == {
        **dict.fromkeys(("stains-1", "stains-0.5", "stains-0.25", "stains-1-drift", "stains-1-densenet121"), 30),
        "stains-1-home": 30,
        **dict.fromkeys(("tiles", "pneumonia", "nuclei", "tiles-home", "nuclei-home"), 6),
        "phantoms": 10,
        "labels-shifted": 30,
        "labels-even": 30,
    }


def test_fedsm_is_compared_with_every_baseline_of_its_table_and_with_fedavgs_own_model_elsewhere():
    (table,) = list_papers()["fedsm"].tables
    claims = {claim.words: [second for _, second in claim.pairs] for claim in table.claims}
    (superior,) = (seconds for words, seconds in claims.items() if "superiority" in words)
    assert {row for row, _ in superior} == {row.name for row in table.rows} - {"FedSM", "pooled"}
    (elsewhere,) = (seconds for words, seconds in claims.items() if "not worse than the global model" in words)
    assert elsewhere == [("FedAvg", "unseen")]


@pytest.mark.parametrize(("score", "code"), [(0.9752, 0), (0.9585, 1)])
def test_a_check_repeats_stored_rates_and_fails_where_one_differs(monkeypatch, tmp_path, capsys, score, code):
    claims = importlib.import_module("claims")
    entry = ("harmofl", "tiles-normalizations", "FedAvg, GroupNorm")
    stored = {"harmofl": {entry[1]: {entry[2]: {"rate": 0.03, "validation": {"0.03": 0.9752}}}}}
    asked = []
    monkeypatch.setattr(claims, "CHECKED", (entry,))
    monkeypatch.setattr(claims, "_read_rates", lambda: stored)
    monkeypatch.setattr(claims, "_do", lambda options, runs: asked.extend(runs))
    monkeypatch.setattr(claims, "read_complete", lambda folder: folder)
    monkeypatch.setattr(claims, "validation_of", lambda folder: score)
    (tmp_path / "sets" / "nuclei_dsb2018").mkdir(parents=True)
    options = ["claims.py", "--check", "--data", str(tmp_path / "sets"), "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", options)
    if code:
        with pytest.raises(SystemExit, match="1 of 1 stored entries differ.*another processor"):
            claims.main()
    else:
        claims.main()
    assert [(one.row.name, one.rate, one.seed) for one in asked] == [(entry[2], 0.03, seed) for seed in (1, 2, 3)]
    verdict = "differs" if code else "same"
    assert f"tiles-normalizations: FedAvg, GroupNorm: stored 0.9752, now {score} ({verdict})" in capsys.readouterr().out
    # Nothing of an earlier check is used again.
    assert not list((tmp_path / "out").glob("check-*"))


def test_a_search_goes_on_beyond_an_edge_and_from_where_it_was_ended(monkeypatch):
    claims, verdicts = importlib.import_module("claims"), importlib.import_module("verdicts")
    row = verdicts.Row("FedAvg", {}, (0.01, 0.03), constant="algorithm.alpha", values=(0.5, 1.0))
    scores = {
        (0.01, None): 0.7,
        (0.03, None): 0.8,
        (0.1, None): 0.85,
        (0.3, None): None,
        (0.1, 0.5): 0.9,
        (0.1, 1.0): 0.6,
    }
    monkeypatch.setattr(claims, "read_complete", lambda folder: scores[folder])
    monkeypatch.setattr(claims, "validation_of", lambda value: value)
    monkeypatch.setattr(claims, "read_ledger", lambda folder: [SimpleNamespace(seconds=2.0)])
    found, asked = {"validation": {}}, []
    while left := claims.find_left(row, found):
        asked.append(left)
        claims.note(found, {one: [one] for one in left})
    # Both rates, then one at a time beyond the edge, until one is worse or does not end; then the constant.
    assert asked == [[(0.01, None), (0.03, None)], [(0.1, None)], [(0.3, None)], [(0.1, 0.5), (0.1, 1.0)]]
    assert found == {
        "validation": {"0.01": 0.7, "0.03": 0.8, "0.1": 0.85, "0.3": None},
        "rate": 0.1,
        "values": {"0.5": 0.9, "1": 0.6},
        "value": 0.5,
        "seconds": 2.0,
    }
    # The ladder ends.
    assert claims.find_left(verdicts.Row("x", {}, (3.0,)), {"validation": {"1": 0.8, "3": 0.9}, "rate": 3.0}) == []


def make_site(folder, validation):
    folder.mkdir(parents=True)
    image = {"image": "a.png", "label": 1}
    content = {"task": "classification", "labels": {"0": "no", "1": "yes"}, "training": [image]}
    content["validation"] = [image] * validation
    (folder / "dataset.json").write_text(json.dumps(content))


def test_a_run_of_pooled_data_needs_no_other_site(tmp_path, monkeypatch):
    runs = importlib.import_module("runs")
    make_site(tmp_path / "pool" / "pooled", 1)
    asked = []
    # It silences the log of its process, which is the tests' here.
    monkeypatch.setattr(logging, "disable", lambda level: None)
    monkeypatch.setattr(
        runs, "run_in_process", lambda study, folder, sites, settings, start: asked.append((sites, settings))
    )
    runs.Alone("harmofl_stains", "pooled", {"algorithm": {"name": "fedavg"}}, "pool").run(tmp_path, tmp_path)
    ((sites, settings),) = asked
    assert sites == ["pooled"] and settings.min_partners == 0


@pytest.mark.parametrize(("failed", "rate", "trained"), [((), 0.3, 2), ((0.3,), 0.1, 4), ((0.3, 0.1), 0.1, 4)])
def test_a_rate_with_which_a_seed_fails_gives_way_to_the_next_best(monkeypatch, failed, rate, trained):
    methods, asked = importlib.import_module("methods"), []
    monkeypatch.setattr(methods, "_do", lambda options, wanted: asked.extend(wanted))
    fails = [f"mednist/moon/rate{one}-40rounds-seed1" for one in failed]
    monkeypatch.setattr(methods, "read_complete", lambda folder: None if str(folder) in fails else folder)
    options = SimpleNamespace(rounds=40, out=Path())
    final = methods._train("mednist", {"fedavg": [0.01], "moon": [0.3, 0.1]}, (0, 1), options)
    assert {one.rate for one in final["moon"]} == {rate} and [one.seed for one in final["moon"]] == [0, 1]
    assert [one.rate for one in asked if one.method == "moon"] == [0.3, 0.3, 0.1, 0.1][:trained]
    assert [one.rate for one in asked if one.method == "fedavg"] == [0.01, 0.01]


def test_a_run_in_which_a_site_failed_is_neither_chosen_nor_a_row(tmp_path, monkeypatch):
    methods, runs = (importlib.import_module(name) for name in ("methods", "runs"))
    stored = {0.1: ("COMPLETE", 0.8), 0.3: ("INCOMPLETE", 0.9), 1.0: ("FAILED", 0.9)}
    wanted = {rate: methods.Wanted("mednist", "fedavg", rate, 0, 20) for rate in (*stored, 3.0)}
    results = {
        tmp_path / wanted[rate].folder: SimpleNamespace(
            status=status, is_finished=status != "FAILED", validation_mean=mean
        )
        for rate, (status, mean) in stored.items()
    }
    for folder in results:
        folder.mkdir(parents=True)
    monkeypatch.setattr(runs, "read_results", results.__getitem__)
    assert [methods._validation(tmp_path, one) for one in wanted.values()] == [0.8, -1.0, -1.0, -1.0]
    assert [runs.read_complete(tmp_path / one.folder) is not None for one in wanted.values()] == [True, *[False] * 3]


def test_runs_are_carried_out_in_batches_of_fresh_processes(tmp_path, monkeypatch, capsys):
    runs = importlib.import_module("runs")
    pools = []

    def open_pool(processes, _):
        pools.append(processes)
        return ThreadPoolExecutor(processes)

    monkeypatch.setattr(runs, "ProcessPoolExecutor", open_pool)
    monkeypatch.setattr(runs, "RUNS_EACH", 2)
    monkeypatch.setattr(runs, "read_content", lambda _: {"validation": ["a case"]})
    wanted = [
        SimpleNamespace(
            set="spine", source="", folder=str(number), find_sites=lambda _: ["north"], run=lambda data, out: 1.0
        )
        for number in range(9)
    ]
    runs.carry_out(wanted, tmp_path, tmp_path, 2)
    # 9 runs, 2 processes of 2 runs each at once
    assert pools == [2, 2, 2]
    assert [line.partition(" of 9")[0] for line in capsys.readouterr().out.splitlines()] == list("123456789")
    wanted[0].run = raise_refusal
    runs.carry_out(wanted[:1], tmp_path, tmp_path, 2)
    assert "1 of 1: 0, refused: rate must be smaller" in capsys.readouterr().out


def raise_refusal(data, out):
    raise ConfigError("rate must be smaller")
