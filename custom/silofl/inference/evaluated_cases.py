"""A model's answers to a site's labelled cases, each as a clinic would get it, with its score."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import DataError
from silofl.core.lesions import LesionCounts, count_lesions
from silofl.core.operating_point import MOST_PROBABLE, OperatingPoint
from silofl.data.domain import Domain
from silofl.data.groups import Divided, Divisions, divide_records
from silofl.data.manifest import Manifest
from silofl.data.parts import Examples, Spacing
from silofl.data.preparation import Preparation, build_preparation, measure_spacing, read_label_map
from silofl.data.prepared_image import prepare_with_way_back
from silofl.data.records import Record
from silofl.data.site_data import SiteData
from silofl.data.targets import IGNORED
from silofl.data.units import Units, find_recordings, find_units
from silofl.inference.geometry import check_is_not_blank, decide_answers, decide_on_input
from silofl.inference.prediction import MM3_IN_ML, CaseAnswer, measure_case_ml
from silofl.inference.super_model import SuperModel
from silofl.reading.decoder import end_decoder
from silofl.reading.image import Image
from silofl.training.evaluation import score_predictions, select_regions
from silofl.training.metrics import Label, Score, group_positions, leave_out_ignored, mask_labels
from silofl.training.surface import surface_by_case


@dataclass(frozen=True, eq=False)
class FileMaps:
    """The label maps of a case on the grid of its image's file.

    Attributes:
        said: The answer, uint8 (rows, columns), or (X, Y, Z).
        truth: What was drawn, of the same shape.
        affine: Voxel indices to millimetres, (4, 4); None of a picture.
        numbers: Of its slices in the file, where they are not all.
    """

    said: NDArray
    truth: NDArray
    affine: NDArray[np.float64] | None
    numbers: range | None = None

    @property
    def worst_slice(self) -> int | None:
        """The number in the file, from 0, of the slice with most wrong voxels; None of a picture, and without one."""
        wrong = (self.said != self.truth) & (self.truth != IGNORED)
        if wrong.ndim == 2 or not wrong.any():
            return None
        place = int(wrong.sum(axis=(0, 1)).argmax())
        return place if self.numbers is None else self.numbers[place]


@dataclass(frozen=True)
class LabelMeasures:
    """What is measured of a label, or region, in one case.

    Attributes:
        lesions: Its connected components.
        predicted: Its predicted size, in millilitres, or in pixels where a voxel's size is not known.
        true: Its true size.
        distances: HD95 and surface Dice; None where truth or prediction lacks it.
    """

    lesions: LesionCounts
    predicted: float
    true: float
    distances: tuple[float, float] | None


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
        calling: Classification: how the probabilities are read.
        worst_slice: Segmentation of a volume: number of the slice with most wrong voxels, from 0.
    """

    case: str
    part: str
    model: str
    warnings: tuple[str, ...]
    score: Score
    labels: Mapping[Label, LabelMeasures]
    do_not_use: tuple[str, ...] | None = None
    calling: OperatingPoint = MOST_PROBABLE
    worst_slice: int | None = None


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
        return cls(data, parts, find_units(patients, find_recordings(records)))

    def divide(self, divisions: Divisions) -> Divided:
        """Return the group of each case; as `silofl.data.groups.divide_records`."""
        manifest = self.data.manifest
        return divide_records(manifest, [one for name in self.parts for one in manifest.parts[name]], divisions)

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


def evaluate_cases(model: SuperModel, site: SiteCases, name: str = "") -> Iterator[EvaluatedCase | RefusedCase]:
    """Answer each case as `SuperModel.predict` does, and score it; label maps on the grid of the image's file.

    Args:
        name: The site's, where it is known. Where it trained the model, its own images are like the training images,
            even if the run left its ranges out.
    """
    study, manifest = model.contents.study, site.data.manifest
    own = site.data.domain if model.contents.has_learnt_at(name, manifest.digest) else Domain()
    steps = build_preparation(study, has_label_map=False)
    for part_name, part in site.parts.items():
        records = {record.case: record for record in manifest.parts[part_name]}
        for case, rows in group_positions(part.cases).items():
            try:
                record, examples = records[case], part.select_rows(rows)
                form, image = site.data.read_first(record)
                model.contents.domain.check(form, f"case {case!r}")
                missing = site.data.list_missing(record, study)
                names = study.data.channel_names if manifest.source(record).has_own_files else ()
                images = np.asarray(examples.images)
                check_is_not_blank(images, f"case {case!r}", names, missing)
                answer = answer_case(model, examples)
                sizes = measure_case_ml(decide_answers(answer.probabilities, study), examples, study)
                doubts = [*site.data.list_file_doubts(record, form, study), *model.compare_images(images, form, own)]
                doubts += model.compare_answer(answer, images, sizes, form.codes).sentences
                place = partial(lay_on_file, answer, record=record, manifest=manifest, image=image, steps=steps)
                yield _evaluate_case(model, examples, part_name, (answer, doubts), place, site.has_sizes)
            except DataError as error:
                yield RefusedCase(case, part_name, str(error))
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


def answer_case(model: SuperModel, case: Examples) -> CaseAnswer:
    """Return a model's answer to the examples of one case.

    Raises:
        DataError: The images have not the form of the training images.
    """
    images = np.asarray(case.images)
    model.check_is_not_alone(images)
    return model.answer(images, model.contents.study.training.batch_size)


def lay_on_file(answer: CaseAnswer, record: Record, manifest: Manifest, image: Image, steps: Preparation) -> FileMaps:
    """Bring an answer back to the grid of its image's file, where the label map was drawn.

    Args:
        steps: The preparation, without label maps.

    Raises:
        DataError: The study's transforms cannot be inverted.
    """
    prepared = prepare_with_way_back(manifest.source(record), steps, numbers=record.numbers)
    truth = read_label_map(record, manifest, image, steps.study)[0]
    said = decide_on_input(answer.probabilities, prepared, steps)
    truth = truth if record.numbers is None else truth[..., record.numbers]
    return FileMaps(said, truth, prepared.affine, record.numbers)


def _evaluate_case(
    model: SuperModel,
    case: Examples,
    part: str,
    answered: tuple[CaseAnswer, Sequence[str]],
    place: Callable[[], FileMaps],
    has_sizes: bool,
) -> EvaluatedCase:
    study, (answer, doubts) = model.contents.study, answered
    calling = model.find_calling()
    warnings, do_not_use = model.list_warnings(answer, doubts), model.list_reasons_against_use(answer, doubts)
    found = EvaluatedCase(case.cases[0], part, answer.model, warnings, Score({}), {}, do_not_use, calling)
    if study.task != "segmentation":
        # One answer for a case, by the mean over its slices, as `predict` gives it.
        mean = answer.probabilities.mean(axis=0, keepdims=True)
        said = calling.decide(mean, study.is_multilabel).repeat(len(case))
        return replace(found, score=score_predictions(said, case, study, answer.probabilities))
    maps = place()
    # As one slice, or as one volume; a volume of one slice would be all surface.
    said, truth = (one if one.shape[2:] != (1,) else one[..., 0] for one in (maps.said, maps.truth))
    drawn = replace(case.select_rows([0]), targets=truth[None])
    said = leave_out_ignored(said[None], drawn.targets) if case.has_ignored else said[None]
    spacing = measure_spacing(maps.affine) if has_sizes else None
    measured = {
        name: _measure_label(said, drawn, labels, maps, spacing) for name, labels in select_regions(case, study).items()
    }
    score = score_predictions(said, drawn, study)
    return replace(found, score=score, labels=measured, worst_slice=maps.worst_slice)


def _measure_label(
    said: NDArray, drawn: Examples, labels: tuple[int, ...], maps: FileMaps, spacing: Spacing | None
) -> LabelMeasures:
    name, truth = drawn.cases[0], drawn.targets
    masks = mask_labels(said, labels), mask_labels(truth, labels)
    spacings = {} if spacing is None else {name: spacing}
    size = 1.0 if spacing is None else abs(float(np.linalg.det(maps.affine[:3, :3]))) / MM3_IN_ML
    return LabelMeasures(
        count_lesions(*masks),
        *(size * int(mask.sum()) for mask in masks),
        surface_by_case(said, truth, drawn.cases, [labels], spacings)[name],
    )
