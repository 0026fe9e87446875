"""A site whose process ends within a round goes on from where it was, and sends what the undisturbed one sends."""

import secrets
import shutil
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from silofl.base.settings import parse
from silofl.federation.site import SiteRounds
from silofl.federation.steps import StepFile
from silofl.parts import half_round
from silofl.parts.dp_sgd import FILE
from silofl.parts.half_round import ANSWER, HALF, HalfRound
from silofl.parts.work import Work
from silofl.study import Study

from ..conftest import DROPPING, SMALL_UNET, simulated_site

INSTANCE = SMALL_UNET | {"normalization": "instance"}
SGD = {"optimizer": "sgd", "momentum": 0.0, "learning_rate": 0.01}
AUGMENT = [
    {"RandAffine": {"prob": 0.7, "rotate_range": [0.3], "padding_mode": "zeros"}},
    {"RandGaussianNoise": {"prob": 0.7}},
]
CASES = {
    "fedavg": {"network": DROPPING},
    "fedavg, kept optimiser, guard": {
        "training": {"optimizer_state": "kept"},
        "baseline_comparison": True,
        "network": DROPPING,
    },
    "fedprox": {"name": "fedprox", "fedprox": {"mu": 1.0}},
    "fedbn": {"name": "fedbn"},
    "fedsm": {"name": "fedsm", "network": INSTANCE},
    "fedsm, local steps": {"name": "fedsm", "network": INSTANCE, "selector": {"learning": "local_steps"}},
    "harmofl": {"name": "harmofl"},
    "adafed": {"name": "adafed"},
    "scaffold": {"name": "scaffold", "training": SGD, "network": INSTANCE},
    "scaffold, option I": {"name": "scaffold", "scaffold": {"option": 1}, "training": SGD, "network": INSTANCE},
    "ditto": {"name": "ditto", "network": DROPPING},
    "apfl": {"name": "apfl", "training": SGD},
    "pfedme": {"name": "pfedme", "training": SGD},
    "perfedavg": {"name": "perfedavg", "training": SGD, "network": DROPPING},
    "perfedavg, Hessian": {"name": "perfedavg", "perfedavg": {"variant": "hf"}, "training": SGD},
    "fedrep": {"name": "fedrep"},
    "moon": {"name": "moon", "network": {"features": [4] * 6, "normalization": "batch"}},
    "feddyn": {"name": "feddyn", "training": SGD},
    "local": {"name": "local", "baseline_comparison": True},
}


class KilledError(BaseException):
    """The process ends; nothing may catch it."""


@pytest.fixture
def saving(monkeypatch):
    """Save before every step, however short it is."""
    monkeypatch.setattr(half_round, "LEAST_S", 0.0)
    monkeypatch.setattr(half_round, "REST", 0)


@pytest.fixture
def begin(play, make_study):
    """Carry out a first round; return the game and the second round's task of the site east."""

    def start(training=None, privacy=None, **options):
        study = make_study(rounds=2, training={"local_epochs": 3} | (training or {}), **options)
        values = study.model_dump(mode="json") | {"algorithm": study.algorithm.model_dump()}
        values["data"]["augment"] = AUGMENT
        values |= {"privacy": privacy} if privacy else {}
        game = play(study=parse(Study, values, "study.yaml"))
        game.round()
        return game, game.upcoming("train")["east"]

    return start


@pytest.fixture
def stopped(monkeypatch):
    """Have a site carry out a task; its process ends before some steps, and another one goes on each time."""
    steps = []

    def carry_out(game, task, stops, name="train", goes_on=True):
        left, steps[:] = set(stops), []

        def write(self, step, of):
            steps.append(step)
            if step in left:
                left.remove(step)
                raise KilledError

        monkeypatch.setattr(StepFile, "write", write)
        while True:
            try:
                return SiteRounds("east", game.study, game.settings).answer(name, task), list(steps)
            except KilledError:
                if not goes_on:
                    raise

    return carry_out


def copy_site(game, folder, data):
    """Return the same run of which nothing that is done afterwards is seen by the first one."""
    shutil.copytree(game.folder("east").parents[1], folder)
    other = object.__new__(type(game))
    vars(other).update(vars(game) | {"settings": simulated_site(data, folder)})
    return other


def flatten(value, path=""):
    """Return all tensors and numbers below a value by their path."""
    if not isinstance(value, dict | list | tuple):
        return {path: value}
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    return {name: one for key, part in inner for name, one in flatten(part, f"{path}/{key}").items()}


def assert_same(found, wanted):
    found, wanted = flatten(found), flatten(wanted)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, name)


FIRST = ("fedavg", "fedsm", "harmofl", "adafed")
OTHERS = [pytest.param(name, marks=pytest.mark.long) for name in CASES if name not in FIRST]


@pytest.mark.parametrize("name", [*FIRST, *OTHERS])
def test_a_round_stopped_before_every_step_ends_as_undisturbed(begin, saving, stopped, tmp_path, site_data, name):
    game, task = begin(**CASES[name])
    other = copy_site(game, tmp_path / "other", site_data)
    wanted = SiteRounds("east", other.study, other.settings).answer("train", task)
    assert "error" not in wanted.meta
    found, steps = stopped(game, task, range(1, 7))
    # Each step is begun twice: it is stopped before it, and goes on with it.
    assert steps == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]
    assert_same(found.arrays, wanted.arrays)
    assert_same(found.meta, wanted.meta)
    assert_same(game.kept("east", 2), other.kept("east", 2))
    assert (game.folder("east") / ANSWER).exists() and not (game.folder("east") / HALF).exists()


def test_a_private_round_loses_no_noise_draws_or_count(begin, saving, stopped, tmp_path, site_data, monkeypatch):
    game, _ = begin(network=INSTANCE, privacy={"dp_sgd": {"noise": 1.0, "clip": 1.0, "delta": 0.01}})
    task, found, epsilons = game.upcoming("train")["east"], [], []
    for folder, stops in (("whole", ()), ("halves", range(1, 7))):
        numbers = count(1)
        # In place of the system's secret numbers: the same in both runs, as far as each draws them.
        monkeypatch.setattr(secrets, "randbits", lambda bits, numbers=numbers: next(numbers))
        other = copy_site(game, tmp_path / folder, site_data)
        answer, steps = stopped(other, task, stops)
        found.append(answer)
        epsilons.append((other.folder("east").parent / FILE).read_text())
    assert steps == sorted([*range(1, 7), *range(1, 7)])
    assert_same(found[1].arrays, found[0].arrays)
    assert found[1].meta["metrics"] == found[0].meta["metrics"] and epsilons[0] == epsilons[1]


def test_what_a_round_began_with_is_not_done_again(begin, saving, stopped, monkeypatch):
    game, task = begin(baseline_comparison=True)
    scored, scores = [], Work.scores
    monkeypatch.setattr(Work, "scores", lambda work: scored.append(1) or scores(work))
    answer, _ = stopped(game, task, (3,))
    assert len(scored) == 1 and answer.meta["metrics"]["validation"]


def test_a_finished_answer_is_sent_until_another_task_comes(begin, stopped):
    game, task = begin()
    first, steps = stopped(game, task, ())
    assert steps == [*range(1, 7)]
    # A server that was started anew does not know what the sites run, nor who is there.
    asked = replace(task, meta=task.meta | {"sites": 2, "mixed": None})
    again, steps = stopped(game, asked, ())
    assert steps == []
    assert_same(again.arrays, first.arrays)
    assert again.meta == first.meta
    game.finish()
    assert not (game.folder("east") / ANSWER).exists()


@pytest.fixture
def left(begin, saving, stopped, site_data, tmp_path):
    """A game with data of its own, and a task whose process ended before its fourth step."""
    game, task = begin()
    data = shutil.copytree(site_data, tmp_path / "data")
    game.settings = game.settings.model_copy(update={"data": f"{data}/{{site}}"})
    with pytest.raises(KilledError):
        stopped(game, task, (4,), goes_on=False)
    return game, task, data / "east"


@pytest.mark.parametrize("what", ["arrays", "round", "settings", "data", "file", "nothing"])
def test_only_the_very_same_task_goes_on(left, stopped, what):
    game, task, data = left
    path = game.folder("east") / HALF
    assert path.stat().st_mode & 0o777 == 0o600
    if what == "arrays":
        task = replace(task, arrays={name: array + np.float32(1e-3) for name, array in task.arrays.items()})
    if what == "round":
        task = replace(task, meta=task.meta | {"round": 1, "held": 0})
    if what == "settings":
        game.settings = game.settings.model_copy(update={"min_patients": 1})
    if what == "data":
        (data / "dataset.json").write_text((data / "dataset.json").read_text() + " ")
    if what == "file":
        path.write_bytes(path.read_bytes()[:-9])
    _, steps = stopped(game, task, ())
    assert steps == [*range(4 if what == "nothing" else 1, 7)]


def test_a_disk_that_is_full_ends_no_training(begin, saving, stopped, monkeypatch, caplog):
    def write(*_):
        raise OSError(28, "No space left on device")

    game, task = begin()
    monkeypatch.setattr(half_round, "save_state", write)
    answer, _ = stopped(game, task, ())
    assert answer.arrays and "half_round.pt cannot be written" in caplog.text


def test_at_most_a_tenth_of_the_steps_is_repeated(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(half_round.time, "monotonic", lambda: now[0])
    # A step takes 2 s, a file 1 s.
    monkeypatch.setattr(half_round, "save_state", lambda *_: now.__setitem__(0, now[0] + 1.0))
    half, saved = HalfRound(tmp_path), []
    for step in range(400):
        if half.is_due(step, 400):
            half.save(step, {})
            saved.append(step)
        now[0] += 2.0
    # The first after 5 s, then each 40 steps, which take longer than the rest of 30 s.
    assert saved == [3, *range(43, 400, 40)]
    assert len(saved) / now[0] < 1 / 30
