import itertools
import shlex
import textwrap

import numpy as np
from PIL import Image

from silofl.bundled_jobs import JOBS
from silofl.cli import main
from silofl_desk.studies import demo


def test_a_missing_job_and_an_out_that_is_a_file_are_refused_before_anything_is_written(refused, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(demo, "JOBS", tmp_path / "none")
        error = refused("demo", "--out", tmp_path / "demo")
    assert "fedavg_phantoms must be a job folder" in error and not (tmp_path / "demo").exists()
    (tmp_path / "demo").write_text("notes")
    assert "--out must be a folder, not" in refused("demo", "--out", tmp_path / "demo")
    assert (tmp_path / "demo").read_text() == "notes"


def test_what_is_printed_fits_into_a_terminal_of_100_columns():
    lines = [*textwrap.wrap(demo.START, demo.WIDTH), *demo.NEXT.splitlines()]
    assert max(map(len, lines)) <= 100 and len(lines) <= 7


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


def test_the_demonstration_takes_the_bundled_jobs_wherever_it_is_called(silofl, monkeypatch):
    trained = []
    monkeypatch.setattr(demo.simulate, "start_simulation", lambda job, *_: trained.append(job) or 1)
    monkeypatch.setattr(demo, "make_phantoms", lambda *_: None)
    code, out, _ = silofl("demo")
    assert code == 1 and trained == [JOBS / "fedavg_phantoms"]
    assert "fedavg ended with exit code 1; demo/log.txt says why" in out


def test_a_demonstration_that_is_interrupted_says_that_it_goes_on(silofl, tmp_path, monkeypatch):
    monkeypatch.setattr(demo.simulate, "start_simulation", lambda *_: demo.ExitCode.INTERRUPTED)
    monkeypatch.setattr(demo, "make_phantoms", lambda *_: None)
    code, out, _ = silofl("demo", "--out", tmp_path / "demo")
    assert code == 130 and out.endswith(
        "interrupted; to go on, give the same command again: what has finished is kept\n"
    )
