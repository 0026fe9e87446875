import json
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from silofl.base.errors import ConfigError
from silofl.base.settings import parse
from silofl.federation import needs
from silofl.federation.step_cost import StepCost
from silofl.models import build_plain_model
from silofl.study import Study, load_study
from silofl.training.private import compute_epsilon
from silofl.training.spent import Spent
from silofl_desk.studies import estimate as module
from silofl_desk.studies.estimate import Setting, estimate, estimate_training, parse_size, print_estimate
from silofl_desk.studies.simulation import changed_study

from ..conftest import SMALL_UNET, UNET

FILE = Path("app") / "config" / "study.yaml"
JOB = Path(__file__).resolve().parents[2] / "jobs" / "fedavg_phantoms"
VOLUMES, CLASSES = (JOB.with_name(f"fedavg_{kind}_3d") for kind in ("masks", "classes"))


# The time goes into building networks.
SMALL = {"model": SMALL_UNET, "training.batch_size": 2, "rounds": 3}
SMALL_OPTIONS = ("--set", f"model={json.dumps(SMALL_UNET)}", "--set", "rounds=3")


@pytest.fixture
def study():
    return changed_study(JOB, SMALL)


def print_of(found):
    console = Console(record=True, width=200)
    print_estimate(found, console)
    return console.export_text()


@pytest.mark.parametrize("text", ["96", "0x96", "axb"])
def test_a_size_that_is_none_is_refused(text):
    assert parse_size("96x128") == (96, 128)
    with pytest.raises(ConfigError, match="--image-size must be HxW in pixels"):
        parse_size(text)


@pytest.mark.parametrize(
    ("changes", "setting", "message"),
    [
        ({}, Setting(2, 1e9, seconds_per_step=0.0), "--seconds-per-step must be a number above 0"),
        ({}, Setting(2, 1e9, seconds_per_step=float("nan")), "--seconds-per-step must be a number above 0"),
        ({}, Setting(1, 1e9), "--sites must be at least federation.min_sites, 2, not 1"),
        (
            {"model": UNET | {"name": "unet", "normalization": "instance"}, "data.transforms": []},
            Setting(2, 50e6, image_size=(16, 16)),
            "unet must answer an image of 16 x 16",
        ),
    ],
)
def test_what_no_run_could_be_is_refused(changes, setting, message):
    with pytest.raises(ConfigError, match=message):
        estimate(changed_study(JOB, SMALL | changes), setting)


def test_hours_are_the_transfers_on_the_servers_line_and_the_training(study):
    found = estimate(study, Setting(4, 50e6, examples=499, seconds_per_step=2.0))
    # 499 examples are 250 batches of at most 2, one epoch a round
    assert found.training_seconds == 250 * 2.0
    assert found.transfer_seconds == pytest.approx(4 * found.traffic.site_bytes * 8 / 50e6)
    assert found.hours == pytest.approx((found.transfer_seconds + 3 * 500) / 3600)
    # Nothing travels in one process, where four sites take turns.
    assert found.alone_hours == pytest.approx(4 * 3 * 500 / 3600)


def test_the_timeout_is_three_times_the_slowest_round_and_at_least_ten_minutes(study):
    found = estimate(study, Setting(4, 1e5, seconds_per_step=2.0))
    model = found.traffic.bytes_to[0]
    # there and back, and as much at the end; for 4 sites, at 8 bits a byte
    assert found.task_timeout_s == pytest.approx(3 * (500 + 4 * 2 * model * 8 / 1e5), abs=1)
    assert estimate(study, Setting(2, 1e9, seconds_per_step=0.01)).task_timeout_s == 600


def test_a_selectors_further_steps_are_further_passes():
    study = changed_study(JOB.parent / "fedsm_phantoms", SMALL)
    assert study.recipe.option("selector").steps == 3
    assert estimate(study, Setting(4, 1e9, seconds_per_step=1.0)).training_seconds == 3 * 250


def test_a_step_and_its_memory_are_measured_where_the_step_is_not_given(study):
    assert estimate(study, Setting(2, 1e9, seconds_per_step=1.0)).site_memory_bytes is None
    found = estimate(study, Setting(2, 1e9, 10, image_size=(32, 32)))
    # torch and MONAI alone take more than 200 MiB; this process may have loaded more before.
    assert 300 << 20 < found.site_memory_bytes and not found.is_on_gpu
    # Five steps, and what the parts do beside them.
    assert 0 < 5 * found.seconds_per_step < found.training_seconds < 300


def test_the_training_of_sites_that_take_turns_is_the_sum_of_theirs(study, monkeypatch):
    monkeypatch.setattr(module, "_measure_cost", lambda *asked: StepCost(0.5, 0.25, 0))
    # batches of 2: 5 and 2 steps an epoch, of one epoch; 3 rounds * 7 steps * (0.5 + 0.25) s
    assert estimate_training(study, (1, 32, 32), [10, 3]) == 15.75


def test_the_evaluation_of_a_volume_is_part_of_a_sites_memory(monkeypatch):
    study = changed_study(JOB.parent / "harmofl_volumes", SMALL | {"data.patches": {"size": [16, 16, 16]}})
    seen = []
    monkeypatch.setattr(module, "measure_cost", lambda work, volume: seen.append(volume) or StepCost(1.0, 0.0, 4 << 30))
    found = estimate(study, Setting(2, 1e9, image_size=(250, 200, 100)))
    assert found.site_memory_bytes == (4 << 30) + module.NVFLARE_BYTES
    # Of voxels of 5 mm.
    assert seen[0].images[0].shape == found.volume_shape == (2, 51, 41, 21) and found.image_shape == (2, 16, 16, 16)
    text = print_of(found)
    assert "of size 2x16x16x16 in patches of volumes of 2x51x41x21\n" in text
    assert "about 4.1 GiB, measured with a few steps and the evaluation of a volume\n" in text
    assert estimate(study, Setting(2, 1e9, seconds_per_step=1.0)).is_size_assumed


def test_the_estimate_says_what_the_guard_costs(study, monkeypatch):
    costs = {True: StepCost(2.0, 0.0, 1 << 30), False: StepCost(1.5, 0.0, 1 << 30)}
    monkeypatch.setattr(module, "measure_cost", lambda work, volume: costs["local" in work.learners()])
    found = estimate(study, Setting(2, 1e9))
    # 1 - 1.5 / 2; six rounds of four models, one of them half, and two in what is kept.
    model = needs.models_bytes(study)
    assert (found.seconds_per_step, found.guard_share, found.guard_disk_bytes) == (2.0, 0.25, (6 * 4 + 2) * model)
    assert "each site's own model, to compare with: 25% of the training and " in print_of(found)
    bare = estimate(study.model_copy(update={"guard": False}), Setting(2, 1e9))
    assert (bare.seconds_per_step, bare.guard_share, bare.guard_disk_bytes) == (1.5, None, 0)
    assert "own model" not in print_of(bare)


def test_the_estimate_says_what_frozen_parameters_save(study):
    frozen = study.model_copy(update={"training": study.training.model_copy(update={"frozen": ("model.0.*",)})})
    whole, found = (estimate(one, Setting(2, 1e9, seconds_per_step=1.0)) for one in (study, frozen))
    model = build_plain_model(study, 0).state_dict()
    size = sum(array.nbytes for name, array in model.items() if "model.0." in name and array.is_floating_point())
    # 3 rounds there and back, and twice more there
    assert found.saved_bytes == whole.traffic.site_bytes - found.traffic.site_bytes == 8 * size > 0
    assert whole.saved_bytes == 0 and "frozen" not in print_of(whole)
    saved, rest = (f"{value / (1 << 20):.1f} MiB" for value in (found.saved_bytes, whole.traffic.site_bytes))
    assert f"frozen parameters: save {saved} of {rest} on the line of each site\n" in print_of(found)


def test_an_estimate_is_plain_json_and_says_what_is_assumed(study):
    found = json.loads(json.dumps(estimate(study, Setting(2, 1e9, 10, seconds_per_step=1.0)).as_dict()))
    assert [record["round"] for record in found["rounds"]] == [1, 2, 3]
    assert found["image_shape"] == [1, 96, 96] and not found["is_size_assumed"]
    assert found["federation"] == {"task_timeout_s": 600}
    open_size = parse(Study, study.model_dump() | {"data": {}}, "study.yaml")
    assert estimate(open_size, Setting(2, 1e9, seconds_per_step=1.0)).is_size_assumed
    assert not estimate(open_size, Setting(2, 1e9, seconds_per_step=1.0, image_size=(64, 64))).is_size_assumed


def test_rounds_alike_are_one_row(study):
    text = print_of(estimate(study, Setting(2, 1e9, examples=10, seconds_per_step=1.0)))
    assert "examples at the largest site: 10, of size 1x96x96\n" in text
    assert "1-3" in text and "federation.task_timeout_s: 600" in text
    # 5 batches of 2 a round, 3 rounds of 5 s
    assert "training of a round: 5.0 s per site, 1.000 s a step" in text
    assert (
        "a round: about 5.0 s in a network, where sites train at the same time; about 10.0 s by simulate --al" in text
    )
    assert "the whole run: about 15.0 s in a network; about 30.0 s by simulate --alone\n" in text


def test_a_study_that_may_end_early_has_the_cost_of_a_round_and_of_the_most(study, monkeypatch):
    costs = {True: StepCost(2.0, 0.0, 1 << 30), False: StepCost(1.0, 0.0, 1 << 30)}
    monkeypatch.setattr(module, "measure_cost", lambda work, volume: costs["local" in work.learners()])
    early = changed_study(JOB, SMALL | {"rounds": 30, "federation.patience": 10})
    found = estimate(early, Setting(2, 1e6, examples=10))
    # 5 batches of 2 s train a round; a line of 1 Mbit carries both sites' models there and back.
    sent = 2 * (found.traffic.bytes_to[0] + found.traffic.bytes_from[0]) * 8 / 1e6
    assert (found.round_seconds, found.num_rounds) == (pytest.approx(10 + sent), 30)
    # Half of the training is the own model's. The run ends in round 11 at the earliest; the own model may go on to 200.
    assert found.own_seconds == 0.5 * 10 * (200 - 11)
    text = print_of(found)
    assert "at most 30 rounds: about " in text and "MiB in at most 30 rounds" in text and "whole run" not in text


@pytest.mark.parametrize(
    ("job", "arguments", "message"),
    [
        (JOB, ["--sites", 0], "at least 1, not '0'"),
        (JOB, ["--sites", 4, "--examples", 0], "--examples must be a whole number of at"),
        (
            JOB,
            ["--sites", 4, "--image-size", "96"],
            "--image-size must be HxW in pixels, as 96x128, or XxYxZ of volumes",
        ),
        (
            JOB,
            ["--sites", 4, "--image-size", "9x9x9"],
            "must have 2 sides, in pixels, as many as data.dimensions, not 3",
        ),
        (VOLUMES, ["--sites", 4, "--image-size", "9x9"], "must have 3 sides, in mm, as many as data.dimensions, not 2"),
        (
            CLASSES,
            ["--sites", 4, "--image-size", "9x9"],
            "must have 3 sides, in voxels, as many as data.dimensions, not",
        ),
        (JOB, ["--sites", 4, "--write", "."], "--write must name a new folder, not ."),
        (".", ["--sites", 2], "must be a job folder"),
    ],
)
def test_nonsense_is_refused_before_anything_is_measured(refused, monkeypatch, job, arguments, message):
    monkeypatch.setattr("silofl_desk.studies.estimate.count_traffic", None)
    assert message in refused("estimate", job, "--bandwidth", "1Mbit", *arguments)


def test_a_long_measurement_shows_that_it_goes_on(silofl, monkeypatch):
    monkeypatch.setattr("silofl_desk.studies.estimate.QUIET_S", 0.001)
    code, out, _ = silofl("estimate", JOB, "--sites", 4, "--bandwidth", "1Mbit", *SMALL_OPTIONS)
    assert code == 0 and out.startswith("measuring a training step: ")


def test_the_estimate_is_json_alone_and_the_job_is_written_with_the_timeout_and_nothing_else_changed(silofl, tmp_path):
    target = tmp_path / "new"
    arguments = ("--sites", 4, "--bandwidth", "1Mbit", "--seconds-per-step", 10, "--json", "--write", target)
    code, out, error = silofl("estimate", JOB, *arguments)
    timeout = json.loads(out)["federation"]["task_timeout_s"]
    assert code == 0 and "has lost its comments" in error
    old, new = (yaml.safe_load((folder / FILE).read_text()) for folder in (JOB, target))
    old["federation"]["task_timeout_s"] = timeout
    assert new == old and load_study(target / FILE).federation.task_timeout_s == timeout > 600
    old, new = ((folder / FILE).with_name("config_fed_client.json").read_text() for folder in (JOB, target))
    assert new == old
    names = {str(file.relative_to(JOB)) for file in JOB.rglob("*")}
    assert {str(file.relative_to(target)) for file in target.rglob("*")} == names


@pytest.mark.parametrize(("rounds", "is_said"), [(10, True), (20, False)])
def test_too_few_rounds_for_a_verdict_are_said_and_the_remedy_helps(silofl, rounds, is_said):
    arguments = ("--sites", 2, "--bandwidth", "1Gbit", "--seconds-per-step", 1, "--set", f"rounds={rounds}")
    code, out, _ = silofl("estimate", JOB, *arguments)
    assert code == 0 and ("CAUTION  10 rounds allow no verdict on joining" in out) == is_said
    assert out.endswith("as with --set rounds=20\n") == is_said


def test_estimate_and_the_job_that_it_writes_have_what_is_set(silofl, tmp_path):
    settings = [*SMALL_OPTIONS, "--set", "training.batch_size=4", "--set", "algorithm.name=fedbn"]
    arguments = ["--sites", 2, "--bandwidth", "1Gbit", "--seconds-per-step", 1, "--json", "--examples", 80]
    code, out, _ = silofl("estimate", JOB, *arguments, *settings, "--write", tmp_path / "new")
    # 80 examples are 20 steps of 4
    assert code == 0 and json.loads(out)["training_seconds"] == 20
    study = load_study(tmp_path / "new" / FILE)
    assert (study.training.batch_size, study.algorithm.name) == (4, "fedbn")
    assert "BatchNormStaysHome" in (tmp_path / "new" / FILE).with_name("config_fed_client.json").read_text()


def test_what_differential_privacy_spends_depends_on_the_patients(study, refused):
    changes = {"guard": False, "privacy": {"dp_sgd": {"noise": 1.0, "clip": 1.0, "delta": 0.001}}}
    changes |= {"model": SMALL_UNET | {"normalization": "instance"}, "training.has_batch_dice": False}
    private = changed_study(JOB, SMALL | changes)
    spent = {
        patients: estimate(private, Setting(2, 1e9, examples=100, seconds_per_step=1.0, patients=patients)).epsilon
        for patients in (50, 75, None)
    }
    # 50 batches an epoch, 3 rounds.
    assert spent[50] == compute_epsilon([Spent(1.0, 2 / 50, 3 * 50)], 0.001)
    assert spent[50] > spent[75] > spent[None]
    assert estimate(study, Setting(2, 1e9, seconds_per_step=1.0)).epsilon is None
    with pytest.raises(ConfigError, match="--patients must go with privacy.dp_sgd and be at most --examples, 100"):
        estimate(private, Setting(2, 1e9, examples=100, seconds_per_step=1.0, patients=101))
    options = ("--sites", 2, "--bandwidth", "1Gbit", "--seconds-per-step", 1, "--patients", 5)
    assert "--patients must go with privacy.dp_sgd" in refused("estimate", JOB, *options)
