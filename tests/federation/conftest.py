"""Studies of this room have the smallest network: what it learns is no matter here."""

from functools import partial

import pytest

from ..conftest import SMALL_UNET, Play


@pytest.fixture(scope="session")
def make_study(make_study):
    return partial(make_study, network=SMALL_UNET)


@pytest.fixture(scope="session")
def ended_runs(tmp_path_factory):
    """Folder of the states of all runs below, and the runs by their options."""
    return tmp_path_factory.mktemp("ended"), {}


@pytest.fixture
def ended(make_study, site_data, ended_runs):
    """Return a run that is over, and its tests; each is carried out once, and is there to be read."""
    folder, runs = ended_runs

    def carry_out(sites=("east", "north", "west"), **options):
        key = str((sites, options))
        if key not in runs:
            game = Play(make_study(**options), site_data, folder / str(len(runs)), sites)
            runs[key] = game, game.finish()
        return runs[key]

    return carry_out
