"""Landscapes of runs whose models are made up: one that answers every pixel alike, wherever it is moved, and others."""

import json
import math
import shutil

import numpy as np
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
from silofl_desk.studies.runs.simulation import study_file

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
    return [row["losses"] for row in found]


def test_a_network_that_answers_alike_wherever_it_is_moved_lies_in_a_level_landscape(landscape, make_run):
    found, _ = landscape(make_run("level", is_level=True))
    for row in found:
        # cross entropy of chance 1/3
        np.testing.assert_allclose(row["losses"], math.log(3), atol=1e-6)


def test_the_centre_has_the_loss_of_the_sites_own_model_on_its_own_data(landscape, make_run, phantoms):
    run = make_run("run")
    found, _ = landscape(run, "--part", "training", "--images", "1000", "--scales", "1")
    study = load_study(study_file(run / "job"))
    for seed, row in enumerate(found):
        part = load_site_data(phantoms / row["site"], study, phantoms / ".silofl-cache").training
        model = build_model(study, SHAPE, seed).eval()
        with torch.no_grad():
            logits = model(torch.tensor(part.images))
        expected = torch.nn.functional.cross_entropy(logits, torch.tensor(part.targets).long())
        assert row["losses"][1][1] == pytest.approx(float(expected), rel=1e-5) and row["num_images"] == len(part)


def test_lines_go_along_ten_directions_with_so_many_steps_to_each_side(landscape, make_run):
    found, _ = landscape(
        make_run("run"), "--kind", "lines", "--steps", "2", "--scales", "0.5", "--out", "x.png", name="x.png"
    )
    for row in found:
        assert row["axis"] == [-0.5, -0.25, 0, 0.25, 0.5]
        # All lines cross the model.
        assert len(row["losses"]) == 10 and len({line[2] for line in row["losses"]}) == 1
        assert len({line[0] for line in row["losses"]}) == 10


def test_the_same_seed_gives_the_same_losses_and_another_one_others(landscape, make_run):
    run = make_run("run")
    first, again, other = (losses(landscape(run, "--scales", "1", "--seed", seed)[0]) for seed in (1, 1, 2))
    assert first == again != other


def test_the_two_runs_of_one_model_have_one_landscape(landscape, make_run):
    found, _ = landscape(make_run("one"), make_run("two"), "--scales", "1")
    north, south, *others = losses(found)
    assert [north, south] == others and north != south


# --- what is refused


@pytest.mark.parametrize(("changes", "key"), [({"loss": "dice"}, "loss"), ({"sites": ("north",)}, "sites")])
def test_runs_whose_losses_measure_different_things_are_refused(refused_script, make_run, changes, key):
    first, other = make_run("first"), make_run("other", **changes)
    assert f"{other} has the {key}" in refused_script(main, first, other)
