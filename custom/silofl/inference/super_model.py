"""The super model: for each case it picks a hospital's model, the global one, or a mixture, and predicts with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from silofl.base.errors import ConfigError, DataError, suggest_nearest
from silofl.core.operating_point import MOST_PROBABLE, OperatingPoint
from silofl.data.contrasts import Case, build_source
from silofl.data.data_profile import Form
from silofl.data.preparation import Preparation, build_preparation
from silofl.data.prepared_image import PreparedImage, prepare_with_inverse
from silofl.data.volumes import Array, central_slices
from silofl.inference.card import rule_sentence
from silofl.inference.choice import weigh_models
from silofl.inference.contents import Contents, check_threshold
from silofl.inference.directory import read_model_folder
from silofl.inference.fitting_network import build_fitting_network, load_weights
from silofl.inference.geometry import (
    check_images,
    check_is_not_blank,
    check_probabilities,
    decide_labels,
    decide_on_input,
)
from silofl.inference.own_tests import describe_quality, list_low_labels, list_not_learnt
from silofl.inference.prediction import CaseAnswer, Prediction, call_case, measure_volumes_ml
from silofl.inference.probabilities import add_share, case_scores, shift_foreground, to_probabilities
from silofl.inference.reference_statistics import Comparison, compare_answer
from silofl.models import HarmonizedModel
from silofl.models.features import find_feature_layer, join_features, record_inputs
from silofl.models.roles import GLOBAL, SELECTOR
from silofl.models.selector import build_selector
from silofl.study import Study
from silofl.training.device import choose_device
from silofl.training.evaluation import compute_class_probabilities, compute_outputs, compute_softmax
from silofl.training.home_statistics import ENOUGH, fix_home_statistics, has_statistics

BATCH_SIZE = 8
FALLBACK = "the selector fell back to the global model: the case is like the training images of no single hospital"


class SuperModel:
    """All models of a federation behind one rule that says, case by case, whose model answers.

    Args:
        device: The device that it computes on.

    Attributes:
        selector: The selector in evaluation mode, or None without one.

    Raises:
        ConfigError: A state dict does not fit the study's network.
    """

    def __init__(
        self, contents: Contents, device: torch.device, studies: Mapping[str, Study] = MappingProxyType({})
    ) -> None:
        self.contents = contents
        self.device = device
        study = contents.study
        # Local models may have another normalisation than the study's.
        self._studies = {name: studies.get(name, study) for name in contents.models}
        self._models = {}
        for name, state in contents.models.items():
            network = build_fitting_network(self._studies[name], contents.image_shape, state)
            self._models[name] = load_weights(network, state, name).to(device).eval()
        self._own_tests = self._read_own_tests()
        self.selector: HarmonizedModel | None = None
        if contents.rule == "selector":
            selector = build_selector(study, len(contents.outputs), study.seed)
            self.selector = load_weights(selector, contents.selector or {}, SELECTOR).to(device).eval()

    @classmethod
    def load(cls, path: str | Path, device: str = "auto") -> SuperModel:
        """Load a super model's folder.

        Args:
            device: ``auto`` takes a GPU where there is one; ``cpu`` or ``cuda``.

        Raises:
            ConfigError: The folder is incomplete, or there is no such device.
        """
        return cls(read_model_folder(Path(path)), choose_device(device))

    def network(self, name: str) -> HarmonizedModel:
        """Return one model in evaluation mode: ``global`` or a site's.

        Raises:
            ConfigError: There is no model of this name.
        """
        if name not in self._models:
            known = ", ".join(sorted(self._models))
            raise ConfigError(f"the model must be one of {known}, not {name!r}{suggest_nearest(name, self._models)}")
        return self._models[name]

    def fix_home_statistics(self, images: Array) -> None:
        """Fix the statistics of all models over a hospital's own images, where they have home statistics."""
        for name, network in self._models.items():
            fix_home_statistics(network, images, self._studies[name], self.device)

    def slice_scores(self, images: NDArray[Any], batch_size: int = BATCH_SIZE) -> NDArray[np.float64]:
        """Return the selector's softmax of each slice.

        Args:
            images: (n, C, H, W), prepared, before amplitude normalisation; in 3D one volume (1, C, X, Y, Z).
            batch_size: Slices at a time, at least 1.

        Returns:
            Probabilities of shape (n, outputs), of a volume its central slices'; shape (n, 0) without a selector.
        """
        if self.selector is None:
            return np.zeros((len(images), 0))
        if self.contents.study.data.dimensions == 3:
            # The selector is one of slices: of a volume it sees those in the middle.
            images = central_slices(images[0])
        scores = compute_softmax(self.selector, images, batch_size, self.device)
        check_probabilities(scores, SELECTOR)
        return scores

    def scores(self, images: NDArray[Any], batch_size: int = BATCH_SIZE) -> NDArray[np.float64]:
        """Return the selector's scores of a case: `case_scores` of its slices.

        Args:
            images: One case, (n, C, *spatial), prepared, before amplitude normalisation.
            batch_size: Slices at a time, at least 1.

        Returns:
            Probabilities of shape (outputs,); shape (0,) without a selector.
        """
        return case_scores(self.slice_scores(images, batch_size))

    def probabilities(self, name: str, images: NDArray[Any], batch_size: int = BATCH_SIZE) -> NDArray[np.floating]:
        """Return one model's probabilities for a case.

        Args:
            name: ``global`` or a site's name.
            images: (n, C, *spatial), prepared.
            batch_size: Slices at a time; a network whose BatchNorm keeps no statistics gets the whole case at once.

        Returns:
            float32 (n, out_channels, *spatial), the sigmoid of a single output, else the softmax; or for classification
            float64 (n, classes), the softmax; or (n, findings), the sigmoid.

        Raises:
            ConfigError: There is no model of this name.
            DataError: A probability is not finite.
        """
        study = self.contents.study
        network = self.network(name)
        if study.model.normalization == "batch_stateless":
            # Its statistics are those of the batch: another size would be another answer.
            batch_size = len(images)
        if study.task == "segmentation":
            outputs = compute_outputs(lambda batch: to_probabilities(network(batch)), images, batch_size, self.device)
        else:
            outputs = compute_class_probabilities(network, images, batch_size, self.device, study)
        check_probabilities(outputs, name)
        return outputs

    def measure_features(
        self, name: str, images: NDArray[Any], batch_size: int = BATCH_SIZE
    ) -> tuple[NDArray[np.floating], dict[str, NDArray[np.float64]]]:
        """Return `probabilities`, and by the model's name its features, where somebody has said where they are."""
        with record_inputs(find_feature_layer(self.network(name))) as seen:
            probabilities = self.probabilities(name, images, batch_size)
        return probabilities, {name: join_features(seen)} if seen else {}

    def answer(
        self,
        images: NDArray[Any],
        batch_size: int = BATCH_SIZE,
        threshold: float | None = None,
        site: str | None = None,
    ) -> CaseAnswer:
        """Return what the super model says of one case, as probabilities on the prepared images.

        Args:
            images: One case, (n, C, *spatial), prepared.
            batch_size: Slices at a time, at least 1; the answer does not depend on it.
            threshold: Instead of the super model's own gamma.
            site: Whose model answers, instead of a choice.

        Raises:
            ConfigError: A value is out of range, or not there to be chosen.
            DataError: The images do not have the form of the training images.
        """
        self.check_options(batch_size, threshold, site)
        check_images(images, self.contents.image_shape, bool(self.contents.study.data.patches))
        scores = self.scores(images, batch_size)
        name, weights = weigh_models(self.contents, scores, threshold, site)
        total: NDArray[Any] | None = None
        features: dict[str, NDArray[Any]] = {}
        for member, weight in weights.items():
            probabilities, of_member = self.measure_features(member, images, batch_size)
            # In their place, as a volume's probabilities may be most of the memory.
            total = add_share(total, probabilities, weight)
            features |= of_member
        if bias := self._find_bias(site):
            total = shift_foreground(torch.from_numpy(total), bias).numpy()
        gamma = self.contents.threshold if threshold is None else threshold
        # Only a choice falls back: a mean, or a model that was named, answers as it should.
        is_choice = site is None and self.contents.is_choice
        return CaseAnswer(
            model=name,
            weights=weights,
            scores=dict(zip(self.contents.outputs, scores.tolist(), strict=True)),
            is_fallback=is_choice and gamma is not None and float(scores.max()) <= gamma,
            # Some model always answers.
            probabilities=cast("NDArray[Any]", total),
            features=features,
        )

    def predict(
        self,
        case: str | Path | Mapping[str, str | Path] | NDArray[Any],
        batch_size: int = BATCH_SIZE,
        threshold: float | None = None,
        site: str | None = None,
    ) -> Prediction:
        """Predict one case: a label map on the case's own grid, or its class.

        Args:
            case: An image file, the folder of a DICOM series, one of these for each contrast by its name, or prepared
                images (n, C, *spatial), whose channels are those of each slice and its neighbours where the study has
                some.
            batch_size: Slices at a time, at least 1; the answer does not depend on it.
            threshold: Replaces the super model's gamma, in [0, 1].
            site: A site's name or ``global``, whose model answers instead of a choice.

        Raises:
            ConfigError: An option is out of range, or names no model.
            DataError: The image cannot be read, is blank, is of another kind than the training images, or not prepared
                to their form; it is a single one, and the network's answer depends on others; or the answer is not
                finite.
        """
        # Before the images are prepared, which takes long.
        self.check_options(batch_size, threshold, site)
        prepared = None
        if isinstance(case, np.ndarray):
            images = case
        else:
            files = {name: Path(file) for name, file in case.items()} if isinstance(case, Mapping) else Path(case)
            prepared = self.prepare_case(files)
            images = prepared.images
        self.check_is_not_alone(images)
        answer = self.answer(images, batch_size, threshold, site)
        if self.contents.study.task == "segmentation":
            prediction = self._predict_label_map(answer, prepared)
        else:
            prediction = self._predict_class(answer, prepared, site)
        if prepared is None:
            image_warnings = self.contents.data_profile.image_warnings(images, None, False)
            codes: Mapping[str, str] = {}
        else:
            image_warnings = prepared.image_warnings(self.contents.data_profile, self._steps)
            codes = prepared.form.codes
        compared = self.compare_answer(answer, images, prediction.volumes_ml, codes)
        image_warnings += compared.sentences
        return replace(
            prediction,
            bias=self._find_bias(site),
            warnings=self.list_warnings(answer, image_warnings, threshold, site),
            do_not_use=self.list_reasons_against_use(answer, image_warnings, threshold, site),
            unchecked=compared.unchecked,
            deviations=compared.deviations,
        )

    def check_is_not_alone(self, images: NDArray[Any]) -> None:
        """Refuse a case of one image where the network's answer depends on the other images of its batch.

        Raises:
            DataError: It is one.
        """
        if len(images) == 1 and self.contents.study.model.normalization == "batch_stateless":
            raise DataError(
                "the answer of a network with model.normalization batch_stateless depends on the other images of its "
                "batch, so that it cannot predict a single one; train one with batch, group or instance"
            )

    def compare_images(self, images: NDArray[Any], form: Form) -> list[str]:
        """Return how a case's prepared images (n, C, *spatial) differ from the training images, as sentences."""
        return self.contents.data_profile.image_warnings(images, form, self._steps.is_turning)

    def compare_answer(
        self, answer: CaseAnswer, images: NDArray[Any], sizes_ml: Mapping[str, float] | None, codes: Mapping[str, str]
    ) -> Comparison:
        """Compare an answer with what is usual; as `silofl.inference.reference_statistics.compare_answer`.

        All hospitals know the global model's features, which are therefore measured whoever answered.
        """
        reference_statistics = self.contents.reference_statistics
        is_asked = GLOBAL in self._models and GLOBAL not in answer.features
        if is_asked and any(stated.features for stated in reference_statistics.values()):
            # Only the copy gets them: the answer itself stays what was asked for.
            answer = replace(answer, features={**answer.features, **self.measure_features(GLOBAL, images)[1]})
        return compare_answer(reference_statistics, answer, sizes_ml, self.contents.study, codes)

    def list_warnings(
        self, answer: CaseAnswer, image_warnings: Sequence[str], threshold: float | None = None, site: str | None = None
    ) -> tuple[str, ...]:
        """Return why an answer may mean nothing, as sentences.

        Args:
            image_warnings: How its image differs from the training images.
            site: Whose model answered, instead of a choice.
        """
        not_learnt = self._own_tests[self._answers_as_chosen(site)][0]
        return (*self._list_fallback(answer, threshold), *not_learnt, *image_warnings)

    def check_options(self, batch_size: int, threshold: float | None = None, site: str | None = None) -> None:
        """Refuse options before any work.

        Raises:
            ConfigError: One is out of range, or does nothing with this super model.
        """
        # Also where only one model is asked: which one answers is known too late.
        for name, network in self._models.items():
            if not has_statistics(network):
                raise ConfigError(
                    f"Model {name!r} has no home statistics. Take them over at least {ENOUGH} of your own images by "
                    "silofl home-statistics, and use the model that it writes."
                )
        if isinstance(batch_size, bool) or not isinstance(batch_size, int | np.integer) or batch_size < 1:
            raise ConfigError(f"batch_size must be a whole number of at least 1, not {batch_size!r}")
        check_threshold(threshold)
        if threshold is not None and not (site is None and self.contents.is_choice):
            raise ConfigError(
                "no selector chooses here, and threshold is for its choice; leave the threshold or the site out"
            )
        if site is not None:
            self.network(site)

    @property
    def rule(self) -> str:
        """Which of its models answers, as a sentence."""
        return rule_sentence(self.contents)

    @property
    def quality(self) -> str:
        """How well the models find each label, by their own test; empty where not known."""
        return describe_quality(self.contents)

    def find_operating_point(self, answered_by: str, site: str | None = None) -> OperatingPoint:
        """Return how the probabilities of a case are read.

        Args:
            answered_by: The model that answered.
            site: Whose model was asked, instead of a choice: nothing was chosen for it alone.
        """
        if not self._answers_as_chosen(site):
            return MOST_PROBABLE
        return self.contents.own_operating_points.get(answered_by, self.contents.operating_point)

    def _read_own_tests(self) -> Mapping[bool, tuple[list[str], list[str]]]:
        """Whether answers have thresholds -> sentences on labels that were not learnt, and on low ones."""
        # Where a site's model is named, its answers are read without thresholds, and its tests have to be, too.
        uncalled = replace(self.contents, operating_point=MOST_PROBABLE)
        try:
            return {
                True: (list_not_learnt(self.contents), list_low_labels(self.contents)),
                False: (list_not_learnt(uncalled), list_low_labels(uncalled)),
            }
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ConfigError(
                f"the tests in the super model's facts are not as they were written: {error}; copy the folder again"
            ) from None

    def _list_fallback(self, answer: CaseAnswer, threshold: float | None) -> list[str]:
        gamma = self.contents.threshold if threshold is None else threshold
        # No score is above 1: that the global model answers says nothing of the case.
        return [FALLBACK] if answer.is_fallback and gamma is not None and gamma < 1 else []

    def list_reasons_against_use(
        self, answer: CaseAnswer, image_warnings: Sequence[str], threshold: float | None = None, site: str | None = None
    ) -> tuple[str, ...] | None:
        """Return why the study's rule forbids to use an answer; None where it states no rule; as `list_warnings`."""
        rule = self.contents.study.do_not_use
        if rule is None:
            return None
        reasons = self._list_fallback(answer, threshold) if rule.on_fallback else []
        if rule.on_unlike_image:
            reasons += image_warnings
        return (*reasons, *self._own_tests[self._answers_as_chosen(site)][1])

    @cached_property
    def _steps(self) -> Preparation:
        return build_preparation(self.contents.study, has_label_map=False)

    def prepare_case(self, case: Case) -> PreparedImage:
        """Return a case's images as the networks see them; the errors of `predict` on its files."""
        source = build_source(case, self.contents.study.data)
        prepared = prepare_with_inverse(source, self._steps, self.contents.data_profile)
        names = self.contents.study.data.channel_names if source.has_own_files else ()
        check_is_not_blank(prepared.images, source.first[1], names, prepared.missing)
        return prepared

    def _find_bias(self, site: str | None) -> float:
        """Return the bias of an answer; 0 of one model of several, because it was chosen for all together."""
        return self.contents.bias if self._answers_as_chosen(site) else 0.0

    def _answers_as_chosen(self, site: str | None) -> bool:
        """Return whether the answer is the one that bias and operating point were chosen for."""
        return site is None or self.contents.rule == "only"

    def _predict_class(self, answer: CaseAnswer, prepared: PreparedImage | None, site: str | None) -> Prediction:
        read = call_case(answer.probabilities, self.find_operating_point(answer.model, site), self.contents.study)
        affine = None if prepared is None else prepared.affine
        return Prediction(answer.model, answer.scores, answer.is_fallback, affine=affine, **read)

    def _predict_label_map(self, answer: CaseAnswer, prepared: PreparedImage | None) -> Prediction:
        """Draw the labels on the input's grid; on that of the images where they came prepared."""
        prediction = Prediction(answer.model, answer.scores, answer.is_fallback)
        if prepared is None:
            return replace(prediction, label_map=decide_labels(answer.probabilities))
        label_map = decide_on_input(answer.probabilities, prepared, self._steps)
        volumes = None
        # An affine that the file does not state is made up: millilitres would be too.
        if prepared.form.header.has_spacing:
            volumes = measure_volumes_ml(label_map, prepared.affine, self.contents.study.labels)
        return replace(prediction, label_map=label_map, volumes_ml=volumes, affine=prepared.affine)
