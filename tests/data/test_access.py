import hashlib
import os

import pytest

from silofl.data.access import content_digest, files_of, link_or_copy, open_error, read_bytes
from silofl.errors import DataError


def test_a_file_is_read_whole(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert read_bytes(tmp_path / "a", "a") == b"abc"


@pytest.mark.parametrize("read", [read_bytes, content_digest])
def test_a_missing_file_is_called_missing(tmp_path, read):
    with pytest.raises(DataError, match="images/a.png must exist; it is not there"):
        read(tmp_path / "a.png", "images/a.png")


@pytest.mark.parametrize("read", [read_bytes, content_digest])
def test_an_unreadable_file_is_a_permission_error_not_corrupt_data(tmp_path, deny, read):
    (tmp_path / "a.png").write_bytes(b"abc")
    deny("a.png")
    with pytest.raises(DataError, match="images/a.png must be readable; permission was denied"):
        read(tmp_path / "a.png", "images/a.png")


def test_another_fault_is_told_in_the_systems_words():
    sentence = str(open_error("a.png", OSError(5, "Input/output error")))
    assert sentence.startswith("a.png must be readable; the system said 'Input/output error'")


def test_a_folders_digest_follows_its_files(tmp_path):
    for name in ("2.dcm", "1.dcm"):
        (tmp_path / name).write_bytes(name.encode())
    parts = [hashlib.sha256(name.encode()).digest() for name in ("1.dcm", "2.dcm")]
    assert content_digest(tmp_path, "series") == hashlib.sha256(b"".join(parts)).hexdigest()
    assert [path.name for path in files_of(tmp_path)] == ["1.dcm", "2.dcm"]
    before = content_digest(tmp_path, "series")
    (tmp_path / "2.dcm").write_bytes(b"changed")
    assert content_digest(tmp_path, "series") != before


@pytest.fixture
def no_links(monkeypatch):
    def refuse(*places):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)


def test_a_file_is_linked(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    link_or_copy(tmp_path / "a", tmp_path / "b", "a")
    assert os.path.samefile(tmp_path / "a", tmp_path / "b")


def test_a_file_is_copied_with_its_times_where_there_are_no_links(tmp_path, no_links):
    (tmp_path / "a").write_bytes(b"abc")
    os.utime(tmp_path / "a", ns=(5, 7_000_000_000))
    link_or_copy(tmp_path / "a", tmp_path / "b", "a")
    assert (tmp_path / "b").read_bytes() == b"abc" and not os.path.samefile(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").stat().st_mtime_ns == 7_000_000_000


def test_a_symbolic_link_is_resolved(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("a")
    link_or_copy(tmp_path / "link", tmp_path / "b", "link")
    assert not (tmp_path / "b").is_symlink() and os.path.samefile(tmp_path / "a", tmp_path / "b")


def test_a_file_that_cannot_be_linked_because_it_is_missing_is_called_missing(tmp_path):
    with pytest.raises(DataError, match="images/a.png must exist; it is not there"):
        link_or_copy(tmp_path / "a.png", tmp_path / "b.png", "images/a.png")


def test_a_place_that_cannot_be_written_is_not_blamed_on_the_file(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        link_or_copy(tmp_path / "a", tmp_path / "nowhere" / "b", "a")
