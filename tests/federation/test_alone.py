import json
import subprocess
import sys

import pytest

from silofl.federation.run_folder import PHASE, RunFolder
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


def test_a_task_that_cannot_be_written_ends_no_run(alone, tmp_path):
    (tmp_path / "run" / PHASE).mkdir(parents=True)
    assert read_result(alone(rounds=1))["status"] == "COMPLETE"


def test_who_follows_a_run_can_read_which_task_its_sites_work_on(alone, tmp_path):
    seen = []
    alone(rounds=2, on_round=lambda: seen.append((tmp_path / "run" / PHASE).read_text()))
    # A round trains; after the last one it is validated, and the best one is tested.
    assert seen[:3] == ["train 1 1", "train 2 1", "validate 2 1"] and seen[3].startswith("test ")


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


ALONE = """
import sys
from pathlib import Path
from silofl.setup.site import Site
from silofl.study import load_study
from silofl.federation.course import Course, separate_failures
from silofl.federation.server import ServerRounds
from silofl.federation.site import SiteRounds
from silofl.models import build_model
import silofl.flare.executor

job, data, state = map(Path, sys.argv[1:])
study = load_study(job / "app" / "config" / "study.yaml")
floors = {"min_partners": 0, "min_patients": 0}
settings = Site(data=f"{data}/{{site}}", state_dir=f"{state}/{{site}}", has_progress=False, **floors)
sites = {name: SiteRounds(name, study, settings) for name in ("ann", "bob")}
server = ServerRounds.start(study, "run", list(sites))

def ask(task, messages):
    return separate_failures({site: sites[site].answer(task, message) for site, message in messages.items()}, [])

tests = Course(server, ask).run()
for name, shape in {"lenet5": (1, 28, 28), "alexnet": (1, 64, 64)}.items():
    build_model(study.model_copy(update={"model": study.model.model_copy(update={"name": name})}), shape, 0)
print([tests.scores[site].num_cases for site in sites])
print(sorted({"monai", "SimpleITK", "nibabel"} & {name.partition(".")[0] for name in sys.modules}))
"""


def test_a_run_on_windows_and_our_own_networks_load_no_library_that_they_do_not_need(
    windows, write_windows_job, tmp_path
):
    job = write_windows_job("adafed_activity", {"name": "adafed"})
    command = [sys.executable, "-c", ALONE, job, windows, tmp_path / "state"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)
    assert done.stdout.split("\n")[:2] == ["[26, 25]", "[]"], done.stdout + done.stderr
