"""``silofl prepare``: what NVFlare's own simulator needs to run a job."""

from silofl.base.files import read_json
from silofl.base.settings import load_settings
from silofl.setup.site import Server, Site

from ..conftest import JOB, RECEIVER


def test_a_workspace_of_the_simulator_says_what_may_run_and_where_data_and_results_are(silofl, tmp_path, phantoms):
    code, out, error = silofl("prepare", "ws", JOB, "--data", phantoms)
    assert code == 0, error
    local = tmp_path / "ws" / "local"
    assert {path.name for path in local.iterdir()} == {"resources.json", "site.yaml", "server.yaml"}
    assert f"\nnvflare simulator {JOB} -w ws -c north,south -t 2\n" in out
    assert f"results: {tmp_path / 'ws-results'}\n" in out
    site, server = load_settings(Site, local / "site.yaml"), load_settings(Server, local / "server.yaml")
    assert site.data_folder("harmofl_phantoms", "south") == phantoms / "south"
    assert (site.cache_dir, site.min_patients) == (f"{phantoms}/.silofl-cache", 0)
    # The simulator deletes what lies in its workspace.
    results = tmp_path / "ws-results"
    assert site.state_dir == f"{results}/sites/{{site}}" and server.run_dir == f"{results}/{{run}}"
    assert server.is_downloadable


def test_a_trusted_jobs_other_classes_may_run_and_decoded_images_go_where_they_are_told(
    silofl, refused, tmp_path, phantoms, receiving_job
):
    command = ["prepare", "ws", receiving_job, "--data", phantoms, "--cache", tmp_path / "cache"]
    assert RECEIVER in refused(*command) and not (tmp_path / "ws").exists()
    assert silofl(*command, "--trust-code")[0] == 0
    assert RECEIVER in read_json(tmp_path / "ws" / "local" / "resources.json")["class_allow_list"]
    assert any((tmp_path / "cache").iterdir())


def test_a_folder_that_the_simulator_would_empty_is_no_workspace(refused, silofl, tmp_path, phantoms):
    """NVFlare's simulator deletes all of its workspace but local/ and startup/."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    for folder in (tmp_path / "mine", phantoms):
        error = refused("prepare", folder, JOB, "--data", phantoms)
        assert "holds files that NVFlare's simulator would delete" in error
        assert not (folder / "local").exists()
    assert not (tmp_path / "mine-results").exists()
    # One that is empty, and its own workspace with what a run has left in it.
    (tmp_path / "empty").mkdir()
    assert silofl("prepare", "empty", JOB, "--data", phantoms)[0] == 0
    (tmp_path / "empty" / "server").mkdir()
    assert silofl("prepare", "empty", JOB, "--data", phantoms)[0] == 0
