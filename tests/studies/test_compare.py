import json
import shutil
from pathlib import Path

import pytest

from silofl.base.errors import AggregationError
from silofl.base.schema import dump_record
from silofl.cli import main
from silofl.core.gain import WORSE
from silofl.study import load_study
from silofl_desk.studies.compared_runs import ComparisonPlan
from silofl_desk.studies.simulation import GUARD, study_file
from tests.report.conftest import joined

from .conftest import JOB

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("undrawn")]


@pytest.fixture
def compare(tmp_path, phantoms, training, capsys):
    """Run the command; returns exit code, output, and the table for programs where there is one."""

    def run(*options, seeds="0,1"):
        arguments = ["compare", JOB, "--data", phantoms, "--out", tmp_path / "out", "--seeds", seeds, *options]
        code = main([str(argument) for argument in arguments])
        path = tmp_path / "out" / "table.json"
        return code, "".join(capsys.readouterr()), json.loads(path.read_text()) if path.is_file() else None

    return run


def test_every_job_and_method_runs_for_each_seed_and_stands_in_the_table(compare, training, tmp_path):
    code, out, table = compare("--methods", "local")
    assert code == 0
    # Local training leaves its models to the others, and stands where it was named.
    assert training.carried_out == [f"{name}-seed{seed}" for name in ("local", "fedavg_phantoms") for seed in (0, 1)]
    assert [row["name"] for row in table["rows"]] == ["fedavg", "local"]
    # 0.5 with seed 0, 0.625 with seed 1
    assert table["rows"][0]["sites"]["north"]["values"] == [0.5, 0.625]
    assert {run["status"] for run in table["runs"]} == {"COMPLETE"}
    assert "run 1 of 4: local, seed 0" in out and "so far" in out
    written = (tmp_path / "out" / "table.md").read_text()
    # both are level everywhere: 0.5 and 0.625 have the mean 0.5625 and the deviation 0.125 / sqrt(2)
    assert "| local | <ins>0.562 ± 0.088</ins> |" in written and "| winner | none: 2 level |" in written
    assert [(row["sites_won"], row["sites_level"]) for row in table["rows"]] == [([], ["north", "south"])] * 2


def test_fedbn_beside_a_study_with_groupnorm_keeps_batchnorm_at_home(silofl, training, phantoms, tmp_path):
    assert silofl("new-study", phantoms, "study")[0] == 0
    asked = ("--data", phantoms, "--out", "out", "--seeds", "0", "--methods", "fedavg,fedbn")
    code, out, error = silofl("compare", "study", *asked)
    assert code == 0, error
    assert "fedbn: with model.normalization batch, which is needed\n" in out
    jobs = {name: tmp_path / "out" / "runs" / f"{name}-seed0" / "job" for name in ("study", "fedbn")}
    assert training.carried_out == [f"{name}-seed0" for name in jobs]
    found = {name: load_study(study_file(job)).model.normalization for name, job in jobs.items()}
    assert found == {"study": "group", "fedbn": "batch"}
    # What the comparison itself sets describes the row, and is no difference to warn of.
    table = json.loads((tmp_path / "out" / "table.json").read_text())
    assert table["differences"] == [] and "Set for fedbn: model.normalization: batch." in table["notes"]
    assert "NOT ALIKE" not in (tmp_path / "out" / "comparison.html").read_text()
    assert GUARD in study_file(jobs["fedbn"]).with_name("config_fed_client.json").read_text()


def test_a_comparison_opens_with_what_joining_gave(compare, training, tmp_path):
    lost, gained = joined(kept=0.6, verdict=WORSE, p_below=0.001), joined(kept=0.6, p_below=0.9)
    training.results = {"joining": {"north": dump_record(lost), "south": dump_record(gained)}}
    _, out, _ = compare(seeds="0")
    problem = "fedavg: north: the model that it keeps scores 0.600, its own model 0.700"
    assert out.index(f"BAD  {problem}") < out.index("verdicts") < out.index("client average")
    written = (tmp_path / "out" / "table.md").read_text()
    assert written.startswith(f"- {problem}") and "| fedavg | 1 better, 1 worse |" in written
    assert written.index("| 1 better, 1 worse |") < written.index("client average")
    page = (tmp_path / "out" / "comparison.html").read_text()
    assert page.index(problem) < page.index("All hospitals together") < page.index("<h2>Results</h2>")


def test_finished_runs_are_used_again_but_not_of_another_study(compare, training):
    compare(seeds="0")
    for *option, key in (("--rounds", "7", "rounds"), ("--set", "training.batch_size=3", "training.batch_size")):
        code, out, _ = compare(*option, seeds="0")
        assert code == 2 and f"must be a run of what is asked for, not one that differs in {key};" in out
    code, out, table = compare("--methods", "local", seeds="0,1")
    assert code == 0 and training.carried_out[1:] == ["local-seed0", "local-seed1", "fedavg_phantoms-seed1"]
    assert "already finished" in out and table["seeds"] == [0, 1]


def test_images_of_data_that_cannot_be_written_to_are_decoded_elsewhere(compare, training, phantoms, tmp_path):
    data, cache = tmp_path / "data", tmp_path / "cache"
    shutil.copytree(phantoms, data, ignore=shutil.ignore_patterns(".silofl-cache"))
    # As nothing keeps root from writing, a file is in the folder's place.
    (data / ".silofl-cache").write_text("")
    code, out, _ = compare("--data", data, seeds="0")
    assert code == 2 and "or name another folder with cache_dir in site.yaml, in a simulation with --cache" in out
    assert compare("--data", data, "--pooled", "--cache", cache, seeds="0")[0] == 0
    assert training.carried_out == ["fedavg_phantoms-seed0", "centralised-seed0"]
    # north, south and their pool
    assert len(list(cache.glob("*/index.json"))) == 3


def test_an_unfinished_run_goes_on(compare, training):
    training.status["fedavg_phantoms-seed0"] = "INTERRUPTED"
    code, out, table = compare()
    assert (code, table, training.carried_out) == (130, None, ["fedavg_phantoms-seed0"])
    assert "give the same command again" in out
    training.status.clear()
    assert compare()[0] == 0
    assert training.carried_out[1:] == ["fedavg_phantoms-seed0", "fedavg_phantoms-seed1"]


def test_a_run_on_data_that_were_changed_since_is_refused_and_not_shown_as_of_today(
    compare, training, phantoms, tmp_path
):
    data = shutil.copytree(phantoms, tmp_path / "data", ignore=shutil.ignore_patterns(".silofl*"))
    assert compare("--data", data, seeds="0")[0] == 0
    image = data / "north" / json.loads((data / "north" / "dataset.json").read_text())["training"][0]["image"]
    before = image.read_bytes()
    image.write_bytes(before[:-1] + b"\1")
    code, out, _ = compare("--data", data, seeds="0")
    assert code == 2 and "must be a run of what is asked for, not one that differs in data of north" in out
    # Files that were only written anew are what they were.
    image.write_bytes(before)
    assert compare("--data", data, seeds="0")[0] == 0


def test_a_run_that_goes_wrong_does_not_lose_the_others(compare, training):
    fault = AggregationError("sites must agree, not differ")
    training.status |= {"fedavg_phantoms-seed0": "FAILED", "fedavg_phantoms-seed1": "KILLED", "local-seed0": fault}
    training.status["local-seed1"] = "INCOMPLETE"
    # A failed run outweighs an incomplete one.
    code, out, table = compare("--methods", "local,fedbn")
    assert (code, len(training.carried_out)) == (1, 6)
    assert "fedavg, seed 0: no numbers: because" in out
    assert "fedavg, seed 1: no numbers: it ended early" in out
    assert "local, seed 0: no numbers: sites must agree, not differ" in out
    assert "local, seed 1: INCOMPLETE: because" in out
    assert table["rows"][2]["client_average"]["values"] == [0.5, 0.625]


@pytest.mark.parametrize(("ending", "code"), [("KILLED", 1), (AggregationError("no"), 1), ("INCOMPLETE", 3)])
def test_one_run_that_goes_wrong_decides_the_code_of_the_comparison(compare, training, ending, code):
    training.status["fedavg_phantoms-seed0"] = ending
    assert compare(seeds="0")[0] == code


def test_pooled_data_are_announced_and_their_row_has_the_sites_values(compare, tmp_path):
    code, out, table = compare("--pooled", seeds="0")
    assert code == 0
    assert "CENTRALISED: this pools the patients' data of all sites in one place" in out
    row = table["rows"][-1]
    assert row["name"] == "centralised (data pooled: simulation only)"
    assert row["needs_pooled_data"] and not row["is_federated"]
    assert row["sites"] == {site: {"mean": 0.75, "std": None, "values": [0.75]} for site in ("north", "south")}
    run = tmp_path / "out" / "runs" / "centralised-seed0"
    assert json.loads((run / "run.json").read_text())["sites"] == ["pooled"]
    assert (tmp_path / "out" / "pooled" / "pooled" / "north").is_dir()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--seeds", "0,x"], "--seeds must be a whole number of at least 0, not 'x'"),
        (["--seeds", ""], "not ''"),
        (["--seeds", "0,1,0"], "--seeds must name each seed once, not 0,1,0"),
        (["--seeds", "4294967296"], "seed must be less than 4294967296"),
        (["--methods", "fedavgg"], "not 'fedavgg' (did you mean 'fedavg'?)"),
        (["--methods", "local,local"], "must have names of their own, not 'local' twice"),
        (["--methods", "harmofl:papr"], "silofl: harmofl:papr: study.yaml with the changes: algorithm.preset"),
        (["--methods", "local", "--set", "rounds=2", "--as", "local"], "names of their own, not 'local' twice"),
        (["--set", "training.lr=0.1", "--as", "slow"], "did you mean 'training.learning_rate'"),
        (["--set", "training.lr=0.1"], "did you mean 'training.learning_rate'"),
        (["--as", "slow"], "--as must follow at least one --set, with a name of its own"),
        (["--set", "rounds=2", "--as", "a/b"], "letters, digits, '.', '_' and '-', not 'a/b'"),
        (["--set", "seed=3"], "seed must be given as --seeds"),
        (["--set", "rounds=2", "--rounds", "3"], "rounds must be given once, not 2 and 3"),
        (["--set", "rounds=2", "--set", "rounds=3", "--as", "a"], "rounds must be given once, not 2 and 3"),
        (["--set", "algorithm.name=fedbn", "--methods", "local"], "must not be set for every row with --methods"),
        (["--set", "training={momentum: 0}", "--set", "training.momentum=1"], "momentum must not be set before"),
        (["--set", "training.momentum=1", "--set", "training={loss: dice}"], "before training, which would replace it"),
        (["--set", "rounds=5", "--as", "long", "--rounds", "1"], "with --as long, whose rounds it would replace"),
        (["--set", "training.momentum=0", "--as", "a", "--set", "training={loss: dice}"], "whose training.momentum"),
        (["--set", "training={momentum: 0}", "--as", "a", "--set", "training.momentum=1"], "whose training.momentum"),
        (["--methods", ","], "must give at least one name"),
        (["--rounds", "0"], "--rounds"),
        ([], "dataset.json must have the key 'task'"),
        (["--pooled"], "dataset.json must have the key 'task'"),
    ],
)
def test_a_comparison_that_cannot_be_is_refused_before_anything_starts(refused, tmp_path, two_sites, options, reason):
    assert reason in refused("compare", JOB, "--data", two_sites, "--out", tmp_path / "out", "--seeds", "0", *options)
    assert not (tmp_path / "out").exists()


def test_a_comparison_of_a_job_twice_or_of_none_is_refused(refused, tmp_path, two_sites):
    out = ["--data", two_sites, "--out", tmp_path / "out"]
    assert "not 'fedavg_phantoms' twice" in refused("compare", JOB, JOB, *out)
    assert "JOB" in refused("compare", *out)
    assert "must be a job folder" in refused("compare", tmp_path / "nowhere", *out)


def test_compare_hands_on_what_it_was_given_and_prints_the_table_for_programs(silofl, monkeypatch, tmp_path):
    seen = []

    def compare(asked, out, console, processes):
        seen.append((asked, processes))
        out.mkdir()
        (out / "table.json").write_text(json.dumps({"rows": []}))
        return 3

    monkeypatch.setattr("silofl_desk.studies.compare.compare", compare)
    for name in ("one", "two", "data", "f.pt"):
        (tmp_path / name).mkdir()
    options = ["--seeds", "4,2", "--methods", "local,fedsm", "--pooled", "--rounds", 2, "--json"]
    options += ["--processes", 3, "--equal-rounds"]
    code, out, _ = silofl("compare", "one", "two", "--data", "data", "--out", tmp_path / "out", *options)
    assert (code, json.loads(out)) == (3, {"rows": []})
    asked = ComparisonPlan(
        (Path("one"), Path("two")),
        ("local", "fedsm"),
        seeds=(4, 2),
        changes={"rounds": 2},
        data="data",
        is_pooled=True,
        has_equal_rounds=True,
    )
    silofl("compare", "one", "--out", tmp_path / "new", "--pretrained", "f.pt", "--alone")
    assert seen == [(asked, 3), (ComparisonPlan((Path("one"),), pretrained="f.pt", is_alone=True), 1)]


def test_rows_are_named_for_what_is_set_in_them_and_the_rest_is_set_for_all(compare, training, tmp_path):
    rows = ["--set", "training.learning_rate=0.01", "--set", "algorithm.server_lr=0.5", "--as", "fast"]
    rows += ["--set", "algorithm={name: fedbn}", "--as", "own", "--set", "training.batch_size=4"]
    code, out, table = compare(*rows, "--methods", "local:paper", seeds="0")
    names = ["fedavg", "fast", "own", "local:paper"]
    folders = ["fedavg_phantoms-seed0", "fast-seed0", "own-seed0", "local-paper-seed0"]
    # Local training comes first, as the others take its models.
    assert code == 0 and training.carried_out == [folders[-1], *folders[:-1]]
    assert [row["name"] for row in table["rows"]] == names
    fast = {"training.learning_rate": 0.01, "algorithm.server_lr": 0.5}
    assert table["runs"][1]["changes"] == fast | {"training.batch_size": 4, "seed": 0}
    assert "Set for every row: training.batch_size: 4." in table["notes"]
    # learning rates are no row's algorithm: the difference is said before the numbers; all have the batch size
    unlike = "The rows differ in training.learning_rate: 0.003 (fedavg, own, local:paper); 0.01 (fast)."
    assert table["differences"] == [unlike]
    assert out.index(unlike) < out.index("client average")
    assert (tmp_path / "out" / "table.md").read_text().startswith(f"- {unlike}\n\n| method")
    assert "Set for fast: training.learning_rate: 0.01, algorithm.server_lr: 0.5." in out
    page = (tmp_path / "out" / "comparison.html").read_text()
    assert "The rows differ in training.learning_rate" in page and "client average" in page
    assert page.count("<h3>Each run</h3>") == 1 and "training: patients" in page
    studies = [load_study(study_file(tmp_path / "out" / "runs" / name / "job")) for name in folders]
    assert [study.training.learning_rate for study in studies] == [0.003, 0.01, 0.003, 0.003]
    assert {study.training.batch_size for study in studies} == {4}
    # BatchNorm stays at home in FedBN, so the run's copy of the job has the filter that makes sure of it
    config = tmp_path / "out" / "runs" / "own-seed0" / "job" / "app" / "config" / "config_fed_client.json"
    assert GUARD in config.read_text() and studies[2].recipe.stays_home == "batchnorm"
