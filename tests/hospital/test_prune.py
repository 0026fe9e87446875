import fcntl
import os
import time

import pytest

from silofl_hospital.site.prune import find_outdated

from .conftest import change_site

DAY = 86400
JOBS = [f"{number:08x}-f689-4b58-ac96-387029a47d9a" for number in range(3)]


def write(path, days, content="12345"):
    """Write a file that was last written so many days ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    age(path, days)
    return path


def age(path, days):
    then = time.time() - days * DAY
    os.utime(path, (then, then), follow_symlinks=False)


def write_job(kit, name, days):
    """Write what NVFlare and our executor leave of a job."""
    job = kit / name
    for file in ("log.txt", "meta.json", "silofl.lock", "app_north/config/study.yaml", "app_north/config/a.json"):
        write(job / file, days)
    for folder in sorted((path for path in job.rglob("*") if path.is_dir()), reverse=True):
        age(folder, days)
    age(job, days)
    return job


@pytest.fixture
def old(kit):
    """A kit whose site keeps 30 days, with jobs of 40, 29 and 100 days, and full logs."""
    change_site(kit, keep_days=30)
    for name, days in zip(JOBS, (40, 29, 100), strict=True):
        write_job(kit, name, days)
    logs = {"log.txt": 90, "log.txt.1": 31, "error_log.txt.2": 29, "log.json.10": 99, "audit.log": 99}
    for name, days in logs.items():
        write(kit / name, days)
    return kit


OUTDATED = {JOBS[0], JOBS[2], "log.txt.1", "log.json.10"}


def test_old_jobs_and_full_logs_go_and_all_else_stays(silofl, old, tmp_path):
    record = write(tmp_path / "state" / "small" / "run" / "egress.jsonl", 500)
    everything = sorted(old.rglob("*"))
    code, out, _ = silofl("site", "prune", "--kit", old, "--dry-run")
    assert code == 0 and sorted(old.rglob("*")) == everything
    assert out.count("would be deleted: ") == 4 and "\ndeleted" not in out
    before = [*old.iterdir(), *(old / "startup").iterdir(), *(old / "local").iterdir()]
    code, out, error = silofl("site", "prune", "--kit", old)
    assert (code, error) == (0, "")
    assert {path.name for path in before if not path.exists()} == OUTDATED
    assert (
        f"deleted: {old / JOBS[0]}, last written 40 days ago" in out
        and "4 job folders, full logs and half rounds" in out
    )
    assert record.is_file()


def test_half_rounds_that_never_ended_go_too(silofl, old, tmp_path):
    halves = {
        name: write(tmp_path / "state" / "small-20260101-120000-abcd" / name, 31)
        for name in ("half_round.pt", "answer.pt")
    }
    young = write(tmp_path / "state" / "small-20260201-120000-abcd" / "half_round.pt", 29)
    out = silofl("site", "prune", "--kit", old)[1]
    assert young.exists() and not any(path.exists() for path in halves.values())
    assert f"deleted: {halves['answer.pt']}, last written 31 days ago" in out


def test_the_folder_of_a_running_job_stays(silofl, old):
    with (old / JOBS[0] / "silofl.lock").open("a") as lock:
        # As the executor holds it.
        fcntl.flock(lock, fcntl.LOCK_SH)
        out = silofl("site", "prune", "--kit", old)[1]
        assert (old / JOBS[0] / "log.txt").is_file() and not (old / JOBS[2]).exists()
    assert f"kept: {old / JOBS[0]}; its job still runs" in out
    silofl("site", "prune", "--kit", old)
    assert not (old / JOBS[0]).exists()


def test_a_folder_with_a_record_of_what_left_stays(silofl, old):
    write(old / JOBS[0] / "state" / "egress.jsonl", 40)
    for path in (old / JOBS[0] / "state", old / JOBS[0]):
        age(path, 40)
    assert "it holds a record of what left" in silofl("site", "prune", "--kit", old)[1]
    assert (old / JOBS[0] / "state" / "egress.jsonl").is_file()


def test_links_and_unknown_folders_stay(old, tmp_path):
    outside = write_job(tmp_path, "elsewhere", 400)
    link, strange = (old / f"0000000{number}-f689-4b58-ac96-387029a47d9a" for number in (9, 8))
    link.symlink_to(outside)
    write(strange / "log.txt", 400)
    for path in (link, strange):
        age(path, 400)
    write_job(old, "state", 400)
    assert {path.name for path in find_outdated(old, 30, time.time())} == OUTDATED
    write(old / JOBS[0] / "app_north" / "notes", 3)
    assert {path.name for path in find_outdated(old, 30, time.time())} == OUTDATED - {JOBS[0]}


def test_without_the_key_everything_is_kept(silofl, old, tmp_path):
    lines = (old / "local" / "site.yaml").read_text().splitlines()
    (tmp_path / "other.yaml").write_text("\n".join(line for line in lines if "keep_days" not in line))
    code, out, _ = silofl("site", "prune", "--kit", old, "--site-config", tmp_path / "other.yaml")
    assert code == 0 and "keep_days is not set" in out and (old / JOBS[2]).is_dir()
