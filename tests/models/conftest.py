import pytest

from silofl.base.settings import parse
from silofl.study import Study

FEATURES = [16, 8, 8, 8, 12, 16]


@pytest.fixture
def make_study():
    """Build a study by its network, its algorithm and what differs from the defaults."""

    def make(
        network="unet",
        normalization="batch",
        algorithm=None,
        labels=None,
        channels=1,
        neighbours=0,
        federation=None,
        **model,
    ):
        is_unet = network == "unet"
        settings = {
            "name": "small",
            "task": "segmentation" if is_unet else "classification",
            "labels": labels or ({1: "organ", 2: "lesion"} if is_unet else {0: "normal", 1: "benign", 2: "malignant"}),
            "rounds": 1,
            "data": {"channels": channels, "neighbours": neighbours},
            "model": {"name": network, "normalization": normalization, **model},
            "algorithm": algorithm or {"name": "fedavg"},
            "federation": federation or {},
        }
        if is_unet:
            settings["model"] = {"features": FEATURES, **settings["model"]}
        else:
            settings |= {"metric": "accuracy", "training": {"loss": "cross_entropy"}}
        return parse(Study, settings, "study.yaml")

    return make
