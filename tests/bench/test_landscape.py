"""Landscapes of runs whose models are made up: one that answers every pixel alike, wherever it is moved, and others."""

import json
import math
import shutil

import pytest
import torch
import yaml
from landscape import main

from silofl.base.schema import dump_record
from silofl.data.counts import DataCounts, SiteCounts
from silofl.data.site_data import load_site_data
from silofl.inference.contents import Contents
from silofl.inference.directory import write_model_folder
from silofl.models import build_model
from silofl.study import load_study
from silofl_desk.studies.simulation import study_file

from ..studies.conftest import JOB, write_result

pytestmark = pytest.mark.long

SITES = ("north", "south")
SHAPE = (1, 32, 32)


@pytest.fixture
def make_run(tmp_path, phantoms):
    """Write the folder of a finished simulated run, without a simulation."""

    def make(name, is_level=False, sites=SITES, **changes):
        run = tmp_path / name
        shutil.copytree(JOB, run / "job")
        file = study_file(run / "job")
        study = yaml.safe_load(file.read_text()) | {"device": "cpu"} | changes
        study["model"]["features"] = [4, 4, 4, 4, 4, 4]
        study["training"]["loss"] = changes.get("loss", "cross_entropy")
        study["data"]["transforms"] = [{"Resize": {"spatial_size": list(SHAPE[1:])}}]
        study.pop("loss", None)
        file.write_text(yaml.safe_dump(study))
        study = load_study(file)
        for number, site in enumerate(sites):
            contents = Contents(study, SHAPE, {site: state_of(study, number, is_level)}, "only")
            write_model_folder(run / "sites" / site / "run-1" / "supermodel", contents)
        data = {site: load_site_data(phantoms / site, study, phantoms / ".silofl-cache") for site in sites}
        counts = DataCounts({site: SiteCounts.of(own) for site, own in data.items()})
        (run / "data.json").write_text(json.dumps(dump_record(counts)))
        (run / "run.json").write_text(json.dumps({"data": str(phantoms), "sites": list(sites), "threads": 1}))
        write_result(run, study, sites=dict.fromkeys(sites, 0.5))
        return run

    return make


def state_of(study, seed, is_level):
    """Return random weights, or those of a network whose last layer is 0: each of the three labels has chance 1/3."""
    model = build_model(study, SHAPE, seed)
    if is_level:
        last = [module for module in model.modules() if isinstance(module, torch.nn.Conv2d)][-1]
        torch.nn.init.zeros_(last.weight)
        torch.nn.init.zeros_(last.bias)
    return model.state_dict()


@pytest.fixture
def landscape(script, tmp_path):
    """Draw landscapes of few points and images; returns what landscape.json holds, and what was printed."""

    def draw(*arguments, name="landscape.png"):
        code, out, error = script(main, "--steps", "1", "--images", "3", *arguments)
        assert code == 0, error
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
        return json.loads((tmp_path / name).with_suffix(".json").read_text()), out

    return draw


def losses(found):
    return [row["losses"] for row in found["landscapes"]]


def test_two_runs_stand_beside_each_other_on_the_same_images(landscape, make_run):
    level, other = make_run("level", is_level=True), make_run("other")
    found, out = landscape(level, other, "--scales", "1,8")
    names = ["1: fedavg", "2: fedavg"]
    assert found["runs"] == dict(zip(names, map(str, (level, other)), strict=True))
    rows = [(row["scale"], row["run"], row["site"], row["num_images"]) for row in found["landscapes"]]
    assert rows == [(scale, run, site, 3) for scale in (1, 8) for run in names for site in SITES]
    assert (found["kind"], found["loss"], found["part"], found["seed"]) == ("plane", "cross_entropy", "test", 0)
    assert "mean rise" in out and "wrote landscape.png and landscape.json" in out


def test_a_network_that_answers_alike_wherever_it_is_moved_lies_in_a_level_landscape(landscape, make_run):
    found, _ = landscape(make_run("level", is_level=True))
    for row in found["landscapes"]:
        # cross entropy of chance 1/3
        assert row["loss_at_centre"] == pytest.approx(math.log(3), abs=1e-6)
        assert row["mean_rise"] == 0 and row["lowest"]["distance"] == 0


def test_the_centre_has_the_loss_of_the_sites_own_model_on_its_own_data(landscape, make_run, phantoms):
    run = make_run("run")
    found, _ = landscape(run, "--part", "training", "--images", "1000", "--scales", "1")
    study = load_study(study_file(run / "job"))
    for seed, row in enumerate(found["landscapes"]):
        part = load_site_data(phantoms / row["site"], study, phantoms / ".silofl-cache").training
        model = build_model(study, SHAPE, seed).eval()
        with torch.no_grad():
            logits = model(torch.tensor(part.images))
        expected = torch.nn.functional.cross_entropy(logits, torch.tensor(part.targets).long())
        assert row["loss_at_centre"] == pytest.approx(float(expected), rel=1e-5)
        assert row["num_images"] == len(part) and row["losses"][1][1] == row["loss_at_centre"]


def test_lines_go_along_ten_directions_with_so_many_steps_to_each_side(landscape, make_run):
    found, _ = landscape(
        make_run("run"), "--kind", "lines", "--steps", "2", "--scales", "0.5", "--out", "x.png", name="x.png"
    )
    for row in found["landscapes"]:
        assert row["axis"] == [-0.5, -0.25, 0, 0.25, 0.5]
        assert len(row["losses"]) == 10 and {line[2] for line in row["losses"]} == {row["loss_at_centre"]}
        assert len({line[0] for line in row["losses"]}) == 10


def test_the_same_seed_gives_the_same_losses_and_another_one_others(landscape, make_run):
    run = make_run("run")
    first, again, other = (losses(landscape(run, "--scales", "1", "--seed", seed)[0]) for seed in (1, 1, 2))
    assert first == again != other


def test_the_two_runs_of_one_model_have_one_landscape(landscape, make_run):
    found, _ = landscape(make_run("one"), make_run("two"), "--scales", "1")
    north, south, *others = losses(found)
    assert [north, south] == others and north != south


def test_data_that_were_moved_are_named(landscape, refused_script, make_run, phantoms, tmp_path):
    run = make_run("run")
    settings = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(settings | {"data": str(tmp_path / "gone")}))
    error = refused_script(main, run)
    assert f"--data must name the folder of the sites' data, not {tmp_path / 'gone'}, which is not there" in error
    found, _ = landscape(run, "--data", phantoms)
    assert len(found["landscapes"]) == 4


# --- what is refused


def test_other_data_than_a_run_learnt_from_are_refused(script, make_run, phantoms, tmp_path):
    run = make_run("run")
    shutil.copytree(phantoms, tmp_path / "data")
    content = json.loads((tmp_path / "data" / "south" / "dataset.json").read_text())
    content["test"] = content["test"][:1]
    (tmp_path / "data" / "south" / "dataset.json").write_text(json.dumps(content))
    code, _, error = script(main, run, "--data", tmp_path / "data")
    # Above it stands that the other data were read.
    assert code == 2 and error.splitlines()[-1].startswith("landscape.py: site 'south' must have the data that ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": "dice"}, "must have the loss of {first}, 'cross_entropy', not 'dice (over batches of 8)'"),
        ({"sites": ("north",)}, "must have the sites of {first}, ['north', 'south'], not ['north']"),
    ],
)
def test_runs_whose_losses_measure_different_things_are_refused(refused_script, make_run, changes, message):
    first, other = make_run("first"), make_run("other", **changes)
    assert f"{other} {message.format(first=first)}; draw it apart" in refused_script(main, first, other)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda run: (run / "results.json").unlink(), "not UNFINISHED; to go on: silofl resume {run}"),
        (lambda run: (run / "run.json").unlink(), "in a network no site's data are at hand: simulate the study"),
        (lambda run: shutil.rmtree(run / "sites"), "must hold a super model or the sites' own models, not neither"),
        (shutil.rmtree, "must be the folder of a run"),
    ],
    ids=["unfinished", "of a network", "without a model", "nothing"],
)
def test_what_has_nothing_to_draw_is_refused(refused_script, make_run, spoil, message):
    run = make_run("run")
    spoil(run)
    assert message.format(run=run) in refused_script(main, run)


def test_a_site_without_data_of_a_part_is_refused(refused_script, make_run, monkeypatch):
    run, read = make_run("run"), load_site_data

    def without_validation(*arguments, **named):
        data = read(*arguments, **named)
        object.__setattr__(data, "validation", data.validation.select_rows([]))
        return data

    monkeypatch.setattr("silofl_desk.studies.simulated_sites.load_site_data", without_validation)
    error = refused_script(main, run, "--part", "validation")
    assert "site 'north' must hold validation data to measure the loss on, not none; choose another --part" in error


@pytest.mark.parametrize("scales", ["0", "-1", "a", "1,1", "inf", "nan", ""])
def test_scales_are_different_numbers_above_0(refused_script, scales):
    assert "must be different numbers above 0, as 0.125,1" in refused_script(main, ".", f"--scales={scales}")


@pytest.mark.parametrize(("steps", "message"), [("0", "at least 1, not '0'"), ("101", "at most 100, not '101'")])
def test_steps_are_few_enough_to_be_measured(refused_script, steps, message):
    assert message in refused_script(main, ".", "--steps", steps)


def test_the_figure_is_a_png(refused_script, make_run):
    assert "--out must end in .png, not x.pdf" in refused_script(main, ".", "--out", "x.pdf")
