import os

import pytest
import torch

from silofl.base.errors import ConfigError
from silofl.training.device import choose_device, derive_seed, set_threads


@pytest.mark.parametrize(
    ("name", "has_gpu", "wanted"),
    [("cpu", True, "cpu"), ("auto", True, "cuda"), ("auto", False, "cpu"), ("cuda", True, "cuda")],
)
def test_auto_takes_a_gpu_where_there_is_one(monkeypatch, name, has_gpu, wanted):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    assert choose_device(name).type == wanted


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="device must be 'cpu' or 'auto' .*, not 'cuda'"):
        choose_device("cuda")


def test_a_seed_depends_on_every_part_and_their_order():
    parts = ((0, "north", 3, 1), (1, "north", 3, 1), (0, "south", 3, 1), (0, "north", 4, 1), (0, "north", 3, 2))
    places = ((1, 2, 3), (3, 2, 1), (12, 3), (1, 23))
    assert len({derive_seed(*one) for one in (*parts, *places)}) == 9


@pytest.mark.parametrize(("given", "wanted"), [("3", 3), (" 3,1", 3), ("", None), ("0", None), ("many", None)])
def test_auto_takes_all_cores_or_as_many_as_openmp_may(monkeypatch, given, wanted):
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    told = []
    monkeypatch.setattr(torch, "set_num_threads", told.append)
    set_threads("auto")
    set_threads(2)
    assert told == [wanted or len(os.sched_getaffinity(0)), 2]
