import numpy as np
import pytest

from silofl.core.divergence import measure_dissimilarity


def arrays(**values):
    return {name: np.float32(value) for name, value in values.items()}


def test_updates_that_agree_are_not_dissimilar_and_opposed_ones_are():
    alike = {"east": arrays(w=[3, 4]), "west": arrays(w=[3, 4])}
    assert measure_dissimilarity(alike, [0.5, 0.5]) == 1
    # (9 + 16) / 2 over the squared mean (1.5^2 + 2^2)
    across = {"east": arrays(w=[3, 0]), "west": arrays(w=[0, 4])}
    assert measure_dissimilarity(across, [0.5, 0.5]) == pytest.approx(12.5 / 6.25)
    # by weights 3 to 1: (2.25^2 + 1)
    assert measure_dissimilarity(across, [0.75, 0.25]) == pytest.approx(12.5 / 6.0625)


def test_updates_that_undo_each_other_and_none_have_no_dissimilarity():
    assert measure_dissimilarity({"east": arrays(w=[1]), "west": arrays(w=[-1])}, [0.5, 0.5]) is None
    assert measure_dissimilarity({"east": {}, "west": {}}, [0.5, 0.5]) is None


def test_running_buffers_do_not_count():
    updates = {"east": arrays(w=[1], mean=[9]), "west": arrays(w=[1], mean=[0])}
    assert measure_dissimilarity(updates, [0.5, 0.5], {"mean"}) == 1
