import json

import pytest

from silofl.federation.run_folder import RunFolder
from silofl.federation.server import ServerRounds
from silofl.setup.site import Site
from silofl_desk.studies.alone import run_alone

from ..conftest import assert_alike


@pytest.fixture
def alone(tmp_path, site_data, make_study):
    """Run a study in one process; returns the run's folder."""

    def run(sites=("east", "west"), on_round=lambda: None, **options):
        path = tmp_path / "run"
        settings = Site(
            data=f"{site_data}/{{site}}", state_dir=f"{path}/sites/{{site}}", has_progress=False, min_partners=0
        )
        run_alone(make_study(**options), path, sites, settings, None, on_round)
        return path

    return run


def read_result(path):
    return json.loads((path / "results.json").read_text())


def test_a_run_alone_is_what_its_course_comes_to(alone, play):
    options = {"name": "fedsm", "rounds": 2, "model": {"normalization": "instance"}}
    path = alone(**options)
    game = play(("east", "west"), min_patients=Site.model_fields["min_patients"].default, **options)
    game.finish()
    ledger = json.loads((path / "ledger.json").read_text())
    assert [record["weights"] for record in ledger] == [record.weights for record in game.server.ledger]
    server = RunFolder(path, game.study).load()
    for role in game.study.recipe.traveling_roles:
        for site in game.sites:
            assert_alike(server.parts[role].of(site), game.server.parts[role].of(site))
    assert read_result(path)["status"] == "COMPLETE"
    assert {"global", "selector"} <= {file.stem for file in (path / "supermodel" / "weights").iterdir()}


def test_a_run_with_too_few_answers_fails_with_the_reasons(alone):
    results = read_result(alone(("east", "nowhere"), federation={"min_sites": 2}))
    assert results["status"] == "FAILED"
    assert "not 1: nowhere: the site's data have a fault" in results["reasons"][0]


def test_a_run_that_fails_for_an_unknown_reason_has_a_result_that_names_it(alone, monkeypatch):
    def broken(*arguments):
        raise TypeError("unhashable")

    monkeypatch.setattr(ServerRounds, "merge", broken)
    results = read_result(alone(rounds=1))
    assert results["status"] == "FAILED"
    assert results["reasons"] == ["an unexpected TypeError, which the server's log has in full: unhashable"]
