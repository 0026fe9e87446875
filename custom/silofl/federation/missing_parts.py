"""What the files of a run's models lack where a site keeps something at home, and where its complete model is."""

from collections.abc import Mapping

from silofl.inference.directory import FOLDER

STATE_DIR = "where STATE_DIR is `state_dir` of its site.yaml"
LEFT_OUT = {
    "batchnorm": "BatchNorm never left the sites: these files lack it, and alone they predict nothing.",
    "head": "The last layer never left the sites: these files lack it, and alone they predict nothing.",
    "everything": "Every site trained alone, and no model left it.",
}
OWN_STEPS = "Every site takes steps of its own from such a model before it uses it; these files are without them."


def describe_missing_part(recipe: Mapping[str, object]) -> str | None:
    """Say what the files of a recipe's models lack of what the sites use; None where that is nothing."""
    is_whole = recipe.get("stays") == "nothing"
    return OWN_STEPS if is_whole and recipe.get("takes_own_steps") else LEFT_OUT.get(str(recipe.get("stays")))


def describe_complete_model(recipe: Mapping[str, object], run_id: str, is_simulation: bool) -> str:
    """Say why the files of the models are not whole, and where each site's complete one is."""
    if is_simulation:
        path = f"`sites/NAME/{run_id}/{FOLDER}` of the run's folder"
    else:
        path = f"`STATE_DIR/{run_id}/{FOLDER}`, {STATE_DIR}"
    return f"{describe_missing_part(recipe)} Each site's complete model is {path}."
