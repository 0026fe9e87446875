"""The models that a run's folder keeps by themselves, in `model/`, and the page that says how to load one."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from silofl.base.files import save_tensors, write_text
from silofl.base.settings import dump_yaml
from silofl.federation.known_sites import find_recipe_in_use
from silofl.federation.missing_parts import describe_complete_model, describe_missing_part
from silofl.federation.server import ServerRounds
from silofl.inference import directory
from silofl.inference.readme import case_code, loading_code
from silofl.models.names import INPUT_NORM
from silofl.models.precision import round_as_received
from silofl.parts.model import collect_part_arrays
from silofl.parts.part import Part
from silofl.parts.tensors import to_tensors

SIZE_KNOWN = "An image must have the size of the training images: the input normalisation belongs to it."
SIZE_ANY = "Without input normalisation, images of other sizes pass too."
SHARED = "They are the model that all sites share; the one that a site tests stays there, in its folder `supermodel/`."
MODEL_README = """# Models of {name}

{files}`study.yaml` is the study that made them.

{where} To load one, in this folder:

```python
{code}```
"""


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
    """Return how to load a model: of the files here where they are whole, else one that its site completed."""
    study, data = server.study, server.study.data
    # Without a site that has sent its own, any size.
    shape = server.image_shape or data.image_shape or (data.in_channels, *(128,) * data.dimensions)
    recipe = find_recipe_in_use(server).as_dict()
    best, last = (sorted(p.name for p in (run / "model").glob(f"{kind}*.pt")) for kind in ("best", "last"))
    rounds = f"best: {server.reported.how}; last: round {server.finished_rounds}"
    known = {"name": study.name, "files": f"{', '.join([*best, *last])} ({rounds}); " if best else ""}
    if describe_missing_part(recipe) is None:
        is_size_known = any(name.startswith(INPUT_NORM) for name in collect_part_arrays(server))
        where = SIZE_KNOWN if is_size_known else SIZE_ANY
        where = f"{SHARED} {where}" if study.recipe.at_home else where
        return MODEL_README.format(**known, where=where, code=loading_code("study.yaml", best[0], shape))
    place = _find_complete_model(run, server.sites, server.id)
    where = describe_complete_model(recipe, server.id, is_simulation=place is not None)
    folder = f"../{place}" if place else f"STATE_DIR/{server.id}/{directory.FOLDER}"
    return MODEL_README.format(**known, where=where, code=case_code(folder, shape))


def _find_complete_model(run: Path, sites: Sequence[str], run_id: str | None) -> str | None:
    """Return a site's complete model below a simulation's folder; None where sites keep theirs elsewhere."""
    places = (f"sites/{site}/{run_id}/{directory.FOLDER}" for site in sites)
    return next((place for place in places if (run / place / "model.json").is_file()), None)
