import json
import shutil

import pytest
import torch

from silofl.data.site_data import SiteData
from silofl.studies.cross_test import cross_image, cross_table, cross_test

from .conftest import JOB
from .test_leave_out import make_contents, make_part

pytestmark = pytest.mark.usefixtures("undrawn")
SMALL = ["--set", "model.features=[4,4,4,4,4,4]", "--set", "data.transforms=[{Resize: {spatial_size: [32, 32]}}]"]


def site_data(*cases):
    return SiteData(make_part(), make_part(), make_part(*cases))


def test_each_sites_model_is_tested_on_each_sites_data_and_on_all_together():
    # north's model labels every pixel, which is right everywhere; south's none
    found = cross_test(make_contents(rule="mean"), {"north": site_data("a"), "south": site_data("b", "c")})
    assert found == {
        "north": {"north": 1.0, "south": 1.0, "all sites": 1.0},
        "south": {"north": 0.0, "south": 0.0, "all sites": 0.0},
    }


def test_a_site_without_test_cases_has_no_value():
    found = cross_test(make_contents(rule="mean"), {"north": site_data("a"), "south": site_data()})
    assert found["north"] == {"north": 1.0, "south": None, "all sites": 1.0}


def test_the_table_has_the_mean_over_sites_before_all_cases_together():
    values = {"north": {"north": 1.0, "south": 0.5, "all sites": 0.6}, "south": {"north": None, "south": 0.25}}
    values["south"]["all sites"] = 0.25
    table = cross_table(values)
    assert table.columns == ("model of", "north", "south", "mean", "all sites")
    assert table.rows == (
        ("north", "1.000", "0.500", "0.750", "0.600"),
        ("south", "-", "0.250", "0.250", "0.250"),
    )
    image = cross_image(values, "dice")
    assert image.png.startswith(b"\x89PNG") and "No model" not in image.caption


def test_sites_that_kept_no_model_are_named():
    image = cross_image({"north": {"north": 1.0, "south": 0.5, "west": 0.25, "all sites": 0.6}}, "dice")
    assert image.caption.endswith("The diagonal is each site's model at home. No model of south, west was kept.")


@pytest.mark.timeout(120)
def test_local_training_has_on_the_diagonal_what_its_run_reports(silofl, phantoms, tmp_path):
    options = ["--data", phantoms, "--out", "run", "--alone", "--rounds", 1, "--set", "algorithm={name: local}", *SMALL]
    assert silofl("simulate", JOB, *options)[0] == 0
    torch.manual_seed(0)
    code, out, _ = silofl("cross-test", "run", "--json")
    printed, written = json.loads(out), json.loads((tmp_path / "run" / "cross_test.json").read_text())
    sites = json.loads((tmp_path / "run" / "results.json").read_text())["sites"]
    assert code == 0 and printed == written and list(written["values"]) == ["north", "south"]
    assert {site: written["values"][site][site] for site in sites} == sites
    assert (tmp_path / "run" / "cross_test.png").is_file()
    code, out, _ = silofl("cross-test", "run")
    assert code == 0 and "model of" in out and "all sites" in out


@pytest.mark.timeout(120)
def test_images_that_a_named_folder_holds_are_not_decoded_again(silofl, phantoms, tmp_path, monkeypatch):
    data = shutil.copytree(phantoms, tmp_path / "data", ignore=shutil.ignore_patterns(".silofl*"))
    options = ["--data", data, "--out", "run", "--alone", "--rounds", 1, "--cache", "cache"]
    assert silofl("simulate", JOB, *options, *SMALL)[0] == 0
    (tmp_path / "cache").rename(tmp_path / "moved")
    monkeypatch.setattr("silofl.data.preparation.read_source", lambda *a: pytest.fail("an image was decoded"))
    assert silofl("cross-test", "run", "--cache", "moved")[0] == 0
    assert not (tmp_path / "cache").exists() and not (data / ".silofl-cache").exists()


@pytest.mark.timeout(120)
def test_data_that_were_moved_are_named(silofl, refused, phantoms, tmp_path):
    first, moved = (shutil.copytree(phantoms, tmp_path / name) for name in ("first", "moved"))
    assert silofl("simulate", JOB, "--data", first, "--out", "run", "--alone", "--rounds", 1, *SMALL)[0] == 0
    shutil.rmtree(first)
    error = refused("cross-test", "run")
    assert f"--data must name the folder of the sites' data, not {first}, which is not there; name it" in error
    assert silofl("cross-test", "run", "--data", moved)[0] == 0
    file = moved / "south" / "dataset.json"
    content = json.loads(file.read_text())
    mask, other = (moved / "south" / record["label"] for record in content["test"][:2])
    before = mask.read_bytes()
    shutil.copyfile(other, mask)
    code, _, error = silofl("cross-test", "run", "--data", moved)
    assert code == 2 and "site 'south' must have the data that run learnt from, not those in" in error
    mask.write_bytes(before)
    file.write_text(json.dumps(content | {"test": content["test"][:1]}))
    code, _, error = silofl("cross-test", "run", "--data", moved)
    assert code == 2 and "site 'south' must have the data that run learnt from, not those in" in error


def test_what_is_no_finished_simulation_is_refused(refused, tmp_path):
    (tmp_path / "run").mkdir()
    assert "must hold a simulation, with a run.json; it holds none" in refused("cross-test", "run")
    (tmp_path / "run" / "run.json").write_text("{}")
    assert "must hold a finished run" in refused("cross-test", "run")
