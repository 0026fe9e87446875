"""The cases of a site by their files, found by patterns of paths, and the plan of their import.

A pattern is a path relative to the site's folder in which ``{case}`` stands for the name of a case, as
``scans/{case}_t1.nii.gz`` or ``{case}/t1.nii.gz``. Without its ending, as ``{case}/t1``, it takes files with any that
can be read. In that of masks ``{label}`` stands for a label, where each has a file of its own.
"""

import glob
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath

from silofl.base.errors import ConfigError, DataError, quote_value
from silofl.base.naming import is_one_line, normalise_accents
from silofl.data.contrasts import check_contrasts
from silofl.data.targets import IGNORE
from silofl_hospital.importing.masks import ENDINGS, SEGMENTATION, Values, plan_layers, plan_mask, split_ending
from silofl_hospital.importing.options import ImportOptions
from silofl_hospital.importing.site_files import Case, File, JsonRecord, SitePlan, Writer, copy_image, plan_site

CASE = "{case}"
LABEL = "{label}"


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
        layers: The labels of which each case has a mask of its own; none where one mask has all.
    """

    site: str
    folder: Path
    cases: Sequence[Case]
    channel_names: tuple[str, ...] = ()
    images_in: str = "."
    layers: tuple[str, ...] = ()

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


def find_cases(site: str, folder: Path, patterns: Patterns) -> SiteCases:
    """Find the cases of a site; a file that fits several patterns belongs to the one with most letters of its own.

    Raises:
        DataError: There is none, or one without a mask or without an image, or a file of a form that cannot be read.
    """
    matched = _match_files(site, folder, (*patterns.images, *patterns.masks))
    # The patterns of the images came before those of the masks.
    images = matched[: len(patterns.images)]
    masks = matched[len(patterns.images) :]
    with_image = set[str]().union(*images)
    with_mask = set[str]().union(*masks)
    if not with_image and not with_mask:
        wanted = ", ".join([*patterns.images, patterns.mask])
        raise DataError(
            f"site {site!r} has no file as {wanted}; correct the patterns (without an ending, as {CASE}/t1, they take "
            ".nii and .nii.gz), or remove its folder"
        )
    for absent, what in ((with_image - with_mask, "masks"), (with_mask - with_image, "images")):
        if absent:
            raise DataError(
                f"site {site!r} has no {what} for {shorten_names(absent)}; add them, remove the others, or name the "
                f"files with --image-pattern and --mask-pattern, as 'T1=images/{CASE}_0000,T2=images/{CASE}_0001'"
            )
    for pattern, files in zip(patterns.masks, masks, strict=True):
        # Every case has a mask of each label, because an absent one may have been forgotten.
        if lacking := with_mask - files.keys():
            raise DataError(
                f"site {site!r} has no {pattern} for {shorten_names(lacking)}; add it, empty where the label is not in "
                "the image, or leave the label out of --labels"
            )
    cases = []
    for name in sorted(with_image):
        case_images = tuple(files.get(name) for files in images)
        cases.append(Case(name, case_images, tuple(files[name] for files in masks)))
    return SiteCases(site, folder, cases, patterns.channel_names, layers=patterns.labels)


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
    for case in cases:
        mask, write = _plan_mask(found, case, values)
        masks[mask] = write
        names = []
        for name, path in zip(found.image_names(case), case.images, strict=True):
            names.append(None if name is None else f"images/{name}")
            if path is not None:
                files[f"images/{name}"] = partial(copy_image, path)
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
        notes=(*notes, *left_out),
        channel_names=found.channel_names,
        ignored=values.ignored_at_site,
        regions=regions or {},
        masks=masks,
    )
    return plan_site(found.site, cases, records, plan, options)


def _plan_mask(found: SiteCases, case: Case, values: Values) -> File:
    # All contrasts of a case have one grid, so that the first stands for them.
    image = case.image_files[0]
    if found.layers:
        layers = dict(zip(found.layers, case.masks, strict=True))
        return plan_layers(layers, image, case.name, values, f"site {found.site!r}")
    (stored,) = case.masks
    called = f"site {found.site!r}: {stored.relative_to(found.folder).as_posix()}"
    return plan_mask(stored, image, case.name, values, called)


def shorten_names(names: Iterable[str]) -> str:
    """Return the first three names, and how many more there are."""
    ordered = sorted(names)
    shown = ", ".join(ordered[:3])
    return f"{shown} and {len(ordered) - 3} more" if len(ordered) > 3 else shown


def _match_files(site: str, folder: Path, patterns: Sequence[str]) -> list[dict[str, Path]]:
    """Return for each pattern the file of each case."""
    matched: list[dict[str, Path]] = [{} for _ in patterns]
    taken: set[Path] = set()
    # The longest pattern takes its files before the others: {case}.png also fits the files of {case}_mask.png.
    for number in sorted(range(len(patterns)), key=lambda i: -len(patterns[i].replace(CASE, ""))):
        pattern = patterns[number]
        files = matched[number]
        expression = _expression(pattern)
        for path in sorted(folder.glob(_wildcards(pattern))):
            name = path.relative_to(folder).as_posix()
            match = expression.fullmatch(name)
            if match is None or path in taken:
                continue
            # A name that is no UTF-8 could not be written to dataset.json, and control signs command a terminal.
            if not is_one_line(name):
                raise DataError(
                    f"site {site!r} has a file whose name is outside UTF-8, or has a line break or a control "
                    f"character, {quote_value(name)}; rename it"
                )
            split_ending(path, f"site {site!r}: {name}")
            taken.add(path)
            case = normalise_accents(match["case"])
            if case in files:
                twins = sorted([files[case].relative_to(folder).as_posix(), name])
                raise DataError(
                    f"site {site!r} has two files for {case} as {pattern}, {' and '.join(twins)}; remove one, or write "
                    "the pattern with its ending (accents may be written in two ways)"
                )
            files[case] = path
    return matched


def _expression(pattern: str) -> re.Pattern[str]:
    # The case may stand several times in a pattern, always with one name.
    before, *between = map(re.escape, pattern.split(CASE))
    ending = f"(?i:{'|'.join(map(re.escape, (SEGMENTATION, *ENDINGS)))})?" if _takes_endings(pattern) else ""
    # A name that begins with a dot is a hidden file's. Names of cases may hold dots, and end before an ending.
    return re.compile(f"{before}(?P<case>[^/.][^/]*?){'(?P=case)'.join(between)}{ending}")


def _takes_endings(pattern: str) -> bool:
    return not pattern.lower().endswith(ENDINGS)


def _wildcards(pattern: str) -> str:
    wildcards = "*".join(map(glob.escape, pattern.split(CASE)))
    if _takes_endings(pattern):
        wildcards += "*"
    # Two stars would be any number of folders.
    return re.sub(r"\*+", "*", wildcards)
