"""A process of its own for the decoders that are written in C, and for all that unpacks to more than the file's bytes.

Broken or built bytes may crash Pillow or GDCM, keep them busy for good, or fill the memory. That ends only the process,
and the file is refused; the next file starts another one. One process serves file after file: it is started with the
first and ended by `end_decoder`, or with this process. It holds no right that this process does not hold. It keeps the
arrays of an npz file, of which each answer bears one image.

Files that are known before they are needed go to it in batches, one message each, so that it decodes the next file
while this process works on the last one. It still has one file at a time, within that file's own bounds, and answers in
the order of the requests: the first request without an answer is the file at which it ended.

`silofl.reading.decoder_process` is what runs there. Nothing that it sends is believed: all bytes are copied before they
are looked at, as many as are there and no more than a file may have.
"""

import atexit
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader, BufferedWriter
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import DataError
from silofl.reading.access import OF_SYSTEM
from silofl.reading.decoded import Decoded, Unpacked, check_bytes

# What is said of a file at which the process ended.
DECODER_ENDED = "its decoder ended with"


class Decoder(subprocess.Popen[bytes]):
    """The process, which always has these two of its pipes."""

    stdin: BufferedWriter
    stdout: BufferedReader


# glibc, the only one that was tried, then overwrites memory as it is taken and freed, the small pieces too: a decoder
# that reads beyond what a file holds finds nothing of the file before.
OVERWRITTEN = {"MALLOC_PERTURB_": "85", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
# Of requests without an answer: so much a pipe takes while the other process waits until its answer is read.
_batch_bytes = select.PIPE_BUF
# Of answers that wait to be read, where the system allows it.
ANSWER_BYTES = 1 << 20
_lock = Lock()
_process: Decoder | None = None
# Requests that the process has and has not answered, and those to be sent behind them.
_waiting: deque[bytes] = deque()
_coming: deque[bytes] = deque()


def build_request(reader: str, path: Path, name: str, **options: object) -> bytes:
    """Return the line that asks for a file.

    Args:
        reader: The module in `silofl.reading` and the function in it, as ``pictures.unpack_picture``.
        path: The file, or the folder of the series.
        options: What else the function takes.
    """
    request = {"reader": reader, "path": str(path.absolute()), "name": name, "options": options}
    return json.dumps(request).encode() + b"\n"


@contextmanager
def decode_ahead(requests: Iterable[bytes] = ()) -> Iterator[None]:
    """Let the decoders' process start, and work ahead of what is asked for, and end it afterwards.

    Args:
        requests: As `build_request` makes them, in the order in which they will be asked for. One that is left out is
            dropped, and any other file is decoded too.
    """
    # Why it cannot be started is told where a file is asked for.
    with _lock, suppress(OSError):
        # It starts while the requests are made.
        process = _ensure_decoder()
        _coming.extend(requests)
        if _coming:
            _send_batch(process, _coming[0])
    try:
        yield
    finally:
        end_decoder()


def decode_in_subprocess(request: bytes) -> Decoded | Unpacked[NDArray[np.uint8]]:
    """Decode a file in the decoders' process, or unpack it there, as its reader does.

    Args:
        request: As `build_request` makes it.

    Raises:
        DataError: What the reader refuses.
        ValueError: What the decoder says of broken bytes, or how its process ended.
        OSError: The process cannot be started, or the system cannot read the file.
    """
    with _lock:
        answered = None
        while answered != request:
            process = _ensure_decoder()
            _send_batch(process, request)
            answered = _waiting.popleft()
            answer, content = _receive_or_end(process)
    if "refused" in answer:
        error = DataError(answer["refused"])
        error.told_cause = answer["cause"]
        raise error
    if answer.get("errno") in OF_SYSTEM:
        raise OSError(answer["errno"], os.strerror(answer["errno"]))
    if "broken" in answer:
        raise ValueError(answer["broken"])
    if "facts" in answer:
        return Unpacked(content, answer["facts"])
    # In the order in which it lay in the other process: sums depend on it.
    array = content.view(answer["dtype"]).reshape(answer["shape"]).transpose(np.argsort(answer["order"]))
    return Decoded(array, answer["affine"] and np.array(answer["affine"]), **answer["kind"])


def end_decoder() -> None:
    """End the decoders' process, if one runs; the next file starts another one."""
    global _process
    with _lock:
        _waiting.clear()
        _coming.clear()
        if _process is not None:
            _process.kill()
            with _process:
                _process = None


def _ensure_decoder() -> Decoder:
    global _process
    # What a process has answered before it ended is read first.
    if _process is None or (not _waiting and _process.poll() is not None):
        _process = _start_decoder()
    return _process


def _start_decoder() -> Decoder:
    global _batch_bytes
    # As a file and without the site's modules, which take as long as Python itself; the paths are in its environment.
    command = [sys.executable, "-S", "-P", str(Path(__file__).with_name("decoder_process.py"))]
    process = Decoder(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # The libraries' warnings name full paths.
        stderr=subprocess.DEVNULL,
        env=_build_environment(),
    )
    with suppress(AttributeError, OSError):
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, ANSWER_BYTES)
        # Pages need not be full.
        _batch_bytes = fcntl.fcntl(process.stdin, fcntl.F_GETPIPE_SZ) // 2
    return process


def _send_batch(process: Decoder, request: bytes) -> None:
    """Send a request that was not sent before, and once most of a batch is answered those that come next."""
    batch = []
    room = _batch_bytes - sum(map(len, _waiting))
    if request not in _waiting:
        if _waiting and len(request) > room:
            return
        if request in _coming:
            while _coming.popleft() != request:
                pass
        batch.append(request)
        room -= len(request)
    if room > _batch_bytes // 2:
        while _coming and len(_coming[0]) <= room:
            batch.append(_coming.popleft())
            room -= len(batch[-1])
    _waiting.extend(batch)
    if batch and not process.stdin.closed:
        try:
            process.stdin.write(b"".join(batch))
            process.stdin.flush()
        except BrokenPipeError:
            # Which file has ended it is seen where its answers end.
            with suppress(BrokenPipeError):
                process.stdin.close()


def _receive_or_end(process: Decoder) -> tuple[dict[str, Any], NDArray[np.uint8]]:
    """Return the next answer, or how the process ended; what it has not answered is then sent to another one."""
    try:
        return _receive_answer(process.stdout)
    except EOFError:
        reason = _describe_exit(process)
        _put_back()
        return {"broken": reason}, np.empty(0, np.uint8)
    except BaseException:
        # After half an answer the next one could not be told from its rest.
        process.kill()
        process.wait()
        _put_back()
        raise


def _put_back() -> None:
    _coming.extendleft(reversed(_waiting))
    _waiting.clear()


def _build_environment() -> dict[str, str]:
    package = str(Path(__file__).resolve().parents[2])
    # A machine may have tunables of its own.
    tunables = [os.environ.get("GLIBC_TUNABLES"), OVERWRITTEN["GLIBC_TUNABLES"]]
    return {
        **os.environ,
        **OVERWRITTEN,
        "GLIBC_TUNABLES": ":".join(filter(None, tunables)),
        "PYTHONPATH": os.pathsep.join([package, *filter(None, sys.path)]),
    }


def _receive_answer(stream: BufferedReader) -> tuple[dict[str, Any], NDArray[np.uint8]]:
    line = stream.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    # No pickle: what broken bytes have made of the other process must not spread to this one.
    answer = json.loads(line.decode())
    size = check_bytes("a decoded file", [answer.get("bytes", 0)], 1)
    content = np.empty(size, np.uint8)
    if stream.readinto(content.data) != size:
        raise EOFError
    return answer, content


def _describe_exit(process: Decoder) -> str:
    status = process.wait()
    if status == -signal.SIGXCPU:
        return "it keeps its decoder busy for longer than its size explains"
    return f"{DECODER_ENDED} {signal.Signals(-status).name if status < 0 else status}"


def _forget_process() -> None:
    """Leave the process to the one that started it: a fork must not write between its requests."""
    global _process, _lock
    _process = None
    _lock = Lock()
    _waiting.clear()
    _coming.clear()


atexit.register(end_decoder)
os.register_at_fork(after_in_child=_forget_process)
