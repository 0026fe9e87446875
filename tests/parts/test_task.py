import numpy as np
import pytest

from silofl.base.errors import AggregationError
from silofl.parts.task import ArraySpec, Message, check_arrays


def test_a_message_knows_its_arrays_by_their_role():
    message = Message({"model/network.a": np.zeros(3, np.float32), "selector/average/b": np.ones(2)}, {"round": 2})
    assert message.num_bytes == 3 * 4 + 2 * 8
    assert list(message.of("model")) == ["network.a"] and list(message.of("selector")) == ["average/b"]
    assert message.of("average") == {}


def test_a_failed_answer_holds_its_round_and_no_arrays():
    failed = Message({"a/x": np.zeros(1)}, {"round": 3, "run": "r"}).failed("no GPU")
    assert failed == Message(meta={"round": 3, "error": "no GPU"})


def test_no_variance_of_a_whole_model_may_be_below_0():
    expected = ArraySpec.whole_model({"model/norm.running_var": np.ones(2), "model/norm.running_mean": np.ones(2)})
    check_arrays("north", {"model/norm.running_var": np.zeros(2), "model/norm.running_mean": -np.ones(2)}, expected)
    below = {"model/norm.running_var": np.array([1, -0.1]), "model/norm.running_mean": np.ones(2)}
    with pytest.raises(AggregationError, match=r"'model/norm.running_var' of site .* has a value below 0"):
        check_arrays("north", below, expected)
    expected = {"a": ArraySpec((2,), minimum=np.array([-1, -3]))}
    check_arrays("north", {"a": np.array([-1.0, -3.0])}, expected)
    with pytest.raises(AggregationError, match=r"'a' of site 'north' has a value below -3"):
        check_arrays("north", {"a": np.array([-1.0, -3.5])}, expected)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"a": 1.0, "c": 1.0}, "site 'north' sent 'c', which was not asked for"),
        ({}, "the answer of site 'north' lacks 'a'"),
        ({"a": np.zeros(2)}, "site 'north' sent 'a' with shape (2,) in place of () as others do"),
        ({"a": np.inf}, "'a' of site 'north' holds NaN or infinity"),
        ({"a": -0.5}, "'a' of site 'north' has a value below 0"),
        ({"a": 1.0, "b": np.array([1.0, np.nan])}, "'b' of site 'north' holds NaN or infinity"),
    ],
)
def test_arrays_that_are_not_as_expected_are_refused_by_name(arrays, sentence):
    expected = {"a": ArraySpec((), is_required=True, minimum=0, origin=" as others do"), "b": ArraySpec(None)}
    with pytest.raises(AggregationError) as caught:
        check_arrays("north", {name: np.asarray(array) for name, array in arrays.items()}, expected)
    assert str(caught.value) == sentence


def test_a_shape_that_is_not_known_yet_may_be_any():
    check_arrays("north", {"a": np.zeros((4, 5))}, {"a": ArraySpec(None, is_required=True)})
    with pytest.raises(AggregationError, match=r"shape \(5,\) in place of \(4,\)"):
        check_arrays("north", {"a": np.zeros(5)}, {"a": ArraySpec((4,))})


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (np.array("text"), "<U4"),
        (np.array({}), "object"),
        (np.array(1j), "complex128"),
        (np.array(1), "int64"),
        (np.array(True), "bool"),
        (np.float16(1), "float16"),
        (None, "NoneType"),
        ([1.0], "list"),
    ],
)
def test_what_is_no_array_of_floats_is_refused(array, kind):
    with pytest.raises(AggregationError) as caught:
        check_arrays("north", {"a": array}, {"a": ArraySpec(None)})
    assert f"site 'north' sent 'a' as an array of {kind} in place of" in str(caught.value)


def test_a_number_that_no_model_has_is_refused():
    check_arrays("north", {"a": np.float32([-1e15])}, {"a": ArraySpec((1,))})
    with pytest.raises(AggregationError, match=r"'a' of site 'north' has a value above 1e\+15"):
        check_arrays("north", {"a": np.float32([0, -1e30])}, {"a": ArraySpec((2,))})


def test_an_array_is_turned_into_the_expected_type():
    expected = ArraySpec.like({"a": np.zeros(2, np.float32), "b": np.zeros(2)})
    sent = {"a": np.ones(2), "b": np.ones(2)}
    found = check_arrays("north", sent, expected)
    assert {name: array.dtype for name, array in found.items()} == {"a": np.float32, "b": np.float64}
    assert found["b"] is sent["b"]
