"""A comparison of the sites' training data before the first round, and the algorithm that it speaks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, Strict

from silofl.algorithms.adafed import statistics_sizes
from silofl.algorithms.advice import KINDS, Advice, Portrait, Sketch, advise
from silofl.algorithms.mixing import Arrays
from silofl.errors import AggregationError
from silofl.methods.answer import Answer, Text
from silofl.methods.part import BEFORE, Exchange, Expected, Kind, Message, Part, Replies, Run, SitePart
from silofl.models.roles import of_role, with_role
from silofl.settings import Section
from silofl.study import Study
from silofl.training.sketch import SPLITS, fixed_network, sketch

ROLE = "advice"
FILE = "advice.json"
PURPOSE = (
    "mean frequency amplitude of the training images, means and variances of an untrained network's features, shares "
    "of the labels, and how far apart halves of the patients are in them; sent once, to compare sites and advise"
)
RISK = (
    "they tell the server the contrast, noise and stain of the site's images, how like other sites' they are, and how "
    "common each label is, and of few patients what they show; min_patients, or may_leave without advice"
)
Count = Annotated[int, Strict(), Field(ge=1, le=10**7)]


class Entry(Section):
    """What an answer says beside the arrays.

    Attributes:
        cases: Training cases.
        unit: What the halves are of.
        groups: Groups of these that halves are made of.
        withheld: Why the site shares nothing; empty where it does.
    """

    cases: Count = 1
    unit: Literal["patient", "case"] = "case"
    groups: Count = 1
    withheld: Text = ""


@dataclass(frozen=True)
class AdvicePart(Part):
    """The comparison at the server.

    Attributes:
        study: The study.
        sizes: Channels of each layer that sites are compared by.
        shape: Of the first amplitude that was accepted, which the others must have.
        advice: What came out as plain values; empty before.
        sentences: It in words.
    """

    study: Study
    sizes: tuple[int, ...]
    shape: tuple[int, ...] | None = None
    advice: dict[str, Any] = field(default_factory=dict)
    sentences: tuple[str, ...] = ()
    role: str = ROLE
    entry: ClassVar[type[Entry]] = Entry

    def asks(self, moment: str, number: int, run: Run) -> Sequence[Exchange]:
        """Ask all sites once, before the first round; a site that fails here keeps no round from running."""
        return (Exchange(ROLE, 0, is_needed=False),) if moment == BEFORE and number == 1 else ()

    def expected(self, site: str, exchange: Exchange, run: Run) -> Mapping[str, Expected]:
        """Return the arrays of a sketch: a site may keep back all or nothing."""
        if exchange.task != ROLE:
            return {}
        shape = self.shape
        if shape is None and run.image_shape:
            # The half spectrum that rfftn returns.
            shape = (*run.image_shape[:-1], run.image_shape[-1] // 2 + 1)
        origin = " as the other sites' images have it (name a Resize in data.transforms)"
        shapes = {"amplitude": shape, "labels": (1 + max(self.study.labels),)} | _shapes_of(self.sizes)
        return with_role(
            ROLE,
            {
                name: Expected(
                    wanted,
                    minimum=None if name.endswith("/mean") else 0,
                    origin=origin if name == "amplitude" else "",
                    dtype="float64",
                    num_bytes=8 * int(np.prod(wanted or ())),
                )
                for name, wanted in shapes.items()
            },
        )

    def checked(self, site: str, exchange: Exchange, answer: Answer, run: Run) -> AdvicePart:
        """Refuse a part of a sketch, and remember the first shape."""
        if exchange.task != ROLE or answer.entries[ROLE].withheld:
            return self
        missing = sorted(self.expected(site, exchange, run).keys() - answer.arrays.keys())
        if missing:
            raise AggregationError(f"site {site!r} must send all of a comparison; it lacks {missing}")
        return replace(self, shape=answer.arrays[f"{ROLE}/amplitude"].shape)

    def merged(
        self, exchange: Exchange, replies: Replies, weights_of: Callable[[str], NDArray], run: Run
    ) -> AdvicePart:
        """Compare the sites that answered."""
        if exchange.task != ROLE:
            return self
        withheld = {site: one.entries[ROLE].withheld for site, one in replies.accepted.items()}
        silent = replies.missing | replies.refused | {site: why for site, why in withheld.items() if why}
        without = tuple(f"site {site!r} is not compared: {reason}" for site, reason in silent.items())
        sketches = {site: _sketch(one, len(self.sizes)) for site, one in replies.accepted.items() if site not in silent}
        if len(sketches) < 2:
            return replace(self, sentences=("no advice: fewer than 2 sites shared what compares them", *without))
        found: Advice = advise(sketches, has_batchnorm=self.study.model.normalization == "batch")
        algorithm = ", ".join(f"{key}: {value}" for key, value in found.algorithm.items())
        sentences = (f"advised: algorithm: {{{algorithm}}}", *found.sentences(), *without)
        return replace(self, advice=found.as_dict() | {"not_compared": silent}, sentences=sentences)

    def notes(self, exchange: Exchange) -> Sequence[str]:
        """Return the advice in sentences."""
        return self.sentences if exchange.task == ROLE else ()

    def files(self) -> dict[str, Any]:
        """Return the advice with all its numbers."""
        return {FILE: self.advice} if self.advice else {}

    def state(self) -> dict[str, Any]:
        """Return a checkpoint."""
        return {"advice": self.advice, "sentences": list(self.sentences)}

    def restored(self, state: Mapping[str, Any]) -> AdvicePart:
        """Return what `state` described."""
        return replace(self, advice=state["advice"], sentences=tuple(state["sentences"]))


class SiteAdvice(SitePart):
    """A site's share of the comparison."""

    name = ROLE
    tasks = (ROLE,)

    def answer(self, task: str) -> Message:
        """Return the sketch of the training data, unless it would come from too few patients."""
        work = self.work
        training = work.data.training
        meta = {"num_patients": training.num_patients, "image_shape": list(training.image_shape)}
        if not work.has_enough_patients:
            return Message(meta=meta | {ROLE: {"withheld": f"fewer than {work.min_patients} patients in training"}})
        found = sketch(work.site, training, work.study, fixed_network(work.study))
        entry = {"cases": found.cases, "unit": found.unit, "groups": found.groups}
        return Message(with_role(ROLE, _arrays(found)), meta | {ROLE: entry})


def start(study: Study, sites: Sequence[str], pretrained: Arrays | None) -> list[Part]:
    """Return the server half before the comparison.

    Raises:
        ConfigError: The network has no layer to compare sites by.
    """
    return [AdvicePart(study, tuple(statistics_sizes(fixed_network(study), "all")))]


def kinds(study: Study) -> list[Kind]:
    """Return what leaves a site for it."""
    return [Kind("advice", PURPOSE, RISK, ROLE, is_of_images=True)]


SITE = SiteAdvice


def _shapes_of(sizes: Sequence[int]) -> dict[str, tuple[int, ...]]:
    layers = {f"{layer}/{kind}": (size,) for layer, size in enumerate(sizes) for kind in ("mean", "variance")}
    return layers | {f"within/{kind}": (SPLITS,) for kind in KINDS}


def _arrays(found: Sketch) -> Arrays:
    portrait = found.portrait
    layers = {
        f"{layer}/{kind}": values
        for layer, pair in enumerate(portrait.features)
        for kind, values in zip(("mean", "variance"), pair, strict=True)
    }
    within = {f"within/{kind}": values for kind, values in found.within.items()}
    arrays = {"amplitude": portrait.amplitude, "labels": portrait.labels} | layers | within
    return {name: np.asarray(values, np.float64) for name, values in arrays.items()}


def _sketch(answer: Answer, num_layers: int) -> Sketch:
    arrays, entry = of_role(ROLE, answer.arrays), answer.entries[ROLE]
    features = [(arrays[f"{layer}/mean"], arrays[f"{layer}/variance"]) for layer in range(num_layers)]
    # How many images there are decides nothing here.
    portrait = Portrait(1, arrays["amplitude"], features, arrays["labels"])
    return Sketch(portrait, {kind: arrays[f"within/{kind}"] for kind in KINDS}, entry.cases, entry.unit, entry.groups)
