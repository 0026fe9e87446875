"""Algorithms with a step of their own go with the other answers of a study."""

import pytest

from ..conftest import UNET
from .conftest import COUNTS, SGD

pytestmark = pytest.mark.long

TOGETHER = {
    "fedrep": [{"parts": ["fedopt"]}, {"weights": "uniform"}, {"extra_rounds": 1}],
    "moon": [
        {"stays": "batchnorm"},
        {"stays": "head"},
        {"parts": ["scaffold"]},
        {"input": "harmofl"},
        {"extra_rounds": 1},
    ],
    "perfedavg": [
        {"stays": "batchnorm"},
        {"stays": "head"},
        {"input": "harmofl"},
        {"parts": ["fedopt"]},
        {"weights": "uniform"},
    ],
}
EPOCHS = {"training": SGD | {"local_epochs": 2}}
NEEDS = {"fedrep": EPOCHS, "moon": {"network": UNET}, "perfedavg": EPOCHS | {"perfedavg": {"alpha": 0.2}}}


@pytest.mark.parametrize(("name", "more"), [(name, more) for name, rows in TOGETHER.items() for more in rows], ids=str)
def test_an_algorithm_goes_with_another_answer(play, name, more):
    game = play(name=name, rounds=2, **{"training": SGD} | NEEDS[name] | more)
    assert set(game.finish().scores) == set(COUNTS)
    assert [record.answered for record in game.server.ledger] == [list(COUNTS)] * game.study.total_rounds
