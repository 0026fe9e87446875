import pytest
import torch

from silofl.files import load_tensors, save_tensors, write_atomically, write_json


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "state.json"
    write_json(path, {"round": 1})

    def fail(stream):
        stream.write(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, fail)
    assert path.read_text() == '{\n "round": 1\n}\n'
    assert list(tmp_path.iterdir()) == [path]


def test_json_refuses_numbers_that_other_programs_cannot_read(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "x.json", {"value": float("nan")})
    assert not (tmp_path / "x.json").exists()


def test_tensors_come_back_with_the_safe_loader(tmp_path):
    save_tensors(tmp_path / "a" / "x.pt", {"w": torch.arange(3), "json": "{}"})
    assert torch.equal(load_tensors(tmp_path / "a" / "x.pt")["w"], torch.arange(3))
