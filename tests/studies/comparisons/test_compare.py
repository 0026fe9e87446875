import json
import shutil

import pytest

from silofl.base.errors import AggregationError
from silofl.base.schema import dump_record
from silofl.core.gain import WORSE
from silofl.study import load_study
from silofl_desk.studies.runs.simulation import study_file
from tests.report.conftest import joined

from ..conftest import JOB

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("undrawn")]


@pytest.fixture
def compare(silofl, tmp_path, phantoms, training):
    """Run the command; returns exit code, output, and the table for programs where there is one."""

    def run(*options, seeds="0,1"):
        given = ["--data", phantoms, "--out", tmp_path / "out", "--seeds", seeds, *options]
        code, out, error = silofl("compare", JOB, *given)
        path = tmp_path / "out" / "table.json"
        return code, out + error, json.loads(path.read_text()) if path.is_file() else None

    return run


def test_every_job_and_method_runs_for_each_seed_and_the_table_opens_with_what_joining_gave(
    compare, training, tmp_path
):
    lost, gained = joined(kept=0.6, verdict=WORSE, p_below=0.001), joined(kept=0.6, p_below=0.9)
    training.results = {"joining": {"north": dump_record(lost), "south": dump_record(gained)}}
    code, out, table = compare("--methods", "local,fedavg")
    assert code == 0
    # Local training leaves its models to the others, and stands where it was named.
    assert training.carried_out == [f"{name}-seed{seed}" for name in ("local", "fedavg_phantoms") for seed in (0, 1)]
    assert "fedavg: the row fedavg, which is what the first job does" in out
    assert [row["name"] for row in table["rows"]] == ["fedavg", "local"] and table["seeds"] == [0, 1]
    # 0.5 with seed 0, 0.625 with seed 1
    assert table["rows"][0]["sites"]["north"]["values"] == [0.5, 0.625]
    assert {run["status"] for run in table["runs"]} == {"COMPLETE"}
    assert out.index("local, seed 0:") < out.index("fedavg, seed 0:")
    problem = "fedavg, seed 0: north: the model that it keeps scores 0.600, its local model 0.700"
    assert out.index(f"BAD  {problem}") < out.index("client average")
    written = (tmp_path / "out" / "table.md").read_text()
    assert written.startswith(f"- {problem}") and "| local | 0.562 ± 0.088 |" in written
    page = (tmp_path / "out" / "comparison.html").read_text()
    assert page.index(problem) < page.index("<h2>Results</h2>")
    # Finished runs are used again, but not of another study.
    for *option, key in (("--rounds", "7", "rounds"), ("--set", "training.batch_size=3", "training.batch_size")):
        code, out, _ = compare(*option)
        assert code == 2 and f"holds another run, which differs in {key}." in out
    code, out, table = compare(seeds="0,2")
    assert (code, training.carried_out[4:], table["seeds"]) == (0, ["fedavg_phantoms-seed2"], [0, 2])
    assert "already finished" in out


def test_images_of_data_that_cannot_be_written_to_are_decoded_elsewhere_those_of_the_pool_too(
    compare, training, phantoms, tmp_path
):
    data, cache = tmp_path / "data", tmp_path / "cache"
    shutil.copytree(phantoms, data, ignore=shutil.ignore_patterns(".silofl-cache"))
    # As nothing keeps root from writing, a file is in the folder's place.
    (data / ".silofl-cache").write_text("")
    code, out, _ = compare("--data", data, seeds="0")
    assert code == 2 and "or name another folder with cache_dir in site.yaml, in a simulation with --cache" in out
    code, out, table = compare("--data", data, "--pooled", "--cache", cache, seeds="0")
    assert (code, training.carried_out) == (0, ["fedavg_phantoms-seed0", "centralised-seed0"])
    # north, south and their pool
    assert len(list(cache.glob("*/index.json"))) == 3
    assert "CENTRALISED: this pools the patients' data of all sites in one place" in out
    row = table["rows"][-1]
    assert row["name"] == "centralised (data pooled: simulation only)"
    assert row["sites"] == {site: {"mean": 0.75, "std": None, "values": [0.75]} for site in ("north", "south")}
    assert json.loads((tmp_path / "out" / "runs" / "centralised-seed0" / "run.json").read_text())["sites"] == ["pooled"]


def test_an_unfinished_run_goes_on_and_one_on_data_that_were_changed_since_is_refused(
    compare, training, phantoms, tmp_path
):
    data = shutil.copytree(phantoms, tmp_path / "data", ignore=shutil.ignore_patterns(".silofl*"))
    training.status["fedavg_phantoms-seed0"] = "INTERRUPTED"
    code, out, table = compare("--data", data)
    assert (code, table, training.carried_out) == (130, None, ["fedavg_phantoms-seed0"])
    assert "give the same command again" in out
    training.status.clear()
    assert compare("--data", data)[0] == 0
    assert training.carried_out[1:] == ["fedavg_phantoms-seed0", "fedavg_phantoms-seed1"]
    image = data / "north" / json.loads((data / "north" / "dataset.json").read_text())["training"][0]["image"]
    image.write_bytes(image.read_bytes()[:-1] + b"\1")
    code, out, _ = compare("--data", data)
    assert code == 2 and "holds another run, which differs in data of north" in out


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


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ([JOB], "are named 'fedavg_phantoms'. Rename"),
        (["nowhere"], "must be a job folder"),
        (["--seeds", "0,x"], "--seeds must be a whole number of at least 0, not 'x'"),
        (["--seeds", ""], "not ''"),
        (["--seeds", "4294967296"], "seed must be less than 4294967296"),
        (["--methods", "fedavgg"], "not 'fedavgg' (did you mean 'fedavg'?)"),
        (["--methods", "local,local"], "Several jobs, methods or --as are named 'local'"),
        (["--methods", "harmofl:papr"], "silofl: harmofl:papr: study.yaml with the changes: algorithm.preset"),
        (["--methods", "local", "--set", "rounds=2", "--as", "local"], "--as are named 'local'. Rename"),
        (["--set", "training.lr=0.1", "--as", "slow"], "did you mean 'training.learning_rate'"),
        (["--set", "training.lr=0.1"], "did you mean 'training.learning_rate'"),
        (["--as", "slow"], "--as must follow at least one --set, with a name of its own"),
        (["--set", "rounds=2", "--as", "a/b"], "letters, digits, '.', '_' and '-', not 'a/b'"),
        (["--set", "seed=3"], "Give the seeds with --seeds"),
        (["--set", "rounds=2", "--rounds", "3"], "rounds is given twice, as 2 and 3"),
        (["--set", "rounds=2", "--set", "rounds=3", "--as", "a"], "rounds is given twice, as 2 and 3"),
        (["--set", "algorithm.name=fedbn", "--methods", "local"], "changes the algorithm of every row"),
        (["--set", "training={momentum: 0}", "--set", "training.momentum=1"], "momentum is set before"),
        (["--set", "training.momentum=1", "--set", "training={loss: dice}"], "before training, which replaces it"),
        (["--set", "rounds=5", "--as", "long", "--rounds", "1"], "--set rounds would replace rounds of --as long"),
        (["--set", "training.momentum=0", "--as", "a", "--set", "training={loss: dice}"], "replace training.momentum"),
        (["--set", "training={momentum: 0}", "--as", "a", "--set", "training.momentum=1"], "replace training.momentum"),
        (["--methods", ","], "must be one or more names"),
        (["--rounds", "0"], "--rounds"),
        ([], "dataset.json lacks the key 'task'"),
        (["--pooled"], "dataset.json lacks the key 'task'"),
    ],
)
def test_a_comparison_that_cannot_be_is_refused_before_anything_starts(refused, tmp_path, two_sites, options, reason):
    assert reason in refused("compare", "--data", two_sites, "--out", tmp_path / "out", "--seeds", "0", JOB, *options)
    assert not (tmp_path / "out").exists()


def test_rows_are_named_for_what_is_set_in_them_and_the_rest_is_set_for_all(compare, training, tmp_path):
    rows = ["--set", "training.learning_rate=0.01", "--set", "algorithm.server_lr=0.5", "--as", "fast"]
    rows += ["--set", "algorithm={name: fedbn}", "--as", "own", "--set", "training.batch_size=4"]
    code, out, table = compare(*rows, "--methods", "local:paper", seeds="0")
    names = ["fedavg", "fast", "own", "local:paper"]
    folders = ["fedavg_phantoms-seed0", "fast-seed0", "own-seed0", "local-paper-seed0"]
    assert code == 0 and training.carried_out == [folders[-1], *folders[:-1]]
    assert [row["name"] for row in table["rows"]] == names
    fast = {"training.learning_rate": 0.01, "algorithm.server_lr": 0.5}
    assert table["runs"][1]["changes"] == fast | {"training.batch_size": 4, "seed": 0}
    assert "Set for every row: training.batch_size: 4." in table["notes"]
    # learning rates are no row's algorithm: the difference is said before the numbers; all have the batch size
    outliers = "The rows differ in training.learning_rate: 0.003 (fedavg, own, local:paper); 0.01 (fast)."
    assert table["differences"] == [outliers] and out.index(outliers) < out.index("client average")
    assert (tmp_path / "out" / "table.md").read_text().startswith(f"- {outliers}\n\n| method")
    assert "Set for fast: training.learning_rate: 0.01, algorithm.server_lr: 0.5." in out
    studies = [load_study(study_file(tmp_path / "out" / "runs" / name / "job")) for name in folders]
    assert [study.training.learning_rate for study in studies] == [0.003, 0.01, 0.003, 0.003]
    assert {study.training.batch_size for study in studies} == {4}
