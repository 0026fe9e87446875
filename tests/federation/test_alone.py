import json

import pytest

from silofl.federation.server import ServerRounds
from silofl.setup.site import Site
from silofl_desk.studies.runs.in_process import run_in_process


@pytest.fixture
def alone(tmp_path, site_data, make_study):
    """Run a study in one process; returns the run's folder."""

    def run(sites=("east", "west"), on_round=lambda: None, **options):
        path = tmp_path / "run"
        settings = Site(
            data=f"{site_data}/{{site}}", state_dir=f"{path}/sites/{{site}}", has_progress=False, min_partners=0
        )
        run_in_process(make_study(**options), path, sites, settings, None, on_round)
        return path

    return run


def read_result(path):
    return json.loads((path / "results.json").read_text())


def test_unknown_failure_has_a_result_that_names_it(alone, monkeypatch):
    def broken(*arguments):
        raise TypeError("unhashable")

    monkeypatch.setattr(ServerRounds, "merge", broken)
    results = read_result(alone(rounds=1))
    assert results["status"] == "FAILED"
    assert results["reasons"] == ["an unexpected TypeError, which the server's log has in full: unhashable"]
