import numpy as np

from silofl.models.roles import of_role, role_of, with_role


def test_names_carry_their_role():
    assert role_of("global/network.a") == "global" and role_of("statistics/0/mean") == "statistics"
    assert role_of("network.a") == ""


def test_a_role_gets_its_own_arrays_under_its_own_names():
    arrays = with_role("personal", {"a": np.ones(1)}) | with_role("global", {"a": np.zeros(1)})
    assert arrays.keys() == {"personal/a", "global/a"}
    assert of_role("global", arrays) == {"a": np.zeros(1)}


def test_roles_stand_within_roles():
    arrays = with_role("super_model", with_role("north", {"a": np.ones(1)}))
    assert of_role("north", of_role("super_model", arrays)) == {"a": np.ones(1)}
