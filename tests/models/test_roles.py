import numpy as np

from silofl.models.roles import add_role, read_role, select_role


def test_names_carry_their_role():
    assert read_role("global/network.a") == "global" and read_role("statistics/0/mean") == "statistics"
    assert read_role("network.a") == ""


def test_a_role_gets_its_own_arrays_under_its_own_names():
    arrays = add_role("personal", {"a": np.ones(1)}) | add_role("global", {"a": np.zeros(1)})
    assert arrays.keys() == {"personal/a", "global/a"}
    assert select_role("global", arrays) == {"a": np.zeros(1)}
