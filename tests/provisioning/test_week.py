"""The scripted week: how it ends, what it checks, and, as a whole, that every event goes as it must."""

import io
import json
import re
from types import SimpleNamespace

import pytest
from rich.console import Console

from provisioning.workspace import SITE_CONFIGS
from silofl import __version__
from silofl.setup.software import digest_package
from tests.provisioning.week import carry_out_events, main
from tests.provisioning.week_container import Container, read_commands
from tests.provisioning.week_events import (
    EVENTS,
    Event,
    copy_changed_package,
    find_patient_files,
    hash_model_files,
    put_hospital_into_container,
    remove_egress_filters,
)
from tests.provisioning.week_stage import require_that


def carried_out(tmp_path, *events):
    """Carry out events without a network; returns the exit code, what was shown, and the page."""
    shown = io.StringIO()
    code = carry_out_events(SimpleNamespace(out=tmp_path), events, Console(file=shown, width=200, markup=False))
    return code, shown.getvalue(), (tmp_path / "week.md").read_text()


def test_a_week_whose_checks_hold_ends_with_success_and_a_page_of_what_was_seen(tmp_path):
    code, shown, page = carried_out(
        tmp_path, Event("It rains", lambda _: "wet; cold"), Event("It is dry", lambda _: "dry")
    )
    assert code == 0 and "2 of 2 events" in shown
    assert page.splitlines()[2::2] == ["1. **It rains** (0 s): wet; cold", "2. **It is dry** (0 s): dry"]


def test_the_first_check_that_fails_ends_the_week_with_its_sentence(tmp_path):
    later = []
    code, shown, page = carried_out(
        tmp_path, Event("It rains", lambda _: require_that(False, "it must be wet")), Event("Then", later.append)
    )
    assert code == 1 and later == []
    assert "FAILED: it must be wet" in shown and "FAILED: it must be wet" in page and "0 of 2 events" in shown


def test_a_folder_that_holds_something_is_not_written_over(tmp_path, capsys):
    (tmp_path / "week.md").write_text("an earlier week")
    assert main(["--out", str(tmp_path)]) == 2
    assert "--out must be a new or empty folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["week.md"]


def test_a_copied_package_says_its_version_and_differs_from_the_installed_one(tmp_path):
    stage = SimpleNamespace(out=tmp_path)
    changed, other = copy_changed_package(stage, "changed", __version__), copy_changed_package(stage, "other", "9.9.0")
    assert f'__version__ = "{__version__}"' in (changed / "silofl" / "__init__.py").read_text()
    assert '__version__ = "9.9.0"' in (other / "silofl" / "__init__.py").read_text()
    assert digest_package(changed / "silofl") != digest_package(other / "silofl")


def test_a_policy_without_its_filter_of_answers_keeps_all_else():
    privacy = json.loads((SITE_CONFIGS / "hospital" / "privacy.json").read_text())
    broken = remove_egress_filters(privacy)
    assert broken["scopes"][0]["task_result_filters"] == [] != privacy["scopes"][0]["task_result_filters"]
    assert broken["scopes"][0]["task_data_filters"] == privacy["scopes"][0]["task_data_filters"]


def test_models_differ_by_one_bit_and_other_files_do_not_count(tmp_path):
    for run, weights in (("whole", b"0"), ("same", b"0"), ("other", b"1")):
        (tmp_path / run / "model").mkdir(parents=True)
        (tmp_path / run / "model" / "north.pt").write_bytes(weights)
        (tmp_path / run / "model" / "time.json").write_text(run)
    whole, same, other = (hash_model_files(tmp_path / run) for run in ("whole", "same", "other"))
    assert list(whole) == ["model/north.pt"] and whole == same != other


def test_every_file_of_a_hospital_that_names_a_patient_is_found_and_none_of_another(tmp_path):
    for site in ("south", "north"):
        (tmp_path / "study" / site / "run").mkdir(parents=True)
        (tmp_path / "study" / site / "run" / "scores.csv").write_text("south_01,0.5")
        (tmp_path / "study" / site / "run" / "notes.md").write_text("3 arrays")
    assert find_patient_files(tmp_path, "south_01") == [tmp_path / "study" / "south" / "run" / "scores.csv"]


def test_a_week_without_podman_or_its_base_says_that_no_hospital_ran_in_a_container(tmp_path, monkeypatch):
    stage = SimpleNamespace(base="no/such:image")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert put_hospital_into_container(stage) == "not run: podman is not installed"
    (tmp_path / "podman").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "podman").chmod(0o755)
    assert put_hospital_into_container(stage).startswith("not run: podman has no image no/such:image: pull it")


def test_podman_gets_the_three_commands_of_the_hospitals_page_with_every_word_of_it_filled_in(tmp_path):
    stage = SimpleNamespace(out=tmp_path, port=8002, base="localhost/base")
    build, run, check = map(Container(stage, "north", ()).fill_in, read_commands())
    assert build.startswith("podman build -f system/Dockerfile --build-arg BASE=localhost/base ")
    assert run.startswith("podman run ") and f"-v {tmp_path}/container/images:/var/lib/silofl/data:ro" in run
    assert check.startswith("podman exec silofl-8002-north python3 -m silofl site check")
    for command in (build, run, check):
        assert "docker" not in command and not {"IMAGES", "STATE", "DIGEST"} & {*re.findall("[A-Z]+", command)}


def test_each_event_says_what_happens_and_has_a_day():
    days = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
    order = [days.index(event.what.split(":")[0]) for event in EVENTS]
    assert order == sorted(order) and {*order} == {*range(7)}
    assert len({event.carry_out for event in EVENTS}) == len(EVENTS) >= 11


@pytest.mark.faults
@pytest.mark.timeout(2700)
def test_the_week_goes_as_it_must(tmp_path, free_port, capsys):
    code = main(["--out", str(tmp_path / "week"), "--port", str(free_port())])
    assert code == 0, capsys.readouterr().out
    assert "FAILED" not in (tmp_path / "week" / "week.md").read_text()
