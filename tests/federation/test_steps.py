"""How far a site is in a long training, for whoever follows the run."""

from silofl.federation import steps
from silofl.federation.steps import StepFile, describe_steps


def test_site_furthest_behind_is_named_until_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(steps, "EVERY_S", -1.0)
    files = {}
    for site in ("north", "south"):
        folder = tmp_path / "sites" / site / "run-1"
        folder.mkdir(parents=True)
        files[site] = StepFile(folder)
    assert describe_steps(tmp_path, 0.0) == ""
    files["north"].write(50, 100)
    # 12 of 20 is more than 50 of 100.
    files["south"].write(12, 20)
    assert describe_steps(tmp_path, 0.0) == ", step 50 of 100 at north"
    files["north"].close()
    assert describe_steps(tmp_path, 0.0) == ", step 12 of 20 at south"
