"""Predict many inputs with one super model; the record is saved after each, and a bad one stops no other."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress

from silofl.base.errors import ConfigError, DataError, ExitCode, SiloFLError
from silofl.base.files import hold_lock, is_free, make_folder, read_json, write_atomically, write_json
from silofl.base.options import make_console
from silofl.data.contrasts import Case, list_case_files, parse_case
from silofl.inference.directory import read_fingerprint, read_versions
from silofl.inference.names import RECORD
from silofl.inference.prediction import Prediction
from silofl.inference.super_model import BATCH_SIZE, SuperModel
from silofl.reading.access import content_digest, input_name
from silofl.reading.header import dicom_headers, is_dicom, list_uids
from silofl_hospital.inference.dicom_seg import check_can_write, write_dicom_seg
from silofl_hospital.inference.output import (
    SUFFIXES,
    forbid_use,
    input_stem,
    model_sentence,
    name_stem,
    prediction_record,
    prediction_sentence,
    write_map,
)
from silofl_hospital.inference.withdrawn import UNCHECKED, check_not_withdrawn

if TYPE_CHECKING:
    from pydicom import Dataset

LOCK = "prediction.lock"


@dataclass(frozen=True)
class Options:
    """The options of a prediction.

    Attributes:
        has_picture: Whether an overlay is drawn of each input.
        has_dicom_seg: Whether a DICOM segmentation is written of each DICOM input.
        is_named_by_folder: Whether results are called by the folder that an input's first file lies in.
        site: The site whose model answers, instead of a choice.
        threshold: Replaces the super model's gamma.
        batch_size: Slices at a time.
        device: ``auto``, ``cpu`` or ``cuda``.
    """

    has_picture: bool = False
    has_dicom_seg: bool = False
    is_named_by_folder: bool = False
    site: str | None = None
    threshold: float | None = None
    batch_size: int = BATCH_SIZE
    device: str = "auto"


@dataclass(frozen=True)
class Input:
    """A case to predict.

    Attributes:
        case: Its file, or files by the names of contrasts.
        name: What messages and results call it by.
        headers: Those of its DICOM series, where they were read before.
    """

    case: Case
    name: str
    headers: Sequence[Dataset] = ()

    @classmethod
    def from_case(cls, case: Case, is_named_by_folder: bool) -> Input:
        """Name a case by its first file, or by the folder that this lies in."""
        path = list_case_files(case)[0]
        return cls(case, input_name(path.absolute().parent if is_named_by_folder else path))

    @property
    def first(self) -> Path:
        """Its first file, on whose grid the answer lies."""
        return list_case_files(self.case)[0]

    @property
    def stem(self) -> str:
        """What its results' files begin with."""
        return input_stem(Path(self.name))


def run(options: argparse.Namespace) -> int:
    """Predict the inputs and return the exit code."""
    how = Options(
        has_picture=options.picture,
        has_dicom_seg=options.dicom_seg,
        is_named_by_folder=options.by_folder,
        site=options.site,
        threshold=options.threshold,
        batch_size=options.batch_size or BATCH_SIZE,
        device=options.device,
    )
    cases = [parse_case(text) for text in options.inputs]
    code, records = predict_inputs(options.super_model, cases, options.out, how, make_console(options))
    if options.json:
        print(json.dumps(records))
    return code


def predict_inputs(
    super_model: Path, cases: Sequence[Case], out: Path, options: Options, console: Console
) -> tuple[ExitCode, list[dict[str, Any]]]:
    """Predict each input and write label maps, overlays and ``prediction.json``, which grows with every input.

    In the folder of an earlier prediction its answers stay; what failed there may be predicted again.

    Args:
        cases: Image files and folders of DICOM series, or several of one case by the names of its contrasts; no two of
            one name, where that of a case with several files is its first one's, or its folder's.
        out: New folder, or that of an earlier prediction.
        console: Prints one line an input.

    Returns:
        The exit code, the worst of them (failed where all inputs did; do not use where an answer must not be used;
        incomplete where some inputs failed; complete) and the content of prediction.json, these inputs last.

    Raises:
        ConfigError: The super model, an option, two inputs of one name or the folder is wrong, another prediction still
            writes it, or it holds an answer by an input's name; nothing was done then.
        DataError: An input has no name that files can be named after; nothing was done then either.
    """
    inputs = [Input.from_case(case, options.is_named_by_folder) for case in cases]
    _check_input_names(inputs)
    if not is_free(out) and not any((out / name).is_file() for name in (RECORD, LOCK)):
        raise ConfigError(f"{out.name} holds something else than an earlier prediction; name another folder")
    runner = Runner(super_model, out, options)
    make_folder(out)
    # Two at once would each write the record without the other's answers.
    with hold_lock(out / LOCK):
        records = _read_earlier_records(out)
        _check_not_answered(inputs, records, out)
        records = _predict_each(inputs, records, runner, console)
    new = records[len(records) - len(inputs) :]
    failed = sum("error" in record for record in new)
    forbidden = sum(bool(record.get("do_not_use")) for record in new)
    if runner.model.quality:
        console.print(f"What these models can do: {runner.model.quality}", markup=False)
    if runner.model.contents.home_statistics:
        console.print(runner.model.contents.home_statistics, markup=False)
    unchecked: dict[str, None] = {}
    for record in new:
        unchecked |= dict.fromkeys(record.get("unchecked", ()))
    if unchecked:
        console.print(
            f"Not checked, because the super model does not say it of its training: {', '.join(unchecked)}",
            markup=False,
        )
    if not runner.is_listed:
        console.print(UNCHECKED, markup=False)
    used = f"; {forbidden} of them must not be used" if forbidden else ""
    console.print(f"{len(inputs) - failed} answered{used}, {failed} failed; results in {out}", markup=False)
    if failed == len(inputs):
        return ExitCode.FAILED, records
    # Before inputs that failed: an answer that must not be used is worse than none.
    if forbidden:
        return ExitCode.DO_NOT_USE, records
    return ExitCode.INCOMPLETE if failed else ExitCode.COMPLETE, records


def describe_exam(headers: Sequence[Dataset]) -> dict[str, str | list[str]]:
    """Return by what a hospital finds the exam of a DICOM file or series again."""
    named = {"patient": "PatientID", "accession": "AccessionNumber"}
    return {key: str(headers[0].get(element) or "") for key, element in named.items()} | list_uids(headers)


def _predict_each(
    inputs: Sequence[Input], records: list[dict[str, Any]], runner: Runner, console: Console
) -> list[dict[str, Any]]:
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        for given in progress.track(inputs, description="predicting"):
            record, line = runner.predict(given)
            # What failed before under this name has another result now.
            records = [earlier for earlier in records if _record_stem(earlier).casefold() != given.stem.casefold()]
            records.append(record)
            # It is written after every input, so that a stop loses none that were predicted.
            write_json(runner.out / RECORD, records)
            console.print(line, markup=False)
            for sentence in forbid_use(record.get("do_not_use")):
                console.print(f"  {sentence}", style="bold red", markup=False)
            for warning in record.get("warnings", ()):
                console.print(f"  warning: {warning}", style="yellow", markup=False)
    return records


class Runner:
    """One super model with its options, loaded once, and the output folder, which may change between inputs.

    Args:
        out: For the files of answers.

    Raises:
        ConfigError: The super model or an option is wrong.
    """

    def __init__(self, folder: Path, out: Path, options: Options) -> None:
        self.model = SuperModel.load(folder, options.device)
        self.out = out
        self.options = options
        self.asked = options.batch_size, options.threshold, options.site
        self.model.check_options(*self.asked)
        if options.has_dicom_seg:
            check_can_write(self.model.contents.study)
        self.fingerprint = read_fingerprint(folder)
        self.folder = folder
        self.is_listed = check_not_withdrawn(folder, self.fingerprint)
        # Whether the machine failed at the last input, so that the same one may be answered later.
        self.may_pass = False
        threshold = self.model.contents.threshold if options.threshold is None else options.threshold
        self.threshold = threshold if options.site is None else None

    @property
    def described(self) -> dict[str, object]:
        """What an answer depends on beside its image and the model."""
        return {"threshold": self.threshold, "site": self.options.site}

    def predict(self, one: Input) -> tuple[dict[str, Any], str]:
        """Return an input's record and line, and write its files; what cannot be predicted has its error in both."""
        name = one.name
        now = datetime.now(UTC).isoformat(timespec="seconds")
        record = {"input": name, "time": now, "super_model": self.fingerprint, "versions": read_versions()}
        if one.headers:
            record["dicom"] = describe_exam(one.headers)
        self.may_pass = False
        # A prediction that was killed may have left some, perhaps of another image.
        self._delete_files(one)
        try:
            # It is checked again, because a long batch, or a service, may outlive its model.
            check_not_withdrawn(self.folder, self.fingerprint)
            prediction, line = self._predict_and_write(one)
            return record | prediction, f"{name}: {line}"
        except SiloFLError as error:
            reason = str(error)
            self.may_pass = getattr(error, "may_pass", False)
        except Exception as error:  # one bad input must not stop the others; record and exit code report it
            message = str(error)
            # The folders of a path may name a patient.
            for path in list_case_files(one.case):
                message = message.replace(str(path), path.name)
            message = " ".join(message.split())[:200]
            reason = f"it cannot be predicted ({type(error).__name__}: {message}); check the image, or report this"
            # PyTorch says it of a GPU's memory too.
            self.may_pass = isinstance(error, OSError | MemoryError) or "out of memory" in message
        # A label map without its picture is no answer.
        self._delete_files(one)
        return record | {"error": reason}, reason if reason.startswith(name) else f"{name}: {reason}"

    def _delete_files(self, one: Input) -> None:
        for suffix in SUFFIXES:
            (self.out / f"{one.stem}{suffix}").unlink(missing_ok=True)

    def _predict_and_write(self, one: Input) -> tuple[dict[str, Any], str]:
        prediction = self.model.predict(one.case, *self.asked)
        try:
            return self._write_answer(one, prediction)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            failure = DataError(
                f"its answer cannot be written to {self.out.name} ({reason}); make room, or name another folder"
            )
            failure.may_pass = True
            raise failure from None

    def _write_answer(self, one: Input, prediction: Prediction) -> tuple[dict[str, Any], str]:
        """Write the files of an answer and return its entry in the record and its line."""
        options = self.options
        study = self.model.contents.study
        # So that an answer can be told to be this image's, long after.
        files = {input_name(one.case): one.case} if isinstance(one.case, Path) else one.case
        sums = {name: content_digest(path, input_name(path)) for name, path in files.items()}
        record = {"sha256": sums} | prediction_record(prediction, study, self.threshold)
        if is_dicom(one.first):
            one = replace(one, headers=one.headers or [*dicom_headers(one.first, skips_others=True)])
            record["dicom"] = describe_exam(one.headers)
        if options.site is not None:
            record["asked_for"] = options.site
        line = prediction_sentence(prediction, study, self.threshold)
        if prediction.do_not_use:
            return record, f"{line}; it must not be used, and none of its files is written"
        if prediction.label_map is not None:
            record["label_map"] = write_map(self.out, one.stem, one.first, prediction.label_map, prediction.affine)
        if options.has_dicom_seg:
            record |= self._write_segmentation(one, prediction, record["warnings"])
        if options.has_picture:
            record["picture"] = f"{one.stem}_picture.png"
            content = self._draw_picture(one, prediction)
            write_atomically(self.out / record["picture"], lambda stream: stream.write(content))
        return record, line

    def _write_segmentation(self, one: Input, prediction: Prediction, warnings: list[str]) -> dict[str, Any]:
        """Write a DICOM segmentation and return the record's entries; what prevents it is one more warning."""
        name = f"{one.stem}_seg.dcm"
        try:
            if not one.headers or prediction.label_map is None or prediction.affine is None:
                raise DataError("no DICOM segmentation: the input is no DICOM, and names no patient")
            write_dicom_seg(
                self.out / name,
                one.headers,
                prediction.label_map,
                prediction.affine,
                self.model.contents.study,
                self.fingerprint,
                "; ".join([model_sentence(prediction, self.threshold), *warnings]),
                options=self.described,
            )
        except DataError as error:
            return {"warnings": [*warnings, str(error)]}
        return {"dicom_seg": name}

    def _draw_picture(self, one: Input, prediction: Prediction) -> bytes:
        # Imported here: matplotlib is slow to load, and most predictions need no picture.
        from silofl.reading.header import read_header
        from silofl.reading.images import read_image
        from silofl_hospital.inference.picture import draw_overlay

        study = self.model.contents.study
        if prediction.label_map is None:
            sentence = prediction_sentence(prediction, study, self.threshold)
        else:
            sentence = model_sentence(prediction, self.threshold)
        warnings = [f"warning: {warning}" for warning in prediction.warnings]
        title = "\n".join([f"{one.name}: {sentence}", "for research, no medical device", *warnings])
        image = read_image(one.first, background=study.data.background)
        shown = image.array[:1] if image.has_contrasts else image.array
        is_oriented = read_header(one.first).has_orientation
        return draw_overlay(shown, prediction.label_map, prediction.affine, study.labels, title, is_oriented)


def _check_input_names(inputs: Sequence[Input]) -> None:
    seen: dict[str, Input] = {}
    for given in inputs:
        earlier = seen.setdefault(given.stem.casefold(), given)
        if earlier is not given:
            raise ConfigError(
                f"the results of {earlier.name} and {given.name} would be one file; call them by their folders with "
                "--by-folder, or predict them into two folders"
            )


def _check_not_answered(inputs: Sequence[Input], records: Sequence[dict[str, Any]], out: Path) -> None:
    # The earlier answer would be lost without a word.
    answered = {_record_stem(record).casefold() for record in records if "error" not in record}
    for given in inputs:
        if given.stem.casefold() in answered:
            raise ConfigError(
                f"{out.name} already holds an answer to {given.name}. Leave that input out, or name another folder."
            )


def _record_stem(record: dict[str, Any]) -> str:
    return name_stem(str(record.get("input", "")))


def _read_earlier_records(out: Path) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = read_json(out / RECORD, list, absent=[])
    if not all(isinstance(record, dict) for record in records):
        raise ConfigError(f"{out.name}/{RECORD} is no record of a prediction; name another folder")
    return records
