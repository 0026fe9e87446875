"""The cases of a site whose folder is arranged as BIDS or nnU-Net do it, for ``silofl import folders --layout``.

BIDS: Gorgolewski et al., Scientific Data 2016. nnU-Net, version 2 or 1: Isensee et al., Nature Methods 2021.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from silofl.base.errors import ConfigError, DataError
from silofl.data.targets import IGNORE
from silofl.reading.access import read_bytes
from silofl.reading.formats import PICTURES
from silofl_hospital.importing.cases import CASE, Patterns, SiteCases, find_cases, split_contrasts
from silofl_hospital.importing.masks import Values, read_values, split_ending
from silofl_hospital.importing.options import ImportOptions
from silofl_hospital.importing.site_files import Case
from silofl_hospital.importing.tree import visible_files

# The cases of a site, what its masks may hold, and name -> numbers of regions to score.
Arranged = tuple[SiteCases, Values, Mapping[str, tuple[int, ...]]]


def find_bids_cases(folder: Path, options: ImportOptions) -> Arranged:
    """Find the images of some kinds that have a mask; the subject is the patient.

    A file is called sub-01_KIND or sub-01_ses-1_KIND; that of a mask lies in derivatives/, and has the name of its
    image before the kind.

    Raises:
        ConfigError: A kind is not named.
        DataError: There is no image with a mask, or a case has two files of a kind.
    """
    if options.image_pattern is None or options.mask_pattern is None:
        raise ConfigError("--layout bids needs --image-pattern and --mask-pattern. Name kinds, as T1w and dseg.")
    contrasts, kinds = split_contrasts(options.image_pattern)
    # labels/dseg names a folder in derivatives; dseg alone means any folder there.
    pipeline, _, mask_kind = options.mask_pattern.rpartition("/")
    derivatives = folder / "derivatives"
    files = visible_files(folder)
    masks = _find_kind([path for path in files if path.is_relative_to(derivatives / pipeline)], mask_kind)
    scans = [path for path in files if not path.is_relative_to(derivatives)]
    images_by_kind = [_find_kind(scans, kind) for kind in kinds]
    cases = []
    for name in sorted(masks):
        images = tuple(files_of.get(name) for files_of in images_by_kind)
        if any(images):
            cases.append(Case(name, images, (masks[name],), patient=name.partition("_")[0]))
    if not cases:
        raise DataError(
            f"Site {folder.name!r} has no image {options.image_pattern} with a mask {options.mask_pattern}. Correct "
            "the kinds, or remove its folder."
        )
    return SiteCases(folder.name, folder, cases, contrasts), read_values(options), {}


def _find_kind(files: Iterable[Path], kind: str) -> dict[str, Path]:
    """Return the files of a kind by what their names have before it."""
    file_of: dict[str, Path] = {}
    for path in files:
        stem = path.name.partition(".")[0]
        if not path.name.startswith("sub-") or not stem.endswith(f"_{kind}") or path.name.endswith(".json"):
            continue
        split_ending(path, path.name)
        case = stem.removesuffix(f"_{kind}")
        if case in file_of:
            raise DataError(
                f"{case} has two files of the kind {kind}: {file_of[case]} and {path}. Name the folder in derivatives "
                f"too, as labels/{kind}, or remove one."
            )
        file_of[case] = path
    return file_of


def find_nnunet_cases(folder: Path, options: ImportOptions) -> Arranged:
    """Find the cases in imagesTr and labelsTr, with the contrasts and labels that dataset.json names.

    Raises:
        ConfigError: Labels or patterns are given.
        DataError: dataset.json is none of nnU-Net, or a case lacks a file.
    """
    if options.labels or options.image_pattern or options.mask_pattern:
        raise ConfigError("--layout nnunet takes labels and files from dataset.json. Leave --labels and patterns out.")
    where = f"dataset.json of site {folder.name!r}"
    content = read_bytes(folder / "dataset.json", where)
    try:
        description = json.loads(content)
        ending = description.get("file_ending", ".nii.gz")
        # Version 1 calls them modality.
        channels = description.get("channel_names", description.get("modality"))
        names = tuple(channels[str(number)] for number in range(len(channels)))
        numbers = _read_labels(description["labels"])
        # It is no label: nobody annotated these voxels.
        ignored = numbers.pop(IGNORE, (None,))[0]
        labels = _name_numbers(numbers)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{where} is not as nnU-Net writes it ({type(error).__name__}: {error}). Correct its channel_names, as "
            '{"0": "T1"}, and labels, as {"background": 0, "organ": 1}.'
        ) from None
    images = [f"imagesTr/{CASE}_{number:04}{ending}" for number in range(len(names))]
    if ending in PICTURES and not any((folder / "imagesTr").glob(f"*_0001{ending}")):
        # The channels are red, green and blue of one picture.
        images = images[:1]
        names = ()
    found = find_cases(folder.name, folder, Patterns(tuple(images), f"labelsTr/{CASE}{ending}", names), options.skip)
    cases = replace(found, images_in="imagesTr")
    values = Values(labels, "correct the mask, or labels in its dataset.json", ignored)
    if all(len(members) == 1 for members in numbers.values()):
        return cases, values, {}
    number_at_site = {stored: number for number, stored in enumerate(labels, start=1)}
    regions = {}
    for name, members in numbers.items():
        regions[name] = tuple(number_at_site[stored] for stored in members)
    return cases, values, regions


def _read_labels(labels: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return name -> its numbers without the background, of version 2, ``{"organ": 1}``, or 1, ``{"1": "organ"}``."""
    numbers: dict[str, tuple[int, ...]] = {}
    for key, value in labels.items():
        members: tuple[int, ...]
        if isinstance(value, str):
            name = value
            members = (int(key),)
        else:
            name = key
            members = tuple(sorted(value)) if isinstance(value, list) else (int(value),)
        if members != (0,):
            numbers[name] = members
    return numbers


def _name_numbers(numbers: Mapping[str, tuple[int, ...]]) -> dict[int, str]:
    """Return the name of each number: that of the region which has it alone, or of the smallest one and the number."""
    names: dict[int, str] = {}
    for name, members in sorted(numbers.items(), key=lambda named: len(named[1])):
        for number in members:
            names.setdefault(number, name if len(members) == 1 else f"{name} {number}")
    return dict(sorted(names.items()))


# Value of --layout -> what finds the cases in a site's folder.
ARRANGEMENTS: Mapping[str, Callable[[Path, ImportOptions], Arranged]] = {
    "bids": find_bids_cases,
    "nnunet": find_nnunet_cases,
}
