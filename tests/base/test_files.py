import errno
import io
import os
import stat
import zipfile

import pytest
import torch

from silofl.base import files
from silofl.base.errors import ConfigError, DamagedError
from silofl.base.files import (
    UNFINISHED,
    fill_folder,
    hold_lock,
    is_free,
    load_state,
    load_tensors,
    read_json,
    save_state,
    save_tensors,
    write_atomically,
    write_by_torch,
    write_json,
)


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "state.json"
    write_json(path, {"round": 1})

    def fail(stream):
        stream.write(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, fail)
    assert path.read_text() == '{\n "round": 1\n}\n'
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("is_there", [False, True])
def test_a_folder_takes_its_place_once_all_is_written(tmp_path, is_there):
    target = tmp_path / "target"
    if is_there:
        target.mkdir()
    with fill_folder(target) as folder:
        (folder / "inner").mkdir(mode=0o755)
        (folder / "inner" / "a").touch(mode=0o644)
        (folder / "link").symlink_to(tmp_path)
        assert not is_there or not [*target.iterdir()]
    assert {path: stat.S_IMODE(path.stat().st_mode) for path in (target, target / "inner", target / "inner" / "a")} == {
        target: 0o700,
        target / "inner": 0o700,
        target / "inner" / "a": 0o600,
    }
    assert [*tmp_path.iterdir()] == [target]


def test_a_folder_that_cannot_be_filled_leaves_nothing(tmp_path):
    with pytest.raises(OSError, match="full") as failed, fill_folder(tmp_path / "target") as folder:
        (folder / "a").touch()
        raise OSError(errno.ENOSPC, "full")
    assert failed.value.filename == str(tmp_path / "target") and not [*tmp_path.iterdir()]


def test_leftovers_of_killed_processes_go_and_folders_in_use_stay(tmp_path):
    left = tmp_path / f".other.abc{UNFINISHED}"
    left.mkdir()
    (left / "model").touch()
    with fill_folder(tmp_path / "one") as first:
        assert not left.exists()
        with fill_folder(tmp_path / "two"):
            assert first.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


def test_a_disk_without_locks_is_not_a_folder_in_use(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(files.fcntl, "flock", refuse)
    with pytest.raises(ConfigError, match="locks no files .No locks available"):
        with hold_lock(tmp_path / "lock"):
            pass


def test_a_folder_is_free_while_empty_or_absent(tmp_path):
    folder = tmp_path / "new"
    file = tmp_path / "new" / "a"
    assert is_free(folder)
    folder.mkdir()
    assert is_free(folder)
    file.touch()
    assert not is_free(folder) and not is_free(file)


def test_json_refuses_numbers_that_other_programs_cannot_read(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "x.json", {"value": float("nan")})
    assert not (tmp_path / "x.json").exists()


def test_tensors_come_back_with_the_safe_loader(tmp_path):
    save_tensors(tmp_path / "a" / "x.pt", {"w": torch.arange(3), "json": "{}"})
    assert torch.equal(load_tensors(tmp_path / "a" / "x.pt")["w"], torch.arange(3))


def inflating(path):
    """Compress what torch has written, which it does not: torch inflates it all the same."""
    save_tensors(path, {"w": torch.zeros(1 << 20)})
    with zipfile.ZipFile(path) as archive:
        entries = {one.filename: archive.read(one) for one in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return path


class SmallDisk(io.FileIO):
    """A file on a disk that has room for little pieces alone."""

    def write(self, content):
        if len(content) > 1000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(content)


@pytest.mark.parametrize("piece", [1, 2, 4])
def test_an_interruption_while_tensors_are_written_stays_one(tmp_path, piece):
    taken = []

    def interrupt(content):
        taken.append(content)
        if len(taken) == piece:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files._save({"w": torch.zeros(1 << 20)}, interrupt)


@pytest.mark.parametrize("save", [save_tensors, lambda path, value: save_state(path, 1, {}, value)])
def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch, save):
    path = tmp_path / "state.pt"
    value = {"weight": torch.ones(100_000)}
    save(path, value)
    before = path.read_bytes()
    monkeypatch.setattr("silofl.base.files.open_own", SmallDisk)
    with pytest.raises(OSError, match="No space left on device"):
        save(path, value)
    assert path.read_bytes() == before


def save_script(stream):
    torch.jit.save(torch.jit.script(torch.nn.Linear(100, 100)), stream)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_full_disk_ends_no_process_that_writes_a_network(tmp_path, monkeypatch):
    write_by_torch(tmp_path / "whole", save_script)
    monkeypatch.setattr("silofl.base.files.open_own", SmallDisk)
    with pytest.raises(OSError, match="No space left on device"):
        write_by_torch(tmp_path / "network", save_script)
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]


def test_a_pipe_in_a_states_place_is_refused(tmp_path):
    os.mkfifo(tmp_path / "checkpoint.pt")
    with pytest.raises(DamagedError, match="checkpoint.pt cannot be read .a pipe"):
        load_state(tmp_path / "checkpoint.pt", 1, {})


def test_tensors_of_a_file_that_grows_in_memory_are_refused(tmp_path):
    path = inflating(tmp_path / "x.pt")
    assert path.stat().st_size < 1 << 14 and torch.load(path, weights_only=True)["w"].nbytes == 1 << 22
    with pytest.raises(ValueError, match="inflates to"):
        load_tensors(path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "does not exist"),
        ("{", "is broken JSON .Expecting"),
        ("[1]", "must be keys and values, not list"),
        # Python takes the last of two values.
        ('{"site": {"rounds": 3, "seed": 1, "rounds": 4}}', "is broken JSON .*the key 'rounds' stands twice"),
    ],
)
def test_a_json_file_that_cannot_be_read_is_one_sentence(tmp_path, text, sentence):
    path = tmp_path / "a.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=f"a.json {sentence}"):
        read_json(path)


@pytest.mark.parametrize(("value", "kind"), [({"rounds": 3}, dict), ([1], list), (3, int)])
def test_a_json_file_is_read_as_what_is_asked_for(tmp_path, value, kind):
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json", kind) == value
    assert read_json(tmp_path / "b.json", kind, absent=None) is None
