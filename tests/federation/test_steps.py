"""How far a site is in a long training, for whoever follows the run."""

import pytest

from silofl.federation import steps
from silofl.federation.steps import StepFile, describe_steps


@pytest.fixture
def folder(tmp_path):
    """The folders of a run's sites, made at first use."""

    def make(site):
        path = tmp_path / "sites" / site / "run-1"
        path.mkdir(parents=True)
        return path

    return make


def test_site_furthest_behind_is_named_until_the_end(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(steps, "EVERY_S", -1.0)
    north, south = StepFile(folder("north")), StepFile(folder("south"))
    assert describe_steps(tmp_path, 0.0) == ""
    north.write(50, 100)
    # 12 of 20 is more than 50 of 100.
    south.write(12, 20)
    assert describe_steps(tmp_path, 0.0) == ", step 50 of 100 at north"
    north.close()
    assert describe_steps(tmp_path, 0.0) == ", step 12 of 20 at south"
