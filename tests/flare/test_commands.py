import shlex
import sys
import tempfile
from pathlib import Path

import pytest

from silofl.base.errors import ConfigError
from silofl.flare.commands import check_start, find_cut, whole_path


@pytest.mark.parametrize("name", ["a b", "a\nb", "a'b", 'a"b', "a\\b", "a#b"])
def test_path_is_cut_where_a_shell_would_cut(name):
    assert find_cut(f"/tmp/{name}/kit") == name[1]
    assert not is_whole(f"/tmp/{name}/kit")


@pytest.mark.parametrize("name", ["Übung", "a;b", "a$b", "a*b", "a(b)", "~a"])
def test_all_other_paths_are_whole(name):
    assert find_cut(f"/tmp/{name}/kit") is None
    assert is_whole(f"/tmp/{name}/kit")


def is_whole(path):
    try:
        # As NVFlare splits its commands: with comments.
        return shlex.split(f"python -o {path} -x", True) == ["python", "-o", path, "-x"]
    except ValueError:
        return False


def test_only_a_cut_path_is_reached_through_a_link(tmp_path):
    with whole_path(tmp_path) as path:
        assert path == tmp_path
    folder = tmp_path / "My Projects"
    folder.mkdir()
    with whole_path(folder) as path:
        assert find_cut(path) is None and path.resolve() == folder
        (path / "new").touch()
    assert (folder / "new").is_file() and not path.parent.exists()


def test_cut_temporary_folder_is_refused(tmp_path, monkeypatch):
    (tmp_path / "my temp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "my temp"))
    with pytest.raises(ConfigError, match="TMPDIR, must have no ' '.*my temp"), whole_path(tmp_path / "my temp"):
        pass


def test_kit_starts_not_below_a_blank(tmp_path, monkeypatch):
    check_start(tmp_path)
    with pytest.raises(ConfigError, match="path of the kit must have no ' '.*My Kits"):
        check_start(tmp_path / "My Kits")
    monkeypatch.setattr(sys, "executable", "/opt/my venv/bin/python")
    with pytest.raises(ConfigError, match="path of Python must have no ' '.*my venv"):
        check_start(Path("/opt"))
