"""A site's two local models: with the study's normalisation and with BatchNorm."""

from dataclasses import replace

import pytest
from torch import nn

from silofl.federation.needs import home_bytes
from silofl.inference import SuperModel
from silofl.parts import baseline
from silofl.training import local_model
from silofl.training.metrics import Score

from ..conftest import assert_alike

pytestmark = pytest.mark.long

GROUP = {
    "baseline_comparison": True,
    "name": "fedavg",
    "model": {"normalization": "group"},
    "federation": {"patience": 2},
}


@pytest.fixture(autouse=True)
def trained_to_its_end(monkeypatch):
    """Let every federated model be finished, and the local ones learn in few rounds more."""
    monkeypatch.setattr("silofl.federation.server.measure_last_rise", lambda ledger, patience: 0.0)
    monkeypatch.setattr(local_model, "MOST_ROUNDS", 6)


@pytest.fixture(autouse=True)
def forget(site_data):
    """Forget what other runs have trained: the tests share their data, and its cache."""
    for path in (site_data / ".cache").glob("*/local-*.pt"):
        path.unlink()


def has_batchnorm(model):
    return any(isinstance(module, nn.BatchNorm2d) for module in model.modules())


def judge_by(monkeypatch, batch, other):
    """Let local models with BatchNorm have one validation value, and all others another one."""
    values = {True: batch, False: other}
    monkeypatch.setattr(
        local_model, "evaluate", lambda model, *others: (None, Score.of({"a": values[has_batchnorm(model)]}))
    )


@pytest.mark.parametrize(("batch", "other", "kind"), [(0.6, 0.5, "batch"), (0.5, 0.6, "group"), (0.5, 0.5, "group")])
def test_the_local_model_that_validates_better_is_taken(played, monkeypatch, batch, other, kind):
    judge_by(monkeypatch, batch, other)
    game = played(("east", "north"), seed=301, **GROUP)
    joined = game.server.parts["guard"].choices["east"]
    assert joined.local_normalization == kind
    kept = game.kept("east", 3)["guard"]
    folder = next(game.folder("east") / name for name in ("own", "chosen") if (game.folder("east") / name).is_dir())
    contents = SuperModel.load(folder, "cpu").contents
    assert contents.study.model.normalization == kind
    assert_alike(contents.models["local"], kept["local_batch" if kind == "batch" else "local"]["best"]["state"])


def test_a_second_local_model_changes_no_other_model(play, monkeypatch):
    both = play(("east", "north"), seed=302, folder="both", **GROUP)
    both.finish()
    monkeypatch.setattr(baseline, "list_local_studies", lambda study: {"local": study})
    monkeypatch.setattr(baseline, "load_borrowed", lambda memo: {})
    single = play(("east", "north"), seed=302, folder="single", **GROUP)
    single.finish()
    ours, theirs = (game.kept("east", 3)["guard"] for game in (both, single))
    assert "local_batch" in ours and "local_batch" not in theirs
    assert_alike(ours["local"]["state"], theirs["local"]["state"])
    assert_alike(both.models("east"), single.models("east"))


def test_a_site_that_trains_alone_reports_the_better_of_both(played, monkeypatch):
    judge_by(monkeypatch, 0.6, 0.5)
    game = played(("east", "north"), seed=304, **GROUP | {"name": "local"})
    own = game.server.parts["guard"].tested["east"].own
    assert own.normalization == "batch"
    contents = SuperModel.load(game.folder("east") / "supermodel", "cpu").contents
    assert contents.study.model.normalization == "batch"
    assert_alike(contents.models["east"], game.kept("east", 3)["guard"]["local_batch"]["best"]["state"])


def test_with_a_falling_rate_the_better_one_is_trained_anew(played, monkeypatch):
    judge_by(monkeypatch, 0.6, 0.5)
    game = played(("east", "north"), seed=305, **GROUP | {"training": {"schedule": "poly"}, "federation": {}})
    kept = game.kept("east", 3)["guard"]
    assert "longer_batch" in kept and "longer" not in kept


def test_a_single_training_image_trains_the_studys_local_model_alone(play):
    game = play(("east", "north"), seed=306, **GROUP)
    data = game.sites["east"].data
    game.sites["east"].__dict__["data"] = replace(data, training=data.training.select_rows([0]))
    game.finish()
    joined = game.server.parts["guard"].choices
    assert joined["east"].local_normalization is None and joined["north"].local_normalization in ("batch", "group")


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"model": {"normalization": "group"}}, 2),
        ({"model": {"normalization": "batch"}}, 1),
        ({"model": {"normalization": "group"}, "baseline_comparison": False}, 1),
        ({"model": {"normalization": "group", "weights": "a.pt", "weights_sha256": "0" * 64}}, 1),
    ],
)
def test_two_are_trained_where_the_normalisation_is_free(make_study, options, count):
    study = make_study(**{"baseline_comparison": True, "name": "fedavg"} | options)
    assert len(baseline.list_local_studies(study)) == count
    if count == 2:
        single = make_study(baseline_comparison=True, name="fedavg")
        # Both keep their state and their best round.
        assert home_bytes(study) > 1.8 * home_bytes(single)
