import numpy as np
import pytest
import torch

from silofl.errors import ConfigError
from silofl.files import save_tensors
from silofl.models import build_plain_model
from silofl.models.pretrained import read_pretrained
from silofl.settings import parse
from silofl.study import Study


@pytest.fixture
def study():
    settings = {"name": "small", "task": "classification", "labels": {0: "a", 1: "b"}, "rounds": 1}
    settings |= {"metric": "accuracy", "model": {"name": "lenet5"}, "training": {"loss": "cross_entropy"}}
    return parse(Study, settings | {"algorithm": {"name": "fedavg"}}, "study.yaml")


@pytest.fixture
def state(study):
    return build_plain_model(study, seed=3).state_dict()


def test_all_numbers_of_the_network_are_read_and_its_counters_are_not(study, state, tmp_path):
    save_tensors(tmp_path / "f.pt", state)
    arrays = read_pretrained(tmp_path / "f.pt", study)
    assert arrays.keys() == {name for name in state if not name.endswith("num_batches_tracked")}
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, state[name].numpy())


def test_a_file_that_is_not_there_is_refused_with_the_command_that_writes_one(study, tmp_path):
    with pytest.raises(ConfigError, match="must be a file beside study.yaml, not 'f.pt'; write one .* silofl pretrain"):
        read_pretrained(tmp_path / "f.pt", study)


def test_broken_bytes_and_other_contents_are_refused(study, tmp_path):
    (tmp_path / "f.pt").write_bytes(b"nothing")
    torch.save([1, 2], tmp_path / "g.pt")
    for name in ("f.pt", "g.pt"):
        with pytest.raises(ConfigError, match=f"{name} must hold the tensors of a model's state"):
            read_pretrained(tmp_path / name, study)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda state, name: state.pop(name), "it is missing"),
        (lambda state, name: state.update({name: torch.zeros(1)}), r"it is of shape \(1,\)"),
        (lambda state, name: state[name].fill_(float("nan")), "not finite"),
    ],
)
def test_another_networks_state_is_refused_by_name(study, state, tmp_path, spoil, message):
    spoil(state, "network.head.weight")
    save_tensors(tmp_path / "f.pt", state)
    with pytest.raises(ConfigError, match=f"must hold 'network.head.weight' .*{message}"):
        read_pretrained(tmp_path / "f.pt", study)
