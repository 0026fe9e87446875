import hashlib

import numpy as np
import pytest

from silofl.base.settings import parse
from silofl.federation.egress import NUMBERS, OTHERS, UNKNOWN, Gate, Request
from silofl.federation.server import ServerRounds
from silofl.parts.task import TRAIN, Exchange, Message
from silofl.setup.site import Site
from silofl.study import Study

from ..conftest import SMALL_UNET

KINDS = ("weights", "batchnorm", "amplitude", "statistics", "selector")
UPDATE = np.array([[1, -2], [0.5, 4]], np.float32)
STUDY = {"name": "small", "task": "segmentation", "labels": {1: "organ"}, "rounds": 2}


@pytest.fixture(scope="module")
def make_study():
    def make(**algorithm):
        normalization = "instance" if algorithm["name"] == "fedsm" else "batch"
        model = SMALL_UNET | {"normalization": normalization}
        training = {"optimizer": "sgd", "momentum": 0.0}
        return parse(Study, STUDY | {"model": model, "algorithm": algorithm, "training": training}, "study.yaml")

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
    "weights": "model/network.model.2.conv.weight",
    "batchnorm": "model/network.model.0.adn.N.running_mean",
    "amplitude": "amplitude/mean",
    "statistics": "statistics/0/mean",
    "selector": "selector/network.head.bias",
}


# What an answer of each kind is to, and its numbers.
TASKS = {"statistics": "statistics"}
META = {"round": 1, "num_patients": 20, "image_shape": [1, 32, 32]}


def honest(algorithm, task=TRAIN):
    """Return arrays as a server expects them of a task."""
    server = ServerRounds.start(algorithm, "run", ["a", "b"])
    server.image_shape = (1, 32, 32)
    expected = server.payload_spec("a", Exchange(task, 1))
    return {key: np.ones(one.shape, one.dtype) for key, one in expected.items()}


@pytest.fixture
def answer(make_study):
    """Return an answer with one array of a kind, as the study's server expects it."""

    def make(kind, **meta):
        algorithm = {"name": "fedavg"} | SENDERS[kind]
        arrays = honest(make_study(**algorithm), TASKS.get(kind, TRAIN))
        return Message({NAMES[kind]: arrays[NAMES[kind]]}, META | meta)

    return make


def request(kind=None):
    # Two sites: the selector that came with the task has as many outputs.
    return Request(TASKS.get(kind, TRAIN), shapes={"selector/network.head.bias": (2,)})


# The kinds of arrays that leave beside the weights.
MORE = {"fedbn": set(), "adafed": set(), "harmofl": {"amplitude"}, "fedsm": {"selector"}}
MORE |= {"scaffold": {"batchnorm", "control"}, **dict.fromkeys(["fedavg", "fedper", "fednova", "ditto"], {"batchnorm"})}


@pytest.mark.parametrize("name", MORE)
def test_every_sent_array_is_of_an_allowed_kind(make_study, gate, name):
    sent = honest(make_study(name=name))
    here = gate(algorithm={"name": name})
    asked = Request(TRAIN, shapes={key: array.shape for key, array in sent.items()})
    assert sent and here.refusal(asked, Message(sent, META)) is None
    assert {here.kind(key) for key in sent} == {"weights"} | MORE[name]


FORGED = {
    "half": lambda array: array.astype(np.float16),
    "text": lambda array: array.astype("U9"),
    "axis more": lambda array: array[..., None],
    "twice as long": lambda array: np.concatenate([array, array]),
    "a picture": lambda array: np.zeros((1, 64, 64), np.uint8),
}


@pytest.mark.parametrize(
    ("kind", "change"),
    [("weights", change) for change in FORGED] + [(k, "twice as long") for k in KINDS if k != "weights"],
)
def test_a_known_name_with_another_shape_or_type_never_leaves(gate, answer, kind, change):
    message = answer(kind)
    forged = Message({NAMES[kind]: FORGED[change](message.arrays[NAMES[kind]])}, message.meta)
    here = gate(algorithm=SENDERS[kind])
    assert here.refusal(request(kind), message) is None
    assert f"lets {NAMES[kind]!r} leave only as" in here.refusal(request(kind), forged)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("selector", "selector/image"), ("statistics", "statistics/0/maximum"), ("amplitude", "amplitude/image")],
)
def test_name_beginning_like_a_parts_never_leaves(gate, answer, kind, name):
    message = answer(kind)
    reason = gate(algorithm=SENDERS[kind]).refusal(request(kind), Message({name: message.arrays[NAMES[kind]]}, META))
    assert "lets only arrays leave that a task asks for" in reason and name not in reason


SCORE = {"value": 0.5, "num_cases": 6, "num_excluded": 0, "labels": {"1": 0.5}}


@pytest.mark.parametrize(
    "meta",
    [
        {"note": "Jane Doe"},
        {"num_examples": "Jane Doe"},
        {"num_patients": float("nan")},
        {"image_shape": list(range(1, 5000))},
        {"metrics": {"loss": 0.5, "Jane Doe": 1.0}},
        {"metrics": {"validation": SCORE | {"labels": {"Jane Doe": 0.5}}}},
        {"metrics": {"validation": SCORE | {"also": {"Jane Doe": 0.5}}}},
        {"metrics": {"validation": SCORE | {"by_case": {"patient_1": 0.5}}}},
        {"metrics": {"round_test": SCORE}},
        {"metrics": {"test": SCORE | {"value": "Jane Doe"}}},
        {"metrics": {"test": SCORE | {"num_patients": 1.5}}},
        {"metrics": {"test": SCORE | {"num_patients": 7}}},
        {"statistics": {"withheld": "Jane Doe"}},
        {"error": "no disk", "note": "Jane Doe"},
        {"error": "line 1\nline 2"},
        {"error": "Jane Doe " * 1000},
        {"error": {"Jane Doe": 1}},
    ],
)
def test_nothing_outside_the_schema_leaves(gate, meta):
    reason = gate().refusal(request(), Message(meta={"round": 1} | meta))
    assert reason.startswith("the site lets only the numbers of an answer leave") and "Jane" not in reason


def test_honest_numbers_and_reasons_leave(gate):
    metrics = {"loss": 0.5, "drift": 0.5, "validation": SCORE, "test": SCORE | {"num_patients": 5}}
    for meta in ({"metrics": metrics}, {"error": "no disk", "held": 3}):
        assert gate().refusal(request(), Message(meta={"round": 1} | meta)) is None


def test_a_reason_takes_no_arrays_along(gate, answer):
    message = Message(answer("weights").arrays, {"round": 1, "error": "no disk"})
    assert gate().refusal(request(), message) is not None


@pytest.mark.parametrize("task", ["validate", "test", "statistics", "anything"])
def test_weights_leave_only_in_answer_to_training(gate, answer, task):
    assert f"the answer to {task} held others" in gate().refusal(Request(task), answer("weights"))


@pytest.mark.parametrize(("kind", "name"), [*NAMES.items(), ("selector", "selector/square/network.head.weight")])
def test_array_is_known_by_name_and_kinds_have_purposes(gate, kind, name):
    here = gate(algorithm=SENDERS[kind])
    assert here.kind(name) == kind
    assert len(here.purpose(kind).split()) > 5 and here.purpose(kind) not in OTHERS.values()


def test_arrays_of_no_part_or_another_algorithm_are_unknown(gate):
    others = [NAMES["amplitude"], NAMES["statistics"], NAMES["selector"]]
    for name in ("image", "network.model.2.conv.weight", "model/image", "personal/network.x", "other/a", *others):
        assert gate().kind(name) == UNKNOWN, name
    assert gate().purpose(UNKNOWN) == OTHERS[UNKNOWN]


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_that_the_site_does_not_name_is_refused(gate, answer, kind):
    allowed = [other for other in KINDS if other != kind]
    reason = gate(algorithm=SENDERS[kind], may_leave=allowed).refusal(request(kind), answer(kind))
    assert f"not {kind}; the answer held 1 such arrays" in reason


def test_unknown_array_and_its_name_never_leave(gate, answer):
    message = Message(answer("weights").arrays | {"Jane Doe": UPDATE}, META)
    reason = gate().refusal(request(), message)
    assert "not unknown; the answer held 1 such arrays" in reason and "Jane" not in reason
    may = gate(may_leave=["weights", "unknown"])
    assert "not unknown" in may.refusal(request(), Message({"image": UPDATE}))


def test_numbers_alone_leave_even_where_no_array_may(gate, answer):
    assert gate(may_leave=[]).refusal(request(), Message(meta={"round": 1, "num_examples": 3})) is None
    assert "lets no arrays leave, not weights" in gate(may_leave=[]).refusal(request(), answer("weights"))


def test_refusal_may_leave_however_many_kinds_are_allowed(gate, answer):
    ready = "batchnorm amplitude statistics selector control survey evaluation usual_values".split()
    found = gate(may_leave=ready)
    reason = found.refusal(request(), answer("weights"))
    assert "the site lets only other kinds leave, not weights; the answer held" in reason
    assert found.refusal(request(), answer("weights").failed(reason)) is None


def test_batchnorm_stays_where_the_study_says_so(gate, answer):
    here = gate(algorithm={"name": "fedbn"}, may_leave=["weights", "batchnorm"])
    assert "not batchnorm" in here.refusal(request(), answer("batchnorm"))


@pytest.mark.parametrize("kind", ["amplitude", "statistics"])
def test_means_over_images_need_enough_patients(gate, answer, kind):
    here = gate(algorithm=SENDERS[kind], min_patients=12)
    for count in (11, 0, None):
        reason = here.refusal(request(kind), answer(kind, num_patients=count, num_examples=500))
        assert f"lets {kind} leave only from 12 patients or more" in reason
    assert here.refusal(request(kind), answer(kind, num_patients=12, num_examples=12)) is None
    # Weights of few patients may leave.
    assert here.refusal(request(), answer("weights", num_patients=1)) is None


def test_record_describes_the_array_and_its_digest(gate):
    name = NAMES["weights"]
    array, turned, _ = gate().records(
        Request("train"), Message({name: UPDATE, "b": np.asfortranarray(UPDATE)}, {"round": 3})
    )
    facts = {"round": 3, "task": "train", "refused": False, "name": name, "kind": "weights", "dtype": "float32"}
    # 4 numbers of 4 bytes; the digest of the bytes as they lie in memory by rows
    digest = hashlib.sha256(b"\0\0\x80?\0\0\0\xc0\0\0\0?\0\0\x80@").hexdigest()
    facts |= {"shape": [2, 2], "bytes": 16, "sha256": digest, "purpose": gate().purpose("weights")}
    assert array == facts and turned["sha256"] == digest


def test_numbers_are_one_more_record_with_nan_as_word(gate):
    (record,) = gate().records(Request("train"), Message(meta={"round": 2, "metrics": {"loss": float("nan")}}))
    assert record["values"] == {"round": 2, "metrics": {"loss": "NaN"}}
    assert (record["name"], record["purpose"]) == (NUMBERS, OTHERS[NUMBERS])
    assert record["bytes"] == len('{"round": 2, "metrics": {"loss": NaN}}')


def test_what_is_refused_is_recorded_with_the_reason(gate):
    records = gate().records(Request("train"), Message({"image": UPDATE}, {"round": 1}), "no")
    assert [(r["name"], r["refused"], r["reason"]) for r in records] == [("image", True, "no"), (NUMBERS, True, "no")]


@pytest.mark.parametrize(("precision", "others"), [("float32", {"float16", "float64"}), ("float16", {"float64"})])
def test_half_precision_leaves_only_where_the_study_asks_for_it(make_study, precision, others):
    study = make_study(name="fedavg")
    federation = study.federation.model_copy(update={"precision": precision})
    study = study.model_copy(update={"federation": federation})
    here, arrays = Gate.of(study, Site(data="/data", state_dir="/state")), honest(study)
    refused = {}
    for dtype in ("float16", "float32", "float64"):
        given = {name: array.astype(dtype) for name, array in arrays.items()}
        if reason := here.refusal(request(), Message(given, META)):
            refused[dtype] = reason
    assert refused.keys() == others and all("leave only as float32 of shape" in one for one in refused.values())
