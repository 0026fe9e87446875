import numpy as np
import pytest
import torch

from silofl.errors import AggregationError
from silofl.models.members import Members, of_role, role_of, wire_name, with_role
from silofl.models.parts import AMPLITUDE


@pytest.fixture
def fedsm(make_study):
    return make_study(normalization="instance", algorithm={"name": "fedsm"})


def test_names_carry_their_role_and_a_single_model_has_none():
    assert wire_name("global", "network.a") == "global/network.a" and wire_name("", "network.a") == "network.a"
    assert role_of("global/network.a") == "global" and role_of("network.a") == ""
    arrays = with_role("personal", {"a": np.ones(1)}) | with_role("global", {"a": np.zeros(1)})
    assert of_role("global", arrays) == {"a": np.zeros(1)}


def test_a_study_without_a_selector_has_one_model_and_its_names_are_the_models(make_study):
    members = Members.build(make_study(), (1, 32, 32))
    assert list(members.models) == [""] and members.own is members.models[""]
    assert members.state().keys() == members.own.state_dict().keys()


def test_global_and_personalised_model_begin_alike_and_share_no_memory(fedsm):
    members = Members.build(fedsm, (1, 32, 32))
    first, own = members.models["global"], members.own
    assert own is members.models["personal"]
    for name, value in first.state_dict().items():
        assert torch.equal(value, own.state_dict()[name]) and value.data_ptr() != own.state_dict()[name].data_ptr()


def test_what_is_read_can_be_written_into_other_members(fedsm):
    here, there = Members.build(fedsm, (1, 32, 32)), Members.build(fedsm, (1, 32, 32))
    names = here.traveling_names(fedsm.recipe)
    arrays = {name: array + 1 for name, array in here.read(names).items()}
    there.write(arrays)
    for name, array in there.read(names).items():
        np.testing.assert_array_equal(array, arrays[name])


def test_an_array_of_no_model_is_refused(fedsm):
    with pytest.raises(AggregationError, match=r"'selector/a' .* no such array"):
        Members.build(fedsm, (1, 32, 32)).write({"selector/a": np.zeros(1)})


def test_every_model_gets_the_amplitude(make_study):
    both = make_study(normalization="instance", algorithm={"name": "fedsm", "amplitude_band": 0})
    members = Members.build(both, (1, 32, 32))
    members.write({AMPLITUDE: np.float32(np.full(members.amplitude().shape, 2.0))})
    assert all(model.input_norm.is_fixed for model in members.models.values())
    assert members.amplitude_names() == {
        f"{role}/input_norm.{name}" for role in ("global", "personal") for name in ("running_amplitude", "is_fixed")
    }
    assert not members.amplitude_names() & set(members.traveling_names(both.recipe))


def test_the_server_knows_no_image_and_has_the_same_names_to_send(fedsm):
    server, site = Members.build(fedsm, None), Members.build(fedsm, (1, 32, 32))
    assert server.traveling_names(fedsm.recipe) == site.traveling_names(fedsm.recipe)
