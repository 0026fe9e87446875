"""What SiloFL writes is for its own account alone, and goes where it was meant to go."""

import os
import stat

import pytest

from silofl.base.errors import ConfigError
from silofl.base.files import copy_folder, hold_lock, save_tensors, write_json
from silofl.federation.egress_log import LOCK, EgressLog
from silofl.federation.run_folder import RunFolder
from silofl.federation.state import SiteState
from silofl.training.case_pictures import write_scores
from silofl_hospital.importing.importers import import_layout

from .conftest import set_umask
from .importing.test_table import ROWS, write_site


@pytest.fixture(autouse=True)
def open_umask():
    """The least careful account."""
    with set_umask():
        yield


def modes_below(root):
    """Return the modes of all files and folders below a folder that others can reach."""
    found = {}
    for path in root.iterdir():
        mode = stat.S_IMODE(path.lstat().st_mode)
        found[path.name] = mode
        if path.is_dir() and mode & 0o077:
            found |= {f"{path.name}/{name}": inner for name, inner in modes_below(path).items()}
    return found


def test_a_file_and_its_new_folders_are_for_their_owner(tmp_path):
    write_json(tmp_path / "a" / "b" / "scores.json", {})
    save_tensors(tmp_path / "model.pt", {})
    assert modes_below(tmp_path) == {"a": 0o700, "model.pt": 0o600}
    assert stat.S_IMODE((tmp_path / "a" / "b" / "scores.json").stat().st_mode) == 0o600


def test_a_folder_that_was_there_keeps_its_mode(tmp_path):
    (tmp_path / "own").mkdir(mode=0o755)
    write_json(tmp_path / "own" / "a.json", {})
    assert modes_below(tmp_path) == {"own": 0o755, "own/a.json": 0o600}


def test_a_file_that_others_could_read_is_closed_when_it_is_written_again(tmp_path):
    (tmp_path / "a.json").write_text("{}")
    write_json(tmp_path / "a.json", {})
    assert modes_below(tmp_path) == {"a.json": 0o600}


def test_an_imports_files_are_for_their_owner(tmp_path):
    for site in ("north", "south"):
        write_site(tmp_path / "source" / site, ROWS)
    import_layout("table", tmp_path / "source", tmp_path / "target")
    found = {
        path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "target", *(tmp_path / "target").rglob("*"))
    }
    assert len(found) > 20 and all(mode == (0o700 if path.is_dir() else 0o600) for path, mode in found.items())


def test_runs_and_states_are_for_their_owner(tmp_path, make_study):
    with RunFolder(tmp_path / "server" / "run", make_study()).locked():
        SiteState(tmp_path / "site" / "rounds", "run", "east").save(1, {}, 0, None)
        EgressLog(tmp_path / "log" / "run")
        write_scores(tmp_path / "pictures" / "scores.csv", {})
    assert modes_below(tmp_path) == dict.fromkeys(("server", "site", "log", "pictures"), 0o700)


def test_a_copied_folder_is_for_its_owner_whoever_may_read_what_it_is_of(tmp_path):
    source, elsewhere = tmp_path / "job", tmp_path / "elsewhere.json"
    (source / "app" / "config").mkdir(mode=0o777, parents=True)
    for name in ("meta.json", "app/config/study.yaml", "app/config/start.pt"):
        (source / name).write_text(name)
    elsewhere.write_text("linked")
    (source / "link.json").symlink_to(elsewhere)
    copy = copy_folder(source, tmp_path / "copy", "*.pt")
    modes = {str(path.relative_to(copy)): stat.S_IMODE(path.lstat().st_mode) for path in copy.rglob("*")}
    files = {"meta.json": 0o600, "app/config/study.yaml": 0o600, "link.json": 0o600}
    assert modes == {"app": 0o700, "app/config": 0o700} | files
    assert (copy / "app" / "config" / "study.yaml").read_text() == "app/config/study.yaml"
    assert (copy / "link.json").read_text() == "linked" and not (copy / "link.json").is_symlink()


def test_a_pipe_in_a_copied_folder_is_refused_and_not_waited_for(tmp_path):
    (tmp_path / "job").mkdir()
    os.mkfifo(tmp_path / "job" / "pipe")
    with pytest.raises(OSError, match="a pipe"):
        copy_folder(tmp_path / "job", tmp_path / "copy")


@pytest.mark.parametrize("take", [lambda path: hold_lock(path).__enter__(), lambda path: EgressLog(path.parent)])
def test_a_lock_is_not_opened_through_a_link(tmp_path, take):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / LOCK).symlink_to(victim)
    with pytest.raises(ConfigError, match=f"{LOCK} is a link; remove it"):
        take(tmp_path / LOCK)
    assert victim.read_text() == "precious"


def test_nothing_is_written_through_a_link_in_place_of_the_temporary_file(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / f".a.json.{os.getpid()}.tmp").symlink_to(victim)
    write_json(tmp_path / "a.json", {})
    assert victim.read_text() == "precious" and not (tmp_path / "a.json").is_symlink()


def test_the_record_of_what_leaves_is_not_written_through_a_link(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("")
    log = EgressLog(tmp_path / "run")
    (tmp_path / "run" / "egress.jsonl").symlink_to(victim)
    with pytest.raises(ConfigError, match="egress.jsonl is a link"):
        log.write([{"round": 1, "task": "train", "kind": "weights", "purpose": "", "refused": False}])
    assert victim.read_text() == ""
