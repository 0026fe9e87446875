import errno
import json
import os
import subprocess
import sys

import nibabel
import numpy as np
import psutil
import pydicom
import pytest
from PIL import Image as Picture

from silofl.base.errors import DataError, Faults
from silofl.reading import decoder
from silofl.reading.formats import build_file_request
from silofl.reading.images import read_image
from tests.data.conftest import assert_refused

GREY = np.random.default_rng(0).integers(0, 256, (30, 50), dtype=np.uint8)


@pytest.fixture
def picture(tmp_path):
    Picture.fromarray(GREY).save(tmp_path / "a.png")
    decoder.end_decoder()
    yield tmp_path / "a.png"
    decoder.end_decoder()


def test_one_process_decodes_file_after_file(picture, tmp_path):
    read_image(picture)
    first = decoder._process.pid
    (tmp_path / "b.png").write_bytes(picture.read_bytes()[:100])
    assert_refused("b.png is truncated or corrupt", tmp_path / "b.png")
    np.testing.assert_array_equal(read_image(picture).array, GREY[None])
    assert decoder._process.pid == first


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ({"broken": "", "errno": errno.EIO}, "a.png cannot be read: the system said 'Input/output error'"),
        ({"broken": "", "errno": errno.EMFILE}, "a.png cannot be opened: too many files are open"),
        ({"broken": "no chunk", "errno": None}, "a.png is truncated or corrupt .*no chunk"),
    ],
)
def test_a_disk_that_fails_is_no_fault_of_the_file(picture, start_decoders, answer, sentence):
    start_decoders(f"import sys; sys.stdin.readline(); print({json.dumps(answer)!r}, flush=True)")
    assert_refused(sentence, picture)


def test_a_fork_leaves_the_process_alone(picture):
    read_image(picture)
    if (child := os.fork()) == 0:
        os._exit(decoder._process is not None)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    np.testing.assert_array_equal(read_image(picture).array, GREY[None])


def test_the_order_in_memory_is_kept(tmp_path):
    # (rows, columns, colours) in memory: means of other orders differ in the last bit.
    Picture.fromarray(np.stack([GREY, GREY + 1, GREY + 2], axis=-1)).save(tmp_path / "a.png")
    assert np.moveaxis(read_image(tmp_path / "a.png").array, 0, -1).flags.c_contiguous


def test_the_process_ends_with_the_one_that_started_it(picture):
    code = (
        "import os, sys; from pathlib import Path; from silofl.reading import decoder\n"
        "request = decoder.build_request('pictures.unpack_picture', Path(sys.argv[1]), 'a', is_label=False)\n"
        "decoder.decode_in_subprocess(request); print(decoder._process.pid, flush=True); os._exit(0)"
    )
    output = subprocess.run([sys.executable, "-c", code, str(picture)], capture_output=True, text=True, check=True)
    psutil.wait_procs(_running(int(output.stdout)), timeout=20)
    assert not _running(int(output.stdout))


HOSTILE = (
    "import os; from silofl.reading import decoder_process, pictures\n"
    "decoder_process.CPU_SECONDS, read = 1, pictures.unpack_picture\n"
    "def read_hostile(path, name, **options):\n"
    "    if name == 'crashes.png': os.kill(os.getpid(), 11)\n"
    "    while name == 'hangs.png': pass\n"
    "    if name == 'bomb.png': bytearray(8 << 30)\n"
    "    return read(path, name, **options)\n"
    "pictures.unpack_picture = read_hostile\n"
    "decoder_process.main()"
)
HOW_IT_ENDS = {
    "crashes.png": "^crashes.png is truncated or corrupt.*ended with SIGSEGV",
    "hangs.png": "^hangs.png is truncated or corrupt.*keeps its decoder busy",
    "bomb.png": "^bomb.png is truncated or corrupt.*takes too much memory",
}


@pytest.fixture
def start_decoders(monkeypatch):
    """Start decoders that run a code of the test, and return all that were started."""
    start, started = decoder.Decoder, []

    def begin(code):
        def popen(command, **options):
            started.append(start([*command[:3], "-c", code], **options))
            return started[-1]

        monkeypatch.setattr(decoder, "Decoder", popen)
        decoder.end_decoder()
        return started

    yield begin
    decoder.end_decoder()


def _write_pictures(folder, names):
    """Write a picture of its own for each name; returns path -> its pixels."""
    rng, pictures = np.random.default_rng(0), {}
    for name in names:
        pixels = rng.integers(0, 256, (30, 50), dtype=np.uint8)
        Picture.fromarray(pixels).save(folder / name)
        pictures[folder / name] = pixels
    return pictures


def _ahead(paths):
    return decoder.decode_ahead([build_file_request(path, path.name, None, False) for path in paths])


def _read_each(files, **reasons):
    """Check that files that are decoded ahead are read as they were written, or refused for a reason by their name."""
    with _ahead(files):
        for path, wanted in files.items():
            if reason := reasons.get(path.name):
                assert_refused(reason, path)
            else:
                np.testing.assert_array_equal(read_image(path).array[0], wanted)


def test_hostile_files_within_a_batch_cost_themselves_alone(tmp_path, start_decoders):
    started = start_decoders(HOSTILE)
    pictures = _write_pictures(tmp_path, ["a.png", "crashes.png", "b.png", "hangs.png", "bomb.png", "c.png"])
    _read_each(pictures, **HOW_IT_ENDS)
    # The second after the crash, the third after the hang; the bomb is refused.
    assert len(started) == 3


def test_a_hostile_file_is_not_told_of_the_next_one(tmp_path, start_decoders):
    start_decoders(HOSTILE)
    pictures = _write_pictures(tmp_path, ["a.png", "crashes.png", "c.png"])
    with _ahead(pictures):
        for name in ("a.png", "c.png"):
            np.testing.assert_array_equal(read_image(tmp_path / name).array[0], pictures[tmp_path / name])


def test_files_are_decoded_before_they_are_asked_for(tmp_path):
    pictures = _write_pictures(tmp_path, [f"{number}.png" for number in range(5)])
    with _ahead(pictures):
        read_image(tmp_path / "0.png")
        # The second answer comes though nobody has asked for it.
        assert decoder._process.stdout.peek(1)
        assert len(decoder._waiting) == 4
    assert decoder._process is None and not decoder._waiting


def test_files_larger_than_a_pipe_do_not_wait(tmp_path):
    # 70 requests of 500 bytes and answers of 150 kB are more than the two pipes hold.
    folder = tmp_path / ("f" * 200) / ("g" * 200)
    folder.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (300, 500), dtype=np.uint8)
    pictures = {folder / f"{number}.png": pixels for number in range(70)}
    for path in pictures:
        Picture.fromarray(pixels).save(path, compress_level=0)
    _read_each(pictures)


UNCHECKED = (
    "from silofl.reading import decoder_process, dicom\n"
    "dicom.judge_size = lambda header: iter(())\n"
    "decoder_process.main()"
)


def _write_short(write_dicom, folder, size, frames, held):
    """Write a file that says that it has more frames than it holds."""
    path = write_dicom(folder, np.zeros((size, size, 1), np.int16)) / "99.dcm"
    data = pydicom.dcmread(path)
    data.SpacingBetweenSlices = 2
    data.NumberOfFrames, data.PixelData = frames, data.PixelData[: int(size * size * 2 * held)]
    data.save_as(path)
    return path


@pytest.mark.parametrize(
    ("size", "frames", "held", "is_ahead"),
    [(64, 18, 1, True), (64, 1, 0.5, False), (8, 4, 1, True), (256, 18, 1, False)],
)
def test_a_short_file_brings_nothing_of_another(start_decoders, write_dicom, tmp_path, size, frames, held, is_ahead):
    # They do not look whether all pixels are there.
    start_decoders(UNCHECKED)
    patient = np.random.default_rng(0).integers(500, 2000, (size, size, 18)).astype(np.int16)
    series = write_dicom(tmp_path / "series", patient)
    short = _write_short(write_dicom, tmp_path / "short", size, frames, held)
    with _ahead([series, short] * 2 * is_ahead):
        for _ in range(2):
            np.testing.assert_array_equal(read_image(series).array[0], patient)
            with pytest.raises(DataError, match="99.dcm is truncated or corrupt"):
                read_image(short)


def test_one_process_reads_nifti_and_dicom(write_dicom, tmp_path):
    # nibabel imports pydicom where it can.
    array = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    nibabel.save(nibabel.Nifti1Image(array, np.eye(4)), tmp_path / "a.nii.gz")
    series = write_dicom(tmp_path / "series", array)
    decoder.end_decoder()
    for path in (tmp_path / "a.nii.gz", series, tmp_path / "a.nii.gz"):
        np.testing.assert_array_equal(read_image(path).array[0], array)


def _running(pid):
    try:
        process = psutil.Process(pid)
        return [process] * (process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return []


def test_faults_that_the_process_met_at_different_places_are_different_causes(tmp_path):
    faults = Faults()
    header = "ObjectType = Image\nNDims = 3\nDimSize = {}\nElementType = MET_UCHAR\nElementDataFile = {}\n"
    for number, values in enumerate((("4 4 4", "a.raw"), ("4 4 4", "b.raw"), ("4096 4096 4096", "LOCAL"))):
        path = tmp_path / f"{number}.mha"
        path.write_text(header.format(*values))
        with faults.collect_fault():
            read_image(path, path.name)
    told = faults.describe()
    assert (
        told.startswith("3 faults: (1) 0.mha skips bytes")
        and "(and 1 more of this kind). (2) 2.mha takes 64 GiB" in told
    )
