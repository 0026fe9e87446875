"""Read, link and hash a site's files, with a different error for a missing, an unreadable and a broken file."""

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from silofl.base.documents import SpecialFileError, check_kind
from silofl.base.errors import DataError

TOO_MANY_OPEN = (errno.EMFILE, errno.ENFILE)
# Of errors of the operating system, after which nothing is known of the file's content.
OF_SYSTEM = (*TOO_MANY_OPEN, errno.EIO, errno.ESTALE, errno.EACCES, errno.ENOMEM, errno.EAGAIN)


def open_error(name: str, error: OSError) -> DataError:
    """Return the error for a file that cannot be opened, with its cause and the remedy.

    Args:
        name: What to call the file; its path within the data folder, never an absolute one.
        error: What the operating system said.
    """
    if isinstance(error, FileNotFoundError):
        return DataError(f"{name} is not there; put it there, or take it out of dataset.json")
    if isinstance(error, PermissionError):
        return DataError(
            f"{name} cannot be read: permission was denied (the data need not be corrupt); "
            "give this account the right to read it"
        )
    if isinstance(error, SpecialFileError):
        return DataError(f"{name} is {error.strerror}; put the data itself there")
    if error.errno in TOO_MANY_OPEN:
        failure = DataError(
            f"{name} cannot be opened: too many files are open (the data need not be corrupt); allow more with "
            "ulimit -n, and start again"
        )
    else:
        reason = error.strerror or type(error).__name__
        failure = DataError(f"{name} cannot be read: the system said {reason!r}; check the disk or the network share")
    failure.may_pass = True
    return failure


def read_bytes(path: Path, name: str) -> bytes:
    """Read a file.

    Raises:
        DataError: The file is missing, may not be read, or the disk fails.
    """
    try:
        check_kind(path)
        with path.open("rb") as file:
            return file.read()
    except OSError as error:
        raise open_error(name, error) from None


def content_digest(path: Path, name: str) -> str:
    """Return the SHA-256 of a file's bytes; of several files, as of a folder, that of their SHA-256 in their order.

    Raises:
        DataError: A file is missing, may not be read, or the disk fails.
    """
    digests = []
    try:
        for member in list_files(path):
            with member.open("rb") as file:
                digests.append(hashlib.file_digest(file, "sha256"))
    except OSError as error:
        raise open_error(name, error) from None
    # A digest of digests: two folders whose files are cut at other places must not look alike.
    if len(digests) == 1 and not path.is_dir():
        return digests[0].hexdigest()
    return hashlib.sha256(b"".join(digest.digest() for digest in digests)).hexdigest()


def read_states(path: Path, name: str) -> tuple[tuple[str, int, int], ...]:
    """Return name, size in bytes and time of change in ns of each of `list_files`.

    Raises:
        DataError: A file cannot be looked at.
    """
    try:
        return tuple((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in list_files(path))
    except OSError as error:
        raise open_error(name, error) from None


def link_or_copy(source: Path, target: Path, name: str) -> None:
    """Link a file, which costs no space, and copy it with its times where the disk has no such links.

    Both places then share one file: what changes one in place changes the other.

    Args:
        source: The file; of a symbolic link, the file that it leads to, so that no link leads out of the target.
        target: Its new place, in a folder that exists.
        name: What to call the source.

    Raises:
        DataError: The source is missing or may not be read.
    """
    source = source.resolve()
    try:
        os.link(source, target)
    except OSError:
        try:
            source.open("rb").close()
        except OSError as error:
            raise open_error(name, error) from None
        shutil.copy2(source, target)


def input_name(path: Path) -> str:
    """Return the name of a file or folder as it was given: a link may stand for a patient whom it does not name."""
    return path.name if path.name not in ("", "..") else path.resolve().name


def list_files(path: Path) -> Iterator[Path]:
    """Yield the file itself, or the files of a folder (a DICOM series) by their names.

    Raises:
        SpecialFileError: There is a pipe, a socket or a device.
    """
    if stat.S_ISDIR(check_kind(path)):
        for member in sorted(path.iterdir()):
            # A link that leads nowhere is no file of a series; its slice is missed where the series is put together.
            if member.exists():
                check_kind(member)
            if member.is_file():
                yield member
    else:
        yield path
