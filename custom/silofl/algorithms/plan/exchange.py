"""Fingerprints of the sites' training data before the first round, and the plan for a study that they lead to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from silofl.algorithms.plan.patch import FEATURES, NetworkForm
from silofl.algorithms.plan.rules import Draft, make_plan
from silofl.base.errors import AggregationError, ConfigError
from silofl.base.settings import Natural
from silofl.core.mixing import Arrays
from silofl.data.data_fingerprint import NUM_BINS, NUM_INTENSITIES, DataFingerprint, measure_site, turned_axes
from silofl.data.manifest import Manifest
from silofl.models.roles import add_role
from silofl.parts.answer import SiteAnswer
from silofl.parts.asked_once import AskedEntry, AskedOnce, expect_float64, withhold_few_patients
from silofl.parts.checked_cast import checked_cast
from silofl.parts.part import Kind, Run, WeightsOf
from silofl.parts.task import Exchange, Expected, Message, Replies
from silofl.parts.work import SitePart
from silofl.study import Study

ROLE = "fingerprint"
FILE = "plan.json"
PURPOSE = (
    "quartiles over patients of spacing and size, percentiles, mean and deviation of intensities (CT: also a "
    "histogram), shares of the classes, and which channels there are; sent once, to plan one study for all sites"
)
RISK = (
    "the server sees the site's scanners and protocols, how common each label is and its mean size. With few patients "
    "it sees the image sizes of single ones; min_patients, or may_leave without fingerprint"
)


class FingerprintEntry(AskedEntry):
    """What an answer says beside the arrays.

    Attributes:
        few_channels: Numbers of the channels that it does not tell of, since too few patients have them.
        few_classes: Numbers of the classes likewise.
    """

    few_channels: Annotated[tuple[Natural, ...], Field(max_length=1000)] = ()
    few_classes: Annotated[tuple[Natural, ...], Field(max_length=1000)] = ()


@dataclass(frozen=True)
class PlanPart(AskedOnce):
    """The fingerprints at the server.

    Attributes:
        fingerprints: Site -> its own, while they come in.
    """

    fingerprints: Mapping[str, DataFingerprint] = field(default_factory=dict)
    role: str = ROLE
    entry: ClassVar[type[FingerprintEntry]] = FingerprintEntry
    file: ClassVar[str] = FILE
    what: ClassVar[str] = "a fingerprint"
    leaves = (Kind("fingerprint", PURPOSE, RISK, ROLE, is_of_images=True, is_bounded=True),)

    def arrays(self, run: Run) -> Mapping[str, Expected]:
        """Return the arrays of a fingerprint."""
        channels = self.study.data.channels
        wanted = {"histogram": expect_float64((NUM_BINS,))} if make_draft(self.study).is_ct else {}
        return wanted | {
            "spacing_mm": expect_float64((3, 3), minimum=0.001),
            "shape": expect_float64((3, 3), minimum=1),
            "intensity": expect_float64((channels, NUM_INTENSITIES), minimum=None),
            "channels": expect_float64((channels,)),
            "classes": expect_float64((1 + max(self.study.labels),)),
        }

    def checked(self, site: str, exchange: Exchange, answer: SiteAnswer, run: Run) -> PlanPart:
        """Keep a fingerprint; refuse a part of one, and one that no images have."""
        if not self.is_shared(site, exchange, answer, run):
            return self
        try:
            said = answer.entry(ROLE, FingerprintEntry)
            arrays: dict[str, Any] = dict(answer.of(ROLE))
            found = DataFingerprint(said.cases, **arrays)
            found = replace(found, few_channels=said.few_channels, few_classes=said.few_classes)
        except ConfigError as error:
            raise AggregationError(f"site {site!r}: {error}") from None
        return replace(self, fingerprints={**self.fingerprints, site: found})

    def merged(self, exchange: Exchange, replies: Replies, weights_of: WeightsOf, run: Run) -> PlanPart:
        """Plan with the sites that answered."""
        if exchange.task != ROLE:
            return self
        silent = self.find_silent_sites(replies)
        without = tuple(f"site {site!r} is not planned with: {reason}" for site, reason in silent.items())
        known = {site: self.fingerprints[site] for site in replies.accepted if site not in silent}
        try:
            found = make_plan(make_draft(self.study), known, self.study.federation.min_sites_for_ratio)
        except ConfigError as error:
            return replace(self, fingerprints={}, sentences=(f"no plan: {error}", *without))
        plan = found.as_dict() | {"not_planned_with": silent}
        return replace(self, fingerprints={}, document=plan, sentences=(*found.sentences(), *without))


class SiteFingerprint(SitePart):
    """A site's share of the plan."""

    name = ROLE
    tasks = (ROLE,)

    def answer(self, task: str) -> Message:
        """Return the fingerprint of the training data, unless it would come from too few patients."""
        work = self.work
        meta = {"num_patients": work.data.training.num_patients}
        if withheld := withhold_few_patients(work, ROLE, meta):
            return withheld
        found = measure_site(
            checked_cast(work.data.manifest, Manifest), work.study, work.min_patients, has_progress=False
        )
        arrays = pack_fingerprint(found, with_histogram=make_draft(work.study).is_ct)
        few = {key: list(getattr(found, key)) for key in ("few_channels", "few_classes") if getattr(found, key)}
        return Message(add_role(ROLE, arrays), meta | {ROLE: {"cases": found.cases} | few})


def make_draft(study: Study) -> Draft:
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
        network=NetworkForm.of(name, features, study.task != "segmentation", data.dimensions),
        has_square_sides=any(step.name == "RandRotate90" for step in data.augment),
    )


def pack_fingerprint(found: DataFingerprint, with_histogram: bool) -> Arrays:
    """Return a fingerprint's arrays by the names under which they travel in their role."""
    names = ("spacing_mm", "shape", "intensity", "channels", "classes", *(["histogram"] if with_histogram else []))
    return {name: np.asarray(getattr(found, name), np.float64) for name in names}


PART, SITE = PlanPart, SiteFingerprint
