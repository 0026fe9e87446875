from silofl.bundled_jobs import JOBS
from silofl.studies import demo


def test_a_job_that_is_missing_is_refused_before_anything_is_written(refused, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "JOBS", tmp_path / "none")
    error = refused("demo", "--out", tmp_path / "demo")
    assert "fedavg_phantoms must be a job folder" in error and not (tmp_path / "demo").exists()


def test_an_out_that_is_a_file_is_refused_before_anything_is_written(refused, tmp_path):
    (tmp_path / "demo").write_text("notes")
    assert "--out must be a folder, not" in refused("demo", "--out", tmp_path / "demo")
    assert (tmp_path / "demo").read_text() == "notes"


def test_the_demonstration_takes_the_bundled_jobs_wherever_it_is_called(silofl, monkeypatch):
    trained = []
    monkeypatch.setattr(demo.simulate, "start_simulation", lambda job, *_: trained.append(job) or 1)
    monkeypatch.setattr(demo, "make_phantoms", lambda *_: None)
    assert silofl("demo")[0] == 1 and trained == [JOBS / "fedavg_phantoms"]
