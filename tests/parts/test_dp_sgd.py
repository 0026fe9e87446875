"""Differential privacy in whole runs: what is counted, what leaves, and what a site refuses."""

import json
from dataclasses import replace

import numpy as np
import pytest

from silofl.base.errors import ConfigError, PinError
from silofl.base.settings import parse
from silofl.federation.egress import Gate
from silofl.federation.outcome import finished_results
from silofl.federation.site import SiteRounds
from silofl.parts.dp_sgd import FILE, SiteDpSgd
from silofl.parts.task import TRAIN, Message
from silofl.study import Study
from silofl.training.privacy_budget import PrivacyBudget
from silofl.training.private import compute_epsilon

from ..conftest import SMALL_UNET, UNET
from ..federation.test_egress import request

NOISE = {"dp_sgd": {"noise": 2.0, "clip": 1.0, "delta": 0.01}}


@pytest.fixture
def private(make_study):
    def make(privacy=NOISE, normalization="instance", **options):
        options = {"network": SMALL_UNET | {"normalization": normalization}} | options
        values = make_study(**options).model_dump(mode="json", exclude={"privacy"})
        return parse(Study, values | {"privacy": privacy}, "study.yaml")

    return make


def test_the_ledger_holds_what_each_site_spent(play, private):
    run = play(study=private())
    for number in (1, 2):
        record = run.round()
        # Five, four and three patients in batches of two: three, two and one batch.
        steps, rates = {"east": 2, "north": 2, "west": 1}, {"east": 0.4, "north": 0.5, "west": 2 / 3}
        wanted = {s: compute_epsilon([PrivacyBudget(2.0, rates[s], number * steps[s])], 0.01) for s in steps}
        assert record.metrics == {site: {"epsilon": pytest.approx(value)} for site, value in wanted.items()}
    assert "loss" not in json.dumps(run.answers[TRAIN]["east"].meta)
    results = finished_results(run.server, run.finish())
    assert results.privacy.epsilon.keys() == {"east", "north", "west"}
    assert results.privacy.epsilon["east"] > wanted["east"]


def test_a_restarted_server_still_knows_what_was_spent(play, private):
    run = play(study=private(rounds=2))
    run.rounds(2)
    run.resume()
    spent = finished_results(run.server, run.finish()).privacy.epsilon
    assert spent == {site: values["epsilon"] for site, values in run.server.ledger[-1].metrics.items()}


def begin_another(play, study):
    """Begin another run of a study at the same sites."""
    again = play(study=study)
    again.server.id = "another"
    return again


def read_count(run, site="east"):
    return json.loads((run.folder(site).parent / FILE).read_text())["spent"]


def fill(message, value):
    """Return what a hostile server sends: its own numbers for all weights."""
    return replace(message, arrays={name: np.full_like(one, value) for name, one in message.arrays.items()})


def test_a_round_is_counted_although_its_training_fails(play, private):
    run = play(study=private())
    sent = run.upcoming(TRAIN)["east"]
    for number in (1, 2):
        answer = run.sites["east"].answer(TRAIN, fill(sent, np.nan))
        # What the noise has made of the parameters, and no loss of an image.
        assert "parameters of the model became NaN or infinity" in answer.meta["error"]
        assert [one["steps"] for one in read_count(run)] == [2 * number]


def by(unit):
    return {"dp_sgd": NOISE["dp_sgd"] | {"unit": unit}}


@pytest.mark.parametrize(("before", "now"), [("example", "patient"), ("patient", "example")])
def test_steps_that_protected_somebody_else_are_not_added(play, private, before, now):
    first = play(study=private(by(before)))
    first.round()
    again = begin_another(play, private(by(now)))
    said = f"privacy.dp_sgd.unit must be {before}, by which {FILE} of site 'east' has counted earlier steps, not {now};"
    assert said in again.sites["east"].answer(TRAIN, again.upcoming(TRAIN)["east"]).meta["error"]
    assert [one["unit"] for one in read_count(first)] == [before]


def test_two_runs_at_once_are_both_counted(play, private, monkeypatch):
    first, second = play(study=private()), begin_another(play, private())
    original = SiteDpSgd.epoch

    def overtaken(part, examples):
        # While a round of the one trains, one of the other begins and ends.
        if part.work.site == "east" and part.work.folder.name == "run":
            second.round()
        return original(part, examples)

    monkeypatch.setattr(SiteDpSgd, "epoch", overtaken)
    record = first.round()
    assert [one["steps"] for one in read_count(first)] == [4]
    assert record.metrics["east"]["epsilon"] == pytest.approx(compute_epsilon([PrivacyBudget(2.0, 0.4, 4)], 0.01))


def test_a_site_spends_no_more_than_it_lets(play, private):
    run = play(study=private(rounds=9))
    before = run.round().metrics["east"]["epsilon"]
    site = run.sites["east"]
    site.site = site.site.model_copy(update={"max_epsilon": before * 1.01})
    record = run.round()
    assert "above its max_epsilon of" in record.failed["east"]
    assert record.answered == ["north", "west"]
    assert [one["steps"] for one in read_count(run)] == [2]


def test_a_site_whose_count_is_lost_trains_no_more(play, private):
    run = play(study=private())
    run.round()
    again, path = begin_another(play, private()), run.folder("east").parent / FILE
    for content in (None, "{", '{"spent": []}', '{"spent": [{"noise": 1}]}'):
        path.unlink() if content is None else path.write_text(content)
        for game in (run, again):
            error = game.sites["east"].answer(TRAIN, game.upcoming(TRAIN)["east"]).meta["error"]
            assert f"{FILE} in the state folder of site 'east' is missing, broken or older" in error


def test_the_gate_lets_no_loss_and_no_intensities_leave(play, private):
    run = play(study=private())
    run.round()
    study, answer = run.study, run.answers[TRAIN]["east"]
    gate = Gate.of(study, run.settings)
    asked = replace(request(), shapes={name: array.shape for name, array in answer.arrays.items()})
    assert gate.refusal(asked, answer) is None
    for name in ("loss", "loss_other", "drift"):
        more = Message(answer.arrays, answer.meta | {"metrics": answer.meta["metrics"] | {name: 0.5}})
        assert "lets only the numbers of an answer leave" in gate.refusal(asked, more)
    assert answer.meta["domain"].keys() & {"intensities", "voxels"} == set()
    sizes = {"least": [1.0, 1.0, 1.0], "most": [1.0, 1.0, 1.0]}
    measured = Message(answer.arrays, answer.meta | {"domain": {"voxels": sizes}})
    assert "lets only the numbers of an answer leave" in gate.refusal(asked, measured)


def test_a_site_with_a_limit_answers_no_study_without_privacy(make_study, settings_in, tmp_path):
    for key, value in {"max_epsilon": 8.0, "max_delta": 0.001, "privacy_unit": "example"}.items():
        site = settings_in(tmp_path).model_copy(update={key: value})
        with pytest.raises(
            PinError, match=f"'small' has no privacy.dp_sgd, which {key} of the site asks for; add it, or"
        ):
            SiteRounds("east", make_study(), site)


LIMITS = {"max_epsilon": 8.0, "max_delta": 0.01, "privacy_unit": "patient"}


@pytest.mark.parametrize(
    ("changes", "limits", "said"),
    [
        ({"delta": 0.1}, {}, "privacy.dp_sgd.delta must be at most 0.01, as max_delta of the site asks, not 0.1;"),
        (
            {"unit": "example"},
            {},
            "privacy.dp_sgd.unit must be patient, as privacy_unit of the site asks, not example;",
        ),
        # One of several examples changes which one a patient's gradient is of: that is up to twice the norm, not once.
        (
            {},
            {"privacy_unit": "example"},
            "dp_sgd.unit must be example, as privacy_unit of the site asks, not patient;",
        ),
    ],
)
def test_a_weaker_promise_does_not_pass_the_limit(private, settings_in, tmp_path, changes, limits, said):
    lax = private({"dp_sgd": NOISE["dp_sgd"] | changes})
    with pytest.raises(PinError, match=said):
        SiteRounds("east", lax, settings_in(tmp_path).model_copy(update=LIMITS | limits))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"baseline_comparison": True}, "baseline_comparison cannot be used with"),
        ({"normalization": "batch"}, "must be instance or group with privacy.dp_sgd, not 'batch'"),
        ({"normalization": "batch_stateless"}, "not 'batch_stateless'"),
        ({"training": {"batch_dice": True}}, "batch_dice cannot be used with"),
        ({"training": {"measures_drift": True}}, "measures_drift cannot be used with privacy.dp_sgd"),
        ({"name": "fedsm"}, "not 'fedsm' with selector"),
        ({"name": "scaffold", "training": {"optimizer": "sgd", "momentum": 0.0}}, "not 'scaffold' with scaffold"),
        ({"name": "moon", "network": UNET | {"normalization": "instance"}}, "take fedavg"),
        ({"input": "harmofl"}, "must be one that sends nothing but models"),
    ],
)
def test_what_would_leak_past_the_noise_is_refused(private, changes, said):
    with pytest.raises(ConfigError, match=said):
        private(**changes)


# Of all the longest.
FINETUNING = pytest.param("finetuning", marks=pytest.mark.slow)


@pytest.mark.parametrize("name", ["fedavg", "fedopt", "fedper", "softpull", "local", FINETUNING])
def test_algorithms_of_which_only_models_leave_train_with_it(play, private, name):
    run = play(study=private(name=name, rounds=1))
    record = run.round()
    assert sorted(record.metrics) == ["east", "north", "west"] and not record.failed
    assert run.finish().scores.keys() == {"east", "north", "west"}
