import hashlib

import numpy as np
import pytest

from silofl.federation.egress import NUMBERS, OTHERS, UNKNOWN, Gate
from silofl.federation.server import ServerRounds
from silofl.methods.part import TRAIN, Exchange, Message
from silofl.settings import parse
from silofl.site import Site
from silofl.study import Study

KINDS = ("weights", "batchnorm", "amplitude", "statistics", "selector")
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
    def make(**settings):
        algorithm = {"name": "fedavg"} | settings.pop("algorithm", {})
        return Gate.of(make_study(**algorithm), Site(data="/data", state_dir="/state", **settings))

    return make


# Algorithms that send, beside the weights, arrays of a kind; BatchNorm stays home in some of them.
SENDERS = {
    "weights": {},
    "batchnorm": {},
    "amplitude": {"input": "harmofl"},
    "statistics": {"name": "adafed", "preset": "reference"},
    "selector": {"name": "fedsm"},
}
NAMES = {
    "weights": "model/network.final_conv.weight",
    "batchnorm": "model/network.conv_0.conv_0.adn.N.running_mean",
    "amplitude": "amplitude/mean",
    "statistics": "statistics/0/mean",
    "selector": "selector/network.head.bias",
}


@pytest.mark.parametrize("name", ["fedavg", "fedbn", "harmofl", "fedsm", "fedper", "adafed"])
def test_every_array_that_an_algorithm_sends_is_of_a_kind_that_may_leave(make_study, gate, name):
    server = ServerRounds.start(make_study(name=name), "run", ["a", "b"])
    server.image_shape = (1, 32, 32)
    expected = server.expected("a", Exchange(TRAIN, 1))
    sent = {key: np.zeros(one.shape, np.float32) for key, one in expected.items()}
    here = gate(algorithm={"name": name})
    assert sent and here.refusal(Message(sent, {"num_examples": 20})) is None
    more = {"fedavg": {"batchnorm"}, "fedper": {"batchnorm"}, "harmofl": {"amplitude"}, "fedsm": {"selector"}}
    assert {here.kind(key) for key in sent} == {"weights"} | more.get(name, set())


@pytest.mark.parametrize("kind", KINDS)
def test_an_array_is_known_by_its_name(gate, kind):
    assert gate(algorithm=SENDERS[kind]).kind(NAMES[kind]) == kind


@pytest.mark.parametrize("name", ["image", "network.final_conv.weight", "model/image", "personal/network.x", "other/a"])
def test_an_array_that_no_part_of_the_study_knows_is_unknown(gate, name):
    assert gate().kind(name) == UNKNOWN and gate().purpose(UNKNOWN) == OTHERS[UNKNOWN]


@pytest.mark.parametrize("kind", ["amplitude", "statistics", "selector"])
def test_what_another_algorithm_would_send_is_unknown(gate, kind):
    assert gate().kind(NAMES[kind]) == UNKNOWN


@pytest.mark.parametrize("prefix", ["selector", "selector/average", "selector/square"])
def test_all_that_the_selector_sends_is_its_own_kind(gate, prefix):
    assert gate(algorithm=SENDERS["selector"]).kind(f"{prefix}/network.head.weight") == "selector"


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_that_the_site_does_not_name_is_refused_with_the_first_array(gate, kind):
    allowed = [other for other in KINDS if other != kind]
    message = Message({NAMES[kind]: UPDATE}, {"num_examples": 20})
    reason = gate(algorithm=SENDERS[kind], may_leave=allowed).refusal(message)
    assert f"not {kind}; the answer held 1 such arrays, the first {NAMES[kind]!r}" in reason
    assert gate(algorithm=SENDERS[kind]).refusal(message) is None


def test_an_array_that_is_no_part_of_the_study_never_leaves(gate):
    reason = gate().refusal(Message({NAMES["weights"]: UPDATE, "image": UPDATE}))
    assert "not unknown; the answer held 1 such arrays, the first 'image'" in reason
    assert "not unknown" in gate(may_leave=["weights", "unknown"]).refusal(Message({"image": UPDATE}))


def test_numbers_alone_leave_even_where_no_array_may(gate):
    assert gate(may_leave=[]).refusal(Message(meta={"num_examples": 3})) is None
    assert "only no arrays leave, not weights" in gate(may_leave=[]).refusal(Message({NAMES["weights"]: UPDATE}))


@pytest.mark.parametrize("name", ["fedbn", "harmofl"])
def test_batchnorm_stays_where_the_study_says_so_whatever_the_site_allows(gate, name):
    here = gate(algorithm={"name": name}, may_leave=["weights", "batchnorm"])
    reason = here.refusal(Message({NAMES["batchnorm"]: UPDATE}))
    assert "not batchnorm" in reason


@pytest.mark.parametrize("kind", ["amplitude", "statistics"])
def test_what_is_a_mean_over_images_leaves_only_from_enough_of_them(gate, kind):
    few, enough = (Message({NAMES[kind]: UPDATE}, {"num_examples": count}) for count in (11, 12))
    here = gate(algorithm=SENDERS[kind], min_examples=12)
    assert f"lets {kind} leave only from 12 training examples or more" in here.refusal(few)
    assert here.refusal(enough) is None


def test_weights_of_few_examples_may_leave(gate):
    assert gate().refusal(Message({NAMES["weights"]: UPDATE}, {"num_examples": 1})) is None


def test_a_record_says_what_the_array_is_and_how_to_know_it_again(gate):
    name = NAMES["weights"]
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
        "purpose": gate().purpose("weights"),
    }


def test_an_arrays_digest_does_not_depend_on_how_it_lies_in_memory(gate):
    straight, turned = gate().records("train", Message({"a": UPDATE, "b": np.asfortranarray(UPDATE)}))[:2]
    assert straight["sha256"] == turned["sha256"]


def test_the_numbers_of_an_answer_are_one_more_record(gate):
    meta = {"round": 2, "num_examples": 31, "metrics": {"loss": 0.5, "validation": {"value": None, "num_cases": 2}}}
    (record,) = gate().records("train", Message(meta=meta))
    assert (record["name"], record["values"], record["purpose"]) == (NUMBERS, meta, OTHERS[NUMBERS])


def test_a_number_that_is_none_is_recorded_as_a_word(gate):
    (record,) = gate().records("train", Message(meta={"metrics": {"loss": float("nan")}}))
    assert record["values"] == {"metrics": {"loss": "NaN"}}


def test_what_is_refused_is_recorded_with_the_reason(gate):
    records = gate().records("train", Message({"image": UPDATE}, {"round": 1}), "the site does not want it")
    assert [(r["name"], r["refused"], r["reason"]) for r in records] == [
        ("image", True, "the site does not want it"),
        (NUMBERS, True, "the site does not want it"),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_purpose_of_its_own(gate, kind):
    purpose = gate(algorithm=SENDERS[kind]).purpose(kind)
    assert len(purpose.split()) > 5 and purpose not in OTHERS.values()
