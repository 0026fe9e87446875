"""What the folders of a source hold: files that their owner means, parts of a split, and files that are no examples."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from silofl.base.errors import DataError
from silofl.reading.formats import LOSSY, PICTURES

# What Mac and Windows put into folders, in small letters, beside all that begins with a dot.
LEAVINGS = ("__macosx", "thumbs.db", "ehthumbs.db", "desktop.ini")
# What a part of a split is called, in small letters -> the part.
PART_WORDS = {
    **dict.fromkeys(("train", "training"), "training"),
    **dict.fromkeys(("val", "valid", "validation"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
THUMBNAILS = ("thumb", "thumbs", "thumbnail", "thumbnails")
# The mask of an image, beside it and called as the image with one of these behind.
MASK_NAME = re.compile(r"(?i)(?P<image>.+?)[ _-](?:masks?|seg|segmentation|gt|ground_?truth|labels?)(?:[ _-]?\d+)?")


def is_leaving(name: str) -> bool:
    """Return whether a file or folder is hidden, or one that a system has put there."""
    return name.startswith(".") or name.casefold() in LEAVINGS


def visible_folders(source: Path) -> list[Path]:
    """Return the folders directly in a folder, by name, without those of a system."""
    return sorted(path for path in source.iterdir() if path.is_dir() and not is_leaving(path.name))


def visible_files(folder: Path) -> list[Path]:
    """Return the files in a folder and in the folders within it, in order, without those of a system."""
    files = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not any(map(is_leaving, path.relative_to(folder).parts)):
            files.append(path)
    return files


def find_parts(folder: Path) -> dict[Path, str]:
    """Return the part that each folder in a folder is, as ``train`` and ``test``; none where they are something else.

    Raises:
        DataError: Other folders lie beside several parts, or two are one part.
    """
    folders = visible_folders(folder)
    part_of = {path: PART_WORDS[path.name.casefold()] for path in folders if path.name.casefold() in PART_WORDS}
    others = [path.name for path in folders if path not in part_of]
    if others and len(part_of) < 2:
        return {}
    parts = ", ".join(sorted(path.name for path in part_of))
    if others:
        raise DataError(
            f"{folder.name} has the folder {others[0]!r} beside {parts}, which look like the parts of one hospital's "
            "data; move it to another place"
        )
    if len({*part_of.values()}) < len(part_of):
        raise DataError(f"{folder.name} has two folders of one part among {parts}; join them")
    return part_of


def list_sites(source: Path) -> list[Path]:
    """Return the folders of the sites: those in a source, or the source itself where it holds the parts of one site."""
    return [source] if find_parts(source) else visible_folders(source)


def find_thumbnails(folder: Path) -> list[Path]:
    """Return the files of a folder that lie in folders of thumbnails."""
    files = []
    for path in visible_files(folder):
        if any(part.casefold() in THUMBNAILS for part in path.relative_to(folder).parts[:-1]):
            files.append(path)
    return files


def find_masks(images: Iterable[Path]) -> list[Path]:
    """Return those that are masks of others: called as an image of the same folder with ``_mask`` or ``_gt`` behind."""
    paths = list(images)
    stems = {path.with_suffix("") for path in paths}
    masks = []
    for path in paths:
        match = MASK_NAME.fullmatch(path.stem)
        if match and path.with_name(match["image"]) in stems:
            masks.append(path)
    return masks


def find_copies(images: Iterable[Path]) -> list[Path]:
    """Return those that are another's picture in a second form, as a.jpg beside a.png: what is without loss stays."""
    forms: dict[Path, list[Path]] = {}
    for path in images:
        if path.name.lower().endswith(PICTURES):
            forms.setdefault(path.with_suffix(""), []).append(path)
    copies = []
    for paths in forms.values():
        # In the order of the endings that are read, of which PNG is the first.
        paths.sort(key=lambda path: (path.name.lower().endswith(LOSSY), PICTURES.index(path.suffix.lower())))
        copies += paths[1:]
    return copies


def describe_left_out(site: str, left_out: Mapping[str, Iterable[Path]], root: Path) -> list[str]:
    """Return a sentence that counts the files of each reason, by which they are left out."""
    sentences = []
    for reason, files in left_out.items():
        names = [path.relative_to(root).as_posix() for path in files]
        if names:
            sentences.append(f"{site}: {reason} are left out: {len(names)}, as {shorten_names(names)}")
    return sentences


def shorten_names(names: Iterable[str]) -> str:
    """Return the first three names, and how many more there are."""
    ordered = sorted(names)
    shown = ", ".join(ordered[:3])
    return f"{shown} and {len(ordered) - 3} more" if len(ordered) > 3 else shown
