import argparse
import json
import shutil

import nibabel as nib
import numpy as np
import pytest

from silofl.base.errors import ConfigError
from silofl_desk.studies.compared_runs import ComparisonPlan, plan_runs
from silofl_desk.studies.simulation import settle_job
from silofl_desk.studies.sweep import Point, Sweep, parse_swept_key

from .conftest import JOB

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("undrawn")]

FEDSM = JOB.with_name("fedsm_phantoms")


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("rounds=2,4", "rounds", (2, 4)),
        ("data.size=[64, 64],[96,96]", "data.size", ([64, 64], [96, 96])),
        ("training.schedule=poly,constant", "training.schedule", ("poly", "constant")),
        ("algorithm.stays_home=nothing, batchnorm", "algorithm.stays_home", ("nothing", "batchnorm")),
        ("guard=true,false", "guard", (True, False)),
    ],
)
def test_values_are_read_as_in_a_study(text, key, values):
    assert parse_swept_key(text) == (key, values)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("rounds", "give at least two values"),
        ("rounds=3", "give at least two values"),
        ("=3,4", "must be KEY=V1,V2"),
        ("rounds=1,,2", "must be YAML"),
        ("rounds=1,null", "give at least two values"),
        ("rounds=[,2", "must be YAML"),
        ("rounds=1,1", "values that differ"),
        ("data=a/x,b/x", "values that differ"),
    ],
)
def test_what_is_no_sweep_is_refused(text, reason):
    with pytest.raises(argparse.ArgumentTypeError, match=reason):
        parse_swept_key(text)


def test_several_keys_are_a_grid_of_points_named_by_the_last_parts_of_their_keys():
    sweep = Sweep({"algorithm.perturbation.alpha": (0.1, 0.05), "training.local_epochs": (1, 2)}, 8)
    points = sweep.points()
    names = ["alpha=0.1 local_epochs=1", "alpha=0.1 local_epochs=2", "alpha=0.05 local_epochs=1"]
    assert [point.name for point in points] == [*names, "alpha=0.05 local_epochs=2"]
    # eight epochs in all: eight rounds of one epoch, four of two
    assert [point.changes["rounds"] for point in points] == [8, 4, 8, 4]
    assert points[0].changes == {"algorithm.perturbation.alpha": 0.1, "training.local_epochs": 1, "rounds": 8}
    with pytest.raises(ConfigError, match="must be a multiple of every training.local_epochs, not 8 with 3"):
        Sweep({"training.local_epochs": (2, 3)}, 8).points()


def test_keys_that_end_alike_keep_their_whole_names():
    (first, *_) = Sweep({"algorithm.statistics.self_weight": (0.3,), "algorithm.softpull.self_weight": (0.7,)}).points()
    assert first.name == "algorithm.statistics.self_weight=0.3 algorithm.softpull.self_weight=0.7"


def test_a_folder_of_data_is_no_key_of_the_study():
    assert Sweep({"data": ("sets/even", "sets/odd")}).points()[1] == Point("data=odd", {"data": "sets/odd"})
    point = Point("data=odd", {"data": "sets/odd", "rounds": 3})
    assert (point.data, point.changes) == ("sets/odd", {"rounds": 3})


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--sweep", "seed=1,2"], "--sweep must not name seed with --seeds"),
        (["--sweep", "rounds=1,2", "--rounds", "3"], "--sweep must not name rounds with --set or --rounds"),
        (["--set", "rounds=3", "--as", "a", "--sweep", "rounds=1,2"], "--sweep must not name rounds with"),
        (["--sweep", "rounds=1,2", "--sweep", "rounds=3,4"], "--sweep must name rounds once"),
        (["--sweep", "data=a,b"], "--sweep must not name data together with --data"),
        (["--sweep", "training.momentum=0,1", "--set", "training={momentum: 0.5}"], "--set or --rounds, which sets"),
        (["--set", "training={momentum: 0.5}", "--as", "a", "--sweep", "training.momentum=0,1"], "with --as a"),
        (["--sweep", "training.momentum=0,1", "--sweep", "training={},{momentum: 1}"], "training with --sweep"),
        (["--methods", "fedbn", "--sweep", "algorithm.name=fedavg,fedprox"], "algorithm.name with --methods fedbn"),
        (["--methods", "fedbn", "--sweep", "algorithm={name: fedavg},{name: fedprox}"], "algorithm with --methods"),
        (["--methods", "d-adafed", "--sweep", "algorithm.statistics.layers=all,last"], "with --methods d-adafed"),
        (["--sweep", "training.lr=1,2"], "fedavg_phantoms lr=1: training.lr must be a known key"),
        (["--sweep", "rounds=1,2", "--pooled"], "--pooled must not go with --sweep"),
        (["--total-epochs", "4"], "--total-epochs must go with --sweep training.local_epochs"),
        (["--total-epochs", "0"], "must be a whole number of at least 1"),
        (["--sweep", "training.local_epochs=1,2", "--total-epochs", "4", "--rounds", "2"], "given without --rounds"),
        (["--sweep", "training.local_epochs=1,2", "--sweep", "rounds=1,2", "--total-epochs", "4"], "--total-epochs"),
        (["--processes", "0"], "must be a whole number of at least 1"),
    ],
)
def test_a_sweep_of_what_is_settled_otherwise_is_refused(refused, two_sites, tmp_path, options, reason):
    assert reason in refused("compare", JOB, "--data", two_sites, "--out", tmp_path / "out", *options)
    assert not (tmp_path / "out").exists()


def test_a_key_within_a_section_that_a_row_sets_can_be_swept(phantoms, tmp_path):
    variants = {"own": {"algorithm": {"name": "fedsm", "server_lr": 0.5}}}
    # `data` is a folder here, and no section of the study
    sweep = Sweep({"algorithm.softpull.self_weight": (0.5, 0.7), "data": (str(phantoms),)})
    asked = ComparisonPlan((FEDSM,), ("fedsm:paper",), variants, {"data.channels": 1}, seeds=(0,), sweep=sweep)
    studies = [settle_job(run.job, run.wanted, run.changes)[0] for run in plan_runs(asked, tmp_path)]
    assert [study.recipe.option("softpull").self_weight for study in studies] == [0.5, 0.7] * 3


def test_every_row_runs_at_every_point_and_the_table_of_the_sweep_stands_first(silofl, phantoms, training, tmp_path):
    options = ["--data", phantoms, "--out", tmp_path, "--seeds", "0,1", "--methods", "fedprox"]
    options += ["--sweep", "training.local_epochs=1,2", "--total-epochs", "4"]
    code, out, _ = silofl("compare", JOB, *options)
    assert code == 0
    rows = [f"{row} local_epochs={n}" for row in ("fedavg", "fedprox") for n in (1, 2)]
    folders = [f"{row}-local_epochs={n}" for row in ("fedavg_phantoms", "fedprox") for n in (1, 2)]
    assert training.carried_out == [f"{folder}-seed{seed}" for folder in folders for seed in (0, 1)]
    table = json.loads((tmp_path / "table.json").read_text())
    assert [row["name"] for row in table["rows"]] == rows
    changes = {"algorithm": {"name": "fedprox"}, "training.local_epochs": 2, "rounds": 2, "seed": 1}
    assert table["runs"][-1]["changes"] == changes
    # the rows' names say in what they differ
    assert table["differences"] == []
    assert "Rounds times local epochs are 4 in every row." in table["notes"]
    written = (tmp_path / "table.md").read_text()
    assert written.startswith("| row | part | local_epochs=1 | local_epochs=2 |")
    # the made-up runs have 0.5 at both sites with seed 0, 0.625 with seed 1, and no validation
    assert "| fedprox | validation | - | - |\n| fedprox | test | 0.562 ± 0.088 | 0.562 ± 0.088 |" in written
    assert out.index("local_epochs=1") < out.index("client average")
    page = (tmp_path / "comparison.html").read_text()
    assert "<h3>Each row</h3>" in page
    assert (tmp_path / "comparison_figures" / "sweep.png").read_bytes().startswith(b"\x89PNG")


def test_a_pretrained_model_may_know_another_folders_test_images(refused, two_sites, tmp_path):
    (tmp_path / "f.pt").touch()
    options = ["--sweep", f"data={two_sites},{tmp_path / 'other'}", "--pretrained", "f.pt", "--out", tmp_path / "out"]
    assert "--pretrained must not go with --sweep data=..." in refused("compare", JOB, *options)


def test_nothing_wins_across_folders_of_data(silofl, phantoms, training, tmp_path):
    # the same dataset.json with another image of one name
    other = shutil.copytree(phantoms, tmp_path / "other", ignore=shutil.ignore_patterns(".*"))
    image = min((other / "north" / "images").iterdir())
    volume = nib.load(image)
    nib.save(nib.Nifti1Image(np.flip(np.asarray(volume.dataobj), 0), volume.affine), image)
    options = ["--sweep", f"data={phantoms},{other}", "--seeds", "0,1", "--out", tmp_path / "out"]
    assert silofl("compare", JOB, *options)[0] == 0
    table = json.loads((tmp_path / "out" / "table.json").read_text())
    assert [row["sites_won"] + row["sites_level"] for row in table["rows"]] == [[], []]
    assert any(note.startswith("No value is marked as the best: the runs differ in") for note in table["notes"])
    assert "winner" not in (tmp_path / "out" / "table.md").read_text()


def test_folders_of_data_can_be_swept(silofl, phantoms, north_phantoms, training, tmp_path):
    options = ["--sweep", f"data={phantoms},{north_phantoms}", "--seeds", "0", "--out", tmp_path / "out"]
    code, *_ = silofl("compare", JOB, *options, "--set", "federation.min_sites=1")
    assert code == 0
    table = json.loads((tmp_path / "out" / "table.json").read_text())
    found = [json.loads((tmp_path / "out" / "runs" / name / "run.json").read_text()) for name in training.carried_out]
    assert [run["sites"] for run in found] == [["north", "south"], ["north"]]
    assert table["differences"] == []
