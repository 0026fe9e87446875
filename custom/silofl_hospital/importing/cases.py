"""The cases of a site by their files, found by patterns of paths, and the plan of their import.

A pattern is a path relative to the site's folder in which ``{case}`` stands for the name of a case, as
``scans/{case}_t1.nii.gz`` or ``{case}/t1.nii.gz``. Without its ending, as ``{case}/t1``, it takes files with any that
can be read. In that of masks ``{label}`` stands for a label, where each has a file of its own, and ``*`` for any
letters, where several masks of a case are joined.
"""

import glob
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath

from silofl.base.errors import ConfigError, DataError, quote_value
from silofl.base.naming import is_one_line, normalise_accents
from silofl.data.contrasts import check_contrasts
from silofl.data.targets import IGNORE
from silofl_hospital.importing.headers import settle_headers
from silofl_hospital.importing.masks import ENDINGS, SEGMENTATION, Values, plan_layers, plan_mask, split_ending
from silofl_hospital.importing.options import ImportOptions
from silofl_hospital.importing.site_files import Case, File, JsonRecord, SitePlan, Writer, copy_image, plan_site
from silofl_hospital.importing.tree import find_copies, find_masks, is_leaving, shorten_names, visible_files

CASE = "{case}"
LABEL = "{label}"
ANY = "*"
BOXES = (".xml", ".txt", ".json")


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
    """The cases of a segmentation site, each of which has a mask and at least one image.

    Attributes:
        site: The site's name.
        folder: Where its files lie.
        cases: The table of its cases.
        channel_names: The contrasts; none where there is one image without a name.
        images_in: The folder in `folder` that all images lie in.
    """

    site: str
    folder: Path
    cases: Sequence[Case]
    channel_names: tuple[str, ...] = ()
    images_in: str = "."

    def image_names(self, case: Case) -> list[str | None]:
        """Return the paths of a case's images relative to the folder of the images."""
        root = self.folder / self.images_in
        return [None if path is None else path.relative_to(root).as_posix() for path in case.images]

    def list_image_paths(self, case: Case) -> list[str]:
        """Return the paths of a case's images, relative to the folder of the images and to that of the site."""
        paths = []
        for root in dict.fromkeys([self.folder / self.images_in, self.folder]):
            paths += [path.relative_to(root).as_posix() for path in case.image_files]
        return paths

    def count_missing(self) -> dict[str, int]:
        """Return by contrast how many cases lack it, of those that some case lacks."""
        counts = {}
        for number, name in enumerate(self.channel_names):
            count = sum(case.images[number] is None for case in self.cases)
            if count:
                counts[name] = count
        return counts


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
    checked = tuple(check_pattern(pattern, "image-pattern") for pattern in given)
    patterns = Patterns(checked, mask.strip(), names, tuple(labels) if LABEL in mask else ())
    masks = [check_pattern(pattern, "mask-pattern") for pattern in patterns.masks]
    # With {label} the pattern itself stays, from which each label's is made.
    return patterns if patterns.labels else replace(patterns, mask=masks[0])


def split_contrasts(images: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split what a command line says of images into the names of the contrasts, if any, and a pattern for each.

    Args:
        images: A pattern, or ``T1=PATTERN,T2=PATTERN``.

    Raises:
        ConfigError: Only some have a name, or a name is none or is there twice.
    """
    if "=" not in images and "," not in images:
        return (), (images.strip(),)
    names = []
    patterns = []
    for part in images.split(","):
        name, equals, pattern = part.partition("=")
        if not equals:
            raise ConfigError(
                f"image-pattern must be one pattern, or NAME=PATTERN,NAME=PATTERN with a name for each contrast, not "
                f"{quote_value(images)}"
            )
        names.append(name.strip())
        patterns.append(pattern.strip())
    check_contrasts(tuple(names), "image-pattern")
    return tuple(names), tuple(patterns)


def check_pattern(pattern: str, option: str) -> str:
    """Return a pattern as it is matched.

    Args:
        pattern: The path, in which ``{case}`` stands for the name of a case.

    Raises:
        ConfigError: It has no ``{case}``, or leaves the folder of a site.
    """
    pattern = pattern.strip()
    rest = pattern.replace(CASE, "")
    if CASE not in pattern or "{" in rest or "}" in rest:
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


def find_cases(site: str, folder: Path, patterns: Patterns, skip: bool = False) -> SiteCases:
    """Find the cases of a site; a file that fits several patterns belongs to the one with most letters of its own.

    Args:
        skip: Whether cases without an image or a mask are left out.

    Raises:
        DataError: There is none, or one without a mask or without an image, or a file of a form that cannot be read.
    """
    matched = _match_files(site, folder, (*patterns.images, *patterns.masks))
    # The patterns of the images came before those of the masks.
    images = [_take_one(files, pattern, folder) for files, pattern in zip(matched, patterns.images, strict=False)]
    masks = matched[len(patterns.images) :]
    for pattern, files in zip(patterns.masks, masks, strict=True):
        if ANY not in pattern:
            _take_one(files, pattern, folder)
    with_image = set[str]().union(*images)
    with_mask = set[str]().union(*masks)
    if not with_image and not with_mask:
        wanted = ", ".join([*patterns.images, patterns.mask])
        raise DataError(
            f"site {site!r} has no file as {wanted}; correct the patterns (without an ending, as {CASE}/t1, they take "
            ".nii and .nii.gz), or remove its folder"
        )
    _refuse_further_masks(site, images, with_image - with_mask, patterns)
    for absent, what in ((with_image - with_mask, "masks"), (with_mask - with_image, "images")):
        if absent and not skip:
            _refuse_boxes(site, folder, absent)
            raise DataError(
                f"site {site!r} has no {what} for {shorten_names(absent)}; add them, leave these cases out with "
                "--skip, or name the files with --image-pattern and --mask-pattern, as "
                f"'T1=images/{CASE}_0000,T2=images/{CASE}_0001'"
            )
    names = with_image & with_mask
    for pattern, files in zip(patterns.masks, masks, strict=True):
        # Every case has a mask of each label, because an absent one may have been forgotten.
        if lacking := names - files.keys():
            raise DataError(
                f"site {site!r} has no {pattern} for {shorten_names(lacking)}; add it, empty where the label is not in "
                "the image, or leave the label out of --labels"
            )
    cases = []
    for name in sorted(names):
        layers = []
        for label, files in zip(patterns.labels or [""], masks, strict=True):
            layers += [(label, path) for path in files[name]]
        paths = tuple(path for _, path in layers)
        labels = tuple(label for label, _ in layers if label)
        cases.append(Case(name, tuple(files.get(name) for files in images), paths, labels))
    return SiteCases(site, folder, cases, patterns.channel_names)


def _take_one(files: dict[str, list[Path]], pattern: str, folder: Path) -> dict[str, Path]:
    """Return the one file of each case; of a picture in two forms the one without loss."""
    one = {}
    for case, paths in files.items():
        if len(paths) > 1:
            shown = " and ".join(sorted(path.relative_to(folder).as_posix() for path in paths))
            raise DataError(
                f"site {folder.name!r} has two files for {case} as {pattern}, {shown}; remove one, or write the "
                "pattern with its ending (accents may be written in two ways)"
            )
        one[case] = paths[0]
    return one


def _refuse_boxes(site: str, folder: Path, cases: Collection[str]) -> None:
    """Refuse files of boxes in place of masks, as labelImg, YOLO and COCO write them."""
    names = {PurePosixPath(case).name for case in cases}
    for path in visible_files(folder):
        if path.stem in names and path.suffix.lower() in BOXES:
            raise DataError(
                f"site {site!r} has {path.relative_to(folder)} in place of a mask; boxes and points are none: draw "
                "masks, or import classes of whole images with silofl import table"
            )


def _refuse_further_masks(
    site: str, images: Sequence[Mapping[str, Path]], without_mask: Collection[str], patterns: Patterns
) -> None:
    """Refuse images that look like second masks of others, as a_mask_1.png of a.png: each may be another lesion."""
    paths = [path for files in images for path in files.values()]
    masks = find_masks(paths)
    further = [name for files in images for name in without_mask if files.get(name) in masks]
    if further:
        stem, _, ending = patterns.mask.rpartition(".")
        joined = f"{stem}*.{ending}" if stem else f"{patterns.mask}*"
        raise DataError(
            f"site {site!r} has further masks of an image, {shorten_names(further)}; join them with --mask-pattern "
            f"{joined!r}"
        )


def plan_cases(
    found: SiteCases,
    values: Values,
    options: ImportOptions,
    left_out: Iterable[str] = (),
    regions: Mapping[str, tuple[int, ...]] | None = None,
) -> SitePlan:
    """Plan a segmentation site: images are copied, masks get the site's numbers.

    Args:
        found: The cases, with their patients where a table or the folders name them.
        values: What the masks may hold.
        left_out: Sentences about files that become no case.
        regions: Name -> numbers of labels, proposed for the study.

    Raises:
        DataError: The site has fewer than two patients.
    """
    # One order, so that the same cases always give the same dataset.json.
    cases = sorted(found.cases, key=lambda case: case.name)
    masks: dict[str, Writer] = {}
    files: dict[str, Writer] = {}
    records: list[JsonRecord] = []
    paths = [path for case in cases for path in (*case.image_files, *case.masks)]
    copies, of_headers = settle_headers(found.site, paths, options)
    for case in cases:
        mask, write = _plan_mask(found, case, values, copies)
        masks[mask] = write
        names = []
        for name, path in zip(found.image_names(case), case.images, strict=True):
            names.append(None if name is None else f"images/{name}")
            if path is not None:
                files[f"images/{name}"] = partial(copy_image, copies.get(path, path))
        records.append({"image": names if len(names) > 1 else names[0], "label": mask})
    notes = []
    lacks = [f"{count} of {len(cases)} cases have no {name}" for name, count in found.count_missing().items()]
    if lacks:
        notes.append(f"{found.site}: {', '.join(lacks)}; dataset.json has null there, for which networks see zeros")
    if values.ignored is not None:
        notes.append(f"{found.site}: what is labelled {IGNORE!r} counts in no loss and no score")
    plan = SitePlan(
        task="segmentation",
        labels=values.labels,
        records={},
        files=files,
        notes=(*notes, *of_headers, *left_out),
        channel_names=found.channel_names,
        ignored=values.ignored_at_site,
        regions=regions or {},
        masks=masks,
    )
    return plan_site(found.site, cases, records, plan, options)


def _plan_mask(found: SiteCases, case: Case, values: Values, copies: Mapping[Path, Path]) -> File:
    # All contrasts of a case have one grid, so that the first stands for them.
    image = copies.get(case.image_files[0], case.image_files[0])
    masks = [copies.get(path, path) for path in case.masks]
    if case.labels or len(case.masks) > 1:
        names = case.labels or tuple(values.names.values())
        if not case.labels and len(names) > 1:
            raise DataError(
                f"site {found.site!r} has {len(case.masks)} masks of {case.name}, and {len(names)} labels; joined are "
                f"those of one label, which {LABEL} in --mask-pattern stands for"
            )
        layers = list(zip(case.labels or names * len(masks), masks, strict=True))
        return plan_layers(layers, image, case.name, values, f"site {found.site!r}")
    called = f"site {found.site!r}: {case.masks[0].relative_to(found.folder).as_posix()}"
    return plan_mask(masks[0], image, case.name, values, called)


def _match_files(site: str, folder: Path, patterns: Sequence[str]) -> list[dict[str, list[Path]]]:
    """Return for each pattern the files of each case, without second forms of a picture."""
    matched: list[dict[str, list[Path]]] = [{} for _ in patterns]
    taken: set[Path] = set()
    # The longest pattern takes its files before the others: {case}.png also fits the files of {case}_mask.png.
    for number in sorted(range(len(patterns)), key=lambda i: -len(patterns[i].replace(CASE, ""))):
        pattern = patterns[number]
        files = matched[number]
        expression = _expression(pattern)
        for path in sorted(folder.glob(_wildcards(pattern))):
            name = path.relative_to(folder).as_posix()
            match = expression.fullmatch(name)
            if match is None or path in taken or any(map(is_leaving, path.relative_to(folder).parts)):
                continue
            # A name that is no UTF-8 could not be written to dataset.json, and control signs command a terminal.
            if not is_one_line(name):
                raise DataError(
                    f"site {site!r} has a file whose name is outside UTF-8, or has a line break or a control "
                    f"character, {quote_value(name)}; rename it"
                )
            split_ending(path, f"site {site!r}: {name}")
            taken.add(path)
            files.setdefault(normalise_accents(match["case"]), []).append(path)
        for paths in files.values():
            for copy in find_copies(paths):
                paths.remove(copy)
    return matched


def _expression(pattern: str) -> re.Pattern[str]:
    # The case may stand several times in a pattern, always with one name.
    before, *between = (re.escape(part).replace(r"\*", "[^/]*") for part in pattern.split(CASE))
    ending = f"(?i:{'|'.join(map(re.escape, (SEGMENTATION, *ENDINGS)))})?" if _takes_endings(pattern) else ""
    # A name that begins with a dot is a hidden file's. Names of cases may hold dots, and end before an ending.
    return re.compile(f"{before}(?P<case>[^/.][^/]*?){'(?P=case)'.join(between)}{ending}")


def _takes_endings(pattern: str) -> bool:
    return not pattern.lower().endswith(ENDINGS)


def _wildcards(pattern: str) -> str:
    wildcards = "*".join(glob.escape(part).replace("[*]", ANY) for part in pattern.split(CASE))
    if _takes_endings(pattern):
        wildcards += "*"
    # Two stars would be any number of folders.
    return re.sub(r"\*+", "*", wildcards)
