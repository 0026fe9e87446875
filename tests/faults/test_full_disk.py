"""A disk fills up, at the server or at a site: the run says so, loses nothing, and goes on once there is room."""

from functools import partial

import pytest

from silofl_desk.studies.runs.in_process import run_in_process

from ..provisioning.machines import FILLER, fill, small_disk
from .conftest import ROUNDS, check_end, ledger, results, silofl
from .started import Fault

pytestmark = pytest.mark.faults


@pytest.fixture
def disk(tmp_path):
    """Mount a disk of 16 MiB."""
    with small_disk(folder := tmp_path / "disk") as is_mounted:
        if not is_mounted:
            pytest.skip("this account mounts no disks")
        yield folder


@pytest.mark.parametrize(
    ("target", "call"),
    [
        ("silofl.federation.run_folder:RunFolder.save", 2),
        ("silofl.federation.run_folder:RunFolder._write_ledger", 2),
        # The first of three sites in the second round.
        ("silofl.federation.state:SiteState.save", 4),
    ],
    ids=["before the checkpoint", "before the ledger", "before a site's state"],
)
def test_a_run_whose_disk_is_full_goes_on_once_there_is_room(disk, whole, job, site_data, target, call):
    fault = Fault(target, call=call, action=partial(fill, disk))
    code, said = silofl("simulate", job, "--data", site_data, "--out", disk, "--in-process", fault=fault)
    assert code == 1 and "No space left on device" in said and "Traceback" not in said, said
    assert f"silofl resume {disk}" in said.replace("\n", "")
    before = ledger(disk)
    assert [record["round"] for record in before] == [1]
    (disk / FILLER).unlink()
    code, said = silofl("resume", disk)
    assert code == 0, said
    check_end(disk, whole, before)


def test_a_site_whose_disk_is_full_misses_the_round_and_comes_back(tmp_path, disk, settings_in, make_study):
    path, study, exchanges = tmp_path / "run", make_study(rounds=ROUNDS, federation={"min_sites": 2}, name="fedbn"), []
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "east").symlink_to(disk)

    def after_exchange():
        exchanges.append(1)
        if len(exchanges) == 1:
            fill(disk)
        elif len(exchanges) == 2:
            (disk / FILLER).unlink()

    settings = settings_in(tmp_path / "sites")
    run_in_process(study, path, ("east", "north", "west"), settings, None, after_exchange)
    everyone, reason = ["east", "north", "west"], "the site's system said 'No space left on device'"
    assert [record["answered"] for record in ledger(path)] == [everyone, everyone[1:], everyone]
    assert list(ledger(path)[1]["failed"]) == ["east"] and reason in ledger(path)[1]["failed"]["east"]
    assert results(path)["status"] == "INCOMPLETE" and results(path)["sites"]["east"] is not None
    assert results(path)["reasons"][0].startswith(f"site east missed rounds [2] ({reason}")
    assert list(disk.rglob("*.tmp")) == []
