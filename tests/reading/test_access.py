import hashlib
import os
import resource
import socket

import pytest

from silofl.base.errors import DataError
from silofl.reading.access import content_digest, link_or_copy, list_files, read_bytes
from silofl.reading.decoder import end_decoder
from silofl.reading.images import read_image


@pytest.fixture
def file(tmp_path):
    (tmp_path / "a.png").write_bytes(b"abc")
    return tmp_path / "a.png"


@pytest.mark.parametrize("read", [read_bytes, content_digest])
def test_missing_and_unreadable_files_are_no_corrupt_data(file, deny, read):
    assert read(file, "a.png") in (b"abc", hashlib.sha256(b"abc").hexdigest())
    with pytest.raises(DataError, match="images/b.png is not there"):
        read(file.with_name("b.png"), "images/b.png")
    deny("a.png")
    with pytest.raises(DataError, match="images/a.png cannot be read: permission was denied"):
        read(file, "images/a.png")


@pytest.fixture
def make_special(tmp_path):
    """Make a pipe, a socket or a device, or a link to one; opening the first would wait for a writer for good."""

    def make(kind, name):
        path = tmp_path / name
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "socket":
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(str(path))
        else:
            path.symlink_to("/dev/zero")
        return path

    return make


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
def test_what_is_no_file_is_refused_at_once(make_special, tmp_path, kind):
    path = make_special(kind, "a.png")
    for read in (read_bytes, content_digest, read_image):
        with pytest.raises(DataError, match=f"images/a.png is a {kind}"):
            read(path, "images/a.png")
    with pytest.raises(DataError, match=f"series is a {kind}"):
        read_image(tmp_path, "series")


@pytest.mark.parametrize("name", ["a.png", "a.nii", "a.mha", "a.npz"])
def test_too_many_open_files_are_no_fault_of_the_data(tmp_path, name):
    end_decoder()
    (tmp_path / name).write_bytes(b"x")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with (tmp_path / name).open("rb") as last:
        resource.setrlimit(resource.RLIMIT_NOFILE, (last.fileno() + 1, limits[1]))
        try:
            with pytest.raises(DataError, match=f"{name} cannot be opened: too many files are open .*ulimit -n"):
                read_image(tmp_path / name, index=0)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_folders_digest_follows_its_files(tmp_path):
    for name in ("2.dcm", "1.dcm"):
        (tmp_path / name).write_bytes(name.encode())
    parts = [hashlib.sha256(name.encode()).digest() for name in ("1.dcm", "2.dcm")]
    assert content_digest(tmp_path, "series") == hashlib.sha256(b"".join(parts)).hexdigest()
    assert [path.name for path in list_files(tmp_path)] == ["1.dcm", "2.dcm"]


@pytest.mark.parametrize("has_links", [True, False])
def test_a_file_is_linked_or_copied_with_its_times(file, monkeypatch, has_links):
    def refuse(*places):
        raise OSError(18, "Invalid cross-device link")

    if not has_links:
        monkeypatch.setattr(os, "link", refuse)
    os.utime(file, ns=(5, 7_000_000_000))
    file.with_name("link").symlink_to("a.png")
    for name in ("a.png", "link"):
        target = file.with_name(f"of {name}")
        link_or_copy(file.with_name(name), target, name)
        assert target.read_bytes() == b"abc" and not target.is_symlink()
        assert os.path.samefile(file, target) == has_links and target.stat().st_mtime_ns == 7_000_000_000
