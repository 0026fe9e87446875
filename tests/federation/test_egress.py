import hashlib

import numpy as np
import pytest

from silofl.federation.egress import NUMBERS, PURPOSES, UNKNOWN, Gate
from silofl.federation.message import Message
from silofl.models.members import Members
from silofl.models.parts import AMPLITUDE
from silofl.settings import parse
from silofl.site import Kind, Site
from silofl.study import Study

UPDATE = np.array([[1, -2], [0.5, 4]], np.float32)
STUDY = {"name": "small", "task": "segmentation", "labels": {1: "organ"}, "rounds": 2}


@pytest.fixture(scope="module")
def make_study():
    def make(**algorithm):
        normalization = "instance" if algorithm["name"] == "fedsm" else "batch"
        model = {"features": [4] * 6, "normalization": normalization}
        return parse(Study, STUDY | {"model": model, "algorithm": algorithm}, "study.yaml")

    return make


@pytest.fixture
def gate(make_study):
    def of(name="fedavg", **settings):
        return Gate.of(make_study(name=name), Site(data="/data", state_dir="/state", **settings))

    return of


@pytest.fixture
def name_of(gate):
    """Return an array's name by its kind."""
    names = {"amplitude": AMPLITUDE, "statistics": "statistics/0/mean", "selector": "selector/network.head.bias"}
    return names | {"weights": min(gate().weights), "batchnorm": min(gate().batchnorm), UNKNOWN: "image"}


@pytest.mark.parametrize("name", ["fedavg", "fedbn", "harmofl", "fedsm", "fedper"])
def test_every_array_that_an_algorithm_sends_is_of_a_kind_that_may_leave(make_study, gate, name):
    study = make_study(name=name)
    members = Members.build(study, None)
    sent = members.read(members.traveling_names(study.recipe))
    assert sent and gate(name).refusal(Message(sent, {"num_examples": 20})) is None
    kinds = {gate(name).kind(key) for key in sent}
    has_batchnorm = name in ("fedavg", "fedper")
    assert kinds == ({"weights", "batchnorm"} if has_batchnorm else {"weights"})


@pytest.mark.parametrize("kind", sorted(PURPOSES.keys() - {NUMBERS}))
def test_an_array_is_known_by_its_name(gate, name_of, kind):
    assert gate().kind(name_of[kind]) == kind


@pytest.mark.parametrize("prefix", ["selector", "selector_mean", "selector_square"])
def test_all_that_the_selector_sends_is_its_own_kind(gate, prefix):
    assert gate().kind(f"{prefix}/network.head.weight") == "selector"


@pytest.mark.parametrize("kind", Site.model_fields["may_leave"].default)
def test_a_kind_that_the_site_does_not_name_is_refused_with_the_first_array(gate, name_of, kind):
    allowed = [other for other in ("weights", "batchnorm", "amplitude", "statistics", "selector") if other != kind]
    message = Message({name_of[other]: UPDATE for other in name_of if other != UNKNOWN}, {"num_examples": 20})
    reason = gate(may_leave=allowed).refusal(message)
    assert f"not {kind}; the answer held 1 such arrays, the first {name_of[kind]!r}" in reason
    assert gate().refusal(message) is None


def test_an_array_that_is_no_part_of_the_study_never_leaves(gate, name_of):
    reason = gate().refusal(Message({name_of["weights"]: UPDATE, "image": UPDATE}))
    assert "not unknown; the answer held 1 such arrays, the first 'image'" in reason


def test_numbers_alone_leave_even_where_no_array_may(gate, name_of):
    assert gate(may_leave=[]).refusal(Message(meta={"num_examples": 3})) is None
    assert "only no arrays leave, not weights" in gate(may_leave=[]).refusal(Message({name_of["weights"]: UPDATE}))


@pytest.mark.parametrize("name", ["fedbn", "harmofl"])
def test_batchnorm_stays_where_the_study_says_so_whatever_the_site_allows(gate, name_of, name):
    reason = gate(name).refusal(Message({name_of["batchnorm"]: UPDATE}))
    assert "not batchnorm" in reason


@pytest.mark.parametrize("kind", ["amplitude", "statistics"])
def test_what_is_a_mean_over_images_leaves_only_from_enough_of_them(gate, name_of, kind):
    few, enough = (Message({name_of[kind]: UPDATE}, {"num_examples": count}) for count in (11, 12))
    assert f"lets {kind} leave only from 12 training examples or more" in gate(min_examples=12).refusal(few)
    assert gate(min_examples=12).refusal(enough) is None


def test_weights_of_few_examples_may_leave(gate, name_of):
    assert gate().refusal(Message({name_of["weights"]: UPDATE}, {"num_examples": 1})) is None


def test_a_record_says_what_the_array_is_and_how_to_know_it_again(gate, name_of):
    name = name_of["weights"]
    array, _ = gate().records("train", Message({name: UPDATE}, {"round": 3}))
    # 4 numbers of 4 bytes; the digest of the bytes as they lie in memory
    assert array == {
        "round": 3,
        "task": "train",
        "refused": False,
        "name": name,
        "kind": "weights",
        "shape": [2, 2],
        "dtype": "float32",
        "bytes": 16,
        "sha256": hashlib.sha256(b"\0\0\x80?\0\0\0\xc0\0\0\0?\0\0\x80@").hexdigest(),
        "purpose": PURPOSES["weights"],
    }


def test_an_arrays_digest_does_not_depend_on_how_it_lies_in_memory(gate):
    straight, turned = gate().records("train", Message({"a": UPDATE, "b": np.asfortranarray(UPDATE)}))[:2]
    assert straight["sha256"] == turned["sha256"]


def test_the_numbers_of_an_answer_are_one_more_record(gate):
    meta = {"round": 2, "num_examples": 31, "metrics": {"loss": 0.5, "validation": {"value": None, "num_cases": 2}}}
    (record,) = gate().records("train", Message(meta=meta))
    assert (record["name"], record["values"], record["purpose"]) == (NUMBERS, meta, PURPOSES[NUMBERS])


def test_a_number_that_is_none_is_recorded_as_a_word(gate):
    (record,) = gate().records("train", Message(meta={"metrics": {"loss": float("nan")}}))
    assert record["values"] == {"metrics": {"loss": "NaN"}}


def test_what_is_refused_is_recorded_with_the_reason(gate):
    records = gate().records("train", Message({"image": UPDATE}, {"round": 1}), "the site does not want it")
    assert [(r["name"], r["refused"], r["reason"]) for r in records] == [
        ("image", True, "the site does not want it"),
        (NUMBERS, True, "the site does not want it"),
    ]


def test_every_kind_has_a_purpose():
    assert {*Kind.__args__, NUMBERS, UNKNOWN} == PURPOSES.keys()
