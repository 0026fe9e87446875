"""One record of dataset.json: an image, its label and its patient."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath

from silofl.base.documents import check_kind
from silofl.base.errors import DataError, quote_value, suggest_nearest
from silofl.base.naming import is_one_line, normalise_accents
from silofl.core.findings import pack_findings
from silofl.reading.access import open_error
from silofl.reading.patient_names import normalise_name

KEYS = ("image", "label", "patient", "case", "slices", "index", "recording", "groups")
# No volume has as many slices; a set of them is built to find overlaps.
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
        return None if self.slices is None else slice_numbers(self.slices)


def slice_numbers(slices: Sequence[int]) -> range:
    """Return the slice numbers of ``[first, last]`` or ``[first, last, step]``, both ends included."""
    return range(slices[0], slices[1] + 1, *slices[2:])


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
    for key in ("image", "label"):
        if key not in value:
            raise DataError(f"{where} must have the key {quote_value(key)}; it is missing: add it to dataset.json")
    for key in value:
        if key not in KEYS:
            raise DataError(
                f"{where} must have known keys, not {quote_value(key)}{suggest_nearest(key, KEYS)}; rename or remove it"
            )
    images = _parse_images(value["image"], where)
    image = next(path for path in images if path is not None)
    index = _parse_index(value.get("index"), image, where)
    slices = _parse_slices(value.get("slices"), where)
    case = (
        _parse_text(_strip(value["case"]), f"the case of {where}")
        if "case" in value
        else _default_case_name(image, slices, index)
    )
    label = _parse_label(value["label"], f"case {case!r}", task, labels)
    patient = _parse_name(value["patient"], f"the patient of case {case!r}") if "patient" in value else None
    recording = _parse_name(value["recording"], f"the recording of case {case!r}") if "recording" in value else None
    groups = _parse_groups(value.get("groups", {}), case)
    return Record(case, images, label, patient, slices, index, recording, groups)


def find_case_name(value: Mapping[str, object]) -> str:
    """Return the case of a record in its JSON form, of which nothing is checked yet; nothing where it names none."""
    if "case" in value:
        return str(value["case"]).strip()
    try:
        image = next(path for path in _parse_images(value.get("image"), "") if path is not None)
        slices, index = _parse_slices(value.get("slices"), ""), _parse_index(value.get("index"), image, "")
        return _default_case_name(image, slices, index)
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
            f"case {case!r} must name files inside the folder of dataset.json, not {quote_value(path)}; copy them "
            "there and give the path relative to dataset.json"
        )
    try:
        # Links are resolved, because one may lead out of the folder.
        found = _resolve(root / path, {} if folders is None else folders)
        if root not in found.parents:
            raise DataError(
                f"case {case!r} must name files inside the folder of dataset.json, not {quote_value(path)}, a link "
                "that leads out of it; copy or mount the files there, or make the whole data folder the link"
            )
        check_kind(found)
    except OSError as error:
        raise DataError(f"case {case!r}: {open_error(path, error)}") from None
    except RuntimeError:
        raise DataError(f"case {case!r}: {path} must be a file, not a link to itself; replace the link") from None
    return found


def _resolve(path: Path, folders: dict[Path, Path]) -> Path:
    folder = path.parent
    if folder not in folders:
        folders[folder] = folder.resolve()
    found = folders[folder] / path.name
    return found.resolve() if found.is_symlink() else found


def _parse_text(value: object, what: str) -> str:
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


def _parse_name(value: object, what: str) -> str:
    name = normalise_name(_parse_text(_strip(value), what))
    if not name:
        raise DataError(f"{what} must be a text, not one of signs that nobody sees, {value!a}; correct dataset.json")
    return name


def _parse_path(value: object, what: str) -> str:
    """Return a path, which names something in the folder."""
    path = _parse_text(value, what)
    if not PurePosixPath(path).name:
        raise DataError(f"{what} must be the path of a file, not {quote_value(path)}; correct dataset.json")
    return path


def _parse_images(value: object, where: str) -> tuple[str | None, ...]:
    if not isinstance(value, list):
        return (_parse_path(value, f"the image of {where}"),)
    paths = [None if path is None else _parse_path(path, f"each image of {where}") for path in value]
    found = [path for path in paths if path is not None]
    if not found:
        raise DataError(
            f"{where} must have a file for at least one contrast, not {quote_value(value)}; correct dataset.json"
        )
    for path in found:
        if found.count(path) > 1 or path.endswith(".npz"):
            raise DataError(
                f"{where} must name each file once in its list of images, and no npz file of many images, not "
                f"{quote_value(path)}; correct dataset.json"
            )
    return tuple(paths)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and is_one_line(value)


def _is_natural(value: object) -> bool:
    # JSON's true is an int in Python.
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _parse_index(value: object, image: str, where: str) -> int | None:
    if image.endswith(".npz") != (value is not None):
        condition = "have an 'index' into" if value is None else "have no 'index' without"
        raise DataError(
            f"{where} must {condition} an npz file of many images, as {quote_value(image)}; correct dataset.json"
        )
    if value is not None and not _is_natural(value):
        raise DataError(
            f"{where} must have an 'index' that is a number from 0, not {quote_value(value)}; correct dataset.json"
        )
    return value


def _parse_slices(value: object, where: str) -> tuple[int, ...] | None:
    if value is None:
        return None
    is_range = isinstance(value, list) and len(value) in (2, 3) and all(map(_is_natural, value))
    if not is_range or value[0] > value[1] or 0 in value[2:] or max(value) >= MAX_SLICES:
        raise DataError(
            f"{where} must have 'slices' as [first, last] from 0 to {MAX_SLICES - 1}, or [first, last, step], not "
            f"{quote_value(value)}; correct dataset.json"
        )
    return tuple(value)


def _parse_groups(value: object, case: str) -> dict[str, str]:
    is_table = isinstance(value, dict) and all(_is_text(key) for key in value)
    if not is_table or not all(_is_text(one) or type(one) in (int, float) for one in value.values()):
        raise DataError(
            f"the groups of case {case!r} must be texts or numbers by name, as "
            f'{{"sex": "F", "age": 61}}, not {quote_value(value)}; correct dataset.json'
        )
    return {normalise_accents(key.strip()): normalise_accents(str(one).strip()) for key, one in value.items()}


def _default_case_name(image: str, slices: tuple[int, ...] | None, index: int | None) -> str:
    path = PurePosixPath(image)
    name = str(path.with_name(path.name.split(".")[0] or path.name))
    name += "" if index is None else f"#{index}"
    return name if slices is None else f"{name}[{'-'.join(map(str, slices))}]"


def _parse_label(value: object, where: str, task: str, labels: dict[int, str]) -> str | int:
    if task == "segmentation":
        if not _is_text(value):
            raise DataError(
                f"{where} must have the path of a label map as its label, not {quote_value(value)}; correct "
                "dataset.json"
            )
        return value
    known = ", ".join(f"{number} ({name})" for number, name in sorted(labels.items()))
    if task == "multilabel":
        is_set = isinstance(value, list) and all(_is_natural(one) and one in labels for one in value)
        if not is_set or len({*value}) < len(value):
            raise DataError(
                f"{where} must have a list of labels among {known}, each once, not {quote_value(value)}; correct "
                "dataset.json"
            )
        return pack_findings(value)
    if not _is_natural(value) or value not in labels:
        raise DataError(f"{where} must have a label among {known}, not {quote_value(value)}; correct dataset.json")
    return value
