"""A process of its own for the decoders that are written in C, and for all that unpacks to more than the file's bytes.

Broken or built bytes may crash Pillow or GDCM, keep them busy for good, or fill the memory. That ends only the process,
and the file is refused; the next file starts another one. One process serves file after file: it is started with the
first and ended by `end_decoder`, or with this process. It holds no right that this process does not hold. It keeps the
arrays of an npz file, of which each answer bears one image.

Files that are known before they are needed go to it in batches, one message each, so that it decodes the next file
while this process works on the last one. It still has one file at a time, within that file's own bounds, and answers in
the order of the requests: the first request without an answer is the file at which it ended.
"""

import atexit
import fcntl
import json
import math
import os
import platform
import resource
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from silofl.data.access import is_system_error, list_files
from silofl.data.decoded import KINDS, MAX_BYTES, Decoded, check_bytes
from silofl.data.npz import kept_bytes
from silofl.errors import DataError

# Of computing, not of waiting for a disk or a busy machine: a hang computes.
CPU_SECONDS, CPU_SECONDS_PER_MIB = 2, 4
# A file of zeros of 1 MiB unpacks to 1 GiB; what does so does not hang.
UNPACKING_SECONDS = 120
# Of memory; a file's share covers the best compression and copies on the way. GDCM believes every length that it reads.
BYTES, BYTES_PER_BYTE = 3 << 28, 1 << 11
# glibc then overwrites memory as it is taken and freed, the small pieces too that it keeps for each thread: a decoder
# that reads beyond what a file holds finds nothing of the file before.
OVERWRITTEN = {"MALLOC_PERTURB_": "85", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
# Elsewhere each file has a process of its own.
IS_OVERWRITTEN = platform.libc_ver()[0] == "glibc"
# For what is unpacked, scaled, and added to: a volume of zeros says nothing by its size, and states what it unpacks to.
MOST_BYTES = 4 * MAX_BYTES
# Of requests without an answer: so much a pipe takes while the other process waits until its answer is read.
BATCH_BYTES = select.PIPE_BUF
# Of answers that wait to be read, where the system allows it.
ANSWER_BYTES = 1 << 20
_lock = Lock()
_process: subprocess.Popen[bytes] | None = None
# Requests that the process has and has not answered, and those to be sent behind them.
_waiting: deque[bytes] = deque()
_coming: deque[bytes] = deque()


def build_request(reader: str, path: Path, name: str, **options: object) -> bytes:
    """Return the line that asks for a file.

    Args:
        reader: The module in `silofl.data` and the function in it, as ``pictures.read_picture``.
        path: The file, or the folder of the series.
        name: What messages call it.
        options: What else the function takes.
    """
    request = {"reader": reader, "path": str(path.absolute()), "name": name, "options": options}
    return json.dumps(request).encode() + b"\n"


@contextmanager
def decode_ahead(requests: Iterable[bytes]) -> Iterator[None]:
    """Let the decoders' process work ahead of what is asked for, and end it afterwards.

    Args:
        requests: As `build_request` makes them, in the order in which they will be asked for. One that is left out is
            dropped, and any other file is decoded too.
    """
    if IS_OVERWRITTEN:
        with _lock:
            _coming.extend(requests)
            if _coming:
                # Why it cannot be started is told where a file is asked for.
                with suppress(OSError):
                    _send_batch(_ensure_decoder(), _coming[0])
    try:
        yield
    finally:
        end_decoder()


def decode_in_subprocess(request: bytes) -> Decoded:
    """Decode a file in the decoders' process.

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
            answer, array = _receive_or_end(process)
        if not IS_OVERWRITTEN:
            process.kill()
            process.wait()
    if "refused" in answer:
        raise DataError(answer["refused"])
    if answer.get("errno"):
        raise OSError(answer["errno"], os.strerror(answer["errno"]))
    if array is None:
        raise ValueError(answer["broken"])
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


def _ensure_decoder() -> subprocess.Popen[bytes]:
    global _process
    # What a process has answered before it ended is read first.
    if _process is None or (not _waiting and _process.poll() is not None):
        # Its error output is dropped: the libraries' warnings name full paths.
        _process = subprocess.Popen(
            [sys.executable, "-P", "-m", "silofl.data.decoder"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_build_environment(),
        )
        with suppress(AttributeError, OSError):
            fcntl.fcntl(_process.stdout, fcntl.F_SETPIPE_SZ, ANSWER_BYTES)
    return _process


def _send_batch(process: subprocess.Popen[bytes], request: bytes) -> None:
    """Send a request that was not sent before, and once most of a batch is answered those that come next."""
    batch, room = [], BATCH_BYTES - sum(map(len, _waiting))
    if request not in _waiting:
        if _waiting and len(request) > room:
            return
        if request in _coming:
            while _coming.popleft() != request:
                pass
        batch, room = [request], room - len(request)
    if room > BATCH_BYTES // 2:
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


def _receive_or_end(process: subprocess.Popen[bytes]) -> tuple[dict[str, Any], NDArray | None]:
    """Return the next answer, or how the process ended; what it has not answered is then sent to another one."""
    try:
        return _receive_answer(process.stdout)
    except EOFError:
        reason = _describe_exit(process)
        _put_back()
        return {"broken": reason}, None
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


def _receive_answer(stream: BinaryIO) -> tuple[dict[str, Any], NDArray | None]:
    line = stream.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    answer = json.loads(line)
    if "shape" not in answer:
        return answer, None
    # No pickle: what broken bytes have made of the other process must not spread to this one.
    dtype, shape = np.dtype(answer["dtype"]), answer["shape"]
    check_bytes("a decoded file", shape, dtype.itemsize)
    array = np.empty(shape, dtype)
    if stream.readinto(array.reshape(-1).view(np.uint8)) != array.nbytes:
        raise EOFError
    return answer, array.transpose(np.argsort(answer["order"]))


def _describe_exit(process: subprocess.Popen[bytes]) -> str:
    status = process.wait()
    if status == -signal.SIGXCPU:
        return "it keeps its decoder busy for longer than its size explains"
    return f"its decoder ended with {signal.Signals(-status).name if status < 0 else status}"


def _forget_process() -> None:
    """Leave the process to the one that started it: a fork must not write between its requests."""
    global _process, _lock
    _process, _lock = None, Lock()
    _waiting.clear()
    _coming.clear()


atexit.register(end_decoder)
os.register_at_fork(after_in_child=_forget_process)


def _serve(requests: BinaryIO, answers: BinaryIO) -> None:
    # An interrupted parent closes the requests, or goes on.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _set_limit(resource.RLIMIT_CORE, 0)
    for line in requests:
        request = json.loads(line)
        path, name = Path(request["path"]), request["name"]
        module, function = request["reader"].split(".")
        try:
            if module == "nifti":
                _import_nibabel()
            read = getattr(import_module(f"silofl.data.{module}"), function)
            _limit_resources(path, module)
            decoded = read(path, name, **request["options"])
            _send(answers, decoded)
        except DataError as error:
            _send_line(answers, {"refused": str(error)})
        except MemoryError:
            _send_line(answers, {"broken": "it takes more memory than a decoder may have"})
        except Exception as error:  # decoders raise whatever their libraries raise on broken bytes
            number = error.errno if is_system_error(error) else None
            reason = str(error).replace(str(path), name) or type(error).__name__
            _send_line(answers, {"broken": reason, "errno": number})


def _import_nibabel() -> None:
    """Import nibabel without pydicom, for parts of headers that are not read; with it it takes three times as long."""
    is_dicom_known = "pydicom" in sys.modules
    if not is_dicom_known:
        sys.modules["pydicom"] = None
    import_module("nibabel")
    if not is_dicom_known:
        del sys.modules["pydicom"]


def _limit_resources(path: Path, module: str) -> None:
    size = sum(file.stat().st_size for file in list_files(path))
    is_unpacked = module not in ("pictures", "dicom")
    seconds = (UNPACKING_SECONDS if is_unpacked else CPU_SECONDS) + CPU_SECONDS_PER_MIB * size / 2**20
    memory = MOST_BYTES if is_unpacked else min(BYTES + BYTES_PER_BYTE * size, MOST_BYTES)
    _set_limit(resource.RLIMIT_CPU, math.ceil(time.process_time() + seconds))
    _set_limit(resource.RLIMIT_DATA, kept_bytes() + memory)


def _set_limit(kind: int, value: int) -> None:
    _, highest = resource.getrlimit(kind)
    resource.setrlimit(kind, (value if highest == resource.RLIM_INFINITY else min(value, highest), highest))


def _send(answers: BinaryIO, decoded: Decoded) -> None:
    array = decoded.array
    # In the order of the memory, which the receiver gives back: sums depend on it.
    order = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    affine = None if decoded.affine is None else decoded.affine.tolist()
    stored = np.ascontiguousarray(array.transpose(order))
    # Before the line: what has no bytes, as an array of objects, must not break off behind it.
    content = stored.reshape(-1).view(np.uint8)
    form = {"dtype": stored.dtype.str, "shape": stored.shape, "order": order}
    kind = {key: getattr(decoded, key) for key in KINDS}
    _send_line(answers, {**form, "affine": affine, "kind": kind})
    answers.write(content.data)
    answers.flush()


def _send_line(answers: BinaryIO, values: dict[str, object]) -> None:
    answers.write(json.dumps(values).encode() + b"\n")
    answers.flush()


if __name__ == "__main__":
    # What a library prints must not come between the answers.
    _answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _serve(sys.stdin.buffer, _answers)
