"""Recipes in NVFlare's environments give what the commands give."""

import pytest
import torch
from nvflare.recipe import SimEnv

import silofl
from silofl.recipes import AdaFedRecipe, FedSMRecipe, HarmoFLRecipe

from .conftest import carried_out, write_small_job

SITES = ["north", "south"]


def read_weights(run, sites):
    """Return all models of a run, of the server and of the sites, by file without the run's id."""
    files = {
        ("server", path.relative_to(run)): path for path in [*run.glob("model/*.pt"), *run.glob("supermodel/**/*.pt")]
    }
    files |= {(site, path.name): path for site in SITES for path in (sites / site).glob("*/supermodel/**/*.pt")}
    return {key: torch.load(path, weights_only=True) for key, path in files.items()}


def check_same_weights(recipe, run, root):
    """Carry out a recipe in NVFlare's simulation and expect the result and all models of a command's run."""
    done = recipe.execute(SimEnv(clients=SITES, workspace_root=str(root)))
    found, wanted = silofl.read_results(done.get_result()), silofl.read_results(run)
    assert (found.status, found.sites) == ("COMPLETE", wanted.sites)
    own = root / recipe.name / "server" / "simulate_job" / "silofl"
    weights, expected = read_weights(own, own / "sites"), read_weights(run, run / "sites")
    assert len(weights) > 2
    torch.testing.assert_close(weights, expected, rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [HarmoFLRecipe, FedSMRecipe, AdaFedRecipe])
def test_a_papers_recipe_in_nvflares_simulation_gives_the_weights_of_the_command(tmp_path, phantoms, recipe):
    job = write_small_job(tmp_path / "job", f"{recipe.algorithm}_phantoms")
    carried_out("simulate", job, "--data", phantoms, "--out", tmp_path / "run", "--rounds", "2")
    check_same_weights(recipe(job, data=phantoms, rounds=2), tmp_path / "run", tmp_path / "runs")


@pytest.mark.slow
def test_adafeds_recipe_begins_with_the_pretrained_model_that_it_is_given(tmp_path, phantoms):
    file, paper = tmp_path / "f.pt", {"name": "adafed", "preset": "paper"}
    job = write_small_job(tmp_path / "job", "adafed_phantoms", algorithm=paper, rounds=2)
    carried_out("pretrain", job, "--data", phantoms, "--out", file, "--epochs", "1")
    carried_out("simulate", job, "--data", phantoms, "--out", tmp_path / "run", "--pretrained", file, "--in-process")
    check_same_weights(AdaFedRecipe(job, data=phantoms, pretrained=file), tmp_path / "run", tmp_path / "runs")
