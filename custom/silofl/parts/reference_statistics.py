"""What is usual of the answers at each hospital, sent once beside the test, so that `predict` can tell what is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from silofl.base.errors import AggregationError, ConfigError
from silofl.core.mixing import Arrays
from silofl.core.spread import Spread
from silofl.inference.contents import Contents
from silofl.inference.directory import FOLDER, read_model_folder, write_model_folder
from silofl.inference.measured_reference import measure_reference_statistics
from silofl.inference.reference_statistics import FeatureSpread, ReferenceStatistics, bound_reference_statistics
from silofl.inference.super_model import SuperModel
from silofl.models import build_plain_model
from silofl.models.features import count_features
from silofl.models.roles import GLOBAL, add_role
from silofl.parts.answer import SiteAnswer
from silofl.parts.load import find_test_task
from silofl.parts.part import OutboundPayload, Outcome, Part, Run
from silofl.parts.task import ArraySpec, Exchange, Message, PayloadSpec
from silofl.parts.work import SitePart, Work
from silofl.reading.dicom_codes import STATED
from silofl.study import Study
from silofl.training.site_score import SiteScore

ROLE, KIND = "usual", "usual_values"
PURPOSE = (
    "means and deviations over validation cases, and how many those are: each label's size in the answers, the "
    "network's features (over training cases too); and DICOM's standard codes that enough patients have; sent once, so "
    "that predict can warn of an unusual answer"
)
RISK = (
    "the server, and whoever has the super model, sees how large organs and lesions are on average, and what the "
    "site's images look like to the network; min_patients, or may_leave without usual_values: predict then compares "
    "with the other sites alone"
)
# The models whose features a site sends: that of all sites, and its own or only one.
OWN = "own"
# A mean, a deviation, and the number of cases.
SPREAD = 3
CODES = tuple((what, code) for what, codes in STATED.items() for code in sorted(codes))


@dataclass(frozen=True)
class ReferenceStatisticsPart(Part):
    """What is usual at the sites, at the server.

    Attributes:
        study: The study.
        width: How many features its networks have.
        found: Site -> what is usual there; not in the checkpoint, because the run ends with the test.
    """

    study: Study
    width: int = 0
    found: dict[str, ReferenceStatistics] = field(default_factory=dict)
    role: str = ROLE
    outbound = (OutboundPayload(KIND, PURPOSE, RISK, ROLE, is_of_images=True, is_mixed=False),)

    @classmethod
    def start(cls, study: Study, sites: Sequence[str], pretrained: Arrays | None) -> Sequence[Part]:
        """Return the server half before the test."""
        return [cls(study, count_features(build_plain_model(study, study.seed)))]

    def payload_spec(self, site: str, exchange: Exchange, run: Run) -> PayloadSpec:
        """Return the arrays of the test's answer, all of which a site may keep back."""
        if exchange.task != find_test_task(self.study):
            return PayloadSpec()
        width = self.width
        shapes: dict[str, tuple[int, ...]] = {"codes": (len(CODES),)}
        if self.study.task == "segmentation":
            shapes["roots_ml"] = (len(self.study.labels), SPREAD)
        if width:
            names = [GLOBAL, OWN] if GLOBAL in self.study.recipe.roles else [OWN]
            for name in names:
                shapes |= {f"{name}.mean": (width,), f"{name}.variance": (width,), f"{name}.distance": (SPREAD,)}
        return PayloadSpec(add_role(ROLE, {name: ArraySpec(shape, dtype="float64") for name, shape in shapes.items()}))

    def checked(self, site: str, exchange: Exchange, answer: SiteAnswer, run: Run) -> ReferenceStatisticsPart:
        """Keep what a site says.

        Raises:
            AggregationError: Its numbers are no means and deviations.
        """
        arrays = answer.of(ROLE)
        if not arrays or exchange.task != find_test_task(self.study):
            return self
        try:
            return replace(self, found={**self.found, site: unpack_arrays(arrays, self.study)})
        except (ConfigError, KeyError) as error:
            raise AggregationError(
                f"site {site!r} sent reference statistics that are no means and deviations: {error}"
            ) from None

    def outcome(self, run: Run, tests: Mapping[str, SiteScore]) -> Outcome:
        """Add what is usual at the sites to the super model, as far as the other sites' make it likely."""
        return Outcome(complete=self._complete)

    def _complete(self, contents: Contents) -> Contents:
        reference_statistics = {}
        for site, of_site in sorted(self.found.items()):
            name = site if site in contents.models else GLOBAL
            reference_statistics[site] = _rename_features(of_site, {GLOBAL: GLOBAL, OWN: name})
        return replace(
            contents,
            reference_statistics=bound_reference_statistics(
                reference_statistics, self.study.federation.min_sites_for_ratio
            ),
        )


class SiteReferenceStatistics(SitePart):
    """A site's share: measured with the super model that it has just tested, which gets it too."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.tasks = (find_test_task(work.study),)

    def answer(self, task: str) -> Message:
        """Return what is usual, with the answer to a test; nothing of too few patients, or where it may not leave."""
        work = self.work
        contents = read_model_folder(work.folder / FOLDER)
        reference_statistics = measure_reference_statistics(
            SuperModel(contents, work.device), work.data, work.site, work.min_patients
        )
        if reference_statistics is None:
            return Message()
        # The site's own copy gets it even where nothing of it may leave.
        write_model_folder(
            work.folder / FOLDER, replace(contents, reference_statistics={work.site: reference_statistics})
        )
        if not work.has_enough_patients or not work.may_send(KIND):
            return Message()
        # Only these two leave: features of the other sites' models are of no use to them.
        sent = _rename_features(reference_statistics, {GLOBAL: GLOBAL, work.site: OWN})
        arrays = pack_arrays(sent, work.study)
        return Message(add_role(ROLE, arrays), {"num_patients": work.data.training.num_patients})


PART, SITE = ReferenceStatisticsPart, SiteReferenceStatistics


def pack_arrays(reference_statistics: ReferenceStatistics, study: Study) -> Arrays:
    """Return what is usual as arrays by their names within the role, but for the score, which stays at home."""
    arrays: dict[str, object] = {}
    if reference_statistics.roots_ml:
        arrays["roots_ml"] = [_pack(reference_statistics.roots_ml[label]) for _, label in sorted(study.labels.items())]
    for name, spread in (reference_statistics.features or {}).items():
        arrays[f"{name}.mean"] = spread.mean
        arrays[f"{name}.variance"] = spread.variance
        arrays[f"{name}.distance"] = _pack(spread.distance)
    if reference_statistics.codes:
        arrays["codes"] = [code in reference_statistics.codes.get(what, ()) for what, code in CODES]
    return {name: np.array(values, np.float64) for name, values in arrays.items()}


def unpack_arrays(arrays: Arrays, study: Study) -> ReferenceStatistics:
    """Return what `pack_arrays` packed.

    Raises:
        ConfigError: A deviation or a variance is below 0.
        KeyError: Features lack their distance.
    """
    labels = [label for _, label in sorted(study.labels.items())]
    roots_ml = None
    if "roots_ml" in arrays:
        rows = arrays["roots_ml"].tolist()
        roots_ml = {label: _unpack(row) for label, row in zip(labels, rows, strict=True)}
    features = {}
    for name in (GLOBAL, OWN):
        if f"{name}.mean" in arrays:
            features[name] = FeatureSpread(
                tuple(arrays[f"{name}.mean"].tolist()),
                tuple(arrays[f"{name}.variance"].tolist()),
                _unpack(arrays[f"{name}.distance"].tolist()),
            )
    codes: dict[str, tuple[str, ...]] = {}
    # A site may keep all codes back.
    for (attribute, code), is_stated in zip(CODES, arrays.get("codes", ()), strict=False):
        if is_stated:
            codes[attribute] = (*codes.get(attribute, ()), code)
    return ReferenceStatistics(roots_ml, features=features or None, codes=codes or None)


def _rename_features(reference_statistics: ReferenceStatistics, names: Mapping[str, str]) -> ReferenceStatistics:
    """Return what is usual with the features of some models only, under other names."""
    features = {}
    for name, spread in (reference_statistics.features or {}).items():
        if name in names:
            features[names[name]] = spread
    return replace(reference_statistics, features=features or None)


def _pack(spread: Spread) -> tuple[float, float, int]:
    return spread.mean, spread.deviation, spread.num_cases


def _unpack(numbers: Sequence[float]) -> Spread:
    mean, deviation, num_cases = numbers
    return Spread(mean, deviation, int(num_cases))
