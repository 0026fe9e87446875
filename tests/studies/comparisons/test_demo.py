import itertools
import shlex

import numpy as np
import pytest
from PIL import Image

from silofl.base.bundled_jobs import JOBS
from silofl.command_line.cli import main
from silofl_desk.studies.comparisons import demo
from silofl_desk.studies.comparisons.side_by_side import build_command
from tests.report.conftest import joined


def test_the_next_commands_carry_own_images_to_a_run(tmp_path, monkeypatch, training):
    """Nothing trains; the images are two hospitals' PNG files, as a newcomer has them."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for site, number in itertools.product(("north", "south"), range(8)):
        for kind, largest in (("images", 255), ("masks", 1)):
            folder = tmp_path / "MY_IMAGES" / site / kind
            folder.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, largest, (64, 64), np.uint8, endpoint=True)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    for line in demo.NEXT.splitlines()[1:]:
        assert main(shlex.split(line)[1:]) == 0
    assert training.carried_out == ["my-run"]


@pytest.fixture
def carried_out(monkeypatch):
    """Carry out no run, and return those that were asked for, of which none has a result."""
    runs = []

    def carry_out(planned, out, processes, console):
        runs.extend(planned)
        return {run.path: "the disk was full" for run in planned[:1]}

    monkeypatch.setattr(demo, "run_side_by_side", carry_out)
    monkeypatch.setattr(demo, "make_phantoms", lambda *_, **__: None)
    return runs


def test_the_demonstration_takes_the_bundled_jobs_wherever_it_is_called(silofl, carried_out):
    code, out, _ = silofl("demo", "--rounds", 3)
    assert code == 1 and "fedsm_phantoms has no result: the disk was full" in out
    names = ("fedsm", "adafed", "fedavg", "harmofl")
    assert [run.job for run in carried_out] == [JOBS / f"{name}_phantoms" for name in names]
    for run in carried_out:
        command = build_command(run)
        assert command[command.index("--leave-out") + 1] == "coast" and "rounds=3" in command


def test_the_smallest_hospital_comes_first_with_what_each_method_gives_it(chosen_run):
    loses = joined(difference=-0.02, verdict="keeps its own model")
    unclear = joined(difference=0.01, verdict="too few to say")
    runs = {
        "fedavg": chosen_run(north=loses, west=joined(difference=0.1)),
        "fedsm": chosen_run(north=unclear, west=joined(difference=0.15)),
    }
    assert demo.conclude_sizes(runs, {"north": 14, "west": 3}) == [
        "west, the smallest (3 training patients): federated minus local +0.100 (fedavg) to +0.150 (fedsm); better for "
        "its patients with 2 of 2 methods.",
        "north (14 training patients): federated minus local -0.020 (fedavg) to +0.010 (fedsm); better for its "
        "patients with 0 of 2 methods.",
    ]
