"""Studies of this room have the smallest network; a file whose facts need more of one names it as ``NETWORK``."""

import json
import shutil
from functools import partial

import numpy as np
import pytest

from silofl.models import build_plain_model

from ..conftest import SMALL_UNET

SITES = ("east", "north", "west")


def weights_of_a_file(study, shift=0.0):
    """Return the weights that a study may start from: those of another seed, each with a number added."""
    state = build_plain_model(study, 7).state_dict()
    return {name: value.numpy() + np.float32(shift) for name, value in state.items() if value.is_floating_point()}


def lose_state(game, site):
    """Remove all that a site has kept of its rounds."""
    for path in (game.folder(site) / "rounds").iterdir():
        path.unlink()


def assert_same_course(arrays, wanted, start):
    """Check that a model has gone from start to where a plain implementation went, within 1/500 of its way.

    The model as a whole: networks with kinks magnify rounding, by how much differs between processors, and of tensors
    that hardly move single values may be off by more than that.
    """
    plain = {name.removeprefix("model/"): array for name, array in arrays.items()}
    found, goal, origin = (
        np.concatenate([np.ravel(state[name]) for name in plain]) for state in (plain, wanted, start)
    )
    off, way = np.linalg.norm(found - goal), np.linalg.norm(goal - origin)
    assert off <= 0.002 * way, f"off by {off:.2g} of {way:.2g}"


@pytest.fixture(scope="module")
def make_study(make_study, request):
    smallest = getattr(request.module, "NETWORK", SMALL_UNET)

    return partial(make_study, network=smallest)


@pytest.fixture
def played(play):
    """Carry out a whole run, as `play` begins it."""

    def carry_out(*sites, **options):
        game = play(*sites, **options)
        game.finish()
        return game

    return carry_out


@pytest.fixture
def windows_to_choose_by(tmp_path, windows):
    """The sites of `windows`, with every other test window for validation; two windows are a recording."""
    folder = tmp_path / "validated"
    shutil.copytree(windows, folder, ignore=shutil.ignore_patterns(".*"))
    for path in folder.glob("*/dataset.json"):
        content = json.loads(path.read_text())
        content |= {"validation": content["test"][::2], "test": content["test"][1::2]}
        for part in ("validation", "test"):
            for record in content[part]:
                record["recording"] = f"{part} {record['index'] // 8}"
        path.write_text(json.dumps(content))
    return folder
