"""Whole runs whose numbers travel in half precision."""

import numpy as np
import pytest

from silofl.base.files import load_tensors
from silofl.federation.model_files import save_models
from silofl.models.precision import round_as_received, widen_arrays
from silofl.parts.task import TRAIN


@pytest.fixture
def half(make_study):
    return make_study(federation={"precision": "float16"})


def test_changes_travel_in_half_and_add_to_full_precision(play, half):
    run, single = play(("east", "west"), study=half), play(("east", "west"), folder="single")
    begun = run.models("east")
    run.round()
    single.round()
    sent, answered = run.sent[TRAIN]["east"], run.answers[TRAIN]
    assert {array.dtype.name for array in [*sent.arrays.values(), *answered["west"].arrays.values()]} == {"float16"}
    assert sent.num_bytes == single.sent[TRAIN]["east"].num_bytes / 2
    examples = {site: answer.meta["num_examples"] for site, answer in answered.items()}
    for name, array in run.models("east").items():
        changes = [
            n * widen_arrays(answered[site].arrays, half)[name].astype(np.float64) for site, n in examples.items()
        ]
        np.testing.assert_allclose(array, begun[name] + sum(changes) / sum(examples.values()), rtol=1e-6, atol=1e-8)
        assert not np.array_equal(array, round_as_received({name: array}, half)[name]) or not array.any()


def test_the_models_that_are_written_are_those_that_sites_got(play, half, tmp_path):
    run = play(("east", "west"), study=half)
    run.round()
    save_models(tmp_path, "best", run.server, run.server.parts)
    written = load_tensors(tmp_path / "model" / "best.pt")
    for name, array in round_as_received(run.server.parts["model"].common, half).items():
        np.testing.assert_array_equal(written[name].numpy(), array)
