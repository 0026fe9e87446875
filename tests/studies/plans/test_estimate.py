import json
from pathlib import Path

import pytest
from rich.console import Console

from silofl_desk.studies.plans.estimate import estimate, print_estimate
from silofl_desk.studies.runs.simulation import changed_study

from ...conftest import SMALL_UNET

JOB = Path(__file__).resolve().parents[3] / "jobs" / "fedavg_phantoms"
VOLUMES = JOB.with_name("fedavg_masks_3d")
# The time goes into building networks.
SMALL = {"model": SMALL_UNET, "training.batch_size": 2, "rounds": 3}


def test_rounds_alike_are_one_row_and_the_lines_are_of_all_rounds():
    study = changed_study(JOB, SMALL)
    found = json.loads(json.dumps(estimate(study, 4)))
    assert [record["round"] for record in found["rounds"]] == [1, 2, 3]
    assert found["image_shape"] == [1, 96, 96] and found["digest"] == study.digest
    console, of_site = Console(record=True, width=200), found["bytes_per_site"] / (1 << 20)
    print_estimate(found, console)
    text = console.export_text()
    assert "size of an example: 1x96x96\n" in text and "1-3" in text
    assert f"line of each site: {of_site:.1f} MiB in at most 3 rounds\n" in text
    assert f"line of the server: {4 * of_site:.1f} MiB\n" in text
    open_size = changed_study(JOB, SMALL | {"data.transforms": []})
    assert estimate(open_size, 2, "64x32")["image_shape"] == (1, 64, 32)


@pytest.mark.parametrize(
    ("job", "arguments", "message"),
    [
        (JOB, ["--sites", 0], "at least 1, not '0'"),
        (JOB, ["--sites", 1], "--sites must be at least federation.min_sites, 2, not 1"),
        (JOB, ["--sites", 4, "--image-size", "96"], "must have 2 sides, as data.dimensions: HxW in pixels, as 96x128"),
        (JOB, ["--sites", 4, "--image-size", "0x96"], "not '0x96'"),
        (JOB, ["--sites", 4, "--image-size", "axb"], "not 'axb'"),
        (VOLUMES, ["--sites", 4, "--image-size", "9x9"], "must have 3 sides, as data.dimensions"),
        (".", ["--sites", 2], "is no job folder"),
    ],
)
def test_nonsense_is_refused_before_anything_is_counted(refused, monkeypatch, job, arguments, message):
    monkeypatch.setattr("silofl_desk.studies.plans.estimate.count_traffic", None)
    assert message in refused("estimate", job, *arguments)


def test_a_studys_cautions_are_said_with_its_bytes(silofl):
    code, out, _ = silofl("estimate", JOB, "--sites", 2, "--set", "rounds=10")
    assert code == 0 and "CAUTION  10 rounds allow no verdict on joining" in out
