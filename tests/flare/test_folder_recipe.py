"""A recipe of a job in a folder, in environments that carry out nothing."""

import json

import pytest
from nvflare.recipe import PocEnv, SimEnv

from silofl.base.errors import ConfigError
from silofl_desk.flare.folder_recipe import FolderRecipe


class Recorded(FolderRecipe):
    """A recipe that writes down what it is asked for."""

    def __init__(self, folder):
        super().__init__("small", folder)
        self.asked = []

    def simulate(self, workspace, sites):
        self.asked.append((workspace, sites))
        return 0

    def check_submission(self):
        self.asked.append("check")


@pytest.fixture
def recipe(tmp_path):
    folder = tmp_path / "job"
    (folder / "app" / "config").mkdir(parents=True)
    (folder / "meta.json").write_text(json.dumps({"name": "small"}))
    return Recorded(folder)


def test_simulation_runs_where_nvflare_looks_for_results(recipe, tmp_path):
    done = recipe.run(SimEnv(clients=["north", "south"], workspace_root=str(tmp_path)))
    assert recipe.asked == [(tmp_path / "small", ("north", "south"))]
    assert done.get_result() == str(tmp_path / "small")


def test_job_is_exported_as_its_folder_is(recipe, tmp_path):
    recipe.export(str(tmp_path / "out"), env=SimEnv(num_clients=2))
    assert recipe.asked == []
    assert json.loads((tmp_path / "out" / "small" / "meta.json").read_text()) == {"name": "small"}
    assert (tmp_path / "out" / "small" / "app" / "config").is_dir()


@pytest.mark.parametrize(("kind", "words"), [(PocEnv, "does not run in PocEnv"), (SimEnv, "numbers the sites")])
def test_no_recipe_runs_in_a_poc_or_at_numbered_sites(recipe, kind, words):
    with pytest.raises(ConfigError, match=words):
        recipe.process_env(kind(num_clients=2))
