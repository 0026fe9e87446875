"""The drill of a run in which every hospital has a trouble; ``make federation-eight`` carries out the whole."""

import pytest

from provisioning.namespaces import are_possible
from tests.provisioning.eight import DRILL, EIGHT, NAMES, carry_out_seed


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_three_hospitals_end_their_run_despite_all_troubles(tmp_path, free_port):
    if not are_possible():
        pytest.skip("this account makes no network namespaces")
    found = carry_out_seed(DRILL, tmp_path / "drill", 1, free_port())
    assert found["status"] == "COMPLETE" and found["rounds without all"] == "none", found
    assert found["weights of the undisturbed run"], found


def test_every_trouble_meets_a_hospital():
    for seed in range(20):
        roles = EIGHT.draw(seed)
        assert {*roles} == {*EIGHT.troubles, "killed", "rebooted"} and {*roles.values()} <= {*NAMES}
        assert len({roles[what] for what in EIGHT.troubles}) == len(NAMES)
        assert not {roles["killed"], roles["rebooted"]} & {roles["slow"], roles["full"]}
