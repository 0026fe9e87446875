"""A comparison of the sites' training data before the first round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from silofl.algorithms.adafed import statistics_sizes
from silofl.algorithms.advice.comparison import KINDS, Portrait, Sketch, advise
from silofl.algorithms.advice.sketch import SPLITS, build_fixed_network, sketch
from silofl.algorithms.harmofl.amplitude import expect_spectrum
from silofl.core.mixing import Arrays
from silofl.models.roles import add_role, select_role
from silofl.parts.answer import Count, SiteAnswer
from silofl.parts.asked_once import AskedEntry, AskedOnce, expect_float64, withhold_few_patients
from silofl.parts.part import Kind, Part, Run, WeightsOf
from silofl.parts.task import Exchange, Expected, Message, Replies
from silofl.parts.work import SitePart
from silofl.study import Study

ROLE = "advice"
FILE = "advice.json"
PURPOSE = (
    "mean frequency amplitude of the training images, means and variances of an untrained network's features, shares "
    "of the labels, and how far apart halves of the patients are in them; sent once, to compare sites"
)
RISK = (
    "they show the server the images' contrast, noise and stain, how like other sites' they are, and how common each "
    "label is, and of few patients what they show; min_patients, or may_leave without advice"
)


class AdviceEntry(AskedEntry):
    """What an answer says beside the arrays.

    Attributes:
        unit: What the halves are of.
        groups: Groups of these that halves are made of.
        annotated: The labels that the label maps show; None for all.
    """

    unit: Literal["patient", "case"] = "case"
    groups: Count = 1
    annotated: tuple[Count, ...] | None = None


@dataclass(frozen=True)
class AdvicePart(AskedOnce):
    """The comparison at the server.

    Attributes:
        sizes: Channels of each layer that sites are compared by.
        shape: Of the first amplitude that was accepted, which the others must have.
    """

    sizes: tuple[int, ...] = ()
    shape: tuple[int, ...] | None = None
    role: str = ROLE
    entry: ClassVar[type[AdviceEntry]] = AdviceEntry
    file: ClassVar[str] = FILE
    what: ClassVar[str] = "a comparison"
    leaves = (Kind("advice", PURPOSE, RISK, ROLE, is_of_images=True),)

    @classmethod
    def start(cls, study: Study, sites: Sequence[str], pretrained: Arrays | None) -> Sequence[Part]:
        """Return the server half before the comparison.

        Raises:
            ConfigError: The network has no layer to compare sites by.
        """
        return [cls(study, sizes=tuple(statistics_sizes(build_fixed_network(study), "all")))]

    def arrays(self, run: Run) -> Mapping[str, Expected]:
        """Return the arrays of a sketch."""
        others = _list_shapes(self.sizes, (1 + max(self.study.labels)) * (2 if self.study.is_multilabel else 1))
        return {"amplitude": expect_spectrum(self.shape, run, "float64")} | {
            name: expect_float64(wanted, minimum=None if name.endswith("/mean") else 0)
            for name, wanted in others.items()
        }

    def checked(self, site: str, exchange: Exchange, answer: SiteAnswer, run: Run) -> AdvicePart:
        """Refuse a part of a sketch, and remember the first shape."""
        is_shared = self.is_shared(site, exchange, answer, run)
        return replace(self, shape=answer.arrays[f"{ROLE}/amplitude"].shape) if is_shared else self

    def merged(self, exchange: Exchange, replies: Replies, weights_of: WeightsOf, run: Run) -> AdvicePart:
        """Compare the sites that answered."""
        if exchange.task != ROLE:
            return self
        silent = self.find_silent_sites(replies)
        without = tuple(f"site {site!r} is not compared: {reason}" for site, reason in silent.items())
        sketches = {
            site: _unpack_sketch(one, len(self.sizes)) for site, one in replies.accepted.items() if site not in silent
        }
        if len(sketches) < 2:
            return replace(self, sentences=("no comparison: fewer than 2 sites shared what compares them", *without))
        found = advise(sketches)
        document = found.as_dict() | {"not_compared": silent}
        return replace(self, document=document, sentences=(*found.sentences(), *without))


class SiteAdvice(SitePart):
    """A site's share of the comparison."""

    name = ROLE
    tasks = (ROLE,)

    def answer(self, task: str) -> Message:
        """Return the sketch of the training data, unless it would come from too few patients."""
        work = self.work
        training = work.data.training
        meta = {"num_patients": training.num_patients, "image_shape": list(training.image_shape)}
        if withheld := withhold_few_patients(work, ROLE, meta):
            return withheld
        found = sketch(work.site, training, work.study, build_fixed_network(work.study))
        annotated = found.annotated and list(found.annotated)
        entry = {"cases": found.cases, "unit": found.unit, "groups": found.groups, "annotated": annotated}
        return Message(add_role(ROLE, _pack_sketch(found)), meta | {ROLE: entry})


PART, SITE = AdvicePart, SiteAdvice


def _list_shapes(sizes: Sequence[int], num_labels: int) -> dict[str, tuple[int, ...]]:
    layers: dict[str, tuple[int, ...]] = {
        f"{layer}/{kind}": (size,) for layer, size in enumerate(sizes) for kind in ("mean", "variance")
    }
    within = {f"within/{kind}": (SPLITS, num_labels) if kind == "labels" else (SPLITS,) for kind in KINDS}
    return {"labels": (num_labels,)} | layers | within


def _pack_sketch(found: Sketch) -> Arrays:
    portrait = found.portrait
    layers = {
        f"{layer}/{kind}": values
        for layer, pair in enumerate(portrait.features)
        for kind, values in zip(("mean", "variance"), pair, strict=True)
    }
    within = {f"within/{kind}": values for kind, values in found.within.items()}
    arrays = {"amplitude": portrait.amplitude, "labels": portrait.labels} | layers | within
    return {name: np.asarray(values, np.float64) for name, values in arrays.items()}


def _unpack_sketch(answer: SiteAnswer, num_layers: int) -> Sketch:
    arrays, entry = select_role(ROLE, answer.arrays), answer.entry(ROLE, AdviceEntry)
    features = [(arrays[f"{layer}/mean"], arrays[f"{layer}/variance"]) for layer in range(num_layers)]
    # How many images there are decides nothing here.
    portrait = Portrait(1, arrays["amplitude"], features, arrays["labels"])
    within = {kind: arrays[f"within/{kind}"] for kind in KINDS}
    return Sketch(portrait, within, entry.cases, entry.unit, entry.groups, entry.annotated)
