"""A rehearsal: what a site shows of a round, of which nothing learnt leaves and nothing stays."""

import json
from dataclasses import replace

import numpy as np
import pytest

from silofl.federation import needs, rehearsal
from silofl.federation.course import separate_failures
from silofl.federation.egress import RETURNED, Request
from silofl.federation.rehearsal import rehearse_round
from silofl.federation.site import SiteRounds
from silofl.parts.dp_sgd import FILE as SPENT
from silofl.study.sections import PrivacySettings
from silofl.training.private import compute_study_epsilon, measure_round

PRIVATE = PrivacySettings(dp_sgd={"noise": 1.0, "clip": 1.0})


@pytest.fixture
def rehearsed(play, make_study):
    """Rehearse a round; returns what each site has shown, and the run with all messages."""

    def run(sites=("east", "north"), change=None, site=None, privacy=None, min_partners=0, **options):
        study = make_study(**options)
        study = study.model_copy(update={"rehearsal": True} | ({"privacy": privacy} if privacy else {}))
        game = play(sites, study=study, min_partners=min_partners)
        if site:
            settings = game.settings.model_copy(update=site)
            game.sites["east"] = SiteRounds("east", study, settings)
        game.change = change
        return rehearse_round(game.server, game.ask), game

    return run


def written(game):
    """Return the files of a site's state, without the cache of its images."""
    state = game.settings.state_folder("small", "east")
    return sorted(
        str(path.relative_to(state)) for path in state.rglob("*") if path.is_file() and "cache" not in path.parts
    )


@pytest.mark.parametrize("name", ["fedavg", "fedsm", "adafed"])
def test_arrays_return_and_nothing_learnt_leaves_or_stays(rehearsed, name):
    plain = {"optimizer": "sgd", "momentum": 0.0}
    reports, game = rehearsed(name=name, training=plain, baseline_comparison=name == "fedavg")
    for site, answer in game.answers["train"].items():
        assert reports[site].faults == () and reports[site].bytes_from == answer.num_bytes > 0
        sent = game.sent["train"][site]
        assert reports[site].bytes_to == sent.num_bytes
        for role, array in answer.arrays.items():
            np.testing.assert_array_equal(array, sent.arrays[role])
        assert "loss" not in json.dumps(answer.meta) and "metrics" not in answer.meta
    assert written(game) == [] and game.server.ledger == []


def test_round_is_estimated_from_a_tenth_of_its_steps(rehearsed, monkeypatch):
    taken, measure = [], rehearsal.measure_cost

    def count(work, steps):
        taken.append((steps, work.study.steps_an_epoch(len(work.data.training)) * 40))
        return replace(measure(work, steps), seconds=2.0, seconds_beside=0.0)

    monkeypatch.setattr(rehearsal, "measure_cost", count)
    reports, game = rehearsed(training={"local_epochs": 40}, rounds=3)
    for (steps, of_round), one in zip(taken, reports.values(), strict=True):
        assert 1 <= steps <= of_round / 10
        assert one.round_seconds >= 2 * of_round and one.run_hours == pytest.approx(one.round_seconds * 3 / 3600)
        assert one.peak_bytes > 0 and one.device == "cpu"


@pytest.mark.parametrize("limit", [None, 0.001])
def test_no_privacy_is_spent_and_all_rounds_are_compared(rehearsed, limit):
    pytest.importorskip("opacus")
    group = {"normalization": "group"}
    reports, game = rehearsed(privacy=PRIVATE, model=group, site={"max_epsilon": limit})
    state = game.settings.state_folder("small", "east")
    assert not list(state.rglob(SPENT)) and written(game) == []
    wanted = compute_study_epsilon(game.study, measure_round(game.study, game.sites["east"].data.training)[1])
    says = f"all rounds spend epsilon {wanted:.3g}, more than max_epsilon of the site, 0.001"
    assert reports["east"].faults == ((says,) if limit else ()) and reports["north"].faults == ()


def test_full_disk_and_long_round_are_named(rehearsed, monkeypatch):
    monkeypatch.setattr(needs, "site_disk_bytes", lambda study, sites: 1 << 60)
    reports, _ = rehearsed(federation={"task_timeout_s": 1e-4})
    disk, late = reports["east"].faults
    assert disk.startswith("the site's disk must have 1073741824.0 GiB free for its state, not ")
    assert late.startswith("a round takes ") and "raise federation.task_timeout_s" in late


def test_the_record_of_what_left_says_that_nothing_was_learnt(rehearsed):
    _, game = rehearsed()
    site, task, answer = game.sites["east"], game.sent["train"]["east"], game.answers["train"]["east"]
    *arrays, numbers = site.gate.records(Request.of("train", task), answer)
    assert {one["purpose"] for one in arrays} == {RETURNED} and numbers["values"]["rehearsal"]["device"] == "cpu"
    assert sum(one["bytes"] for one in arrays) == task.num_bytes


def test_trained_and_rehearsed_answers_exclude_each_other(rehearsed, play):
    _, game = rehearsed()
    run = play(("east", "north"), folder="run")
    run.round()
    for one, other in ((game, run), (run, game)):
        request = Request.of("train", one.sent["train"]["east"])
        assert one.sites["east"].gate.refusal(request, one.answers["train"]["east"]) is None
        assert "only the numbers of an answer" in one.sites["east"].gate.refusal(
            request, other.answers["train"]["east"]
        )


def test_kind_needed_only_later_is_named(rehearsed, monkeypatch):
    monkeypatch.setattr(rehearsal.Gate, "list_withheld", lambda self, rounds: ["statistics"])
    reports, _ = rehearsed()
    assert "the site does not let statistics leave, which the study asks for" in reports["east"].faults[0]


def test_answer_of_a_site_that_trained_is_not_taken(rehearsed, play):
    _, game = rehearsed()
    trained = play(("east", "north"), folder="run")
    trained.round()
    given = {"east": trained.answers["train"]["east"], "north": game.answers["train"]["north"]}
    reports = rehearse_round(game.server, lambda task, messages: separate_failures(given))
    assert reports["east"].faults == ("site 'east' trained in place of a rehearsal; have it upgraded",)
    assert reports["north"].faults == ()
