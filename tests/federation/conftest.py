"""Studies of this room have the smallest network: what it learns is no matter here."""

from functools import partial

import pytest

from ..conftest import SMALL_UNET


@pytest.fixture(scope="session")
def make_study(make_study):
    return partial(make_study, network=SMALL_UNET)
