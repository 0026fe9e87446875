import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from silofl import __version__
from silofl.cli import main
from silofl.data.importers import LAYOUTS
from silofl.data.phantoms import make_phantoms
from silofl.errors import ConfigError
from silofl.files import held
from silofl.studies.compared_runs import METHODS, Comparison
from silofl.studies.simulate import Simulation, read_data, study_file
from silofl.study import load_study

JOB = Path(__file__).resolve().parents[1] / "jobs" / "fedavg_phantoms"
OPTIONS = {
    "demo": ["--out", "--jobs", "--rounds", "--seed"],
    "import": [
        "LAYOUT",
        "source",
        "target",
        "--seed",
        "--test",
        "--validation",
        "--partition",
        "--sites",
        "--alpha",
        "--shards",
        "--truncate",
        "--json",
        *LAYOUTS,
    ],
    "simulate": [
        "job",
        "--data",
        "--out",
        "--rounds",
        "--seed",
        "--sites",
        "--threads",
        "--prepare",
        "--json",
        "--leave-out",
    ],
    "resume": ["run", "--json"],
    "compare": [
        "JOB",
        "--data",
        "--out",
        "--seeds",
        "--methods",
        "--pooled",
        "--rounds",
        "--threads",
        "--json",
        *METHODS,
    ],
    "report": ["RUN", "--out"],
    "predict": [
        "SUPERMODEL",
        "INPUT",
        "--out",
        "--picture",
        "--site",
        "--threshold",
        "--batch-size",
        "--device",
        "--json",
    ],
    "export": ["SUPERMODEL", "--out"],
    "forget": ["STUDY", "--site-config", "--site", "--yes"],
    "check-site": ["--kit", "--study", "--site-config", "--skip", "--json"],
    "estimate": [
        "job",
        "--sites",
        "--bandwidth",
        "--examples",
        "--seconds-per-step",
        "--image-size",
        "--write",
        "--json",
    ],
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Work in a folder of the test's own, so that a path that should be refused can do no harm."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def phantoms(tmp_path_factory):
    return make_phantoms(tmp_path_factory.mktemp("phantoms") / "data", patients={"north": 6})


@pytest.fixture
def two_sites(tmp_path):
    """Return a data folder whose sites exist by their dataset.json alone, which is all a refusal looks at."""
    for site in ("north", "south"):
        (tmp_path / "data" / site).mkdir(parents=True)
        (tmp_path / "data" / site / "dataset.json").write_text("{}")
    return tmp_path / "data"


@pytest.fixture
def silofl(capsys, monkeypatch):
    """Run a command line in this process; returns exit code, standard output and standard error."""

    def refuse(*arguments):
        pytest.fail("nothing may be started")

    monkeypatch.setattr("silofl.studies.simulate.ProcessTree", refuse)

    def run(*arguments):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as ending:
            code = ending.code
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def refused(silofl):
    """Run a command line that must be refused: exit code 2 and one sentence on standard error, which is returned."""

    def run(*arguments):
        code, out, error = silofl(*arguments)
        assert (code, out) == (2, "")
        assert error.startswith("silofl") and error.endswith("\n") and error.count("\n") == 1
        assert "Traceback" not in error and "_natural" not in error
        return error

    return run


@pytest.fixture
def job(tmp_path):
    """Return a function that writes a copy of a job with changes to its study."""

    def write(**changes):
        folder = tmp_path / "job"
        shutil.copytree(JOB, folder, dirs_exist_ok=True)
        path = folder / "app" / "config" / "study.yaml"
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changes))
        return folder

    return write


# --- help and version


def test_help_names_every_command(silofl):
    code, out, _ = silofl("--help")
    assert code == 0 and all(command in out for command in OPTIONS)


@pytest.mark.parametrize("command", OPTIONS)
def test_help_of_a_command_names_its_options(silofl, command):
    code, out, error = silofl(command, "--help")
    assert (code, error) == (0, "")
    assert f"silofl {command}" in out
    assert [option for option in OPTIONS[command] if option not in out] == []


def test_version_is_the_packages(silofl):
    assert silofl("--version") == (0, f"silofl {__version__}\n", "")


# --- what cannot be understood


def test_a_command_must_be_given(refused):
    assert "COMMAND" in refused()
    assert "--frob" in refused("--frob", "resume", "run")


@pytest.mark.parametrize("name", ["trian", "Simulate", "--simulate"])
def test_an_unknown_command_is_refused_with_the_known_ones(refused, name):
    error = refused(name)
    assert "see silofl --help" in error
    assert name.startswith("-") or all(command in error for command in (name, *OPTIONS))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["resume"], "run"),
        (["report"], "RUN"),
        (["import", "folders", "here"], "target"),
        (["resume", "one", "two"], "two"),
        (["resume", "run", "--data", "here"], "--data"),
        (["simulate", "job", "--out"], "--out"),
    ],
)
def test_an_argument_that_is_missing_or_too_many_is_named(refused, arguments, named):
    assert named in refused(*arguments)


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("--rounds", "0", "must be a whole number of at least 1, not '0'"),
        ("--rounds", "x", "must be a whole number of at least 1, not 'x'"),
        ("--rounds", "2.5", "not '2.5'"),
        ("--rounds", "-3", "not '-3'"),
        ("--rounds", "", "not ''"),
        ("--rounds", "²", "not '²'"),
        ("--seed", "-1", "must be a whole number of at least 0, not '-1'"),
        ("--seed", "1e3", "not '1e3'"),
        ("--threads", "0", "must be a whole number of at least 1, not '0'"),
        ("--threads", "-2", "not '-2'"),
        ("--threads", "all", "not 'all'"),
    ],
)
def test_a_number_that_is_none_or_too_small_is_refused_with_its_option(refused, tmp_path, option, value, reason):
    error = refused("simulate", JOB, "--data", tmp_path, "--out", tmp_path / "run", option, value)
    assert option in error and reason in error


@pytest.mark.parametrize("command", [["demo"], ["import", "medmnist", "a", "b"]])
def test_other_commands_numbers_are_checked_too(refused, command):
    assert "must be a whole number of at least 0, not '-1'" in refused(*command, "--seed", "-1")


# --- import


@pytest.mark.parametrize("layout", ["folder", "dicom"])
def test_an_unknown_layout_is_refused_with_the_known_ones(refused, tmp_path, layout):
    error = refused("import", layout, tmp_path, tmp_path / "out")
    assert all(known in error for known in LAYOUTS)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("layout", ["folders", "medmnist"])
def test_an_import_of_a_missing_source_is_refused(refused, tmp_path, layout):
    assert "nowhere is not there" in refused("import", layout, tmp_path / "nowhere", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("layout", ["folders", "spine-gm"])
def test_an_import_of_another_layout_is_refused(refused, tmp_path, layout):
    (tmp_path / "source").mkdir()
    refused("import", layout, tmp_path / "source", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_an_import_to_a_place_that_holds_something_is_refused(refused, tmp_path, phantoms, kind):
    target = tmp_path / "target"
    kept = target / "notes.txt" if kind == "folder" else target
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("kept")
    assert "TARGET must be an empty folder" in refused("import", "folders", phantoms, target)
    assert kept.read_text() == "kept"


@pytest.mark.parametrize(
    ("option", "value"),
    [("--test", "x"), ("--sites", "0"), ("--alpha", "much"), ("--shards", "0"), ("--partition", "even")],
)
def test_an_imports_bad_number_is_refused_with_its_option(refused, tmp_path, option, value):
    assert option in refused("import", "medmnist", tmp_path, tmp_path / "out", option, value)


@pytest.mark.parametrize(
    ("layout", "options", "sentence"),
    [
        ("folders", ["--sites", "3"], "sites must not be given with layout 'folders'"),
        ("spine-gm", ["--test", "0.3"], "test must not be given with layout 'spine-gm'"),
        ("medmnist", ["--shards", "2"], "shards must not be given with partition 'dirichlet'"),
        ("pamap2", ["--partition", "patients", "--alpha", "1"], "alpha must not be given with partition 'patients'"),
    ],
)
def test_an_imports_option_without_use_is_refused(refused, tmp_path, layout, options, sentence):
    assert sentence in refused("import", layout, tmp_path, tmp_path / "out", *options)


# --- simulate


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ([], "JOB, --out"),
        ([JOB, "--data", "here"], "--out"),
        (["--data", "here", "--out", "there"], "JOB"),
    ],
)
def test_simulate_names_what_must_be_given(refused, given, missing):
    assert f"missing: {missing};" in refused("simulate", *given)


@pytest.mark.parametrize("kind", ["absent", "empty", "file", "without meta.json", "without study.yaml"])
def test_a_folder_that_is_no_job_is_refused(refused, tmp_path, two_sites, job, kind):
    folder = tmp_path / "job"
    if kind == "empty":
        folder.mkdir()
    elif kind == "file":
        folder.write_text("a job")
    elif kind != "absent":
        job()
        {"without meta.json": folder / "meta.json", "without study.yaml": folder / "app" / "config" / "study.yaml"}[
            kind
        ].unlink()
    error = refused("simulate", folder, "--data", two_sites, "--out", tmp_path / "run")
    assert "must be a job folder with meta.json and app/config/study.yaml" in error and "is missing" in error


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({"round": 3}, "did you mean 'rounds'"),
        ({"training": {"optimiser": "adam"}}, "did you mean 'training.optimizer'"),
    ],
)
def test_an_unknown_key_of_the_study_is_refused_with_the_nearest(refused, tmp_path, two_sites, job, changes, hint):
    error = refused("simulate", job(**changes), "--data", two_sites, "--out", tmp_path / "run")
    assert "must be a known key" in error and hint in error


@pytest.mark.parametrize("kind", ["absent", "file"])
def test_a_data_folder_that_is_not_there_is_refused(refused, tmp_path, kind):
    if kind == "file":
        (tmp_path / "data").write_text("data")
    error = refused("simulate", JOB, "--data", tmp_path / "data", "--out", tmp_path / "run")
    assert "--data must be a folder that holds one folder a site" in error


@pytest.mark.parametrize("inside", [[], ["north/images/a.png"], ["dataset.json"]])
def test_a_data_folder_without_sites_is_refused(refused, tmp_path, inside):
    data = tmp_path / "data"
    data.mkdir()
    for name in inside:
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_text("{}")
    error = refused("simulate", JOB, "--data", data, "--out", tmp_path / "run")
    assert "must hold folders with a dataset.json each" in error


@pytest.mark.parametrize(
    ("sites", "reason"),
    [
        ("nort", "must be among north, south, not 'nort' (did you mean 'north'?)"),
        ("north,suoth", "not 'suoth' (did you mean 'south'?)"),
        ("north,xyz", "not 'xyz'\n"),
        ("north,north", "--sites must name each site once, not north,north"),
        ("south,north,south", "once"),
    ],
)
def test_sites_that_are_unknown_or_named_twice_are_refused(refused, tmp_path, two_sites, sites, reason):
    assert reason in refused("simulate", JOB, "--data", two_sites, "--out", tmp_path / "run", "--sites", sites)


@pytest.mark.parametrize(("sites", "threads"), [([], 3), (["--sites", "north"], 2)])
def test_more_threads_than_sites_are_refused(refused, tmp_path, two_sites, sites, threads):
    run = ["simulate", JOB, "--data", two_sites, "--out", tmp_path / "run", *sites]
    error = refused(*run, "--threads", threads)
    assert f"the number of sites, {threads - 1}, not {threads}" in error


@pytest.mark.parametrize("inside", ["run.json", "notes.txt", "sites/north/scores.csv"])
def test_a_run_folder_that_holds_something_is_refused_and_kept(refused, tmp_path, two_sites, inside):
    kept = tmp_path / "run" / inside
    kept.parent.mkdir(parents=True)
    kept.write_text("kept")
    error = refused("simulate", JOB, "--data", two_sites, "--out", tmp_path / "run")
    assert "must be a new or empty folder" in error and ("silofl resume" in error) == (inside == "run.json")
    assert kept.read_text() == "kept"


def test_a_run_folder_that_is_a_file_is_refused_and_kept(refused, tmp_path, two_sites):
    (tmp_path / "run").write_text("kept")
    refused("simulate", JOB, "--data", two_sites, "--out", tmp_path / "run")
    assert (tmp_path / "run").read_text() == "kept"


def test_data_that_do_not_fit_the_study_are_refused_before_anything_starts(refused, tmp_path, two_sites):
    error = refused("simulate", JOB, "--data", two_sites, "--out", tmp_path / "run")
    assert "dataset.json" in error
    assert not (tmp_path / "run").exists()


def test_labels_that_are_not_the_studys_are_refused(refused, tmp_path, phantoms, job):
    changes = {"labels": {1: "nucleus"}, "federation": {"min_sites": 1}}
    error = refused("simulate", job(**changes), "--data", phantoms, "--out", tmp_path / "run")
    assert "labels" in error


@pytest.mark.parametrize("key", ["min_sites", "sites"])
def test_a_study_that_waits_for_more_sites_than_take_part_is_refused(refused, tmp_path, two_sites, job, key):
    folder = job(federation={key: 9})
    error = refused("simulate", folder, "--data", two_sites, "--out", tmp_path / "run")
    assert f"federation.{key} must be at most 2" in error


def test_a_site_without_a_dataset_json_is_refused_not_dropped(refused, tmp_path, two_sites):
    (two_sites / "west").mkdir()
    error = refused("simulate", JOB, "--data", two_sites, "--out", tmp_path / "run")
    assert "must hold a dataset.json, not all but west" in error


def test_a_run_that_another_command_holds_is_refused(refused, tmp_path, phantoms, job, capsys):
    run = tmp_path / "run"
    (run / "job").parent.mkdir()
    shutil.copytree(job(federation={"min_sites": 1}), run / "job")
    (run / "run.json").write_text(json.dumps({"data": str(phantoms), "sites": ["north"], "threads": 1}))
    read_data(load_study(study_file(run / "job")), Simulation(str(phantoms), ("north",), 1), run)
    capsys.readouterr()
    with held(run / "lock.command"):
        assert "must not be in use" in refused("resume", run)


@pytest.mark.parametrize(
    "changes",
    [["--rounds", "0"], ["--sites", "south"], ["--threads", "2"], ["--seed", "-1"]],
)
def test_a_refusal_leaves_no_run_behind(refused, tmp_path, phantoms, changes):
    before = sorted(phantoms.rglob("*"))
    refused("simulate", JOB, "--data", phantoms, "--out", tmp_path / "run", *changes)
    assert not (tmp_path / "run").exists()
    assert sorted(phantoms.rglob("*")) == before


def test_prepare_writes_what_plain_nvflare_needs_and_says_how_to_go_on(silofl, tmp_path):
    code, out, error = silofl("simulate", "--prepare", tmp_path / "workspace")
    assert (code, error) == (0, "")
    assert "SILOFL_DATA" in out and "nvflare simulator" in out
    written = {path.name for path in (tmp_path / "workspace" / "local").iterdir()}
    assert written == {"resources.json", "site.yaml", "server.yaml"}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--leave-out", "nort"], "--leave-out must be among north, south, not 'nort' (did you mean 'north'?)"),
        (["--leave-out", "coast"], "not 'coast'\n"),
        (["--leave-out", "north", "--sites", "north,south"], "must name a site that does not train, not 'north'"),
        (["--leave-out", "north", "--sites", "nort"], "--sites must be among north, south, not 'nort'"),
        (["--leave-out", "north", "--threads", "2"], "the number of sites, 1, not 2"),
        (["--leave-out", "north"], "federation.min_sites must be at most 1"),
    ],
)
def test_a_site_that_cannot_be_left_out_is_refused(refused, tmp_path, two_sites, options, reason):
    assert reason in refused("simulate", JOB, "--data", two_sites, "--out", tmp_path / "run", *options)
    assert not (tmp_path / "run").exists()


def test_at_least_one_site_must_train_beside_the_one_that_is_left_out(refused, tmp_path, two_sites):
    shutil.rmtree(two_sites / "south")
    error = refused("simulate", JOB, "--data", two_sites, "--out", tmp_path / "run", "--leave-out", "north")
    assert "--leave-out must leave at least one site to train" in error


def test_data_of_the_site_that_is_left_out_are_read_before_anything_starts(silofl, tmp_path, phantoms, job):
    (tmp_path / "data" / "south").mkdir(parents=True)
    (tmp_path / "data" / "south" / "dataset.json").write_text("{}")
    shutil.copytree(phantoms / "north", tmp_path / "data" / "north")
    run = ["simulate", job(federation={"min_sites": 1}), "--data", tmp_path / "data", "--out", tmp_path / "run"]
    code, _, error = silofl(*run, "--leave-out", "south")
    assert code == 2 and "site 'south': dataset.json must have" in error
    assert not (tmp_path / "run").exists()


# --- compare


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--seeds", "0,x"], "--seeds: must be a whole number of at least 0, not 'x'"),
        (["--seeds", ""], "not ''"),
        (["--seeds", "0,1,0"], "--seeds must name each seed once, not 0,1,0"),
        (["--seeds", "4294967296"], "seed must be less than 4294967296"),
        (["--methods", "fedavgg"], "not 'fedavgg' (did you mean 'fedavg'?)"),
        (["--methods", "local,local"], "must have names of their own, not 'local' twice"),
        (["--methods", ","], "must give at least one name"),
        (["--rounds", "0"], "--rounds"),
        (["--threads", "3"], "the number of sites, 2, not 3"),
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

    def compare(asked, out, console):
        seen.append(asked)
        out.mkdir()
        (out / "table.json").write_text(json.dumps({"rows": []}))
        return 3

    monkeypatch.setattr("silofl.studies.compare.compare", compare)
    options = ["--seeds", "4,2", "--methods", "local,fedsm", "--pooled", "--rounds", 2, "--threads", 1, "--json"]
    code, out, _ = silofl("compare", "one", "two", "--data", "data", "--out", tmp_path / "out", *options)
    assert (code, json.loads(out)) == (3, {"rows": []})
    assert seen == [Comparison((Path("one"), Path("two")), ("local", "fedsm"), (4, 2), 2, "data", 1, is_pooled=True)]


# --- resume and report


@pytest.mark.parametrize("kind", ["absent", "empty", "file"])
def test_resume_of_a_folder_without_a_run_is_refused(refused, tmp_path, kind):
    run = tmp_path / "run"
    if kind == "empty":
        run.mkdir()
    elif kind == "file":
        run.write_text("a run")
    assert "must hold a run, with a run.json; it holds none" in refused("resume", run)


@pytest.mark.parametrize("content", ["{", "[]", "{}", json.dumps({"data": "x", "sites": ["north"]})])
def test_resume_of_a_broken_run_is_refused(refused, tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    assert "run.json" in refused("resume", tmp_path)


@pytest.mark.parametrize("number", [1, 2])
def test_report_of_a_folder_that_is_no_run_is_refused(refused, tmp_path, number):
    assert "must be the folder of a run" in refused("report", *[tmp_path] * number, "--out", tmp_path / "out.html")
    assert "must be the folder of a run" in refused("report", *[tmp_path / "nowhere"] * number)
    assert list(tmp_path.iterdir()) == []


# --- exit codes


@pytest.mark.parametrize("code", [0, 1, 3, 130])
def test_a_commands_exit_code_is_the_programs(silofl, monkeypatch, tmp_path, code):
    monkeypatch.setattr("silofl.studies.simulate.resume", lambda run, console: code)
    assert silofl("resume", tmp_path)[0] == code


def test_a_fault_of_the_input_that_shows_late_is_code_2_too(refused, monkeypatch, tmp_path):
    def fail(run, console):
        raise ConfigError("the disk must have room, not 0 bytes; free some")

    monkeypatch.setattr("silofl.studies.simulate.resume", fail)
    assert refused("resume", tmp_path) == "silofl: the disk must have room, not 0 bytes; free some\n"


def test_ctrl_c_is_code_130(silofl, monkeypatch, tmp_path):
    def interrupt(run, console):
        raise KeyboardInterrupt

    monkeypatch.setattr("silofl.studies.simulate.resume", interrupt)
    assert silofl("resume", tmp_path) == (130, "", "")


def test_simulate_hands_on_what_it_was_given(silofl, monkeypatch):
    seen = []
    monkeypatch.setattr("silofl.studies.simulate.start", lambda *arguments: seen.append(arguments[:-1]) or 0)
    run = ["simulate", JOB, "--data", "data", "--out", "run"]
    assert silofl(*run)[0] == 0
    options = ["--rounds", 2, "--seed", 0, "--sites", "a,b", "--threads", 1, "--leave-out", "c"]
    assert silofl(*run, *options)[0] == 0
    assert seen == [
        (JOB, Path("run"), Simulation("data"), {}),
        (JOB, Path("run"), Simulation("data", ("a", "b"), 1, "c"), {"rounds": 2, "seed": 0}),
    ]


# --- for programs


@pytest.mark.parametrize("code", [0, 3])
def test_json_leaves_standard_output_to_the_result_alone(silofl, monkeypatch, tmp_path, code):
    result = {"status": "COMPLETE", "sites": {"north": 0.5}}

    def resume(run, console):
        console.print("round 1/1")
        (run / "results.json").write_text(json.dumps(result))
        return code

    monkeypatch.setattr("silofl.studies.simulate.resume", resume)
    answered, out, error = silofl("resume", tmp_path, "--json")
    assert (answered, json.loads(out)) == (code, result)
    assert error == "round 1/1\n"


def test_json_holds_the_test_on_the_site_that_was_left_out(silofl, monkeypatch, tmp_path):
    (tmp_path / "results.json").write_text(json.dumps({"status": "COMPLETE"}))
    (tmp_path / "unseen.json").write_text(json.dumps({"site": "coast", "value": 0.5}))
    monkeypatch.setattr("silofl.studies.simulate.resume", lambda run, console: 0)
    _, out, _ = silofl("resume", tmp_path, "--json")
    assert json.loads(out) == {"status": "COMPLETE", "unseen": {"site": "coast", "value": 0.5}}


def test_json_without_a_result_is_nothing(silofl, monkeypatch, tmp_path):
    monkeypatch.setattr("silofl.studies.simulate.resume", lambda run, console: 1)
    assert silofl("resume", tmp_path, "--json") == (1, "", "")


@pytest.mark.parametrize("site", ["ward", "clinic"])
def test_an_import_counts_for_people_and_for_programs(silofl, tmp_path, site):
    for kind in ("images", "masks"):
        (tmp_path / "source" / site / kind).mkdir(parents=True)
        for number in range(5):
            # every image another, every mask with both its values
            pixels = np.full((4, 4), number, np.uint8) if kind == "images" else np.eye(4, dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "source" / site / kind / f"{number}.png")
    code, out, error = silofl("import", "folders", tmp_path / "source", tmp_path / "first")
    # a fifth of 5 patients for the test, a fifth of the other 4 for the validation
    assert (code, out, error) == (0, f"{site}: 3 training, 1 validation, 1 test, 5 patients\n", "")
    code, out, error = silofl("import", "folders", tmp_path / "source", tmp_path / "second", "--json")
    wanted = {"examples": {site: {"training": 3, "validation": 1, "test": 1}}, "patients": {site: 5}}
    assert (code, json.loads(out), error) == (0, wanted, "")


def test_an_import_of_classes_counts_them_and_draws_who_has_which(silofl, tmp_path):
    parts = {"train": 8, "val": 4, "test": 4}
    images = {f"{part}_images": np.zeros((count, 4, 4), np.uint8) for part, count in parts.items()}
    labels = {f"{part}_labels": np.arange(count) % 2 for part, count in parts.items()}
    np.savez(tmp_path / "small.npz", **images, **labels)
    command = ["import", "medmnist", tmp_path / "small.npz"]
    code, out, error = silofl(*command, tmp_path / "first", "--sites", 1, "--json")
    counts = {"training": 8, "validation": 4, "test": 4}
    site = {part: {"class 0": count // 2, "class 1": count // 2} for part, count in counts.items()}
    assert (code, json.loads(out)["classes"], error) == (0, {"site-1": site}, "")
    assert {path.name for path in (tmp_path / "first").iterdir()} == {"site-1", "partition.png", "partition.md"}
    code, out, _ = silofl(*command, tmp_path / "second", "--sites", 1)
    assert code == 0 and "class 1" in out and "the set names no patients" in out


# --- forget


@pytest.fixture
def kept(tmp_path):
    """Return a file that a site keeps of the study `organs`, beside its data; site.yaml lies where it is looked for."""
    for path in ("data/organs/dataset.json", "state/organs/run/scores.csv", "local/site.yaml"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text("12345")
    settings = {"data": f"{tmp_path}/data/{{study}}", "state_dir": f"{tmp_path}/state/{{study}}"}
    (tmp_path / "local" / "site.yaml").write_text(yaml.safe_dump(settings))
    return tmp_path / "state" / "organs" / "run" / "scores.csv"


def test_forget_deletes_what_the_site_keeps_and_says_what(silofl, tmp_path, kept):
    code, out, error = silofl("forget", "organs", "--yes")
    assert (code, error) == (0, "") and not kept.exists()
    assert f"{tmp_path / 'state' / 'organs'}: 1 files, 5 bytes\ndeleted: all of the above" in out
    assert (tmp_path / "data" / "organs" / "dataset.json").exists()
    assert silofl("forget", "organs") == (0, "this site keeps nothing of study organs\n", "")


@pytest.mark.parametrize(("answer", "is_deleted"), [("y", True), ("yes", True), ("", False), ("n", False)])
def test_forget_asks_first(silofl, monkeypatch, kept, answer, is_deleted):
    monkeypatch.setattr("builtins.input", lambda question: answer)
    code, out, _ = silofl("forget", "organs")
    assert code == 0 and kept.exists() != is_deleted
    assert ("nothing was deleted" in out) != is_deleted


def test_forget_is_refused_where_nobody_can_answer(silofl, monkeypatch, kept):
    def nobody(question):
        raise EOFError

    monkeypatch.setattr("builtins.input", nobody)
    code, _, error = silofl("forget", "organs")
    assert code == 2 and "--yes must be given where nobody can answer" in error and kept.exists()


def test_forget_is_refused_without_a_sites_settings_and_while_a_run_uses_them(silofl, refused, tmp_path, kept):
    assert "nowhere.yaml must exist" in refused("forget", "organs", "--site-config", tmp_path / "nowhere.yaml")
    with held(kept.with_name("lock")):
        code, _, error = silofl("forget", "organs", "--yes")
    assert code == 2 and "must not be in use" in error and kept.exists()


# --- check-site


def test_check_site_asks_for_kit_and_study(refused):
    assert "--kit" in refused("check-site", "--study", "study.yaml")
    assert "--study" in refused("check-site", "--kit", "kit")


def test_check_site_names_a_folder_that_is_no_kit(refused, tmp_path):
    (tmp_path / "site.yaml").write_text("data: /data\nstate_dir: /state\n")
    study = JOB / "app" / "config" / "study.yaml"
    error = refused("check-site", "--kit", tmp_path, "--study", study, "--site-config", tmp_path / "site.yaml")
    assert "fed_client.json must exist" in error


# --- estimate


def test_estimate_prints_json_alone_and_writes_the_job(silofl, tmp_path):
    target = tmp_path / "new"
    arguments = ("--sites", 4, "--bandwidth", "1Mbit", "--seconds-per-step", 10, "--json", "--write", target)
    code, out, error = silofl("estimate", JOB, *arguments)
    found = json.loads(out)
    assert code == 0 and "has lost its comments" in error
    study = load_study(target / "app" / "config" / "study.yaml")
    assert study.federation.task_timeout_s == found["federation"]["task_timeout_s"] > 600


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sites", 0, "--bandwidth", "1Mbit"], "at least 1, not '0'"),
        (["--sites", 4, "--bandwidth", "50MB"], "--bandwidth must be a number above 0"),
        (["--sites", 4, "--bandwidth", "1Mbit", "--seconds-per-step", "nan"], "--seconds-per-step must be a number"),
        (["--sites", 4, "--bandwidth", "1Mbit", "--image-size", "96"], "--image-size must be height and width"),
        (["--sites", 1, "--bandwidth", "1Mbit"], "--sites must be at least federation.min_sites"),
        (["--sites", 4, "--bandwidth", "1Mbit", "--seconds-per-step", 1, "--write", "."], "must name a new folder"),
    ],
)
def test_estimate_refuses_nonsense(refused, arguments, message):
    assert message in refused("estimate", JOB, *arguments)


def test_estimate_refuses_a_folder_that_is_no_job(refused, tmp_path):
    assert "must be a job folder" in refused("estimate", tmp_path, "--sites", 2, "--bandwidth", "1Mbit")
