import json
import subprocess
import sys

import numpy as np
import pytest
import yaml

from silofl.federation.alone import run_alone
from silofl.federation.run_folder import PHASE, RunFolder
from silofl.federation.server import ServerRounds
from silofl.settings import load_settings
from silofl.site import Site


@pytest.fixture
def alone(tmp_path, site_data, make_study):
    """Run a study in one process; returns the run's folder."""

    def run(folder="run", sites=("east", "north", "west"), on_round=lambda: None, min_sites=1, **options):
        path, study = tmp_path / folder, make_study(**options)
        settings = Site(data=f"{site_data}/{{site}}", state_dir=f"{path}/sites/{{site}}", has_progress=False)
        federation = study.federation.model_copy(update={"min_sites": min_sites})
        run_alone(study.model_copy(update={"federation": federation}), path, sites, settings, None, on_round)
        return path

    return run


@pytest.mark.parametrize("name", ["fedavg", "adafed"])
def test_a_run_alone_is_what_its_course_comes_to(alone, play, make_study, name):
    path = alone(name=name, rounds=2)
    game = play(name=name, rounds=2, min_patients=Site.model_fields["min_patients"].default)
    game.finish()
    ledger = json.loads((path / "ledger.json").read_text())
    assert [record["weights"] for record in ledger] == [record.weights for record in game.server.ledger]
    part = RunFolder(path, make_study(name=name, rounds=2)).load().parts["model"]
    for site in game.sites:
        for key, array in game.server.parts["model"].of(site).items():
            np.testing.assert_array_equal(part.of(site)[key], array)
    assert json.loads((path / "results.json").read_text())["status"] == "COMPLETE"


def test_who_follows_a_run_can_read_which_task_its_sites_work_on(alone, tmp_path):
    seen = []
    alone(name="fedavg", rounds=2, on_round=lambda: seen.append((tmp_path / "run" / PHASE).read_text()))
    # A round trains; after the last one it is validated, and the best one is tested.
    assert seen[:3] == ["train 1", "train 2", "validate 2"] and seen[3].startswith("test ")


def test_a_task_that_cannot_be_written_ends_no_run(alone, tmp_path):
    (tmp_path / "run" / PHASE).mkdir(parents=True)
    assert json.loads((alone(name="fedavg", rounds=1) / "results.json").read_text())["status"] == "COMPLETE"


def test_a_run_with_a_selector_ends_with_a_super_model(alone):
    path = alone(name="fedsm", rounds=1, model={"normalization": "instance"})
    assert {"global", "selector"} <= {file.stem for file in (path / "supermodel" / "weights").iterdir()}


def test_a_site_of_a_run_alone_is_paused_by_its_file_as_it_is_now(tmp_path, site_data, make_study):
    path, asked = tmp_path / "site.yaml", []
    settings = Site(data=f"{site_data}/{{site}}", state_dir=f"{tmp_path}/sites/{{site}}", has_progress=False)

    def latest(site):
        return load_settings(Site, path) if site == "east" else settings

    def write(paused):
        path.write_text(yaml.safe_dump(settings.model_dump(mode="json", exclude_none=True) | {"paused": paused}))

    def change():
        # Round 1 has been trained: east is paused in round 2 and no longer in round 3.
        asked.append(1)
        write(["small"] if len(asked) == 1 else [])

    write([])
    run_alone(make_study(rounds=3), tmp_path / "run", ("east", "north"), settings, None, change, latest)
    ledger = json.loads((tmp_path / "run" / "ledger.json").read_text())
    assert [list(record["failed"]) for record in ledger] == [[], ["east"], []]
    assert "paused by the hospital" in ledger[1]["failed"]["east"]


def test_a_run_with_too_few_answers_fails_with_the_reasons(alone):
    path = alone(sites=("east", "nowhere"), min_sites=2)
    results = json.loads((path / "results.json").read_text())
    assert results["status"] == "FAILED"
    assert "not 1: nowhere: the site's data have a fault" in results["reasons"][0]


ALONE = """
import sys
from pathlib import Path
from silofl.site import Site
from silofl.study import load_study
from silofl.federation.course import Course, separate_failures
from silofl.federation.server import ServerRounds
from silofl.federation.site import SiteRounds

job, data, state = map(Path, sys.argv[1:])
study = load_study(job / "app" / "config" / "study.yaml")
settings = Site(data=f"{data}/{{site}}", state_dir=f"{state}/{{site}}", has_progress=False)
sites = {name: SiteRounds(name, study, settings) for name in ("ann", "bob")}
server = ServerRounds.start(study, "run", list(sites))

def ask(task, messages):
    return separate_failures({site: sites[site].answer(task, message) for site, message in messages.items()}, [])

tests = Course(server, ask).run()
print([tests.scores[site].num_cases for site in sites])
print(sorted({"monai", "SimpleITK", "nibabel"} & {name.partition(".")[0] for name in sys.modules}))
"""


def test_a_whole_run_on_windows_loads_none_of_the_libraries_it_has_no_need_of(windows, write_windows_job, tmp_path):
    job = write_windows_job("adafed_activity", {"name": "adafed"})
    command = [sys.executable, "-c", ALONE, job, windows, tmp_path / "state"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)
    assert done.stdout.split("\n")[:2] == ["[26, 25]", "[]"], done.stdout + done.stderr


def test_a_run_that_fails_for_an_unknown_reason_has_a_result_that_names_it(alone, monkeypatch):
    def broken(*arguments):
        raise TypeError("unhashable")

    monkeypatch.setattr(ServerRounds, "merge", broken)
    results = json.loads((alone(rounds=1) / "results.json").read_text())
    assert results["status"] == "FAILED"
    assert results["reasons"] == ["an unexpected TypeError, which the server's log has in full: unhashable"]
