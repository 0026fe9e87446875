"""The file of voxels beside a header of its own: .img of a .hdr, and what a .nhdr or .mhd names."""

from contextlib import suppress
from pathlib import Path

from silofl.data.metaimage import read_metaimage_file_name
from silofl.data.nrrd import read_nrrd_file_name
from silofl.data.raw_volume import find_beside

# Of headers whose voxels lie in a file beside them.
HEADERS = (".hdr", ".nhdr", ".mhd")


def find_voxel_file(path: Path) -> Path | None:
    """Return the file beside a header that holds its voxels; None of other files, and where it is not there."""
    ending = path.suffix.lower()
    if ending not in HEADERS:
        return None
    if ending == ".hdr":
        return find_beside(path, f"{path.stem}{'.IMG' if path.suffix.isupper() else '.img'}")
    # A broken header is told where it is read.
    with suppress(ValueError, OSError):
        return find_beside(path, (read_nrrd_file_name if ending == ".nhdr" else read_metaimage_file_name)(path))
    return None
