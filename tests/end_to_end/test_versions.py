"""What SiloFL 0.3.0 wrote, as docs/operations.md promises it: `of_0.3.0.tar.xz` is of commit ce0bd340.

A folder of two sites with ten pictures each, a run of `silofl new-study` and `simulate --in-process`, its bundle of
`silofl export` (with an empty model.pt2, which nobody reads any more), the answers of `silofl predict`, and the
results.json of another run, by FedSM.
"""

import tarfile
from pathlib import Path

import pytest
from PIL import Image

import silofl
from silofl.base.errors import ConfigError
from silofl.base.files import read_json
from silofl.study import load_study

from .conftest import carried_out


@pytest.fixture
def older(tmp_path):
    """The folder that 0.3.0 wrote."""
    with tarfile.open(Path(__file__).with_name("of_0.3.0.tar.xz")) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "0.3.0"


def test_a_super_model_of_an_older_version_gives_the_labels_that_it_gave(older, tmp_path):
    carried_out("predict", older / "run/supermodel", *(older / "data/east/images").iterdir(), "--out", tmp_path / "now")
    before, now = (
        {path.name: path for path in folder.glob("*.png")} for folder in (older / "predicted", tmp_path / "now")
    )
    assert len(before) == 10 and before.keys() == now.keys()
    for name, path in before.items():
        labels = Image.open(path).tobytes()
        assert any(labels) and labels == Image.open(now[name]).tobytes()


def test_a_super_model_of_an_older_version_is_evaluated(older, tmp_path):
    carried_out("evaluate", older / "run/supermodel", older / "data/north", "--out", tmp_path / "now")
    assert read_json(tmp_path / "now" / "evaluation.json")["scores"]["square"]["dice"]["value"] > 0.5


def test_a_run_of_an_older_version_has_its_report_is_exported_and_tested_at_hospitals(older, tmp_path):
    assert silofl.read_results(older / "run").version == "0.3.0"
    carried_out("report", older / "run", "--out", tmp_path / "report.html")
    carried_out("export", older / "run/supermodel", "--out", tmp_path / "bundle")
    carried_out("evaluation-job", older / "run/supermodel", "--out", tmp_path / "job")
    assert (tmp_path / "report.html").stat().st_size > 1e5
    assert (
        load_study(tmp_path / "bundle/configs/study.yaml").name == load_study(older / "bundle/configs/study.yaml").name
    )


def test_results_of_an_older_version_that_mean_something_else_are_refused_with_what_reads_them(older):
    (older / "fedsm_results.json").rename(older / "run/results.json")
    with pytest.raises(ConfigError, match="results.json: .*; read it with silofl 0.3.0, which wrote it"):
        silofl.read_results(older / "run")
