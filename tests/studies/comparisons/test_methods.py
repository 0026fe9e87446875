import pytest
import yaml

from silofl.base.errors import ConfigError
from silofl.base.settings import parse
from silofl.study import Study
from silofl_desk.studies.comparisons.methods import find_method_algorithm, method_names
from silofl_desk.studies.runs.simulation import study_file

from ..conftest import JOB


@pytest.mark.parametrize("name", [*method_names(), "harmofl:reference", "local-pretrained", "fedavg:paper-pretrained"])
def test_every_method_is_an_algorithm_that_takes_the_place_of_a_jobs(name):
    values, algorithm = yaml.safe_load(study_file(JOB).read_text()), find_method_algorithm(name)
    # plain SGD for two epochs, the one way of training that every algorithm allows
    training = values["training"] | {"optimizer": "sgd", "momentum": 0.0, "local_epochs": 2}
    # AdaFed compares the sites' BatchNorm, which others refuse, and FedBN keeps it at home.
    normalization = "batch" if "adafed" in name or name == "fedbn" else "instance"
    changes = {"model": {"normalization": normalization}, "training": training, "algorithm": algorithm}
    study = parse(Study, values | changes, "study.yaml")
    assert study.algorithm.name == algorithm["name"]
    assert study.algorithm.preset == algorithm.get("preset", "recommended")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fedavgg", "--methods must be among .*fedsm-extra, not 'fedavgg' .did you mean 'fedavg'"),
        ("harmfl:paper", "--methods must be ALGORITHM:PRESET .*, not 'harmfl' .did you"),
        ("locl-pretrained", "--methods must be among .*, not 'locl' .did you mean 'local'"),
        ("d-adafed:paper", "with ALGORITHM among .*, not 'd-adafed'"),
    ],
)
def test_an_unknown_method_is_refused_with_the_nearest(name, message):
    with pytest.raises(ConfigError, match=message):
        find_method_algorithm(name)
