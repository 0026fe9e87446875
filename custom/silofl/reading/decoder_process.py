"""The decoders' process, which `silofl.reading.decoder` starts: it reads requests, one a line, and answers each.

An answer is a line of JSON, and a file's bytes behind it.

It begins with the standard library alone, since each import delays the first file: NumPy and Pillow come with the
formats that need them.
"""

import json
import math
import os
import resource
import signal
import stat
import sys
import time
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

from silofl.base.errors import DataError, find_cause
from silofl.reading.decoded import KINDS, MAX_BYTES, Decoded, Unpacked

# Of computing, not of waiting for a disk or a busy machine: a hang computes.
CPU_SECONDS, CPU_SECONDS_PER_MIB = 2, 4
# A file of zeros of 1 MiB unpacks to 1 GiB; what does so does not hang.
UNPACKING_SECONDS = 120
# Of memory; a file's share covers the best compression and copies on the way. GDCM believes every length that it reads.
BYTES = 3 << 28
BYTES_PER_BYTE = 1 << 11
# For what is unpacked, scaled, and added to: a volume of zeros says nothing by its size, and states what it unpacks to.
MOST_BYTES = 4 * MAX_BYTES
# The modules of readers that read no other file beside one.
SINGLE = ("pictures", "packed")
Buffer: TypeAlias = bytes | bytearray | memoryview


def main() -> None:
    """Answer until the requests end."""
    # What a library prints must not come between the answers.
    answers = os.dup(1)
    os.dup2(2, 1)
    # An interrupted parent closes the requests, or goes on.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _set_limit(resource.RLIMIT_CORE, 0)
    for line in sys.stdin.buffer:
        _answer(json.loads(line), answers)


def _reply(answers: int, facts: dict[str, Any], content: Buffer = b"") -> None:
    """Write facts, and the bytes of a file if it has any."""
    line = json.dumps(facts | {"bytes": len(content)}).encode() + b"\n"
    for piece in (line, content):
        rest = memoryview(piece)
        while rest:
            rest = rest[os.write(answers, rest) :]


def _answer(request: dict[str, Any], answers: int) -> None:
    path = request["path"]
    name = request["name"]
    module, function = request["reader"].split(".")
    try:
        read = getattr(import_module(f"silofl.reading.{module}"), function)
        _limit_resources(path, module)
        _send(answers, read(Path(path), name, **request["options"]))
    except DataError as error:
        _reply(answers, {"refused": str(error), "cause": find_cause(error)})
    except MemoryError:
        _reply(answers, {"broken": "it takes too much memory"})
    except Exception as error:  # decoders raise whatever their libraries raise on broken bytes
        reason = str(error).replace(path, name) or type(error).__name__
        _reply(answers, {"broken": reason, "errno": error.errno if isinstance(error, OSError) else None})


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
    status = os.stat(path)
    if module in SINGLE and stat.S_ISREG(status.st_mode):
        return status.st_size
    from silofl.reading.access import list_files

    return sum(file.stat().st_size for file in list_files(Path(path)))


def _set_limit(limit: int, value: int) -> None:
    _, highest = resource.getrlimit(limit)
    if highest != resource.RLIM_INFINITY:
        value = min(value, highest)
    resource.setrlimit(limit, (value, highest))


def _send(answers: int, read: Decoded | Unpacked[Iterable[bytes]]) -> None:
    if isinstance(read, Unpacked):
        joined = bytearray()
        for piece in read.content:
            joined += piece
        _reply(answers, {"facts": read.facts}, joined)
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
    flags = {key: getattr(read, key) for key in KINDS}
    _reply(answers, {**form, "affine": affine, "kind": flags}, content)


if __name__ == "__main__":
    main()
