"""A model's answers to a site's labelled cases, each as a clinic would get it, with its score."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from silofl.core.lesions import LesionCounts, count_lesions
from silofl.data.decoder import end_decoder
from silofl.data.domain import Form
from silofl.data.images import Image
from silofl.data.manifest import Manifest
from silofl.data.parts import Examples
from silofl.data.preparation import Preparation, build_preparation, read_label_map
from silofl.data.prepared_image import prepare_with_way_back
from silofl.data.records import Record
from silofl.data.site_data import SiteData
from silofl.data.transforms import CROPS
from silofl.errors import DataError
from silofl.inference.geometry import check_is_not_blank, decide_answers, map_to_input
from silofl.inference.prediction import MM3_IN_ML, CaseAnswer, measure_case_ml
from silofl.inference.super_model import SuperModel
from silofl.training.evaluation import score_predictions, select_regions
from silofl.training.metrics import Label, Score, group_positions, leave_out_ignored, mask_labels
from silofl.training.surface import surface_by_case
from silofl.training.units import Units, find_units

# Of a voxel that went through a study's transforms and back: what is below it was cropped away.
HALF = 0.5


@dataclass(frozen=True)
class LabelMeasures:
    """What is measured of a label, or region, in one case.

    Attributes:
        lesions: Its connected components.
        predicted: Its predicted size, in millilitres, or in pixels where a voxel's size is not known.
        true: Its true size.
        distances: HD95 and surface Dice; None where truth or prediction lacks it.
        cut_away: Share of its true voxels in the file that the study's transforms crop away; nothing else counts them.
    """

    lesions: LesionCounts
    predicted: float
    true: float
    distances: tuple[float, float] | None
    cut_away: float = 0.0


@dataclass(frozen=True)
class EvaluatedCase:
    """A case with its answer's score.

    Attributes:
        case: Its name.
        part: The part of the site's data.
        model: Whose model answered.
        warnings: Why the answer may mean nothing.
        score: The study's metric of this case.
        labels: Segmentation: label, or region -> its measures.
        do_not_use: Why the study's rule forbids to use the answer; None where it states no rule.
    """

    case: str
    part: str
    model: str
    warnings: tuple[str, ...]
    score: Score
    labels: Mapping[Label, LabelMeasures]
    do_not_use: tuple[str, ...] | None = None


@dataclass(frozen=True)
class RefusedCase:
    """A case that the model does not answer.

    Attributes:
        case: Its name.
        part: The part of the site's data.
        reason: One sentence.
    """

    case: str
    part: str
    reason: str


@dataclass(frozen=True)
class SiteCases:
    """The labelled cases of a site that are evaluated.

    Attributes:
        data: The site's data, which know the images' files.
        parts: Name of a part -> its examples.
        units: What counts once in an interval.
    """

    data: SiteData
    parts: Mapping[str, Examples]
    units: Units

    @classmethod
    def of(cls, data: SiteData, names: Sequence[str]) -> Self:
        """Take the parts of some names that hold a case."""
        parts = {name: part for name in names if len(part := getattr(data, name))}
        patients = {case: patient for part in parts.values() for case, patient in part.patient_of.items()}
        records = [record for name in parts for record in data.manifest.parts[name]]
        return cls(data, parts, find_units(patients, records))

    @property
    def num_cases(self) -> int:
        """How many they are."""
        return len(self.units.unit_of)

    @property
    def has_sizes(self) -> bool:
        """Whether all state their voxels' size: sizes and distances are then in millilitres and mm."""
        return all(part.spacings.keys() >= {*part.cases} for part in self.parts.values())

    def select(self, name: str, case: str) -> Examples:
        """Return the examples of one case of a part."""
        part = self.parts[name]
        return part.select_rows([row for row, one in enumerate(part.cases) if one == case])


def evaluate_cases(model: SuperModel, site: SiteCases) -> Iterator[EvaluatedCase | RefusedCase]:
    """Answer each case as `SuperModel.predict` does, and score it on its prepared images."""
    study = model.contents.study
    steps = build_preparation(study, has_label_map=False)
    for name, part in site.parts.items():
        records = {record.case: record for record in site.data.manifest.parts[name]}
        for case, rows in group_positions(part.cases).items():
            try:
                form, examples = site.data.read_form(records[case]), part.select_rows(rows)
                model.contents.domain.check(form, f"case {case!r}")
                missing = site.data.list_missing(records[case], study)
                has_own_files = site.data.manifest.source(records[case]).has_own_files
                names = study.data.channel_names if has_own_files else ()
                check_is_not_blank(np.asarray(examples.images), f"case {case!r}", names, missing)
                lacking = site.data.list_file_doubts(records[case], form, study)
                found = _evaluate_case(model, examples, name, form, lacking, site.has_sizes)
                yield _count_cut_away(found, records[case], site.data.manifest, steps)
            except DataError as error:
                yield RefusedCase(case, name, str(error))
    end_decoder()


def sort_answers(found: Iterable[EvaluatedCase | RefusedCase]) -> tuple[list[EvaluatedCase], list[RefusedCase]]:
    """Return the cases that were answered, and those that were refused.

    Raises:
        DataError: None was answered; the first one's reason.
    """
    answered: list[EvaluatedCase] = []
    refused: list[RefusedCase] = []
    for one in found:
        (answered if isinstance(one, EvaluatedCase) else refused).append(one)
    if not answered:
        raise DataError(refused[0].reason)
    return answered, refused


def answer_case(model: SuperModel, case: Examples) -> tuple[CaseAnswer, NDArray]:
    """Return a model's answer to the examples of one case, and their labels, classes or sets of findings.

    Raises:
        DataError: The images have not the form of the training images.
    """
    images = np.asarray(case.images)
    model.check_is_not_alone(images)
    answer = model.answer(images, model.contents.study.training.batch_size)
    return answer, decide_answers(answer.probabilities, model.contents.study, model.contents.calling)


def _evaluate_case(
    model: SuperModel, case: Examples, part: str, form: Form, lacking: Sequence[str], has_sizes: bool
) -> EvaluatedCase:
    study = model.contents.study
    answer, said = answer_case(model, case)
    compared = model.compare_answer(answer, np.asarray(case.images), measure_case_ml(said, case, study), form.codes)
    doubts = [*lacking, *model.compare_images(np.asarray(case.images), form), *compared.sentences]
    warnings, do_not_use = model.list_warnings(answer, doubts), model.list_reasons_against_use(answer, doubts)
    score = score_predictions(said, case, study, answer.probabilities)
    regions = select_regions(case, study) if study.task == "segmentation" else {}
    said = leave_out_ignored(said, case.targets) if case.has_ignored else said
    labels = {name: _measure_label(said, labels, case, has_sizes) for name, labels in regions.items()}
    return EvaluatedCase(case.cases[0], part, answer.model, warnings, score, labels, do_not_use)


def _count_cut_away(found: EvaluatedCase, record: Record, manifest: Manifest, steps: Preparation) -> EvaluatedCase:
    """Return a case with the share of each label that its preparation crops away."""
    study = steps.study
    crops, volume_crops = (
        [step for step in one if step.name in CROPS] for one in (study.data.transforms, study.data.volume_transforms)
    )
    # Of some slices of a volume another part is cropped than of all.
    is_unknown = bool(volume_crops) and record.numbers is not None
    if not found.labels or not [*crops, *volume_crops] or is_unknown:
        return found
    prepared = prepare_with_way_back(manifest.source(record), steps)
    shape = (len(prepared.images), *prepared.images.shape[2:])
    is_cut = map_to_input(np.ones(shape, np.float32), prepared, steps) < HALF
    # Its voxels are not looked at: the label map is laid on their grid.
    grid = Image(np.broadcast_to(np.uint8(0), (1, *prepared.shape)), prepared.affine, None)
    truth = read_label_map(record, manifest, grid, study)[0]
    if record.numbers is not None:
        truth, is_cut = truth[..., record.numbers], is_cut[..., record.numbers]
    masks = {key: mask_labels(truth, study.scored[key]) for key in found.labels}
    shares = {key: float(is_cut[mask].mean()) if mask.any() else 0.0 for key, mask in masks.items()}
    return replace(found, labels={key: replace(one, cut_away=shares[key]) for key, one in found.labels.items()})


def _measure_label(said: NDArray, labels: tuple[int, ...], case: Examples, has_sizes: bool) -> LabelMeasures:
    name, truth = case.cases[0], np.asarray(case.targets)
    masks = mask_labels(said, labels), mask_labels(truth, labels)
    spacings = {name: case.spacings[name]} if has_sizes else {}
    size = float(np.prod(spacings[name])) / MM3_IN_ML if has_sizes else 1.0
    lesions = count_lesions(*masks, is_one_volume=case.slices[0] is not None)
    distances = surface_by_case(said, truth, case.cases, [labels], spacings)[name]
    return LabelMeasures(lesions, *(size * int(mask.sum()) for mask in masks), distances)
