"""The models that a run's folder keeps by themselves, in `model/`, and the page that says how to load one."""

from collections.abc import Mapping
from pathlib import Path

from silofl.base.files import save_tensors, write_text
from silofl.base.settings import dump_yaml
from silofl.federation.missing_parts import describe_complete_model, describe_missing_part
from silofl.federation.server import ServerRounds
from silofl.inference import directory
from silofl.inference.readme import loading_code
from silofl.models.precision import round_as_received
from silofl.parts.model import collect_part_arrays
from silofl.parts.part import Part
from silofl.parts.tensors import to_tensors

MODEL_README = """# Models of {name}

{files}`study.yaml` is the study that made them.

{how}
"""
HOW_TO_LOAD = """To load one, in this folder:

```python
{code}```"""


def save_models(run: Path, name: str, server: ServerRounds, parts: Mapping[str, Part]) -> None:
    """Save one file where all sites have the same model, else one a site.

    Args:
        run: Folder of the run.
        name: ``last`` or ``best``, with which the files' names begin.
        server: The run after its last round.
        parts: Those of the round whose models they are.
    """
    models = {site: arrays for part in parts.values() for site, arrays in part.outcome(server, {}).models.items()}
    beside = collect_part_arrays(server)
    for site, arrays in models.items():
        if arrays:
            file = f"{name}-{site}.pt" if site else f"{name}.pt"
            save_tensors(run / "model" / file, to_tensors(round_as_received(arrays | beside, server.study)))


def describe_models(run: Path, server: ServerRounds) -> None:
    """Write the study beside a run's models, and how to load one; the arguments of `save_models`."""
    folder = run / "model"
    write_text(folder / "study.yaml", dump_yaml(directory.plain_study(server.study)))
    write_text(folder / "README.md", _write_readme(run, server))


def _write_readme(run: Path, server: ServerRounds) -> str:
    """Return how to load a model: of the files here where they are whole, else where the complete ones are."""
    study = server.study
    data = study.data
    # Without a site that has sent its images' shape, any size will do.
    shape = server.image_shape or data.image_shape or (data.in_channels, *(128,) * data.dimensions)
    recipe = server.find_recipe_in_use().as_dict()
    best = sorted(path.name for path in (run / "model").glob("best*.pt"))
    newest = sorted(path.name for path in (run / "model").glob("last*.pt"))
    rounds = f"best: {server.reported.how}; last: round {server.finished_rounds}"
    files = f"{', '.join([*best, *newest])} ({rounds}); " if best else ""
    if describe_missing_part(recipe) is None:
        how = HOW_TO_LOAD.format(code=loading_code("study.yaml", best[0], shape))
    else:
        how = describe_complete_model(recipe, server.id, is_simulation=(run / "sites").is_dir())
    return MODEL_README.format(name=study.name, files=files, how=how)
