import pytest

from silofl.base.errors import AggregationError
from silofl.base.schema import dump_record
from silofl.parts.answer import LONGEST_META, LONGEST_TEXT, explain_refusal, plain_text, read_answer
from silofl.parts.asked_once import Withheld

SCORE = {
    "value": 0.75,
    "num_cases": 4,
    "num_excluded": 0,
    "labels": {"0": 1.0, "2": 0.5},
    "also": {"accuracy": 0.75, "auroc": 0.9},
    "label_cases": {"0": 2, "2": 2},
}
NUMBERS = {"round": 2, "num_examples": 5, "num_patients": 3, "image_shape": [1, 32, 32], "steps": 3}


def read(test=None, **changes):
    metrics = {"loss": 0.5, "loss_selector": 1, "drift": 0.25, "validation": None, "test": test}
    return read_answer("east", {}, NUMBERS | {"metrics": metrics} | changes, {"statistics": Withheld})


def test_an_answer_is_read_as_it_was_sent():
    answer = read(SCORE, statistics={"withheld": "policy"})
    assert answer.numbers.model_dump(exclude={"metrics"}) == NUMBERS | {
        "image_shape": (1, 32, 32),
        "software": None,
        "min_partners": 0,
        "shares_models": False,
        "unreadable": {},
        "rehearsal": None,
    }
    assert answer.numbers.metrics.training == {"loss": 0.5, "drift": 0.25, "loss_selector": 1.0}
    assert answer.numbers.metrics.validation is None and dump_record(answer.numbers.metrics.test) == SCORE
    assert answer.entries["statistics"].withheld == "policy" and read().entries["statistics"].withheld == ""


def test_images_up_to_the_largest_size_pass():
    assert read(image_shape=[1, 16384, 16384]).numbers.image_shape == (1, 16384, 16384)
    for shape in ([2, 16384, 16384], [1, 1024, 1024, 512]):
        with pytest.raises(AggregationError, match="image_shape must be of at most 268435456 pixels or voxels of all"):
            read(image_shape=shape)


SURFACE = {"hd95": 12.5, "surface_dice": 0.5, "num_cases": 3, "num_undefined": 1, "unit": "mm"}


EXTRA = {"value": 0.5, "num_cases": 3}


def surface(message, **changes):
    return {"surface": SURFACE | changes}, f"metrics.test.surface.{message}"


def extra(message, **changes):
    return {"extra_metrics": {"a": EXTRA | changes}}, f"metrics.test.extra_metrics.a.{message}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"value": float("nan")}, "metrics.test.value must be a finite number, not nan"),
        ({"value": 99}, "metrics.test.value must be less than or equal to 1, not 99"),
        ({"value": None}, "value must be null where no case counts and only there, not None of 4"),
        ({"num_cases": 0}, "value must be null where no case counts and only there, not 0.75 of 0"),
        ({"by_case": {"Doe": 1.0}}, "metrics.test.by_case is not a known key"),
        ({"also": {"auroc": float("nan")}}, "metrics.test.also.auroc must be a finite number"),
        ({"also": {"auroc": "0.9"}}, "metrics.test.also.auroc must be a valid number, not '0.9'"),
        ({"also": [0.9]}, "metrics.test.also must be "),
        ({"also": {"a\nb": 0.9}}, "must "),
        ({"labels": {"0": None, "2": 0.5}}, "metrics.test.labels.0 must be a valid number, not None"),
        ({"label_cases": {"0": 2.5, "2": 2}}, "metrics.test.label_cases.0 must be a valid integer, not 2.5"),
        ({"label_cases": {"0": -1, "2": 2}}, "metrics.test.label_cases.0 must be greater than or equal to 0, not -1"),
        ({"label_cases": {"0": True, "2": 2}}, "metrics.test.label_cases.0 must be a valid integer, not True"),
        ({"label_cases": {"0": 2}}, r"label_cases must be given for the labels \['0', '2'\], not for \['0'\]"),
        surface("hd95 must be less than or equal to 100000, not 1000000", hd95=1e6),
        surface("unit must be 'mm' or 'pixels', not 'miles'", unit="miles"),
        surface("hd95 must be greater than or equal to 0, not -1", hd95=-1.0),
        surface("hd95 must be ", hd95=float("inf")),
        surface("surface_dice must be less than or equal to 1, not 1.5", surface_dice=1.5),
        ({"surface": SURFACE | {"hd95": None}}, "must be null where no case counts .* not None and 0.5 of 3"),
        ({"surface": SURFACE | {"num_cases": 0}}, "must be null where no case counts .* not 12.5 and 0.5 of 0"),
        surface("by_case is not a known key", by_case={"Doe": 1.0}),
        extra("value must be less than or equal to 1, not 1.5", value=1.5),
        extra("value must be greater than or equal to 0, not -0.5", value=-0.5),
        extra("value must be ", value=float("nan")),
        ({"extra_metrics": {"a": EXTRA | {"value": None}}}, "or the metric has failed, .* not None of 3"),
        ({"extra_metrics": {"a": EXTRA | {"num_cases": 0}}}, "or the metric has failed, .* not 0.5 of 0"),
        ({"extra_metrics": {"a": EXTRA | {"has_failed": True}}}, "or the metric has failed, .* not 0.5 of 3"),
        extra("has_failed must be ", has_failed="division by zero at Doe"),
        extra("reason is not a known key", reason="Doe"),
    ],
)
def test_a_malformed_score_is_refused_with_site_and_key(changes, message):
    with pytest.raises(AggregationError, match=f"the answer of site 'east'.*{message}"):
        read(SCORE | changes)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"round": None}, "the answer of site 'east': round must be a valid integer, not None"),
        ({"num_examples": 10**12}, "num_examples must be less than or equal to 10000000, not 1000000000000"),
        ({"image_shape": [1, 32]}, "image_shape must be at least 3 values, not [1, 32]"),
        ({"image_shape": [1, 32, 10**6]}, "image_shape.2 must be less than or equal to 16384, not 1000000"),
        ({"metrics": 5}, "metrics must be keys and values, not 5"),
        ({"metrics": {"loss": 10**400}}, "metrics.loss must be a valid number, not 1000"),
        ({"metrics": {"loss_": 1.0}}, "metrics.loss_"),
        ({"metrics": {"patient": 1.0}}, "metrics.patient"),
        ({"statistics": "none"}, "statistics must be keys and values, not str"),
        ({"statistics": {"withheld": 5}}, "statistics: withheld must be a text, not 5"),
        ({"selector": {}}, "selector is not a known key"),
        pytest.param({"round": 10**5000}, "holds other things than plain numbers and texts", id="5000 digits"),
        ({"round": {1, 2}}, "holds other things than plain numbers and texts"),
        ({"metrics": {"loss": "x" * LONGEST_META}}, f"has more than {LONGEST_META} characters"),
    ],
)
def test_numbers_that_are_none_are_refused_with_site_and_key(changes, sentence):
    with pytest.raises(AggregationError) as caught:
        read(**changes)
    assert str(caught.value).startswith("the answer of site 'east'") and sentence in str(caught.value)


def test_a_list_within_lists_without_end_is_refused():
    endless = []
    endless.append(endless)
    with pytest.raises(AggregationError, match="the answer of site 'east' holds other things than plain numbers"):
        read(metrics=endless)
    for _ in range(10**5):
        endless = [endless]
    with pytest.raises(AggregationError, match="the answer of site 'east' holds other things than plain numbers"):
        read(metrics=endless)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("no\x1b[31m GPU\r\n\tat all\x00", "no [31m GPU at all"),
        ("x" * 10**7, "x" * (LONGEST_TEXT - 3) + "..."),
        (["no", "GPU"], "['no', 'GPU']"),
        (10**5000, "a int that cannot be written"),
    ],
    ids=["control characters", "10 MB", "a list", "5000 digits"],
)
def test_a_sites_text_becomes_one_bounded_line(value, text):
    assert plain_text(value) == text


def test_a_refusals_reason_is_a_line_naming_the_site():
    assert explain_refusal("east", AggregationError("it\nis so")) == "it is so"
    reason = explain_refusal("east", TypeError("unhashable" * 1000))
    assert reason.startswith("the answer of site 'east' cannot be read (TypeError: unhashable")
    assert len(reason) == LONGEST_TEXT


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ("volumes", "the answer of site 'east': domain: the content must be keys and values"),
        ({"kinds": ["holograms"]}, "site 'east': domain: kinds.0 must be pictures, volumes, windows"),
        ({"modalities": ["Doe^Jane"]}, "site 'east': domain: modalities.0 must be"),
        ({"axes": ["/home/jane"]}, "site 'east': domain: axes must be three letters as 'LPS', not '/home/jane'"),
        ({"path": "/home/jane"}, "site 'east': domain: path is not a known key"),
        ({"intensities": [{"measure": "mean", "low": 0, "high": float("nan")}]}, "intensities.0.high must be between"),
        ({"intensities": [{"measure": "mean", "low": 1, "high": 0}]}, "mean must be a finite range, not 1 to 0"),
        ({"intensities": [{"measure": "mean", "low": float("-inf"), "high": 0}]}, "intensities.0.low must be between"),
    ],
)
def test_a_domain_that_is_none_is_refused_with_the_site(sent, message):
    with pytest.raises(AggregationError, match=message):
        read(domain=sent)
