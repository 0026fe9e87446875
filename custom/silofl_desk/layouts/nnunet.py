"""Data sets of nnU-Net, of its version 2 or 1: one as one site, or a folder with one for each site.

Own data, or what others have brought to the format of Isensee et al., nnU-Net: a self-configuring method for deep
learning-based biomedical image segmentation, Nature Methods 2021::

    SOURCE/                      or SOURCE/<site>/ with the same for each site
      dataset.json               channel_names (or modality), labels and file_ending are read
      imagesTr/
        case1_0000.nii.gz        the first contrast
        case1_0001.nii.gz ...    the second, of which every case has a file
      labelsTr/
        case1.nii.gz ...
      patients.csv               whose image it is, in the columns file (the case) and patient (or patients.tsv)

Files end in .nii.gz, .nii, .mha, .nrrd, .png or .tif. Labels of one name are one label at all sites, in the order of
the first site and then of the others, and the masks are renumbered where their numbers are others. A label that a
site's dataset.json does not name has been drawn by nobody there: labels_annotated lists the others. --labels gives the
labels other names; or it names all labels of a study in their order, of which the sites have some. Without it, names
that are nearly one, as Tumour and tumor, and that no site has both of are said to be two labels; and so are contrasts,
as T1 and t1, whatever --labels says. Pictures in colours, one file a case, are one image without contrasts. imagesTs
has no labels and is not read: training, validation and test are drawn from imagesTr. Where dataset.json lists the files
of each case (dataset), these are taken, wherever they lie.

Voxels of the label ignore count in no loss and no score. Where labels are regions, as whole: [1, 2], core: 2, each
number is a label, named as a region that has it alone, or as the smallest region that has it with the number; the
regions stand in dataset.json, and new-study takes them over. Plans of nnU-Net (nnUNetPlans.json) are not read.

Without patients.csv nobody knows whose images they are: they are split by case.
"""

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from silofl.base.errors import DataError, quote_value
from silofl.data.contrasts import check_contrasts
from silofl.data.targets import IGNORE
from silofl.importing.cases import CASE, Patterns, SiteCases, find_cases, plan_cases, shorten_names
from silofl.importing.masks import ENDINGS, Values
from silofl.importing.options import FIFTHS, ImportOptions, Layout
from silofl.importing.patients import TABLES, read_patients, warn_unknown_patients
from silofl.importing.site_files import SitePlan, visible_folders
from silofl.reading.formats import PICTURES
from silofl_desk.layouts.description import choose_labels, read_description

PARTS = ("dataset.json", "imagesTr", "labelsTr")
# The key of dataset.json with the files of each case, where they do not lie in these folders.
LISTED = "dataset"
# Label maps are read as 32 bits.
MOST = 1 << 31
REMEDY = "correct the mask, or labels in its dataset.json"
# Of two names' letters, from which they are nearly one: disc and disk.
ALIKE = 0.75
# What follows at a site where the name is another.
FOLLOWS = {"LABEL": "labels, which nobody drew", "CONTRAST": "contrasts, of which networks see zeros"}


@dataclass(frozen=True)
class Description:
    """What the dataset.json of one of nnU-Net's sets says.

    Attributes:
        channel_names: The contrasts in the order of the files' numbers.
        labels: Number in the masks -> name, without the background, in the order of the numbers.
        ending: Of all files.
        regions: Name -> numbers in the masks of what is scored in place of labels; none where these are.
        ignored: The number in the masks of what nobody annotated; None where all is annotated.
        files: Case -> its images and its mask, by paths; none where they lie in imagesTr and labelsTr.
    """

    channel_names: tuple[str, ...]
    labels: dict[int, str]
    ending: str
    regions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ignored: int | None = None
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def file_name(self, channel: int) -> str:
        """Return the name of a contrast's file, as a pattern."""
        return f"{CASE}_{channel:04}{self.ending}"


def plan_nnunet(source: Path, options: ImportOptions) -> dict[str, SitePlan]:
    """Plan the import of SOURCE/imagesTr and SOURCE/labelsTr, or of these in each folder of SOURCE.

    Raises:
        ConfigError: A contrast has a name that no study can have, or there are more or fewer names than labels.
        DataError: A folder is no such set, a file is missing or named otherwise, or sites differ in a region.
    """
    is_one = source.is_dir() and any((source / part).exists() for part in PARTS)
    sites = {source.resolve().name: source} if is_one else {folder.name: folder for folder in visible_folders(source)}
    if not sites:
        raise DataError(f"{source.name} must hold {', '.join(PARTS)} of nnU-Net, or a folder with them for each site")
    found = {site: _read_site_description(site, folder) for site, folder in sites.items()}
    own = list(dict.fromkeys(name for described in found.values() for name in described.labels.values()))
    of_study = options.labels if {*own} <= {*(options.labels or ())} else None
    labels = choose_labels(options.labels, of_study or own, first=1)
    new = {name: name for name in own} if of_study else dict(zip(own, labels.values(), strict=True))
    plans = {}
    for site, described in found.items():
        names = {number: new[name] for number, name in described.labels.items()}
        values = Values(names, REMEDY, labels, described.ignored)
        folder = _stage_files(site, sites[site], described, options.scratch) if described.files else sites[site]
        cases = _find_site_cases(site, folder, described)
        plans[site] = plan_cases(cases, read_patients(cases), values, options)
    plans = warn_unknown_patients(plans)
    # First: all that is said of labels that nobody drew, and of contrasts that sites lack, follows from it.
    slips = (
        []
        if options.labels
        else _describe_similar_labels("LABEL", {site: one.labels.values() for site, one in found.items()})
    )
    slips += _describe_similar_labels("CONTRAST", {site: one.channel_names for site, one in found.items()})
    first, regions = next(iter(plans)), _join_regions(found, new, labels)
    notes = {site: (*_describe_plans(site, folder), *plans[site].notes) for site, folder in sites.items()}
    shown = ", ".join(f"{name} {list(numbers)}" for name, numbers in regions.items())
    scored = [f"regions of labels are scored, as new-study writes: {shown}"] if regions else []
    notes[first] = (*slips, *scored, *notes[first])
    return {site: replace(plan, notes=notes[site], regions=regions) for site, plan in plans.items()}


def _join_regions(
    found: Mapping[str, Description], new: Mapping[str, str], labels: Mapping[int, str]
) -> dict[str, tuple[int, ...]]:
    """Return the regions of all sites by the numbers that the labels have there; none where labels are scored.

    Args:
        found: Site -> what its dataset.json says.
        new: Label's name in dataset.json -> its name at the site.
        labels: The labels of all sites by number.
    """
    if not any(described.regions for described in found.values()):
        return {}
    number_of, joined = {name: number for number, name in labels.items()}, dict[str, tuple[int, ...]]()
    for site, described in found.items():
        own = described.regions or {name: (number,) for number, name in described.labels.items()}
        for name, numbers in own.items():
            there = tuple(sorted(number_of[new[described.labels[number]]] for number in numbers))
            if joined.setdefault(new.get(name, name), there) != there:
                raise DataError(
                    f"dataset.json of site {site!r} must have the labels of other sites in the region {name!r}, not "
                    "others; name it otherwise"
                )
    return joined


def _describe_plans(site: str, folder: Path) -> list[str]:
    """Return a sentence on nnU-Net's plans in a folder, which say how others trained; nothing where there are none."""
    plans = [path.name for path in sorted(folder.glob("*Plans*.json"))]
    if not plans:
        return []
    return [
        f"{site}: {', '.join(plans)} is not read: residual encoders (ResEnc) and cascades (3d_cascade_fullres) are "
        "not supported"
    ]


def _describe_similar_labels(kind: str, found: Mapping[str, Iterable[str]]) -> list[str]:
    """Return a sentence where names are nearly one that no site has both of; nothing where none are.

    Args:
        kind: What has the names, a key of `FOLLOWS`.
        found: Site -> its names.
    """
    sites: dict[str, list[str]] = {}
    for site, names in found.items():
        for name in names:
            sites.setdefault(name, []).append(site)
    pairs = [
        " and ".join(f"{name!r} ({', '.join(sites[name])})" for name in pair)
        for pair in combinations(sites, 2)
        if {*sites[pair[0]]}.isdisjoint(sites[pair[1]]) and _is_similar_name(*pair)
    ]
    if not pairs:
        return []
    return [
        f"{kind} NAMES NEARLY EQUAL: {shorten_names(pairs)} count as different {FOLLOWS[kind]} at the other's sites; "
        "where they are one, give it one name in dataset.json of nnU-Net at all sites and import again"
    ]


def _is_similar_name(one: str, other: str) -> bool:
    """Return whether two names are nearly one, whatever their capitals, spaces and signs."""
    letters = [re.sub(r"[\W_]", "", name).casefold() for name in (one, other)]
    return bool(difflib.get_close_matches(letters[0], letters[1:], cutoff=ALIKE))


def _stage_files(site: str, folder: Path, described: Description, scratch: Path) -> Path:
    """Return a folder with imagesTr and labelsTr, of links to the files that dataset.json lists."""
    staged = scratch / site
    tables = {staged / table: folder / table for table in TABLES if (folder / table).exists()}
    links = tables | {
        staged / place.replace(CASE, case): folder / os.path.expandvars(path)
        for case, (*images, mask) in described.files.items()
        for place, path in (
            *((f"imagesTr/{described.file_name(channel)}", path) for channel, path in enumerate(images)),
            (f"labelsTr/{CASE}{described.ending}", mask),
        )
    }
    for link, file in links.items():
        if not file.is_file():
            raise DataError(f"dataset.json of site {site!r} must list files that are there, not {file}; correct it")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file.resolve())
    return staged


def _find_site_cases(site: str, folder: Path, described: Description) -> SiteCases:
    _check_file_names(site, folder, described)
    numbers = range(len(described.channel_names))
    images = tuple(f"imagesTr/{described.file_name(number)}" for number in numbers)
    mask, names = f"labelsTr/{CASE}{described.ending}", described.channel_names
    has_second = any(path.name.endswith(f"_0001{described.ending}") for path in (folder / "imagesTr").iterdir())
    if described.ending in PICTURES and len(images) > 1 and not has_second:
        # Red, green and blue of one picture.
        images, names = images[:1], ()
    found = replace(find_cases(site, folder, Patterns(images, mask, names)), images_in="imagesTr")
    for place, name in enumerate(found.channel_names):
        lacking = [case for case, files in found.images.items() if files[place] is None]
        if lacking:
            raise DataError(
                f"site {site!r} must have imagesTr/{described.file_name(place)} ({name}) of every case; missing of "
                f"{shorten_names(lacking)}: add it, or remove the case, or take import folders "
                "with patterns, where a case may lack one"
            )
    return found


def _check_file_names(site: str, folder: Path, described: Description) -> None:
    """Refuse a file of another name: it would be left out."""
    count = len(described.channel_names)
    numbers = "|".join(f"{number:04}" for number in range(count))
    last = "" if count == 1 else f" to {described.file_name(count - 1)}"
    forms = {
        "imagesTr": (rf".+_({numbers})", f"{described.file_name(0)}{last}, one contrast a file"),
        "labelsTr": (".+", f"{CASE}{described.ending}"),
    }
    for place, (expression, wanted) in forms.items():
        for path in sorted((folder / place).iterdir()):
            if not (path.name.startswith(".") or re.fullmatch(expression + re.escape(described.ending), path.name)):
                raise DataError(f"site {site!r}: {place}/{path.name} must be named as {wanted}; rename or remove it")


def _read_site_description(site: str, folder: Path) -> Description:
    is_described = (folder / PARTS[0]).exists()
    content = read_description(folder, ("labels",)) if is_described else {}
    missing = [part for part in PARTS if not (folder / part).exists()]
    # Others may write the set's name there.
    is_listed = isinstance(content.get(LISTED), dict)
    if missing and not is_listed:
        raise DataError(f"site {site!r} must have {', '.join(PARTS)} of nnU-Net; {', '.join(missing)} missing")
    where = f"dataset.json of site {site!r}"
    # Version 1 called them modality, and knew one ending.
    channels, ending = content.get("channel_names", content.get("modality")), content.get("file_ending", ".nii.gz")
    if ending not in ENDINGS:
        raise DataError(
            f"file_ending in {where} must be one of {', '.join(ENDINGS)}, not {quote_value(ending)}; convert it"
        )
    names, regions, ignored = _parse_labels(content["labels"], where)
    described = Description(_parse_channels(channels, where), names, ending, regions, ignored)
    return replace(described, files=_parse_files(content[LISTED], described, where)) if is_listed else described


def _parse_files(value: Mapping[str, object], described: Description, where: str) -> dict[str, tuple[str, ...]]:
    """Return the images and the mask of each case, by what dataset.json lists."""
    files, most = {}, len(described.channel_names)
    for case, item in value.items():
        images, mask = (item.get("images"), item.get("label")) if isinstance(item, dict) else (None, None)
        paths = (*images, mask) if isinstance(images, list) and 0 < len(images) <= most else ()
        is_file = [isinstance(path, str) and path.endswith(described.ending) for path in paths]
        if not is_file or not all(is_file) or not re.fullmatch(r"[^/.][^/]*", case):
            raise DataError(
                f'{LISTED} in {where} must list each case as {{"images": [PATH], "label": PATH}}, with up to {most} '
                f"images, and paths that end in {described.ending}, not {case!r}: {quote_value(item)}; correct it"
            )
        files[case] = paths
    if not files:
        raise DataError(f"{LISTED} in {where} must list the files of cases, not {quote_value(value)}; correct it")
    return files


def _parse_channels(value: Any, where: str) -> tuple[str, ...]:  # noqa: ANN401
    numbers = [str(number) for number in range(len(value))] if isinstance(value, dict) else []
    if not numbers or {*numbers} != value.keys():
        raise DataError(
            f'channel_names in {where} must be as {{"0": "T1", "1": "T2"}}, not {quote_value(value)}; correct them'
        )
    names = tuple(str(value[number]) for number in numbers)
    check_contrasts(names, f"channel_names in {where}")
    return names


def _parse_labels(value: object, where: str) -> tuple[dict[int, str], dict[str, tuple[int, ...]], int | None]:
    """Return name by number, regions where there are any, and the number of what nobody annotated.

    Args:
        value: ``{"organ": 1}`` of version 2, of which a value may be a region, ``[1, 2]``; or ``{"1": "organ"}`` of 1.
        where: What messages call its place.
    """
    pairs = [_parse_label_entry(key, item, where) for key, item in (value.items() if isinstance(value, dict) else ())]
    ignored = next((numbers[0] for numbers, name in pairs if name == IGNORE), None)
    named = {name: numbers for numbers, name in pairs if name != IGNORE and numbers != (0,)}
    found = _name_numbers(named)
    is_one_each = len({numbers for numbers, _ in pairs}) == len(pairs) and len({*found.values()}) == len(found)
    if not found or ignored == 0 or ignored in found or not is_one_each:
        raise DataError(
            f"labels in {where} must be names with a number of its own each, not {quote_value(value)}; name them"
        )
    has_regions = any(len(numbers) > 1 for numbers in named.values())
    return found, named if has_regions else {}, ignored


def _name_numbers(named: Mapping[str, tuple[int, ...]]) -> dict[int, str]:
    """Return the name of each number: that of the region which has it alone, or of the smallest one and the number."""
    names: dict[int, str] = {}
    for name, numbers in sorted(named.items(), key=lambda one: len(one[1])):
        for number in numbers:
            names.setdefault(number, name if len(numbers) == 1 else f"{name} {number}")
    return dict(sorted(names.items()))


def _parse_label_entry(key: str, item: Any, where: str) -> tuple[tuple[int, ...], str]:  # noqa: ANN401
    is_first_version = isinstance(item, str) and key.isdecimal()
    numbers, name = ([int(key)], item) if is_first_version else (item if isinstance(item, list) else [item], key)
    is_natural = [type(number) is int and number in range(MOST) for number in numbers]
    if not is_natural or not all(is_natural) or len({*numbers}) < len(numbers) or (len(numbers) > 1 and 0 in numbers):
        raise DataError(
            f"labels in {where} must be a number from 0 each, or a list of numbers from 1, not {key!r}: "
            f"{quote_value(item)}; correct it"
        )
    if name == IGNORE and len(numbers) > 1:
        raise DataError(f"labels in {where} must have one number as {IGNORE!r}, not {quote_value(item)}; correct it")
    return tuple(sorted(numbers)), name


LAYOUT = Layout(plan_nnunet, {**FIFTHS, "resample_masks": False})
