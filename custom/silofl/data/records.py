"""One record of dataset.json: an image, its label and its patient."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TypeGuard

from silofl.base.documents import check_kind
from silofl.base.errors import DataError, quote_value, suggest_nearest
from silofl.base.naming import is_one_line, normalise_accents
from silofl.core.findings import pack_findings
from silofl.reading.access import open_error
from silofl.reading.patient_names import normalise_name

KEYS = ("image", "label", "patient", "case", "slices", "index", "recording", "groups")
# No volume has as many slices. Each slice of a record is kept in memory to find overlaps.
MAX_SLICES = 1 << 16


@dataclass(frozen=True)
class Record:
    """One case of dataset.json.

    Attributes:
        case: The name that messages and tables use; unique in dataset.json.
        images: The image's path, relative to dataset.json; or one path for each of its contrasts, None where this case
            lacks one.
        label: The label map's path (segmentation), the class (classification) or the set of findings (multilabel).
        patient: The patient, by which parts are kept apart; None where nobody knows.
        slices: First and last slice that belong to this record, from 0, both included, and the step between two
            where it is not 1; None for all.
        index: Which image or window of an npz file with many, from 0; None for other files.
        recording: The uninterrupted recording of the patient that a window was cut from, where it is known.
        groups: What else is known of it, as its sex or its scanner, by which an evaluation is divided.
    """

    case: str
    images: tuple[str | None, ...]
    label: str | int
    patient: str | None
    slices: tuple[int, ...] | None = None
    index: int | None = None
    recording: str | None = None
    groups: Mapping[str, str] = field(default_factory=dict)

    @property
    def image(self) -> str:
        """The image's path, the first one where its contrasts lie in files of their own; what messages call it."""
        return self.files[0]

    @property
    def files(self) -> tuple[str, ...]:
        """The paths of all files of the image."""
        return tuple(path for path in self.images if path is not None)

    @property
    def numbers(self) -> range | None:
        """The numbers of the slices, or None for all."""
        # Both ends of [first, last] are included; a step may follow.
        return None if self.slices is None else range(self.slices[0], self.slices[1] + 1, *self.slices[2:])


def parse_record(value: object, where: str, task: str, labels: dict[int, str]) -> Record:
    """Build a record from its JSON form.

    Args:
        where: Its name in errors until its case name is known, as ``record 3 of training``.

    Raises:
        DataError: A key is unknown or missing, or a value is not of its form.
    """
    if not isinstance(value, dict):
        raise DataError(
            f"{where} must be an object with image and label, not {quote_value(value)}; correct dataset.json"
        )
    check_keys(value, where, ("image", "label"), KEYS)
    images = _parse_images(value["image"], where)
    image = next(path for path in images if path is not None)
    index = _parse_index(value.get("index"), image, where)
    slices = _parse_slices(value.get("slices"), where)
    if "case" in value:
        case = _parse_text(_strip(value["case"]), f"the case of {where}")
    else:
        case = _default_case_name(image, slices, index)
    # From here on messages name the case, which a reader finds more easily than a number.
    return Record(
        case=case,
        images=images,
        label=_parse_label(value["label"], f"case {case!r}", task, labels),
        patient=_parse_name(value, "patient", case),
        slices=slices,
        index=index,
        recording=_parse_name(value, "recording", case),
        groups=_parse_groups(value.get("groups", {}), f"case {case!r}"),
    )


def check_keys(values: Mapping[str, object], where: str, needed: Iterable[str], known: Sequence[str]) -> None:
    """Refuse keys that no place of dataset.json has, and the lack of those that it needs.

    Args:
        where: Its name in errors.

    Raises:
        DataError: A key is unknown, or missing.
    """
    for key in values:
        if key not in known:
            raise DataError(
                f"{where} has the unknown key {quote_value(key)}{suggest_nearest(key, known)}; rename or remove it"
            )
    for key in needed:
        if key not in values:
            raise DataError(f"{where} lacks the key {quote_value(key)}; add it")


def find_case_name(value: Mapping[str, object]) -> str:
    """Return the case of a record in its JSON form, of which nothing is checked yet; nothing where it names none."""
    if "case" in value:
        return str(value["case"]).strip()
    try:
        image = next(path for path in _parse_images(value.get("image"), "") if path is not None)
        slices = _parse_slices(value.get("slices"), "")
        return _default_case_name(image, slices, _parse_index(value.get("index"), image, ""))
    except DataError:
        return ""


def locate(root: Path, path: str, case: str, folders: dict[Path, Path] | None = None) -> Path:
    """Return the resolved path of a record's file.

    Args:
        root: The folder of dataset.json, resolved.
        path: The path that dataset.json gives.
        case: The case that the message names.
        folders: Folders and their resolved paths, to which that of the file is added: most files share one.

    Raises:
        DataError: The path leaves the folder, or nothing readable is there.
    """
    # The file may have been written on another system: absolute paths of both kinds are refused on both.
    if PurePosixPath(path).is_absolute() or PureWindowsPath(path).drive or ".." in path.replace("\\", "/").split("/"):
        raise DataError(
            f"case {case!r} names {quote_value(path)}, outside of the folder of dataset.json; copy it there, and give "
            "the path relative to dataset.json"
        )
    try:
        # Links are resolved, because one may lead out of the folder.
        resolved = _resolve(root / path, {} if folders is None else folders)
        if root not in resolved.parents:
            raise DataError(
                f"case {case!r} names {quote_value(path)}, which leads out of the folder of dataset.json; copy or "
                "mount the files there, or make the whole data folder the link"
            )
        check_kind(resolved)
    except OSError as error:
        raise DataError(f"case {case!r}: {open_error(path, error)}") from None
    return resolved


def _resolve(path: Path, folders: dict[Path, Path]) -> Path:
    if path.parent not in folders:
        # Of a link to itself Path.resolve raises no OSError, which tells the path.
        folders[path.parent] = Path(os.path.realpath(path.parent))
    # Only the last name of the path can still be a link.
    file = folders[path.parent] / path.name
    return Path(os.path.realpath(file)) if file.is_symlink() else file


def _parse_text(value: object, what: str) -> str:
    # Many tables have numbers as the names of patients and cases; JSON's true is an int in Python.
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not _is_text(value):
        raise DataError(
            f"{what} must be a text on one line, without control characters, not {quote_value(value)}; correct "
            "dataset.json"
        )
    return value


def _strip(value: object) -> object:
    """Return a name without the blanks at its ends, which nobody sees; of a path they are a part."""
    return value.strip() if isinstance(value, str) else value


def _parse_name(record: Mapping[str, object], key: str, case: str) -> str | None:
    """Return the patient or the recording of a record; None where it says none, or only signs that nobody sees."""
    if key not in record:
        return None
    return normalise_name(_parse_text(_strip(record[key]), f"the {key} of case {case!r}")) or None


def _parse_path(value: object, what: str) -> str:
    path = _parse_text(value, what)
    if not PurePosixPath(path).name:
        raise DataError(f"{what} must be the path of a file, not {quote_value(path)}; correct dataset.json")
    return path


def _parse_images(value: object, where: str) -> tuple[str | None, ...]:
    if not isinstance(value, list):
        return (_parse_path(value, f"the image of {where}"),)
    # A contrast that this case lacks is null.
    paths = [None if path is None else _parse_path(path, f"each image of {where}") for path in value]
    files = [path for path in paths if path is not None]
    wrong = [path for path in files if files.count(path) > 1 or path.endswith(".npz")]
    if wrong or not files:
        raise DataError(
            f"{where}: image must be one file, or a list of different files, one or null for each contrast and none an "
            f"npz file, not {quote_value(wrong or value)}; correct dataset.json"
        )
    return tuple(paths)


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and is_one_line(value)


def _is_natural(value: object) -> TypeGuard[int]:
    # JSON's true is an int in Python, and no number here.
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _parse_index(value: object, image: str, where: str) -> int | None:
    is_npz = image.endswith(".npz")
    if is_npz and _is_natural(value):
        return value
    if is_npz or value is not None:
        raise DataError(
            f"{where}: index must be a number from 0 for an npz file, and left out for another file, not "
            f"{quote_value(value)} for {quote_value(image)}; correct dataset.json"
        )
    return None


def _parse_slices(value: object, where: str) -> tuple[int, ...] | None:
    if value is None:
        return None
    if (
        not isinstance(value, list)
        or len(value) not in (2, 3)
        or not all(map(_is_natural, value))
        or value[0] > value[1]
        or 0 in value[2:]
        or max(value) >= MAX_SLICES
    ):
        raise DataError(
            f"{where}: slices must be [first, last] from 0 to {MAX_SLICES - 1}, or [first, last, step], not "
            f"{quote_value(value)}; correct dataset.json"
        )
    return tuple(value)


def _parse_groups(value: object, where: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(
        _is_text(name) and (_is_text(group) or type(group) in (int, float)) for name, group in value.items()
    ):
        raise DataError(
            f'{where}: groups must be texts or numbers by name, as {{"sex": "F", "age": 61}}, not '
            f"{quote_value(value)}; correct dataset.json"
        )
    # Two spellings that look alike must be one group.
    return {normalise_accents(name.strip()): normalise_accents(str(group).strip()) for name, group in value.items()}


def _default_case_name(image: str, slices: tuple[int, ...] | None, index: int | None) -> str:
    path = PurePosixPath(image)
    name = str(path.with_name(path.name.split(".")[0] or path.name))
    name += "" if index is None else f"#{index}"
    return name if slices is None else f"{name}[{'-'.join(map(str, slices))}]"


def _parse_label(value: object, where: str, task: str, labels: dict[int, str]) -> str | int:
    if task == "segmentation":
        if not _is_text(value):
            raise DataError(
                f"{where}: label must be the path of a label map, not {quote_value(value)}; correct dataset.json"
            )
        return value
    listed = ", ".join(f"{number} ({name})" for number, name in sorted(labels.items()))
    if task == "multilabel":
        if (
            not isinstance(value, list)
            or not all(_is_natural(number) and number in labels for number in value)
            or len({*value}) < len(value)
        ):
            raise DataError(
                f"{where}: label must be a list of labels among {listed}, each once, not {quote_value(value)}; correct "
                "dataset.json"
            )
        return pack_findings(value)
    if not _is_natural(value) or value not in labels:
        raise DataError(f"{where}: label must be one of {listed}, not {quote_value(value)}; correct dataset.json")
    return value
