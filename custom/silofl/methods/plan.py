"""Fingerprints of the sites' training data before the first round, and the plan for a study that they lead to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, Strict

from silofl.algorithms.data_fingerprint import NUM_INTENSITIES, DataFingerprint
from silofl.algorithms.mixing import Arrays
from silofl.algorithms.plan import Draft, make_plan
from silofl.algorithms.planned_patch import FEATURES, NetworkForm
from silofl.data.data_fingerprint import measure_site, turned_axes
from silofl.errors import AggregationError, ConfigError
from silofl.methods.answer import Answer, Text
from silofl.methods.part import BEFORE, Exchange, Expected, Kind, Message, Part, Replies, Run, SitePart
from silofl.models.roles import with_role
from silofl.settings import Section
from silofl.study import Study

ROLE = "fingerprint"
FILE = "plan.json"
PURPOSE = (
    "quartiles over the patients of spacing and size of the training images, percentiles, mean and deviation of the "
    "intensities, shares of the classes, and which channels there are; sent once, to plan one study for all sites"
)
RISK = (
    "they tell the server the site's scanners and protocols, how common each label is and its mean size, and of few "
    "patients whose images have which size; min_patients, or may_leave without fingerprint"
)
Count = Annotated[int, Strict(), Field(ge=1, le=10**7)]


class Entry(Section):
    """What an answer says beside the arrays.

    Attributes:
        cases: Training cases.
        withheld: Why the site shares nothing; empty where it does.
    """

    cases: Count = 1
    withheld: Text = ""


@dataclass(frozen=True)
class PlanPart(Part):
    """The fingerprints at the server.

    Attributes:
        study: The study that the plan begins with.
        fingerprints: Site -> its own, while they come in.
        plan: What came out as plain values; empty before.
        sentences: It in words.
    """

    study: Study
    fingerprints: Mapping[str, DataFingerprint] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    sentences: tuple[str, ...] = ()
    role: str = ROLE
    entry: ClassVar[type[Entry]] = Entry

    def asks(self, moment: str, number: int, run: Run) -> Sequence[Exchange]:
        """Ask all sites once, before the first round; a site that fails here keeps no round from running."""
        return (Exchange(ROLE, 0, is_needed=False),) if moment == BEFORE and number == 1 else ()

    def expected(self, site: str, exchange: Exchange, run: Run) -> Mapping[str, Expected]:
        """Return the arrays of a fingerprint: a site may keep back all or nothing."""
        if exchange.task != ROLE:
            return {}
        channels = self.study.data.channels
        shapes = {
            "spacing_mm": (3, 3),
            "shape": (3, 3),
            "intensity": (channels, NUM_INTENSITIES),
            "channels": (channels,),
            "classes": (1 + max(self.study.labels),),
        }
        return with_role(
            ROLE,
            {
                name: Expected(
                    shape,
                    minimum=None if name == "intensity" else 0,
                    dtype="float64",
                    num_bytes=8 * int(np.prod(shape)),
                )
                for name, shape in shapes.items()
            },
        )

    def checked(self, site: str, exchange: Exchange, answer: Answer, run: Run) -> PlanPart:
        """Keep a fingerprint; refuse a part of one, and one that no images have."""
        if exchange.task != ROLE or answer.entries[ROLE].withheld:
            return self
        missing = sorted(self.expected(site, exchange, run).keys() - answer.arrays.keys())
        if missing:
            raise AggregationError(f"site {site!r} must send all of a fingerprint; it lacks {missing}")
        try:
            found = DataFingerprint(answer.entries[ROLE].cases, **answer.of(ROLE))
        except ConfigError as error:
            raise AggregationError(f"site {site!r}: {error}") from None
        return replace(self, fingerprints={**self.fingerprints, site: found})

    def merged(self, exchange: Exchange, replies: Replies, weights_of: Callable[[str], NDArray], run: Run) -> PlanPart:
        """Plan with the sites that answered."""
        if exchange.task != ROLE:
            return self
        withheld = {site: one.entries[ROLE].withheld for site, one in replies.accepted.items()}
        silent = replies.missing | replies.refused | {site: why for site, why in withheld.items() if why}
        without = tuple(f"site {site!r} is not planned with: {reason}" for site, reason in silent.items())
        known = {site: self.fingerprints[site] for site in replies.accepted if site not in silent}
        try:
            found = make_plan(draft_of(self.study), known)
        except ConfigError as error:
            return replace(self, fingerprints={}, sentences=(f"no plan: {error}", *without))
        plan = found.as_dict() | {"not_planned_with": silent}
        return replace(self, fingerprints={}, plan=plan, sentences=(*found.sentences(), *without))

    def notes(self, exchange: Exchange) -> Sequence[str]:
        """Return the plan in sentences."""
        return self.sentences if exchange.task == ROLE else ()

    def files(self) -> dict[str, Any]:
        """Return the plan, from which ``silofl plan --plan`` writes a job."""
        return {FILE: self.plan} if self.plan else {}

    def state(self) -> dict[str, Any]:
        """Return a checkpoint."""
        return {"plan": self.plan, "sentences": list(self.sentences)}

    def restored(self, state: Mapping[str, Any]) -> PlanPart:
        """Return what `state` described."""
        return replace(self, plan=state["plan"], sentences=tuple(state["sentences"]))


class SiteFingerprint(SitePart):
    """A site's share of the plan."""

    name = ROLE
    tasks = (ROLE,)

    def answer(self, task: str) -> Message:
        """Return the fingerprint of the training data, unless it would come from too few patients."""
        work = self.work
        meta = {"num_patients": work.data.training.num_patients}
        if not work.has_enough_patients:
            return Message(meta=meta | {ROLE: {"withheld": f"fewer than {work.min_patients} patients in training"}})
        found = measure_site(work.data.manifest, work.study, work.min_patients, has_progress=False)
        return Message(with_role(ROLE, arrays_of(found)), meta | {ROLE: {"cases": found.cases}})


def draft_of(study: Study) -> Draft:
    """Return the choices of a study that a plan begins with."""
    data, model = study.data, study.model
    name, is_unet = (model.network or model.name).rpartition(".")[2], model.network is None and model.name == "unet"
    # BasicUNet's last number is of its last layer and not of a level.
    features = model.features[:-1] if is_unet else FEATURES
    return Draft(
        dimensions=data.dimensions,
        task=study.task,
        labels=study.labels,
        channel_names=data.channel_names,
        modality=data.modality,
        intensity=data.intensity,
        axes=turned_axes(study),
        network=NetworkForm.of(name, features, study.task == "classification", data.dimensions),
        has_square_sides=any(step.name == "RandRotate90" for step in data.augment),
    )


def arrays_of(found: DataFingerprint) -> Arrays:
    """Return a fingerprint's arrays by the names under which they travel in their role."""
    names = ("spacing_mm", "shape", "intensity", "channels", "classes")
    return {name: np.asarray(getattr(found, name), np.float64) for name in names}


def start(study: Study, sites: Sequence[str], pretrained: Arrays | None) -> list[Part]:
    """Return the server half before any fingerprint.

    Raises:
        ConfigError: The study's data are windows of time series.
    """
    return [PlanPart(study)]


def kinds(study: Study) -> list[Kind]:
    """Return what leaves a site for it."""
    return [Kind("fingerprint", PURPOSE, RISK, ROLE, is_of_images=True)]


SITE = SiteFingerprint
