"""The decoders' process, which `silofl.reading.decoder` starts: it reads requests, one a line, and answers each.

An answer is a line of JSON, and a file's bytes behind it. Many bytes lie in memory that the kernel gives for this file
alone, and whose handle is passed on: this process keeps none, and so has nothing of a file while it decodes the next.

It begins with the standard library alone, since each import delays the first file: NumPy and Pillow come with the
formats that need them.
"""

import json
import math
import os
import resource
import signal
import socket
import stat
import sys
import time
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from silofl.base.errors import DataError
from silofl.reading.decoded import KINDS, MAX_BYTES, Decoded, Unpacked

# Of computing, not of waiting for a disk or a busy machine: a hang computes.
CPU_SECONDS, CPU_SECONDS_PER_MIB = 2, 4
# A file of zeros of 1 MiB unpacks to 1 GiB; what does so does not hang.
UNPACKING_SECONDS = 120
# Of memory; a file's share covers the best compression and copies on the way. GDCM believes every length that it reads.
BYTES, BYTES_PER_BYTE = 3 << 28, 1 << 11
# For what is unpacked, scaled, and added to: a volume of zeros says nothing by its size, and states what it unpacks to.
MOST_BYTES = 4 * MAX_BYTES
# The modules of readers that read no other file beside one.
SINGLE = ("pictures", "packed")
# Fewer bytes follow their line.
LEAST_SHARED = 1 << 18
Buffer: TypeAlias = bytes | memoryview


def main() -> None:
    """Answer until the requests end; the argument is the number of the socket for handles, where the system has one."""
    # What a library prints must not come between the answers.
    answers = os.dup(1)
    os.dup2(2, 1)
    # An interrupted parent closes the requests, or goes on.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _set_limit(resource.RLIMIT_CORE, 0)
    sender = Sender(answers, socket.socket(fileno=int(sys.argv[1])) if len(sys.argv) > 1 else None)
    for line in sys.stdin.buffer:
        _answer(json.loads(line), sender)


class Sender:
    """The way of answers to the process that asked."""

    def __init__(self, answers: int, handles: socket.socket | None) -> None:
        """Begin with the pipe for answers and, where there is one, the socket for handles of memory."""
        self._answers, self._handles = answers, handles
        self._is_waiting = False

    def send(self, facts: dict[str, Any], pieces: Iterable[Buffer] = (), most: int = 0) -> None:
        """Send facts, and the bytes of a file if it has any, `most` of them or fewer."""
        if self._handles is not None and most >= LEAST_SHARED:
            self._share(facts, pieces, self._handles)
            return
        content = b"".join(pieces)
        _write_all(self._answers, _to_line(facts | {"bytes": len(content)}) + content)

    def _share(self, facts: dict[str, Any], pieces: Iterable[Buffer], handles: socket.socket) -> None:
        memory = os.memfd_create("decoded")
        try:
            for piece in pieces:
                _write_all(memory, piece)
            # Before the handle, which would be the next file's if no line came with it.
            line = _to_line(facts | {"is_shared": True})
            # Of one file that waits to be taken, and no more.
            if self._is_waiting and not handles.recv(1):
                sys.exit()
            socket.send_fds(handles, [b"\n"], [memory])
            self._is_waiting = True
            _write_all(self._answers, line)
        finally:
            os.close(memory)


def _to_line(values: dict[str, Any]) -> bytes:
    return json.dumps(values).encode() + b"\n"


def _answer(request: dict[str, Any], sender: Sender) -> None:
    path, name = request["path"], request["name"]
    module, function = request["reader"].split(".")
    try:
        read = getattr(_import_reader(module), function)
        _limit_resources(path, module)
        _send(sender, read(Path(path), name, **request["options"]))
    except DataError as error:
        sender.send({"refused": str(error)})
    except MemoryError:
        sender.send({"broken": "it takes more memory than a decoder may have"})
    except Exception as error:  # decoders raise whatever their libraries raise on broken bytes
        reason = str(error).replace(path, name) or type(error).__name__
        sender.send({"broken": reason, "errno": error.errno if isinstance(error, OSError) else None})


def _import_reader(module: str) -> ModuleType:
    """Import a module of readers; nibabel without pydicom, for parts of headers that are not read, in a third."""
    is_blocked = module == "nifti" and "pydicom" not in sys.modules
    if is_blocked:
        sys.modules["pydicom"] = None  # type: ignore[assignment]
    try:
        return import_module(f"silofl.reading.{module}")
    finally:
        if is_blocked:
            del sys.modules["pydicom"]


def _limit_resources(path: str, module: str) -> None:
    size = _measure_input(path, module)
    is_unpacked = module not in ("pictures", "dicom")
    seconds = (UNPACKING_SECONDS if is_unpacked else CPU_SECONDS) + CPU_SECONDS_PER_MIB * size / 2**20
    memory = MOST_BYTES if is_unpacked else min(BYTES + BYTES_PER_BYTE * size, MOST_BYTES)
    # What an npz file's reader keeps from one image to the next.
    npz = sys.modules.get("silofl.reading.npz")
    _set_limit(resource.RLIMIT_CPU, math.ceil(time.process_time() + seconds))
    _set_limit(resource.RLIMIT_DATA, memory + (npz.kept_bytes() if npz else 0))


def _measure_input(path: str, module: str) -> int:
    found = os.stat(path)
    if module in SINGLE and stat.S_ISREG(found.st_mode):
        return found.st_size
    from silofl.reading.access import list_files

    return sum(file.stat().st_size for file in list_files(Path(path)))


def _set_limit(kind: int, value: int) -> None:
    _, highest = resource.getrlimit(kind)
    resource.setrlimit(kind, (value if highest == resource.RLIM_INFINITY else min(value, highest), highest))


def _send(sender: Sender, read: Decoded | Unpacked) -> None:
    if isinstance(read, Unpacked):
        sender.send({"facts": read.facts}, read.content, read.size)
        return
    import numpy as np

    array = read.array
    # In the order of the memory, which the receiver gives back: sums depend on it.
    order = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    affine = None if read.affine is None else read.affine.tolist()
    stored = np.ascontiguousarray(array.transpose(order))
    # What has no bytes, as an array of objects, breaks off here.
    content = stored.reshape(-1).view(np.uint8).data
    form = {"dtype": stored.dtype.str, "shape": stored.shape, "order": order}
    kind = {key: getattr(read, key) for key in KINDS}
    sender.send({**form, "affine": affine, "kind": kind}, [content], len(content))


def _write_all(handle: int, content: Buffer) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(handle, rest) :]


if __name__ == "__main__":
    main()
