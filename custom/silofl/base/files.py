"""Files for their owner alone, written atomically: whatever happens, the old version or the new one is there."""

import errno
import fcntl
import hashlib
import io
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

from silofl.base.documents import ABSENT, check_kind, read_json_document
from silofl.base.errors import ConfigError, DamagedError, StateError

J = TypeVar("J", dict[str, Any], list[Any], int)
D = TypeVar("D")
KINDS = {dict: "keys and values", list: "a list", int: "a whole number"}
DIGEST = hashlib.sha256().digest_size
# What torch.save writes is a zip archive.
ZIP = b"PK\x03\x04"
# Of the names of folders that are not whole yet.
UNFINISHED = ".unfinished"


def make_folder(path: Path) -> None:
    """Make a folder for this account alone, and those above it; one that is there keeps its mode."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    # One by one, as mkdir gives the mode to the last folder only.
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
    # Says what is wrong where a file is in its place.
    path.mkdir(exist_ok=True)


def is_free(folder: Path) -> bool:
    """Return whether a folder can be filled without touching anything: it is empty, or not there."""
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))


def open_own(path: Path, mode: str) -> IO[Any]:
    """Open a file for writing, made for this account alone.

    Raises:
        ConfigError: It is a link, by which another account could have it written elsewhere.
    """
    try:
        return open(path, mode, opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o600))
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise ConfigError(f"{path} is a link; remove it") from None


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a temporary file in the same folder, force it to the disk, and rename it to its place.

    File and new folders are for this account alone, whatever its umask: they may show patients or a trained model.
    """
    make_folder(path.parent)
    # In the same folder: os.replace is atomic within one file system only.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    # Left by a process of the same number; whatever is put there afterwards is refused.
    temporary.unlink(missing_ok=True)
    try:
        with open_own(temporary, "xb") as stream:
            write(stream)
            stream.flush()
            # Before the rename, or a power cut may leave the new name with no content.
            os.fsync(stream.fileno())
        os.replace(temporary, path)
        # The rename itself is a change of the folder, which a power cut may lose too.
        _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def remove_unfinished(folder: Path) -> None:
    """Delete what killed processes had not finished writing, in a folder that only this process writes."""
    for path in list_unfinished(folder):
        path.unlink(missing_ok=True)


def list_unfinished(folder: Path) -> list[Path]:
    """Return the temporary files of `write_atomically` in a folder and in the folders that it holds."""
    return [*folder.glob(".*.tmp"), *folder.glob("*/.*.tmp")]


@contextmanager
def fill_folder(target: Path) -> Iterator[Path]:
    """Yield a new folder for this account alone, which takes its place once all in it is written, or goes again.

    It lies beside ``target`` under a hidden name; what a killed process has left of one goes when the next is made.

    Args:
        target: A folder that is empty or absent.

    Raises:
        OSError: There is no room, or another process has filled ``target`` meanwhile.
    """
    make_folder(target.parent)
    for left in target.parent.glob(f".*{UNFINISHED}"):
        with suppress(OSError), _hold_folder(left):
            shutil.rmtree(left)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=UNFINISHED, dir=target.parent))
    with _hold_folder(temporary, is_needed=False):
        try:
            yield temporary
            close_to_others(temporary)
            os.replace(temporary, target)
            _sync_folder(target.parent)
        except OSError as error:
            # What fails in a write has no name.
            error.filename = error.filename or str(target)
            raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _hold_folder(folder: Path, is_needed: bool = True) -> Iterator[None]:
    """Hold a folder's lock, which ends with the process; where it is not needed also on disks that have no locks."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        with nullcontext() if is_needed else suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def close_to_others(folder: Path) -> None:
    """Let this account alone read a folder and all in it, whoever wrote them; links are left as they are."""
    for inner, _, names in os.walk(folder):
        os.chmod(inner, 0o700)
        for name in names:
            path = Path(inner, name)
            if not path.is_symlink():
                path.chmod(0o600)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold a lock file for this process; it is let go when the process ends, however it ends.

    Raises:
        ConfigError: Another process holds it, it is a link, or its disk has no locks.
    """
    with open_own(path, "a") as stream:
        try:
            # Not a file with a process id: the kernel lets a lock go when its process dies, so none is ever stale.
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{path.parent} is in use by another run; end that run first") from None
        except OSError as error:
            raise ConfigError(
                f"the disk of {path.parent} locks no files ({error.strerror}); name a folder on another disk"
            ) from None
        yield


def copy_folder(source: Path, target: Path, *left_out: str) -> Path:
    """Copy a folder for this account alone, whatever its modes are, and return the copy; links are followed.

    Args:
        target: Where its files go, among those that are there.
        left_out: Patterns of names that are not copied.
    """
    make_folder(target)
    for path in source.iterdir():
        if any(fnmatch(path.name, pattern) for pattern in left_out):
            continue
        if path.is_dir():
            copy_folder(path, target / path.name, *left_out)
        else:
            copy_file(path, target / path.name)
    return target


def copy_file(source: Path, target: Path) -> None:
    """Copy a file atomically."""
    check_kind(source)
    with source.open("rb") as content:
        write_atomically(target, lambda stream: shutil.copyfileobj(content, stream))


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    write_atomically(path, lambda stream: stream.write(text.encode()))


def write_json(path: Path, value: object) -> None:
    """Write JSON atomically; NaN is refused because other programs cannot read it."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def read_json(path: Path, kind: type[J] = dict, absent: D = ABSENT) -> J | D:  # type: ignore[assignment]
    """Read a JSON file.

    Args:
        kind: What it holds: keys and values, a list, or a whole number.
        absent: Returned where there is no file; where it is not given that is an error.

    Raises:
        ConfigError: It is missing, cannot be read, is broken, or holds another kind than the one asked for.
    """
    value = read_json_document(path)
    if value is ABSENT:
        if absent is ABSENT:
            raise ConfigError(f"{path} does not exist")
        return absent
    if not isinstance(value, kind):
        raise ConfigError(f"{path} must be {KINDS[kind]}, not {type(value).__name__}; restore it")
    return value


def save_tensors(path: Path, value: dict[str, Any]) -> None:
    """Save tensors and plain values so that ``torch.load(path, weights_only=True)`` reads them."""
    write_atomically(path, lambda stream: _save(value, stream.write))


def write_by_torch(path: Path, save: Callable[[IO[bytes]], object]) -> None:
    """Write a file atomically by a function of torch, of which an error of the disk ends no process.

    Args:
        save: Saves to a stream.
    """
    write_atomically(path, lambda stream: _save_to(save, stream.write))


class _Sink(io.RawIOBase):
    """What torch writes to as a file, which hands each piece on.

    The first error is kept for the caller: torch would hide it behind one of its own, or end the process.
    """

    def __init__(self, *takers: Callable[[bytes], object]) -> None:
        self._takers = takers
        self.error: OSError | None = None

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go nowhere: torch asks for it once all is written."""
        return 0

    def write(self, content: bytes) -> int:  # type: ignore[override]  # of bytes alone
        """Hand some bytes on."""
        try:
            for take in self._takers:
                take(content)
        except OSError as error:
            self.error = self.error or error
        return len(content)

    def flush(self) -> None:
        """Do nothing: whoever opened the file flushes it."""


def _save(value: dict[str, Any], *takers: Callable[[bytes], object]) -> None:
    # Imported where it is needed: torch takes a second, which commands that read JSON alone need not wait.
    import torch

    _save_to(partial(torch.save, value), *takers)


def _save_to(save: Callable[[Any], object], *takers: Callable[[bytes], object]) -> None:
    sink = _Sink(*takers)
    try:
        save(sink)
    except RuntimeError as error:
        # torch ends its archive where Ctrl-C or a signal interrupts it, and fails at that.
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        raise
    if sink.error:
        raise sink.error


def load_tensors(source: Path | bytes) -> dict[str, Any]:
    """Load what `save_tensors` saved, on the CPU.

    Args:
        source: The file, or its content.

    Raises:
        ValueError: It would be larger in memory than it is; or one of the many kinds that torch raises on other bytes.
    """
    with source.open("rb") if isinstance(source, Path) else io.BytesIO(source) as stream:
        return _load(stream)


def _load(stream: Any) -> dict[str, Any]:  # noqa: ANN401 - `_Rest` too
    import torch

    if zipfile.is_zipfile(stream):
        with zipfile.ZipFile(stream) as archive:
            size = sum(member.file_size for member in archive.infolist())
        # torch.save compresses nothing, but torch.load inflates a thousandfold what was compressed afterwards.
        if size > (most := stream.seek(0, os.SEEK_END)):
            raise ValueError(f"the file of {most} bytes inflates to {size}")
    stream.seek(0)
    # weights_only: an unrestricted pickle runs code.
    loaded: dict[str, Any] = torch.load(stream, map_location="cpu", weights_only=True)
    return loaded


class _Rest(io.RawIOBase):
    """A file from the byte on where it stands, as a file of its own, so that no copy of it is made."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream
        self._start = stream.tell()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - as its base has it
        return self._stream.readinto(buffer)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._stream.seek(offset + (self._start if whence == os.SEEK_SET else 0), whence) - self._start


def save_state(path: Path, number: int, belongs_to: Mapping[str, str | int], value: dict[str, Any]) -> None:
    """Save what a run goes on from, tensors and plain values, after its SHA-256.

    Args:
        number: Its format, raised whenever an older file would be misread.
        belongs_to: What it is of, such as the run, the site and the round; part of what the checksum is of.
        value: What `load_state` returns.
    """

    def write(stream: IO[bytes]) -> None:
        # Piece by piece, as a copy of a large state would fill the memory; the checksum takes its place when it is
        # known, in the same file, so that no crash can part the two.
        checksum = hashlib.sha256()
        stream.write(bytes(DIGEST))
        content = {"format": number, "belongs_to": dict(belongs_to), "value": value}
        _save(content, checksum.update, stream.write)
        stream.seek(0)
        stream.write(checksum.digest())

    write_atomically(path, write)


def load_state(path: Path, number: int, belongs_to: Mapping[str, str | int]) -> dict[str, Any]:
    """Load what `save_state` saved, on the CPU.

    Args:
        belongs_to: What it must be of, as far as that is known.

    Raises:
        DamagedError: The file is missing, cannot be read, is not as it was written, or is another's.
        StateError: It has another format.
    """
    try:
        check_kind(path)
        with path.open("rb") as stream:
            digest = stream.read(DIGEST)
            # Older formats have no checksum: one of them is told from a damaged file by its first bytes.
            if digest.startswith(ZIP):
                raise _other_format(path, number, f"{number - 1} or older")
            rest = _Rest(stream)
            if hashlib.file_digest(rest, "sha256").digest() != digest:
                raise DamagedError(f"{path.name} is damaged: its checksum does not fit")
            state = _load(rest)
    except FileNotFoundError:
        raise DamagedError(f"{path.name} is missing") from None
    except OSError as error:
        raise DamagedError(f"{path.name} cannot be read ({error.strerror})") from None
    if state["format"] != number:
        raise _other_format(path, number, state["format"])
    for key, expected in belongs_to.items():
        if (actual := state["belongs_to"].get(key)) != expected:
            raise DamagedError(f"{path.name} belongs to {key} {actual!r} instead of {expected!r}")
    value: dict[str, Any] = state["value"]
    return value


def _other_format(path: Path, number: int, found: object) -> StateError:
    return StateError(
        f"{path.name} has format {found}, and this version of SiloFL reads {number}; go on with the version that wrote "
        "it, or start anew"
    )
