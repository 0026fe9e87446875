import numpy as np
import pytest

from silofl.base.settings import parse
from silofl.data.site_data import Examples
from silofl.study import Study

LABELS = {
    "segmentation": {1: "organ"},
    "classification": {0: "normal", 1: "benign", 2: "malignant"},
    "multilabel": {0: "effusion", 1: "nodule", 2: "mass"},
}


@pytest.fixture
def make_study():
    """Build a study by its task and what differs from the defaults."""

    def make(task="segmentation", **changes):
        settings = {"name": "small", "task": task, "labels": LABELS[task], "rounds": 1, "algorithm": {"name": "fedavg"}}
        if task != "segmentation":
            settings |= {"metric": "accuracy", "model": {"name": "densenet121"}, "training": {"loss": "cross_entropy"}}
        return parse(Study, settings | changes, "study.yaml")

    return make


@pytest.fixture
def make_part():
    """Build a part from targets; images are random unless given."""

    def make(targets, cases=None, images=None, size=(8, 8), seed=0):
        targets = np.asarray(targets)
        cases = tuple(cases or (f"case{i}" for i in range(len(targets))))
        if images is None:
            shape = (len(targets), 1, *(targets.shape[1:] or size))
            images = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
        return Examples(images, targets, cases, (None,) * len(targets), cases)

    return make
