"""The cases of a site by their files, found by patterns of paths, and the plan of their import.

A pattern is a path relative to the site's folder in which ``{case}`` stands for the name of a case, as
``scans/{case}_t1.nii.gz`` or ``{case}/t1.nii.gz``. Without its ending, as ``{case}/t1``, it takes files with any that
can be read. In that of masks ``{label}`` stands for a label, where each has a file of its own.
"""

import glob
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path, PurePosixPath

from silofl.base.errors import ConfigError, DataError, quote_value
from silofl.base.naming import is_one_line, normalise_accents
from silofl.data.contrasts import check_contrasts
from silofl.data.manifest import PARTS
from silofl.data.targets import IGNORE
from silofl.reading.patient_ids import read_own_id
from silofl_hospital.importing.masks import ENDINGS, SEGMENTATION, Values, plan_layers, plan_mask, split_ending
from silofl_hospital.importing.options import ImportOptions
from silofl_hospital.importing.site_files import (
    UNKNOWN,
    File,
    JsonRecord,
    SitePlan,
    Writer,
    copy_image,
    split_patients,
    unify_spellings,
)

CASE, LABEL = "{case}", "{label}"


@dataclass(frozen=True)
class Patterns:
    """Where the files of a site's cases lie.

    Attributes:
        images: A pattern for the image, or one for each contrast.
        mask: The pattern of the mask.
        channel_names: The contrasts; none where there is one image without a name.
        labels: The labels of which each case has a mask of its own; none where one mask has all.
    """

    images: tuple[str, ...]
    mask: str
    channel_names: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()

    @property
    def masks(self) -> tuple[str, ...]:
        """The pattern of the mask, or one for each label."""
        return tuple(self.mask.replace(LABEL, label) for label in self.labels) or (self.mask,)


@dataclass(frozen=True)
class SiteCases:
    """The files of a site's cases, each of which has a mask and at least one image.

    Attributes:
        site: The site's name.
        folder: Where its files lie.
        images: Case -> its image, or one for each contrast, None where there is none.
        masks: Case -> its mask.
        channel_names: The contrasts; none where there is one image without a name.
        images_in: The folder in `folder` that all images lie in.
        layers: Case -> the mask of each label, the first of which is in `masks`; none where one mask has all labels.
        patients: Case -> patient, where the folders name them.
    """

    site: str
    folder: Path
    images: Mapping[str, tuple[Path | None, ...]]
    masks: Mapping[str, Path]
    channel_names: tuple[str, ...] = ()
    images_in: str = "."
    layers: Mapping[str, Mapping[str, Path]] = field(default_factory=dict)
    patients: Mapping[str, str] = field(default_factory=dict)

    # cached_property writes to __dict__ directly, which a frozen dataclass does not prevent.
    @cached_property
    def patient_ids(self) -> dict[str, str | None]:
        """The patient whom each case's DICOM files name; None where they name none, and of other forms."""
        return {case: read_own_id(filter(None, images)) for case, images in self.images.items()}

    def image_names(self, case: str) -> list[str | None]:
        """Return the paths of a case's images relative to the folder of the images."""
        root = self.folder / self.images_in
        return [None if path is None else path.relative_to(root).as_posix() for path in self.images[case]]

    def list_image_paths(self, case: str) -> list[str]:
        """Return the paths of a case's images, relative to the folder of the images and to that of the site."""
        paths = [path for path in self.images[case] if path is not None]
        roots = dict.fromkeys([self.folder / self.images_in, self.folder])
        return [path.relative_to(root).as_posix() for root in roots for path in paths]

    @property
    def missing(self) -> dict[str, int]:
        """By contrast, how many cases lack it, of those that some case lacks."""
        counts = {
            name: sum(images[place] is None for images in self.images.values())
            for place, name in enumerate(self.channel_names)
        }
        return {name: count for name, count in counts.items() if count}


def parse_patterns(images: str, mask: str, labels: Sequence[str] = ()) -> Patterns:
    """Read the patterns of a command line.

    Args:
        images: A pattern, or ``T1=PATTERN,T2=PATTERN``.
        mask: A pattern, which may hold ``{label}``.
        labels: The names of the labels.

    Raises:
        ConfigError: A pattern has no ``{case}`` or leaves the folder, only some have a name, or there are no names for
            ``{label}``.
    """
    names, given = split_contrasts(images)
    found = Patterns(
        tuple(check_pattern(pattern, "image-pattern") for pattern in given),
        mask.strip(),
        names,
        tuple(labels) if LABEL in mask else (),
    )
    masks = [check_pattern(pattern, "mask-pattern") for pattern in found.masks]
    return found if found.labels else replace(found, mask=masks[0])


def split_contrasts(images: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split what a command line says of images into the names of the contrasts, if any, and a pattern for each.

    Args:
        images: A pattern, or ``T1=PATTERN,T2=PATTERN``.

    Raises:
        ConfigError: Only some have a name, or a name is none or is there twice.
    """
    parts = [part.strip().partition("=") for part in images.split(",")]
    has_names = any(equals for _, equals, _ in parts)
    if not all(bool(equals) is has_names for _, equals, _ in parts) or (len(parts) > 1 and not has_names):
        raise ConfigError(
            f"image-pattern must be one pattern, or NAME=PATTERN,NAME=PATTERN with a name for each contrast, not "
            f"{quote_value(images)}"
        )
    names = tuple(name.strip() for name, _, _ in parts) if has_names else ()
    check_contrasts(names, "image-pattern")
    return names, tuple((pattern if has_names else name).strip() for name, _, pattern in parts)


def check_pattern(pattern: str, option: str) -> str:
    """Return a pattern as it is matched.

    Args:
        pattern: The path, in which ``{case}`` stands for the name of a case.

    Raises:
        ConfigError: It has no ``{case}``, or leaves the folder of a site.
    """
    pattern = pattern.strip()
    rest = pattern.replace(CASE, "")
    if CASE not in pattern or {"{", "}"} & {*rest}:
        raise ConfigError(
            f"{option} must hold {CASE} and no other braces, as {CASE}/t1.nii.gz, not {quote_value(pattern)}; {LABEL} "
            "in a mask-pattern goes with --labels"
        )
    path = PurePosixPath(pattern)
    if path.is_absolute() or ".." in path.parts:
        raise ConfigError(
            f"{option} must be a path within the folder of a site, not {quote_value(pattern)}; begin it there"
        )
    return str(path)


def find_cases(site: str, folder: Path, patterns: Patterns) -> SiteCases:
    """Find the cases of a site; a file that fits several patterns belongs to the one with most letters of its own.

    Raises:
        DataError: There is none, or one without a mask or without an image, or a file of a form that cannot be read.
    """
    matched = _match_files(site, folder, (*patterns.images, *patterns.masks))
    images, layers = matched[: len(patterns.images)], matched[len(patterns.images) :]
    names = sorted({name for found in images for name in found})
    masks = {case: path for found in reversed(layers) for case, path in found.items()}
    if not names and not masks:
        wanted = ", ".join([*patterns.images, patterns.mask])
        raise DataError(
            f"site {site!r} must have files as {wanted}, not none; correct the patterns (without an ending, as "
            f"{CASE}/t1, they take .nii and .nii.gz), or remove its folder"
        )
    _check_complete(site, {*names}, {*masks})
    by_case = {name: tuple(found.get(name) for found in images) for name in names}
    cases = SiteCases(site, folder, by_case, masks, patterns.channel_names)
    return replace(cases, layers=_group_layers(site, patterns, layers)) if patterns.labels else cases


def _group_layers(site: str, patterns: Patterns, layers: Sequence[Mapping[str, Path]]) -> dict[str, dict[str, Path]]:
    """Return the mask of each label by case; every case has all, because an absent one may have been forgotten."""
    cases = {case for found in layers for case in found}
    for pattern, found in zip(patterns.masks, layers, strict=True):
        if lacking := cases - found.keys():
            raise DataError(
                f"site {site!r} must have {pattern} of every case, not none of {shorten_names(lacking)}; add it, empty "
                "where the label is not in the image, or leave the label out of --labels"
            )
    return {case: {label: found[case] for label, found in zip(patterns.labels, layers, strict=True)} for case in cases}


def _check_complete(site: str, images: set[str], masks: set[str]) -> None:
    """Refuse a site whose cases with an image and cases with a mask are not the same."""
    for absent, what in ((images - masks, "masks"), (masks - images, "images")):
        if absent:
            raise DataError(
                f"site {site!r} must have {what} for {shorten_names(absent)}; add them, remove the others, or name the "
                f'files with --image-pattern and --mask-pattern, as "T1=images/{CASE}_0000,T2=images/{CASE}_0001"'
            )


def check_utf8_name(site: str, name: str) -> None:
    """Refuse a file whose name is no text on one line.

    Raises:
        DataError: Its bytes are not UTF-8, or command a terminal.
    """
    if not is_one_line(name):
        raise DataError(
            f"site {site!r} must have file names in UTF-8, without line breaks and control characters, not "
            f"{quote_value(name)}; rename the file"
        )


def plan_cases(
    found: SiteCases, patients: Mapping[str, str | None], values: Values, options: ImportOptions
) -> SitePlan:
    """Plan a segmentation site: images are copied, masks get the site's numbers.

    Cases are split by patient, or each by itself where one's patient is not known.

    Args:
        patients: Case -> patient, or None for all where they are not known.
        values: What the masks may hold.

    Raises:
        DataError: The site has fewer than two patients.
    """
    cases = sorted(found.images)
    named, said = unify_spellings(found.site, [patients[case] for case in cases])
    is_known = None not in named
    units = [str(name) for name in named] if is_known else cases
    part_of = split_patients(found.site, units, options, "patients" if is_known else "images")
    records: dict[str, list[JsonRecord]] = {part: [] for part in PARTS}
    masks: dict[str, Writer] = {}
    images: dict[str, Writer] = {}
    for case, patient, unit in zip(cases, named, units, strict=True):
        mask, write = _plan_mask(found, case, values)
        masks[mask] = write
        names = [None if name is None else f"images/{name}" for name in found.image_names(case)]
        for name, path in zip(names, found.images[case], strict=True):
            if name is not None and path is not None:
                images[name] = partial(copy_image, path)
        record: JsonRecord = {"image": names if len(names) > 1 else names[0], "label": mask}
        if patient is not None:
            record["patient"] = patient
        records[part_of[unit]].append({**record, "case": case})
    notes = [*said, *([] if is_known else [UNKNOWN])]
    if is_known and patients == found.patient_ids:
        notes.append(f"{found.site}: the patients are those of the DICOM headers (PatientID)")
    lacks = [f"{count} of {len(cases)} cases have no {name}" for name, count in found.missing.items()]
    if lacks:
        notes.append(f"{found.site}: {', '.join(lacks)}; dataset.json has null there, for which networks see zeros")
    if values.ignored is not None:
        notes.append(f"{found.site}: what is labelled {IGNORE!r} counts in no loss and no score")
    return SitePlan(
        task="segmentation",
        labels=values.labels,
        records=records,
        # Masks first: one that is refused is refused before many images are copied.
        files={**masks, **images},
        split_unit="patient" if is_known else "unknown",
        notes=tuple(notes),
        channel_names=found.channel_names,
        ignored=values.ignored_at_site,
    )


def _plan_mask(found: SiteCases, case: str, values: Values) -> File:
    image = next(path for path in found.images[case] if path is not None)
    if layers := found.layers.get(case):
        return plan_layers(layers, image, case, values, f"site {found.site!r}")
    stored = found.masks[case]
    place = f"site {found.site!r}: {stored.relative_to(found.folder).as_posix()}"
    return plan_mask(stored, image, case, values, place)


def shorten_names(names: Iterable[str]) -> str:
    """Return the first three names, and how many more there are."""
    names = sorted(names)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _match_files(site: str, folder: Path, patterns: Sequence[str]) -> list[dict[str, Path]]:
    """Return for each pattern the file of each case."""
    found: list[dict[str, Path]] = [{} for _ in patterns]
    taken: set[Path] = set()
    # {case}.png also fits the files of {case}_mask.png.
    for place in sorted(range(len(patterns)), key=lambda i: -len(patterns[i].replace(CASE, ""))):
        expression = _expression(patterns[place])
        for path in sorted(folder.glob(_wildcards(patterns[place]))):
            name = path.relative_to(folder).as_posix()
            match = expression.fullmatch(name)
            if match is None or path in taken:
                continue
            check_utf8_name(site, name)
            split_ending(path, f"site {site!r}: {name}")
            taken.add(path)
            case = normalise_accents(match["case"])
            if case in found[place]:
                others = sorted({found[place][case].relative_to(folder).as_posix(), name})
                raise DataError(
                    f"site {site!r} must have one file for {case} as {patterns[place]}, not {' and '.join(others)}; "
                    "remove one, or write the pattern with its ending (accents may be written in two ways)"
                )
            found[place][case] = path
    return found


def _expression(pattern: str) -> re.Pattern[str]:
    first, *others = map(re.escape, pattern.split(CASE))
    ending = f"(?i:{'|'.join(map(re.escape, (SEGMENTATION, *ENDINGS)))})?" if _takes_endings(pattern) else ""
    # A name that begins with a dot is a hidden file's. Names of cases may hold dots, and end before an ending.
    return re.compile(f"{first}(?P<case>[^/.][^/]*?){'(?P=case)'.join(others)}{ending}")


def _takes_endings(pattern: str) -> bool:
    return not pattern.lower().endswith(ENDINGS)


def _wildcards(pattern: str) -> str:
    # Two stars would be any number of folders.
    return re.sub(r"\*+", "*", "*".join(map(glob.escape, pattern.split(CASE))) + "*" * _takes_endings(pattern))
