"""BIDS: a tree of subjects and sessions with masks in derivatives/ (Gorgolewski et al., Scientific Data 2016).

Own data, from nowhere else::

    SOURCE/
      north/                             a folder for each site, each a BIDS tree
        participants.tsv                 optional: the subjects
        sub-01/[ses-1/]anat/sub-01_ses-1_T1w.nii.gz
        derivatives/labels/sub-01/[ses-1/]anat/sub-01_ses-1_dseg.nii.gz
      south/ ...

SOURCE may be one tree itself; a column site in participants.tsv then says at which one site a subject is. Without
TARGET the command lists which kinds of files there are.

A kind of file is its name without subject, session and ending, as T1w or acq-high_run-1_T1w. A pattern names it, in
which * stands for any letters; T1w also takes acq-high_T1w. Masks lie in derivatives/, where the name of the folder may
stand before::

    --image-pattern T1w --mask-pattern "labels/*dseg"
    --image-pattern "T1=T1w,FLAIR=FLAIR" --mask-pattern "desc-lesion_mask"

All sessions are taken, and the runs whose masks say of which run they are. The subject is the patient. What is left
over is counted.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from silofl.base.errors import ConfigError, DataError
from silofl.importing.cases import SiteCases, plan_cases, shorten_names, split_contrasts
from silofl.importing.folders import OPTIONS, read_values
from silofl.importing.masks import ENDINGS
from silofl.importing.options import FIFTHS, ImportOptions, Layout, Listing
from silofl.importing.patients import assign_sites, read_rows
from silofl.importing.site_files import SitePlan, visible_folders

TABLE, SUBJECT, SITE = "participants.tsv", "participant_id", "site"
COLUMNS = ("site", "place", "kind", "files", "subjects", "sessions")
IMAGES, DERIVATIVES = "images", "derivatives"


@dataclass(frozen=True)
class Scan:
    """A file of a BIDS tree.

    Attributes:
        path: Where it lies.
        subject: As ``sub-01``.
        session: As ``ses-1``, "" where there is none.
        kind: The rest of its name, as ``run-1_T1w``.
        pipeline: The folder in derivatives/; "" of an image.
    """

    path: Path
    subject: str
    session: str
    kind: str
    pipeline: str = ""

    @property
    def visit(self) -> str:
        """Subject and session, as they begin the names of files."""
        return "_".join(filter(None, (self.subject, self.session)))

    @property
    def title(self) -> str:
        """Its kind, with the folder in derivatives/."""
        return f"{self.pipeline}/{self.kind}" if self.pipeline else self.kind

    @property
    def entities(self) -> dict[str, str]:
        """What its kind says by key, as run -> 1."""
        return dict(part.split("-", 1) for part in self.kind.split("_") if "-" in part)

    def fits(self, pattern: str) -> bool:
        """Return whether a pattern names it."""
        text, end = (self.title, pattern) if "/" in pattern else (self.kind, f"*_{pattern}")
        return fnmatchcase(text, pattern) or fnmatchcase(text, end)


@dataclass(frozen=True)
class Tree:
    """The files of a site."""

    site: str
    folder: Path
    images: tuple[Scan, ...]
    derivatives: tuple[Scan, ...]
    listed: frozenset[str]


def list_scans(source: Path) -> Listing:
    """List which kinds of files each site has."""
    rows = []
    for tree in _read_trees(source):
        for place, scans in ((IMAGES, tree.images), (DERIVATIVES, tree.derivatives)):
            for kind in sorted({scan.title for scan in scans}):
                found = [scan for scan in scans if scan.title == kind]
                counts = (len(found), len({one.subject for one in found}), len({one.session for one in found}))
                rows.append((tree.site, place, kind, *map(str, counts)))
    return Listing(COLUMNS, tuple(rows), "take images with --image-pattern KIND and masks with --mask-pattern KIND")


def plan_bids(source: Path, options: ImportOptions) -> dict[str, SitePlan]:
    """Plan the import of the images and masks that patterns name.

    Raises:
        ConfigError: A pattern is missing.
        DataError: A site has no such image with a mask, or it is not clear which of several is meant.
    """
    trees = _read_trees(source)
    if options.image_pattern is None or options.mask_pattern is None:
        kinds = Counter(scan.title for tree in trees for scan in (*tree.images, *tree.derivatives))
        listed = ", ".join(f"{kind} ({count})" for kind, count in kinds.items())
        raise ConfigError(f"image-pattern and mask-pattern must name kinds of files; SOURCE holds {listed or 'none'}")
    plans = {}
    for tree in trees:
        found, patients, notes = _find_cases(tree, options.image_pattern, options.mask_pattern)
        plans[tree.site] = plan_cases(found, patients, read_values(options), options).with_notes(notes)
    return plans


def _read_trees(source: Path) -> list[Tree]:
    if not any(source.glob("sub-*")):
        folders = [folder for folder in visible_folders(source) if any(folder.glob("sub-*"))]
        if not folders:
            raise DataError(f"{source.name} must hold folders sub-01 and so on, or a folder for each site with these")
        return [_read_tree(folder.name, folder, _read_participants(folder)) for folder in folders]
    rows = _read_participants(source)
    whole = _read_tree(source.name, source, rows)
    if not all(SITE in row for row in rows) or not rows:
        return [whole]
    named = [(row[SUBJECT], _name_site(row[SITE])) for row in rows if row[SITE]]
    site_of = assign_sites(named, f"correct {TABLE}")
    missing = {scan.subject for scan in whole.images if not site_of.get(scan.subject)}
    if missing:
        raise DataError(f"{TABLE} must name the site of {shorten_names(missing)}; add rows, or remove the folders")
    return [_at_site(whole, site, site_of) for site in sorted({*site_of.values()})]


def _name_site(value: str) -> str:
    # Numbers of sites are no names of folders that anybody would know again.
    return f"site-{value}" if len(value) == 1 or value.isdigit() else value


def _at_site(tree: Tree, site: str, site_of: dict[str, str]) -> Tree:
    def here(scans: Iterable[Scan]) -> tuple[Scan, ...]:
        return tuple(scan for scan in scans if site_of.get(scan.subject) == site)

    listed = frozenset(subject for subject, one in site_of.items() if one == site)
    return Tree(site, tree.folder, here(tree.images), here(tree.derivatives), listed)


def _read_participants(folder: Path) -> list[dict[str, str]]:
    table = folder / TABLE
    return read_rows(table, f"{TABLE} of {folder.name}", (SUBJECT,)) if table.exists() else []


def _read_tree(site: str, folder: Path, rows: Sequence[dict[str, str]]) -> Tree:
    images = [scan for subject in sorted(folder.glob("sub-*")) for scan in _read_scans(subject, "")]
    pipelines = visible_folders(folder / DERIVATIVES) if (folder / DERIVATIVES).is_dir() else []
    derivatives = [scan for pipeline in pipelines for scan in _read_scans(pipeline, pipeline.name)]
    return Tree(site, folder, tuple(images), tuple(derivatives), frozenset(row[SUBJECT] for row in rows))


def _read_scans(folder: Path, pipeline: str) -> list[Scan]:
    scans = []
    for path in sorted(folder.rglob("sub-*_*")):
        ending = next((ending for ending in ENDINGS if path.name.lower().endswith(ending)), None)
        if ending is None or not path.is_file():
            continue
        subject, *parts = path.name[: -len(ending)].split("_")
        session = parts.pop(0) if parts[0].startswith("ses-") else ""
        scans.append(Scan(path, subject, session, "_".join(parts), pipeline))
    return scans


def _find_cases(tree: Tree, image_pattern: str, mask_pattern: str) -> tuple[SiteCases, dict[str, str], list[str]]:
    contrasts, patterns = split_contrasts(image_pattern)
    groups: dict[str, list[Scan]] = {}
    for scan in tree.images:
        if any(map(scan.fits, patterns)):
            groups.setdefault(scan.visit, []).append(scan)
    images, masks, patients = dict[str, Any](), dict[str, Path](), {}
    for visit, scans in groups.items():
        drawn = [scan for scan in tree.derivatives if scan.visit == visit and scan.fits(mask_pattern)]
        # Of one contrast each image is a case; of several they are one together.
        members = [[scan] for scan in scans] if len(patterns) == 1 else [scans]
        found = {}
        for group in members:
            case = visit if len(members) == 1 else f"{visit}_{group[0].kind}"
            name = f"{case} of site {tree.site!r}"
            chosen = tuple(_choose_one(group, pattern, name, "image") for pattern in patterns)
            mask = _choose_one([one for one in drawn if _agree(one, group)], mask_pattern, name, "mask")
            if mask is not None:
                found[case] = (chosen, mask)
                patients[case] = scans[0].subject
        if len({mask for _, mask in found.values()}) < len(found):
            raise DataError(
                f"{visit} of site {tree.site!r} must have a mask for each of its {len(members)} images, not one for "
                "several; name run or acq in the masks too, or narrow --image-pattern"
            )
        images |= {case: tuple(scan and scan.path for scan in chosen) for case, (chosen, _) in found.items()}
        masks |= {case: mask.path for case, (_, mask) in found.items()}
    if not masks:
        raise DataError(
            f"site {tree.site!r} must have an image as {image_pattern} with a mask as {mask_pattern}, not none; "
            "correct the patterns, or remove its folder"
        )
    cases = SiteCases(tree.site, tree.folder, images, masks, contrasts)
    return cases, patients, _describe_left_over(tree, cases, patterns, {*patients.values()})


def _choose_one(scans: Sequence[Scan], pattern: str, name: str, what: str) -> Scan | None:
    fitting = [scan for scan in scans if scan.fits(pattern)]
    if len(fitting) > 1:
        kinds = shorten_names(scan.title for scan in fitting)
        raise DataError(f"{name} must have one {what} as {pattern}, not {len(fitting)}: {kinds}; narrow the pattern")
    return fitting[0] if fitting else None


def _agree(mask: Scan, images: Iterable[Scan]) -> bool:
    """Return whether a mask says nothing else than images of what both say, as of their run."""
    return all(mask.entities.get(key, value) == value for image in images for key, value in image.entities.items())


def _describe_left_over(tree: Tree, found: SiteCases, patterns: Sequence[str], subjects: set[str]) -> list[str]:
    used = {path for paths in found.images.values() for path in paths} | {*found.masks.values()}
    rest = [scan for scan in (*tree.images, *tree.derivatives) if scan.path not in used]
    lacking = [scan for scan in rest if not scan.pipeline and any(map(scan.fits, patterns))]
    others = Counter(scan.title for scan in rest if scan not in lacking)
    listed = ", ".join(f"{kind} ({count})" for kind, count in sorted(others.items()))
    said = [f"{len(lacking)} images without a mask"] if lacking else []
    said += [f"{others.total()} other files, {listed}"] if others else []
    notes = [f"{tree.site}: left over: {', '.join(said)}"] if said else []
    absent = tree.listed - subjects
    if absent:
        names = shorten_names(absent)
        notes.append(f"{tree.site}: {TABLE} names {len(absent)} subjects without an image that is taken: {names}")
    return notes


LAYOUT = Layout(plan_bids, {**FIFTHS, **OPTIONS}, list_scans)
