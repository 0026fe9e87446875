import json
from pathlib import Path

import pytest
from rich.console import Console

from silofl.base.errors import ConfigError
from silofl.base.settings import parse
from silofl.study import Study
from silofl.training.private import compute_epsilon
from silofl.training.spent import Spent
from silofl_desk.studies.estimate import Setting, estimate, parse_size, print_estimate
from silofl_desk.studies.simulation import changed_study

from ..conftest import SMALL_UNET

JOB = Path(__file__).resolve().parents[2] / "jobs" / "fedavg_phantoms"
VOLUMES, CLASSES = (JOB.with_name(f"fedavg_{kind}_3d") for kind in ("masks", "classes"))


# The time goes into building networks.
SMALL = {"model": SMALL_UNET, "training.batch_size": 2, "rounds": 3}


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


def test_rounds_alike_are_one_row_and_the_lines_are_of_all_rounds(study):
    found = estimate(study, Setting(4))
    text, mib = print_of(found), 1 << 20
    assert "size of an example: 1x96x96\n" in text and "1-3" in text
    assert f"line of each site: {found.traffic.site_bytes / mib:.1f} MiB in 3 rounds\n" in text
    assert f"line of the server: {4 * found.traffic.site_bytes / mib:.1f} MiB\n" in text


def test_an_estimate_is_plain_json_and_says_what_is_assumed(study):
    found = json.loads(json.dumps(estimate(study, Setting(2, 10)).as_dict()))
    assert [record["round"] for record in found["rounds"]] == [1, 2, 3]
    assert found["image_shape"] == [1, 96, 96] and not found["is_size_assumed"]
    open_size = parse(Study, study.model_dump() | {"data": {}}, "study.yaml")
    assert estimate(open_size, Setting(2)).is_size_assumed
    assert not estimate(open_size, Setting(2, image_size=(64, 64))).is_size_assumed


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
        (JOB, ["--sites", 1], "--sites must be at least federation.min_sites, 2, not 1"),
        (".", ["--sites", 2], "must be a job folder"),
    ],
)
def test_nonsense_is_refused_before_anything_is_counted(refused, monkeypatch, job, arguments, message):
    monkeypatch.setattr("silofl_desk.studies.estimate.count_traffic", None)
    assert message in refused("estimate", job, *arguments)


def test_a_study_s_cautions_are_said_with_its_bytes(silofl):
    code, out, _ = silofl("estimate", JOB, "--sites", 2, "--set", "rounds=10")
    assert code == 0 and "CAUTION  10 rounds allow no verdict on joining" in out


def test_what_differential_privacy_spends_depends_on_the_patients(study, refused):
    changes = {"guard": False, "privacy": {"dp_sgd": {"noise": 1.0, "clip": 1.0, "delta": 0.001}}}
    changes |= {"model": SMALL_UNET | {"normalization": "instance"}, "training.has_batch_dice": False}
    private = changed_study(JOB, SMALL | changes)
    spent = {
        patients: estimate(private, Setting(2, examples=100, patients=patients)).epsilon for patients in (50, 75, None)
    }
    # 50 batches an epoch, 3 rounds.
    assert spent[50] == compute_epsilon([Spent(1.0, 2 / 50, 3 * 50)], 0.001)
    assert spent[50] > spent[75] > spent[None]
    assert estimate(study, Setting(2)).epsilon is None
    with pytest.raises(ConfigError, match="--patients must go with privacy.dp_sgd and be at most --examples, 100"):
        estimate(private, Setting(2, examples=100, patients=101))
    options = ("--sites", 2, "--patients", 5)
    assert "--patients must go with privacy.dp_sgd" in refused("estimate", JOB, *options)
