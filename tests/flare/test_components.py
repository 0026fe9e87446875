"""The executor and the controller that a job names are its algorithm's, or those of any algorithm."""

import json
import shutil
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from silofl.base.errors import ConfigError
from silofl.flare.components import (
    GENERIC,
    PAPERS,
    check_algorithm,
    check_components,
    find_component,
    list_components,
    name_components,
)
from silofl.flare.controller import RoundsController
from silofl.flare.executor import SiteExecutor
from silofl.study import load_study

JOBS = Path(__file__).resolve().parents[2] / "jobs"
PARENTS = {"config_fed_client.json": SiteExecutor, "config_fed_server.json": RoundsController}


def study_of(algorithm):
    return SimpleNamespace(algorithm=SimpleNamespace(name=algorithm))


def load_class(path):
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


@pytest.fixture
def configurations(tmp_path):
    """The configurations of a job of HarmoFL, to be changed."""
    return shutil.copytree(JOBS / "harmofl_phantoms" / "app" / "config", tmp_path / "config")


@pytest.mark.parametrize("file", GENERIC)
@pytest.mark.parametrize("algorithm", PAPERS)
def test_papers_class_is_generic_for_its_algorithm_alone(file, algorithm):
    found = load_class(find_component(file, algorithm))
    assert found.__mro__[1] is PARENTS[file] and found.algorithm == algorithm and found.__doc__
    assert load_class(list_components(file)[0]) is PARENTS[file] and PARENTS[file].algorithm is None
    assert find_component(file, "scaffold") == GENERIC[file]


@pytest.mark.parametrize("job", sorted(path.name for path in JOBS.iterdir() if path.is_dir()))
def test_each_job_names_the_classes_of_its_algorithm(job):
    folder = JOBS / job / "app" / "config"
    study = load_study(folder / "study.yaml")
    check_components(folder, study.algorithm.name)
    for file in GENERIC:
        assert find_component(file, study.algorithm.name) in (folder / file).read_text()


def test_study_of_another_algorithm_is_refused_with_remedy(configurations):
    with pytest.raises(ConfigError, match="harmofl.HarmoFLExecutor.*must.*harmofl, not ditto; name .*SiteExecutor"):
        check_components(configurations, "ditto")
    (configurations / "config_fed_client.json").write_text('{"executors": []}')
    with pytest.raises(ConfigError, match="HarmoFLController.*config_fed_server.json.*harmofl, not fedsm"):
        check_components(configurations, "fedsm")


def test_a_component_refuses_a_study_that_is_not_its_own():
    harmofl = load_class(find_component("config_fed_client.json", "harmofl"))()
    check_algorithm(harmofl, harmofl.algorithm, study_of("harmofl"))
    with pytest.raises(ConfigError, match="HarmoFLExecutor of config_fed_client.json .* not fedavg; name .*FedAvgExec"):
        check_algorithm(harmofl, harmofl.algorithm, study_of("fedavg"))
    check_algorithm(SiteExecutor(), SiteExecutor.algorithm, study_of("anything"))


@pytest.mark.parametrize("algorithm", ["fedsm", "scaffold"])
def test_configurations_are_fitted_to_another_algorithm_and_nothing_else_changes(configurations, algorithm):
    before = {file: (configurations / file).read_text() for file in GENERIC}
    name_components(configurations, algorithm)
    check_components(configurations, algorithm)
    for file, text in before.items():
        wanted = text.replace(find_component(file, "harmofl"), find_component(file, algorithm))
        assert json.loads((configurations / file).read_text()) == json.loads(wanted)
    # The class of another package stays.
    file = configurations / "config_fed_client.json"
    file.write_text(file.read_text().replace(find_component(file.name, algorithm), "acme.Executor"))
    name_components(configurations, "fedavg")
    assert "acme.Executor" in file.read_text()
    check_components(configurations, "fedavg")
