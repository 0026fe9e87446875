import numpy as np
import pytest

from silofl.algorithms.advice.comparison import advise
from silofl.algorithms.advice.sketch import build_fixed_network, sketch
from silofl.core.findings import pack_rows
from silofl.data.parts import Examples
from silofl.settings import parse
from silofl.study import Study

FINDINGS = {
    "task": "multilabel",
    "labels": {0: "effusion", 1: "nodule"},
    "metric": "auroc",
    "model": {"name": "lenet5"},
    "training": {"loss": "cross_entropy"},
}
MAPS = {"task": "segmentation", "labels": {1: "organ", 2: "lesion"}, "model": {"features": [4] * 6}}


@pytest.fixture
def compare():
    """Compare sites by the targets of their images, which look alike."""

    def find(settings, targets, annotated=None):
        common = {"name": "small", "rounds": 1, "device": "cpu", "algorithm": {"name": "fedavg"}}
        study = parse(Study, common | settings, "study.yaml")
        network, sketches = build_fixed_network(study), {}
        for seed, (site, one) in enumerate(targets.items()):
            names = tuple(map(str, range(len(one))))
            images = np.random.default_rng(seed).random((len(one), 1, 32, 32), dtype=np.float32)
            shown = (annotated or {}).get(site)
            sketches[site] = sketch(
                site, Examples(images, one, names, (None,) * len(one), names, shown), study, network
            )
        return sketches, advise(sketches)

    return find


def has_findings(share, count=80):
    """Return targets of which a share has one of both findings, one as often as the other."""
    number = np.arange(count)
    return pack_rows((number < share * count)[:, None] & (number[:, None] % 2 == (0, 1)))


def test_findings_are_compared_by_the_share_of_the_images_that_have_each(compare):
    sketches, found = compare(FINDINGS, {"north": has_findings(0.9), "south": has_findings(0.1)})
    # 0.45 and 0.05 of the images have each finding; half of each counts, as two findings add up to 1.
    np.testing.assert_allclose(sketches["north"].portrait.labels, [0.225, 0.225, 0.275, 0.275])
    np.testing.assert_allclose(sketches["south"].portrait.labels, [0.025, 0.025, 0.475, 0.475])
    assert found.findings["labels"].is_yes


def test_findings_that_are_equally_frequent_do_not_differ(compare):
    assert not compare(FINDINGS, {"north": has_findings(0.5), "south": has_findings(0.5)})[1].findings["labels"].is_yes


def test_a_label_that_one_site_does_not_annotate_makes_no_difference(compare):
    drawn = np.zeros((24, 32, 32), np.uint8)
    for number, image in enumerate(drawn):
        image[4:12, 4 : 10 + number % 4] = 1
        image[16:30, 16 : 20 + number % 7] = 2
    maps = {"north": drawn, "south": np.where(drawn == 2, 0, drawn).astype(np.uint8)}
    _, found = compare(MAPS, maps, {"south": (1,)})
    assert not found.findings["labels"].is_yes
    assert found.notes == ("the sites annotate different labels; those are compared that all annotate: 1",)
