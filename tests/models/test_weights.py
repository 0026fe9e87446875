import hashlib

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from silofl.base.errors import ConfigError
from silofl.base.files import save_tensors
from silofl.base.settings import parse
from silofl.models import build_plain_model
from silofl.models.weights import match_weights, read_pretrained, read_start, read_weights
from silofl.study import Study

NAMES = {"network.a.weight": (2, 3), "network.a.bias": (2,)}


def small_study(**model):
    settings = {"name": "small", "task": "classification", "labels": {0: "a", 1: "b"}, "rounds": 1}
    settings |= {"metric": "accuracy", "model": {"name": "lenet5"} | model, "training": {"loss": "cross_entropy"}}
    return parse(Study, settings | {"algorithm": {"name": "fedavg"}}, "study.yaml")


@pytest.fixture
def state():
    """The numbers of another seed than the study's."""
    found = build_plain_model(small_study(), seed=3).state_dict()
    return {name: value.contiguous() for name, value in found.items()}


@pytest.fixture
def start(tmp_path):
    """Write a state into a file, and read it as the study's."""

    def write_and_read(state, name="weights.pt"):
        path = tmp_path / name
        save_file(state, path) if name.endswith(".safetensors") else save_tensors(path, state)
        return read_weights(path, small_study(weights=name, weights_sha256=digest_of(path)))

    return write_and_read


def digest_of(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


# --- matching


@pytest.mark.parametrize("prefix", ["", "network.", "module.", "model.", "module.network.", "module.model."])
def test_names_match_without_the_prefixes_that_all_of_them_share(prefix):
    found = {prefix + name.removeprefix("network."): shape for name, shape in NAMES.items()}
    assert match_weights(NAMES, found) == {name: prefix + name.removeprefix("network.") for name in NAMES}


@pytest.mark.parametrize(
    ("found", "matches"),
    [
        # A prefix that one name lacks belongs to the others' names.
        ({"module.a.weight": (2, 3), "a.bias": (2,)}, {"network.a.bias": "a.bias"}),
        # A site's model as it is deployed: its input normalisation has no prefix in common with its network.
        (NAMES | {"input_norm.running_amplitude": (1, 8, 5)}, {name: name for name in NAMES}),
        # Another shape is another array.
        ({"a.weight": (3, 2), "a.bias": (2,)}, {"network.a.bias": "a.bias"}),
        ({"a.weight": (3, 2)}, {}),
        ({}, {}),
    ],
)
def test_another_prefix_or_shape_does_not_match(found, matches):
    assert match_weights(NAMES, found) == matches


# --- reading


@pytest.mark.parametrize("name", ["weights.pt", "weights.safetensors"])
def test_every_number_is_the_files_where_all_match(start, state, name):
    found = start(state, name)
    assert found.arrays.keys() == {name for name in state if not name.endswith("num_batches_tracked")}
    for key, array in found.arrays.items():
        np.testing.assert_array_equal(array, state[key].numpy())
    number = len(found.arrays)
    assert found.sentence == f"everybody starts from {name}: {number} of {number} tensors are from it"


def test_what_does_not_match_starts_from_the_seed(start, state):
    seeded = build_plain_model(small_study(), seed=0).state_dict()
    spoilt = state | {"network.head.weight": torch.zeros(5, 5), "extra": torch.zeros(1)}
    del spoilt["network.head.bias"]
    found = start(spoilt)
    for name in ("network.head.weight", "network.head.bias"):
        np.testing.assert_array_equal(found.arrays[name], seeded[name].numpy())
    number = len(found.arrays)
    assert found.sentence == (
        f"everybody starts from weights.pt: {number - 2} of {number} tensors are from it, the others from the seed: "
        "network.head.weight, network.head.bias"
    )


# --- refusals


def test_a_missing_or_another_file_is_refused(tmp_path, state):
    study = small_study(weights="weights.pt", weights_sha256="0" * 64)
    with pytest.raises(ConfigError, match="model.weights must be a file next to study.yaml, not 'weights.pt'"):
        read_start(tmp_path, study)
    save_tensors(tmp_path / "weights.pt", state)
    with pytest.raises(ConfigError, match=f"has SHA-256 {digest_of(tmp_path / 'weights.pt')}"):
        read_start(tmp_path, study)


def test_a_file_of_which_nothing_fits_is_refused(start):
    sentence = r"holds 'other' of shape \(7,\) and no weights of study .*, as 'network\.\S+' of shape \(.*\)"
    with pytest.raises(ConfigError, match=sentence):
        start({"other": torch.zeros(7)})
    with pytest.raises(ConfigError, match="holds no tensor and no weights"):
        start({})


class Evil:
    def __reduce__(self):
        return print, ("code ran",)


@pytest.mark.parametrize("content", [b"nothing", [1, 2], {"a": 1}, {"a": Evil()}])
@pytest.mark.parametrize("name", ["weights.pt", "weights.safetensors"])
def test_broken_bytes_other_contents_and_code_are_refused(tmp_path, capsys, content, name):
    path = tmp_path / name
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    with pytest.raises(ConfigError, match=f"{name} does not hold the tensors of a network's state"):
        read_weights(path, small_study(weights=name, weights_sha256=digest_of(path)))
    assert "code ran" not in capsys.readouterr().out


# --- a pretrained model


def test_a_pretrained_model_is_read_whole_with_its_digest(state, tmp_path):
    path = tmp_path / "f.pt"
    save_tensors(path, state)
    settled = small_study(pretrained_sha256=digest_of(path))
    arrays = read_pretrained(path, settled)
    assert arrays.keys() == {name for name in state if not name.endswith("num_batches_tracked")}
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, state[name].numpy())
    assert settled.digest != small_study().digest
    with pytest.raises(ConfigError, match=f"SHA-256 {digest_of(path)}, and model.pretrained_sha256"):
        read_pretrained(path, small_study(pretrained_sha256="0" * 64))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda state, name: state.pop(name), "it is missing"),
        (lambda state, name: state.update({name: torch.zeros(1)}), r"it is of shape \(1,\)"),
        (lambda state, name: state[name].fill_(float("nan")), "not finite"),
    ],
)
def test_another_networks_state_is_no_pretrained_model(state, tmp_path, spoil, message):
    spoil(state, "network.head.weight")
    save_tensors(tmp_path / "f.pt", state)
    with pytest.raises(ConfigError, match=f"has 'network.head.weight' .*{message}"):
        read_pretrained(tmp_path / "f.pt", small_study())


# --- files of others
