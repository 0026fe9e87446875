"""A model's answers to a site's labelled cases, each as a clinic would get it, with its score."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import DataError
from silofl.core.lesions import LesionCounts, count_lesions
from silofl.core.operating_point import MOST_PROBABLE, OperatingPoint
from silofl.data.groups import Divided, Divisions, divide_records
from silofl.data.manifest import Manifest
from silofl.data.parts import Examples, Spacing
from silofl.data.preparation import Preparation, build_preparation, measure_spacing, read_label_map
from silofl.data.prepared_image import prepare_with_inverse
from silofl.data.records import Record
from silofl.data.site_data import SiteData
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
    """

    said: NDArray[Any]
    truth: NDArray[Any]
    affine: NDArray[np.float64] | None


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
        operating_point: Classification: how the probabilities are read.
    """

    case: str
    part: str
    model: str
    warnings: tuple[str, ...]
    score: Score
    labels: Mapping[Label, LabelMeasures]
    operating_point: OperatingPoint = MOST_PROBABLE


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
        data: The site's data.
        manifest: It knows the images' files.
        parts: Name of a part -> its examples.
        units: What counts once in an interval.
    """

    data: SiteData
    manifest: Manifest
    parts: Mapping[str, Examples]
    units: Units

    @classmethod
    def of(cls, data: SiteData, names: Sequence[str]) -> Self:
        """Take the parts of some names that hold a case."""
        # Only a pool of several sites has none.
        manifest = cast("Manifest", data.manifest)
        parts: dict[str, Examples] = {}
        patients: dict[str, str | None] = {}
        records: list[Record] = []
        for name in names:
            part = getattr(data, name)
            if len(part):
                parts[name] = part
                patients |= part.patient_of
                records += manifest.parts[name]
        return cls(data, manifest, parts, find_units(patients, find_recordings(records)))

    def divide(self, divisions: Divisions) -> Divided:
        """Return the group of each case; as `silofl.data.groups.divide_records`."""
        records: list[Record] = []
        for name in self.parts:
            records += self.manifest.parts[name]
        return divide_records(self.manifest, records, divisions)

    @property
    def num_cases(self) -> int:
        """Number of cases, whether or not the model answers them."""
        return len(self.units.unit_of)

    @property
    def has_sizes(self) -> bool:
        """Whether all state their voxels' size: sizes and distances are then in millilitres and mm."""
        return all(part.spacings.keys() >= {*part.cases} for part in self.parts.values())

    def select(self, name: str, case: str) -> Examples:
        """Return the examples of one case of a part."""
        part = self.parts[name]
        return part.select_rows(group_positions(part.cases)[case])


def evaluate_cases(model: SuperModel, site: SiteCases) -> Iterator[EvaluatedCase | RefusedCase]:
    """Answer each case as `SuperModel.predict` does, and score it; label maps on the grid of the image's file."""
    study = model.contents.study
    manifest = site.manifest
    steps = build_preparation(study, has_label_map=False)
    for part_name, part in site.parts.items():
        records = {record.case: record for record in manifest.parts[part_name]}
        for case, rows in group_positions(part.cases).items():
            try:
                record = records[case]
                examples = part.select_rows(rows)
                form, image = site.data.read_first(record)
                model.contents.data_profile.check(form, f"case {case!r}")
                missing = site.data.list_missing(record, study)
                # Where one file holds all contrasts, none of them is judged by itself.
                names = study.data.channel_names if manifest.source(record).has_own_files else ()
                images = np.asarray(examples.images)
                check_is_not_blank(images, f"case {case!r}", names, missing)
                answer = answer_case(model, examples)
                sizes = measure_case_ml(decide_answers(answer.probabilities, study), examples, study)
                image_warnings = [
                    *site.data.list_file_warnings(record, form, study),
                    *model.compare_images(images, form),
                ]
                image_warnings += model.compare_answer(answer, images, sizes, form.codes).sentences
                lay = partial(lay_on_file, answer, record=record, manifest=manifest, image=image, steps=steps)
                yield _evaluate_case(model, examples, part_name, (answer, image_warnings), lay, site.has_sizes)
            # As `predict` would refuse it: it is counted, and the other cases go on.
            except DataError as error:
                yield RefusedCase(case, part_name, str(error))
    # Label maps were read by the decoder's process, which would wait for more.
    end_decoder()


def sort_answers(cases: Iterable[EvaluatedCase | RefusedCase]) -> tuple[list[EvaluatedCase], list[RefusedCase]]:
    """Return the cases that were answered, and those that were refused.

    Raises:
        DataError: None was answered; the first one's reason.
    """
    answered: list[EvaluatedCase] = []
    refused: list[RefusedCase] = []
    for case in cases:
        if isinstance(case, EvaluatedCase):
            answered.append(case)
        else:
            refused.append(case)
    if not answered:
        raise DataError(refused[0].reason)
    return answered, refused


def merge_scores(cases: Iterable[EvaluatedCase]) -> Score:
    """Return the score of several cases together."""
    return Score.merged({case.case: case.score for case in cases})


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
    prepared = prepare_with_inverse(manifest.source(record), steps, numbers=record.numbers)
    # None of a classification alone.
    truth = cast("NDArray[Any]", read_label_map(record, manifest, image, steps.study))[0]
    if record.numbers is not None:
        # The case is some slices of the file.
        truth = truth[..., record.numbers]
    return FileMaps(decide_on_input(answer.probabilities, prepared, steps), truth, prepared.affine)


def _evaluate_case(
    model: SuperModel,
    case: Examples,
    part: str,
    answered: tuple[CaseAnswer, Sequence[str]],
    lay: Callable[[], FileMaps],
    has_sizes: bool,
) -> EvaluatedCase:
    study = model.contents.study
    answer, image_warnings = answered
    operating_point = model.find_operating_point(answer.model)
    warnings = model.list_warnings(answer, image_warnings)
    evaluated = EvaluatedCase(case.cases[0], part, answer.model, warnings, Score({}), {}, operating_point)
    if study.task != "segmentation":
        # One answer for a case, by the mean over its slices, as `predict` gives it.
        mean = answer.probabilities.mean(axis=0, keepdims=True)
        # Each slice gets the answer of the case, as a score counts slices.
        classes = operating_point.decide(mean, study.is_multilabel).repeat(len(case))
        return replace(evaluated, score=score_predictions(classes, case, study, answer.probabilities))
    maps = lay()
    said, truth = maps.said, maps.truth
    if said.shape[2:] == (1,):
        # A volume of one slice is measured as a slice: as a volume it would be all surface.
        said, truth = said[..., 0], truth[..., 0]
    # Scores are of examples: the case becomes one of the file's size, whose prepared images nobody looks at any more.
    drawn = replace(case.select_rows([0]), targets=truth[None])
    said = np.asarray(leave_out_ignored(said[None], drawn.targets)) if case.has_ignored else said[None]
    spacing = measure_spacing(maps.affine) if has_sizes and maps.affine is not None else None
    labels = {}
    for name, numbers in select_regions(case, study).items():
        labels[name] = _measure_label(said, drawn, numbers, maps, spacing)
    return replace(evaluated, score=score_predictions(said, drawn, study), labels=labels)


def _measure_label(
    said: NDArray[Any], drawn: Examples, labels: tuple[int, ...], maps: FileMaps, spacing: Spacing | None
) -> LabelMeasures:
    name = drawn.cases[0]
    predicted = mask_labels(said, labels)
    true = mask_labels(np.asarray(drawn.targets), labels)
    spacings, voxel_size = {}, 1.0
    if spacing is not None and maps.affine is not None:
        spacings[name] = spacing
        voxel_size = abs(float(np.linalg.det(maps.affine[:3, :3]))) / MM3_IN_ML
    return LabelMeasures(
        lesions=count_lesions(predicted, true),
        predicted=voxel_size * int(predicted.sum()),
        true=voxel_size * int(true.sum()),
        distances=surface_by_case(said, drawn.targets, drawn.cases, [labels], spacings)[name],
    )
