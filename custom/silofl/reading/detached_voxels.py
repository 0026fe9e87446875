"""The file of voxels beside a header of its own: .img of a .hdr, and what a .nhdr or .mhd names."""

from contextlib import suppress
from pathlib import Path

from silofl.reading.text_header import APART, read_text_header

# Of headers whose voxels lie in a file beside them.
HEADERS = (".hdr", *APART)


def find_voxel_file(path: Path) -> Path | None:
    """Return the file beside a header that holds its voxels; None of other files, and where it is not there."""
    ending = path.suffix.lower()
    if ending not in HEADERS:
        return None
    if ending == ".hdr":
        return _find_plain_file(path, f"{path.stem}{'.IMG' if path.suffix.isupper() else '.img'}")
    # A broken header is told where it is read.
    with suppress(ValueError, OSError):
        return _find_plain_file(path, read_text_header(path).file_name)
    return None


def _find_plain_file(path: Path, file_name: str | None) -> Path | None:
    """Return the plain file of that name in a header's folder; None of a path, a link, and what is not there."""
    if not file_name or file_name.startswith(".") or {"/", "\\", "\0"} & {*file_name} or file_name == path.name:
        return None
    found = path.parent / file_name
    return found if found.is_file() and not found.is_symlink() else None
