"""Fuzzers: whatever is given, the answer is a value or one sentence, in bounded time and memory.

``make test-fuzz`` runs them; the same examples every time. ``--hypothesis-profile=long`` tries 5,000 of each.
"""

import io
import resource
import struct
import sys
import time
import zipfile
import zlib
from contextlib import contextmanager, suppress
from copy import deepcopy
from pathlib import Path

import pytest

from silofl.base.errors import SiloFLError
from silofl.command_line.cli import main
from silofl.reading.decoder import end_decoder

# Of each fuzzer; all fuzzers together stay below 2,000.
EXAMPLES = 50
SECONDS = 5
MEMORY = 2 << 30


def pytest_configure(config):
    """Say how fuzzers are run, where they are: hypothesis looks through all of the package, which takes seconds."""
    if "not fuzz" in config.option.markexpr:
        return
    from hypothesis import HealthCheck, Phase, settings

    # To find the smallest example would run some commands for many minutes.
    phases = [Phase.explicit, Phase.generate]
    quiet = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck), "phases": phases}
    settings.register_profile("fuzz", max_examples=EXAMPLES, derandomize=True, **quiet)
    settings.register_profile("long", max_examples=100 * EXAMPLES, **quiet)
    settings.load_profile("fuzz")


_opened: list[str] | None = None


def _remember(event, arguments):
    if event == "open" and _opened is not None:
        _opened.append(str(arguments[0]))


# It cannot be taken away again, and so is added once, and remembers only what it is asked to.
sys.addaudithook(_remember)


@contextmanager
def files_opened():
    """Collect the names of the files that this process opens meanwhile."""
    global _opened
    _opened = found = []
    try:
        yield found
    finally:
        _opened = None


@contextmanager
def in_time(seconds=SECONDS):
    """Check that work took no longer: so much of a processor, and on a machine that others use too ten times that."""
    start, used = time.monotonic(), time.process_time()
    yield
    assert time.process_time() - used < seconds and time.monotonic() - start < 10 * seconds


@contextmanager
def one_sentence(*private):
    """Let a refusal pass, and check it: one sentence, in time, without what must not leave a site.

    Yields:
        A list that holds the refusal afterwards, if there was one. Any other exception fails the test.
    """
    refusals = []
    with in_time():
        try:
            yield refusals
        except SiloFLError as error:
            refusals.append(error)
            sentence = str(error)
            assert sentence.strip() and "\n" not in sentence and "Traceback" not in sentence
            assert not any(text in sentence for text in private)


# Values that no file of ours holds at most places.
NASTY = [None, True, -1, 0, 1.5, -0.5, 10**30, 1e300, "", "x", "é\n", "\ud800", "../x", "9" * 500]
NASTY += [[], {}, [[]], {"a": None}]


def places(value, path=()):
    """Return the path of keys and positions to every value within a value, itself included."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, each in inner for place in places(each, (*path, key)))]


def altered(value, random):
    """Return JSON's value with one or two of its inner values replaced, removed, renamed or twice there."""
    value = deepcopy(value)
    for _ in range(random.choice([1, 1, 2])):
        *path, last = random.choice([path for path in places(value) if path] or [(None,)])
        if last is None:
            return value
        parent = value
        for key in path:
            parent = parent[key]
        change = random.choice(["remove", "rename", "replace", "replace"])
        if change == "remove":
            del parent[last]
        elif change == "replace":
            parent[last] = deepcopy(random.choice(NASTY))
        elif isinstance(parent, dict):
            parent[random.choice(["", "x", "\ud800", f"{last}s"])] = parent.pop(last)
        else:
            parent.append(deepcopy(parent[last]))
    return value


def build_dicom(numbers, pixels, syntax="1.2.840.10008.1.2.1"):
    """Return a DICOM file of its numbers by their tags, which are of group 28."""
    uid = syntax.encode() + b"\0" * (len(syntax) % 2)
    element = struct.pack("<HH2sH", 2, 0x10, b"UI", len(uid)) + uid
    meta = struct.pack("<HH2sHI", 2, 0, b"UL", 4, len(element)) + element
    body = b"".join(
        # The number of frames is a text.
        struct.pack("<HH2sH", 0x28, tag, *((b"IS", 10)) if tag == 8 else (b"US", 2))
        + (f"{number:<10}".encode() if tag == 8 else struct.pack("<H", number))
        for tag, number in sorted(numbers.items())
    )
    end = struct.pack("<HH2sHI", 0x7FE0, 0x10, b"OW", 0, len(pixels)) + pixels
    return b"\0" * 128 + b"DICM" + meta + body + end


def build_png(size, pixels, form=(8, 0, 0), others=()):
    """Return a PNG of a size (width, height) and a form (bits, kind of colours, interlacing), with other chunks."""
    head = struct.pack(">IIBBBBB", *size, *form[:2], 0, 0, form[2])
    chunks = [(b"IHDR", head), *others, (b"IDAT", zlib.compress(pixels)), (b"IEND", b"")]
    parts = [struct.pack(">I", len(c)) + t + c + struct.pack(">I", zlib.crc32(t + c)) for t, c in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def build_npz(shape, descr, content, key="images"):
    """Return an archive of one array, of which its header says a shape and a type."""
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}}}\n".encode()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{key}.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content)
    return file.getvalue()


def ends_well(arguments, capsys, seconds=SECONDS):
    """Run a command line, check that it does its work or prints one sentence, in time, and return its exit code."""
    with in_time(seconds):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as ending:
            code = ending.code
    out, error = capsys.readouterr()
    assert code in (0, 1, 2, 3) and "Traceback" not in out + error
    if code == 2:
        assert error.startswith("silofl") and error.count("\n") == 1 and len(error) < 2000
    return code


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Write surrogates in what is said of a failure as escapes: pytest-xdist cannot send them."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    if report.failed:
        report.longrepr = str(report.longrepr).encode(errors="backslashreplace").decode()
    return report


def _peak(whose):
    # In KiB on Linux.
    return resource.getrusage(whose).ru_maxrss << 10


@pytest.fixture(autouse=True)
def decoding():
    """Decode files in the decoders' process, as sites do."""


@pytest.fixture(autouse=True)
def bounded_memory(request):
    """Check that neither this process nor a decoder's took more than `MEMORY` during the test."""
    # torch keeps memory of each script that it traces, and one process traces dozens here.
    limit = MEMORY * (2 if "[export]" in request.node.name else 1)
    # The peak of this process starts again: tests before this one may have had a larger one, which would hide it.
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    before, earlier = _peak(resource.RUSAGE_SELF), _peak(resource.RUSAGE_CHILDREN)
    yield
    end_decoder()
    after = _peak(resource.RUSAGE_SELF)
    assert after - before < limit
    # Of all children that have ended, from before this test too; and each starts with the peak of its parent.
    assert _peak(resource.RUSAGE_CHILDREN) <= max(MEMORY, earlier, after)
